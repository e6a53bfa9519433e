#pragma once

#include <atomic>
#include <vector>

#include "sluice/profile.hpp"

namespace sluice::engine {

/// The drives that hold what the options name, each with the largest of the files on it; nothing is read but
/// headers. A caveat says why a drive cannot be measured with that file. Throws as measure_profile().
std::vector<DriveProfile> find_drives(const ProfileOptions& options);

/// Measures one of those. Keeps its caveat and adds what is found out by reading.
void measure_drive(DriveProfile& drive, double seconds, const std::atomic<bool>* cancel);

/// The drive that holds a file. Throws Error(io) when the file is not there.
DriveInfo drive_of(const std::filesystem::path& file);

}  // namespace sluice::engine
