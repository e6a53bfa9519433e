#pragma once

#include <cstdlib>
#include <filesystem>

namespace sluice::base {

/// $XDG_CACHE_HOME, else ~/.cache; empty when neither variable names a folder. Relative paths are ignored, as
/// the XDG base directory specification asks.
inline std::filesystem::path cache_folder() {
  const auto absolute = [](const char* variable) {
    const char* const value = std::getenv(variable);
    const std::filesystem::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : std::filesystem::path();
  };
  if (std::filesystem::path cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache;
  if (const std::filesystem::path home = absolute("HOME"); !home.empty()) return home / ".cache";
  return {};
}

}  // namespace sluice::base
