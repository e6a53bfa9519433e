// Feeds arbitrary bytes to the reader of profiles, as the file of the machine and as that of a drive. A file
// is used or reported, and what is used can be kept again. "@KEY" in an input stands for this machine's key
// or the drive's, which nobody could guess.
#include <cmath>
#include <cstring>

#include "engine/measure/profile_drives.hpp"
#include "input.hpp"
#include "sluice/error.hpp"
#include "sluice/profile.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"

namespace {

using namespace sluice;
using fuzz::require;
namespace fs = std::filesystem;

/// A folder that keeps a profile of this machine and of the drive of one file.
class Kept {
 public:
  Kept() {
    test::write_bytes(dir_ / "model.gguf", "GGUF", 4);
    options_.path = dir_ / "model.gguf";
    options_.n_threads = 1;
    Profile profile;
    profile.machine = MachineProfile{};
    profile.machine->machine = machine_info();
    profile.machine->memory.n_threads = 1;
    profile.machine->memory.read_bytes_per_second = 1e9;
    profile.machine->kernels = {{"Q4_K", 1, 1e9}};
    profile.drives = engine::find_drives(options_);
    for (DriveProfile& drive : profile.drives) {
      drive.random = {{4096, 1, 1e8}, {4096, 8, 4e8}};
      drive.sequential = {1u << 20, 2, 1e9};
      drive.caveat.clear();
    }
    save_profile(profile, folder());
    for (const auto& entry : fs::directory_iterator(folder())) {
      const std::string text = test::read_text(entry.path());
      const std::size_t begin = text.find("\"key\": ") + std::strlen("\"key\": ");
      files_.push_back({entry.path(), text.substr(begin, text.find('}', begin) + 1 - begin)});
    }
    require(files_.size() == 1 + profile.drives.size() && !profile.drives.empty(), "no profile was kept");
  }

  void put(std::string_view content) const {
    for (const File& file : files_) {
      std::string text(content);
      if (const std::size_t at = text.find("@KEY"); at != std::string::npos) text.replace(at, 4, file.key);
      test::write_bytes(file.path, text.data(), text.size());
    }
  }
  fs::path folder() const { return dir_ / "profile"; }
  const ProfileOptions& options() const { return options_; }

 private:
  struct File {
    fs::path path;
    std::string key;
  };
  test::TempDir dir_;
  ProfileOptions options_;
  std::vector<File> files_;
};

void check_profile(const Profile& profile) {
  if (profile.machine) {
    require(profile.machine->memory.read_bytes_per_second > 0, "a rate of memory is none");
    for (const KernelRate& kernel : profile.machine->kernels)
      require(std::isfinite(kernel.products_per_second) && kernel.products_per_second > 0, "a rate is none");
  }
  for (const DriveProfile& drive : profile.drives) {
    require(drive.has_rates() && best(drive.random) && knee(drive.random), "a drive without rates");
    for (const ReadRate& rate : drive.random)
      require(std::isfinite(rate.bytes_per_second) && rate.bytes_per_second > 0, "a rate is none");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Kept kept;
  kept.put({reinterpret_cast<const char*>(data), size});
  std::size_t n_warnings = 0;
  const Profile profile =
      load_profile(kept.options(), kept.folder(), INT64_MAX, [&](const std::string&) { ++n_warnings; });
  const std::size_t n_used = profile.drives.size() + (profile.machine ? 1 : 0);
  require(n_used + n_warnings == 1 + engine::find_drives(kept.options()).size(),
          "a file is neither used nor reported");
  check_profile(profile);
  if (n_used == 0) return 0;
  save_profile(profile, kept.folder());
  const Profile again = load_profile(kept.options(), kept.folder(), INT64_MAX);
  require(again.machine.has_value() == profile.machine.has_value(), "a profile of memory is not kept");
  if (again.machine) {
    require(again.machine->memory.read_bytes_per_second == profile.machine->memory.read_bytes_per_second &&
                again.machine->kernels.size() == profile.machine->kernels.size(),
            "a profile of memory changes when it is kept");
  }
  for (std::size_t i = 0; i < profile.drives.size(); ++i) {
    require(again.drives.at(i).random.size() == profile.drives[i].random.size() &&
                best(again.drives[i].random)->bytes_per_second ==
                    best(profile.drives[i].random)->bytes_per_second,
            "a profile of a drive changes when it is kept");
  }
  return 0;
}
