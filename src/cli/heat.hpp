#pragma once

#include <filesystem>
#include <string>

namespace sluice::cli {

/// What --heat means for OpenOptions::heat: nothing for "off"; for "auto" the folder sluice/heat/ in
/// $XDG_CACHE_HOME or ~/.cache, nothing when neither variable is an absolute path; else the file.
std::filesystem::path heat_place(const std::string& option);

}  // namespace sluice::cli
