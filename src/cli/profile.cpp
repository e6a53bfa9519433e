#include "cli/profile.hpp"

#include <fmt/core.h>

#include <ctime>

#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/json.hpp"
#include "cli/models.hpp"

namespace sluice::cli {
namespace {

constexpr double k_day_seconds = 86400;

}  // namespace

Stats profiled_stats(const Model& model, IoBackend io) {
  Stats stats = model.stats();
  add_profiled_rates(stats, io, profile_folder());
  return stats;
}

int profile(const ProfileCommand& command, Output& output) {
  ProfileOptions options = command.options;
  ProfileReport report;
  if (!command.model.empty()) {
    std::error_code no_folder;
    try {
      options.path = std::filesystem::is_directory(command.model, no_folder)
                         ? std::filesystem::path(command.model)
                         : find_model(command.model);
    } catch (const Error& error) {
      // Memory and kernels can be measured all the same.
      report.problem = error.what();
    }
  }
  const std::filesystem::path folder = profile_folder();
  Profile known;
  if (!command.refresh && !folder.empty()) {
    const auto max_age = static_cast<std::int64_t>(command.max_age_days * k_day_seconds);
    known = load_profile(options, folder, max_age, print_warning);
  }
  const std::int64_t begin = std::time(nullptr);
  report.profile = measure_profile(options, known, [](const std::string& what) {
    print_error_text(fmt::format("measuring: {}\n", base::printable(what)));
  });
  report.now = std::time(nullptr);
  Profile fresh = report.profile;
  std::erase_if(fresh.drives, [begin](const DriveProfile& drive) { return drive.measured_at < begin; });
  if (fresh.machine && fresh.machine->measured_at < begin) fresh.machine.reset();
  if (folder.empty()) {
    print_warning("the results are not kept: neither XDG_CACHE_HOME nor HOME names a folder");
  } else {
    report.folder = folder.string();
    try {
      save_profile(fresh, folder);
    } catch (const Error& error) {
      report.folder.clear();
      print_warning(fmt::format("the results are not kept: {}", error.what()));
    }
  }
  if (command.json) {
    output.write(profile_json(report));
  } else {
    output.print(profile_table(report));
  }
  const int status = exit_status(output);
  return status == k_exit_ok && !report.problem.empty() ? k_exit_error : status;
}

}  // namespace sluice::cli
