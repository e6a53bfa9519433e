#include "cli/json.hpp"

#include "cli/json_parts.hpp"
#include "sluice/version.hpp"

namespace sluice::cli {
namespace {

Json read_rate_json(const std::optional<ReadRate>& rate) {
  if (!rate) return nullptr;
  return {{"block_bytes", rate->block_bytes},
          {"depth", rate->depth},
          {"bytes_per_second", rate->bytes_per_second}};
}

Json drive_json(const DriveProfile& profile) {
  const DriveInfo& drive = profile.drive;
  Json random = Json::array();
  for (const ReadRate& rate : profile.random) random.push_back(read_rate_json(rate));
  Json rotational = nullptr;
  if (drive.is_rotational) rotational = *drive.is_rotational;
  return {
      {"name", drive.name},
      {"model", drive.model},
      {"serial", drive.serial},
      {"file_system", drive.file_system},
      {"rotational", rotational},
      {"size_bytes", drive.size_bytes},
      {"members", drive.members},
      {"file", profile.file},
      {"file_bytes", profile.file_bytes},
      {"backend", profile.backend},
      {"read_bytes", profile.read_bytes},
      {"caveat", profile.caveat},
      {"measured_at", profile.measured_at},
      {"best", read_rate_json(best(profile.random))},
      {"knee", read_rate_json(knee(profile.random))},
      {"sequential", read_rate_json(profile.sequential)},
      {"random", std::move(random)},
  };
}

}  // namespace

std::string profile_json(const ProfileReport& report) {
  Json drives = Json::array();
  for (const DriveProfile& drive : report.profile.drives) drives.push_back(drive_json(drive));
  Json machine = nullptr, kernels = Json::array();
  if (const auto& measured = report.profile.machine) {
    machine = machine_json(measured->machine, measured->memory);
    machine["measured_at"] = measured->measured_at;
    for (const KernelRate& kernel : measured->kernels) {
      kernels.push_back({{"type", kernel.type},
                         {"n_rows", kernel.n_rows},
                         {"products_per_second", kernel.products_per_second}});
    }
  }
  return print({
      {"version", version()},
      {"build", build_facts()},
      {"now", report.now},
      {"kept_in", report.folder},
      {"problem", report.problem},
      {"machine", std::move(machine)},
      {"kernels", std::move(kernels)},
      {"drives", std::move(drives)},
  });
}

}  // namespace sluice::cli
