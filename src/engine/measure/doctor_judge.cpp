#include "engine/measure/doctor_judge.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/units.hpp"

namespace sluice {

const char* severity_name(Severity severity) noexcept {
  switch (severity) {
    case Severity::ok:
      return "ok";
    case Severity::note:
      return "note";
    case Severity::warning:
      return "warning";
    case Severity::problem:
      break;
  }
  return "problem";
}

namespace engine {
namespace {

using base::format_bytes;

/// Descriptors that the program itself, a profile and the heat file take, rounded up.
constexpr std::uint64_t k_own_files = 64;
/// Of each shard: a buffered and a direct one.
constexpr std::uint64_t k_files_per_shard = 2;
/// Kernels before this charge rings to the limit of locked memory.
constexpr int k_uring_free_major = 5, k_uring_free_minor = 12;
constexpr std::uint64_t k_uring_locked_bytes = std::uint64_t{1} << 20;
/// Kernels before this have no io_uring that reads into any memory.
constexpr int k_uring_major = 5, k_uring_minor = 6;
/// Percent of the time that something waits for memory: more is felt, and much more is thrashing.
constexpr double k_pressure_note = 1, k_pressure_warning = 10;
constexpr double k_hot_celsius = 95;
/// A drive that answers random reads faster does not rotate, whatever it says: a seek takes milliseconds.
constexpr double k_no_rotation_rate = 300e6;
constexpr std::uint64_t k_little_space_bytes = std::uint64_t{1} << 30;
constexpr double k_day_seconds = 86400;

constexpr std::array<std::string_view, 12> k_network_file_systems = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "ncpfs"};

bool is_network(std::string_view file_system) {
  if (std::find(k_network_file_systems.begin(), k_network_file_systems.end(), file_system) !=
      k_network_file_systems.end())
    return true;
  return file_system == "fuse.sshfs" || file_system == "fuse.glusterfs" || file_system == "fuse.rclone" ||
         file_system == "fuse.s3fs";
}

class Judge {
 public:
  explicit Judge(const DoctorFacts& facts) : facts_(facts), health_(facts.health) {}

  std::vector<Finding> run() && {
    if (facts_.model) {
      model(*facts_.model);
      drive(*facts_.model);
    }
    uring();
    memory();
    cores();
    swap();
    huge_pages();
    limits();
    heat();
    profile();
    return std::move(findings_);
  }

 private:
  void add(Severity severity, const char* topic, std::string text, std::string cure = {}) {
    findings_.push_back({severity, topic, std::move(text), std::move(cure)});
  }

  bool kernel_before(int major, int minor) const {
    if (health_.kernel_major == 0) return false;
    return health_.kernel_major < major || (health_.kernel_major == major && health_.kernel_minor < minor);
  }

  void model(const ModelHealth& model) {
    if (!model.damage.empty()) {
      add(Severity::problem, "model", model.damage,
          model.damage_says_cure ? "" : "download it again, or all of its shards into one folder");
      return;
    }
    if (model.missing_bytes != 0) {
      add(Severity::problem, "model",
          fmt::format("{} is incomplete: {} of its tensors are missing at the end", model.path,
                      format_bytes(model.missing_bytes)),
          "resume the download or download it again; 'sluice plan' works with what is there");
      return;
    }
    if (!model.unsupported.empty()) {
      add(Severity::problem, "model", model.unsupported, "use a model that 'sluice inspect' calls runnable");
      return;
    }
    add(Severity::ok, "model",
        fmt::format("the header is good, and {} {} as long as it says",
                    model.n_shards == 1 ? "the file" : "all shards", model.n_shards == 1 ? "is" : "are"));
    if (!model.refusal.empty()) {
      add(Severity::problem, "budget", model.refusal,
          "give more memory, stop other programs, or take a smaller model or context");
    } else if (model.streamed_bytes != 0) {
      add(Severity::note, "budget",
          fmt::format("the budget of {} leaves {} on the drive", format_bytes(model.budget_bytes),
                      format_bytes(model.streamed_bytes)));
    } else {
      add(Severity::ok, "budget",
          fmt::format("everything fits: {} planned of {}", format_bytes(model.planned_bytes),
                      format_bytes(model.budget_bytes)));
    }
  }

  void drive(const ModelHealth& model) {
    const std::string& file_system = model.place.file_system;
    if (is_network(file_system)) {
      add(Severity::warning, "file system",
          fmt::format("the model lies on {}, a network file system: every missing expert crosses the network",
                      file_system),
          "copy it to a local NVMe drive");
    } else if (!file_system.empty()) {
      const bool in_user_space = file_system.starts_with("fuse");
      add(in_user_space ? Severity::note : Severity::ok, "file system",
          fmt::format("the model lies on {}{}", file_system,
                      in_user_space ? ", served by a process in user space" : ""),
          in_user_space ? "a file system of the kernel is faster" : "");
    }
    if (model.is_direct) {
      add(Severity::ok, "direct reads", "O_DIRECT works: reads go around the page cache");
    } else if (model.damage.empty()) {
      add(Severity::warning, "direct reads",
          fmt::format(
              "O_DIRECT does not work here: {}; reads go through the page cache, which competes for memory",
              model.why_not_direct),
          "put the model on ext4, xfs or btrfs without compression");
    }
    rotation(model);
    if (model.place.free_bytes && *model.place.free_bytes < k_little_space_bytes) {
      add(Severity::note, "free space",
          fmt::format("{} are free on the model's file system; drives that are full get slow",
                      format_bytes(*model.place.free_bytes)),
          "make room");
    }
  }

  void rotation(const ModelHealth& model) {
    if (!model.drive.is_rotational || !*model.drive.is_rotational) return;
    if (model.drive_rate && *model.drive_rate >= k_no_rotation_rate) {
      add(Severity::ok, "drive",
          fmt::format("{} says it rotates, but answers random reads with {:.2f} GB/s", model.drive.name,
                      *model.drive_rate / 1e9));
    } else if (!model.drive_rate) {
      add(Severity::warning, "drive",
          fmt::format(
              "{} says it rotates (virtual drives may say so wrongly); random reads of a hard disk are a "
              "hundred times too slow",
              model.drive.name),
          "measure it with 'sluice profile MODEL', or move the model to an NVMe drive");
    } else {
      add(Severity::warning, "drive",
          fmt::format("{} rotates: random reads reach {:.0f} MB/s", model.drive.name,
                      *model.drive_rate / 1e6),
          "move the model to an NVMe drive");
    }
  }

  void uring() {
    if (facts_.has_uring) {
      add(Severity::ok, "io_uring", "can be used");
      return;
    }
    std::string cure = "it works without, with threads that call pread";
    if (health_.io_uring_disabled.value_or(0) != 0) {
      cure = "sysctl kernel.io_uring_disabled=0 allows it";
    } else if (kernel_before(k_uring_major, k_uring_minor)) {
      cure = "Linux 5.6 or later has it";
    } else if (facts_.why_not_uring.find("SLUICE_URING") == std::string::npos) {
      cure =
          "a container's seccomp profile often forbids it; allow io_uring_setup, io_uring_enter and "
          "io_uring_register";
    }
    add(Severity::warning, "io_uring",
        fmt::format("cannot be used: {}; pread with threads takes its place, which costs more processor time",
                    facts_.why_not_uring),
        cure);
  }

  using Source = platform::DefaultBudget::Source;
  /// Another bound may be smaller than the one that is spoken of.
  const char* follows(Source source) const noexcept {
    return health_.default_budget.source == source ? "follows it:" : "is less:";
  }

  void memory() {
    const platform::MemoryLimits& memory = health_.memory;
    if (memory.cgroup_limit_bytes && *memory.cgroup_limit_bytes < memory.total_bytes) {
      add(Severity::note, "memory",
          fmt::format("the cgroup {} allows {} of the machine's {}; the default budget {} {}",
                      memory.cgroup_path, format_bytes(*memory.cgroup_limit_bytes),
                      format_bytes(memory.total_bytes), follows(Source::control_group),
                      format_bytes(health_.default_budget.bytes)));
    } else {
      add(Severity::ok, "memory",
          fmt::format("{} of {} are available; the default budget is {}",
                      format_bytes(memory.available_bytes), format_bytes(memory.total_bytes),
                      format_bytes(health_.default_budget.bytes)));
    }
    if (memory.address_space_limit_bytes) {
      add(Severity::note, "memory",
          fmt::format("the process may map {} (ulimit -v or -d); the default budget {} {}",
                      format_bytes(*memory.address_space_limit_bytes), follows(Source::resource_limit),
                      format_bytes(health_.default_budget.bytes)),
          "ulimit -v unlimited");
    }
    if (!memory.groups_are_known) {
      add(Severity::warning, "memory",
          "the process is in a control group whose limit cannot be seen, so the default budget may be too "
          "large",
          "give --memory, or mount the cgroup file system read-only in the container");
    }
    if (!health_.memory_pressure) return;
    const double percent = *health_.memory_pressure;
    if (percent < k_pressure_note) {
      add(Severity::ok, "memory pressure", "nothing waits for memory");
    } else {
      add(percent < k_pressure_warning ? Severity::note : Severity::warning, "memory pressure",
          fmt::format("something waited for memory in {:.0f} % of the last 10 seconds", percent),
          "stop what takes the memory, or give a smaller --memory");
    }
  }

  void cores() {
    const int usable = health_.n_usable_cpus, all = health_.n_machine_cpus;
    if (all > usable) {
      const std::string reason = health_.cpu_quota > 0 && health_.cpu_quota < all
                                     ? fmt::format("a cgroup's quota of {:.2f} cores", health_.cpu_quota)
                                     : std::string("the affinity of the process or its cpuset");
      add(Severity::note, "cores",
          fmt::format("{} of {} cores are usable, by {}; as many threads are started", usable, all, reason));
    } else {
      add(Severity::ok, "cores", fmt::format("all {} are usable", usable));
    }
    if (!health_.load || all == 0) return;
    // Half a process more than there are cores is noise.
    if (*health_.load > all + 0.5) {
      add(Severity::warning, "load",
          fmt::format("{:.1f} processes wanted to run during the last minute, and there are {} cores",
                      *health_.load, all),
          "stop other programs, or give fewer --threads");
    } else if (*health_.load > all / 2.0) {
      add(Severity::note, "load",
          fmt::format(
              "other programs are busy: {:.1f} processes wanted to run during the last minute on {} cores",
              *health_.load, all));
    } else {
      add(Severity::ok, "load", fmt::format("{:.1f}: the machine is idle enough", *health_.load));
    }
  }

  void swap() {
    const auto moved = [](std::optional<std::uint64_t> before, std::optional<std::uint64_t> after) {
      return before && after && *after > *before;
    };
    const bool in = moved(health_.counters.n_swapped_in, facts_.later.n_swapped_in);
    const bool out = moved(health_.counters.n_swapped_out, facts_.later.n_swapped_out);
    if (in || out) {
      add(Severity::warning, "swap",
          fmt::format("pages are being swapped {} right now", in && out ? "in and out"
                                                              : in      ? "in"
                                                                        : "out"),
          "give a smaller --memory or stop what takes the memory");
    } else if (health_.swap_total_bytes != 0) {
      const std::uint64_t used =
          health_.swap_total_bytes - std::min(health_.swap_free_bytes, health_.swap_total_bytes);
      add(Severity::note, "swap",
          fmt::format("{} of swap, {}, quiet now; weights that are swapped out come back slowly",
                      format_bytes(health_.swap_total_bytes),
                      used == 0 ? "nothing in use" : format_bytes(used) + " in use"),
          used == 0 ? "" : "if an answer is slow, --stats says what of the program is swapped out");
    } else {
      add(Severity::ok, "swap", "there is none");
    }
  }

  void huge_pages() {
    if (health_.huge_pages.empty()) return;
    const bool never = health_.huge_pages == "never";
    add(never ? Severity::warning : Severity::ok, "huge pages",
        fmt::format("transparent huge pages: {}{}", health_.huge_pages,
                    never ? "; weights lie in small pages, which costs a part of the speed of memory" : ""),
        never ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" : "");
  }

  void limits() {
    const std::uint64_t shards = facts_.model ? facts_.model->n_shards : 1;
    const std::uint64_t needed = k_own_files + k_files_per_shard * shards;
    if (health_.max_open_files && *health_.max_open_files < needed) {
      add(Severity::problem, "open files",
          fmt::format("the process may open {} files and needs up to {}", *health_.max_open_files, needed),
          fmt::format("ulimit -n {}", std::max<std::uint64_t>(1024, needed)));
    } else {
      add(Severity::ok, "open files", "the limit is high enough");
    }
    locked_memory();
  }

  /// Weights are not locked, so only what io_uring locks counts.
  void locked_memory() {
    const bool is_charged = kernel_before(k_uring_free_major, k_uring_free_minor);
    const std::string limit = health_.max_locked_bytes ? format_bytes(*health_.max_locked_bytes) : "none";
    if (is_charged && health_.max_locked_bytes && *health_.max_locked_bytes < k_uring_locked_bytes) {
      add(Severity::warning, "locked memory",
          fmt::format("the limit is {}, and this kernel charges io_uring's rings to it", limit),
          "ulimit -l 8192, or Linux 5.12 or later");
    } else {
      add(Severity::ok, "locked memory",
          fmt::format(
              "the limit is {}, {}", limit,
              is_charged ? "enough for io_uring's rings" : "and nothing that the program does counts to it"));
    }
  }

  void heat() {
    const auto before = health_.counters.n_throttles, after = facts_.later.n_throttles;
    if (before && after && *after > *before) {
      add(Severity::warning, "heat", "cores are being slowed down because they are hot", "cool the machine");
    } else if (health_.hottest_celsius && *health_.hottest_celsius >= k_hot_celsius) {
      add(Severity::warning, "heat",
          fmt::format("a sensor shows {:.0f} degrees Celsius", *health_.hottest_celsius), "cool the machine");
    } else if (before && *before != 0) {
      add(Severity::note, "heat",
          fmt::format("cores were slowed down because of heat {} times since the machine started, not now",
                      *before));
    } else if (before || health_.hottest_celsius) {
      add(Severity::ok, "heat", "no core is slowed down");
    }
  }

  void age(const char* what, std::optional<std::int64_t> seconds, const std::string& cure) {
    if (!seconds) {
      add(Severity::note, "profile",
          fmt::format("{} was not measured yet, so speed cannot be predicted", what), cure);
    } else if (static_cast<double>(*seconds) > facts_.max_profile_age_seconds) {
      add(Severity::note, "profile",
          fmt::format("{} was measured {:.0f} days ago", what, static_cast<double>(*seconds) / k_day_seconds),
          cure);
    } else {
      add(Severity::ok, "profile", fmt::format("{} was measured", what));
    }
  }

  void profile() {
    age("the machine", facts_.machine_profile_age_seconds,
        facts_.model ? "sluice profile MODEL" : "sluice profile");
    if (!facts_.model || !facts_.model->damage.empty() || facts_.model->missing_bytes != 0) return;
    if (!facts_.model->can_be_profiled) {
      add(Severity::ok, "profile", "the model is too small to measure its drive with");
      return;
    }
    age("the model's drive", facts_.model->drive_profile_age_seconds, "sluice profile MODEL");
  }

  const DoctorFacts& facts_;
  const platform::HealthFacts& health_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> judge(const DoctorFacts& facts) {
  return Judge(facts).run();
}

}  // namespace engine
}  // namespace sluice
