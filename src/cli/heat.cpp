#include "cli/heat.hpp"

#include <cstdlib>

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

/// The XDG specification has relative paths ignored.
fs::path absolute_of(const char* variable) {
  const char* value = std::getenv(variable);
  const fs::path path = value != nullptr ? value : "";
  return path.is_absolute() ? path : fs::path();
}

}  // namespace

fs::path heat_place(const std::string& option) {
  if (option == "off") return {};
  if (option != "auto") return option;
  fs::path cache = absolute_of("XDG_CACHE_HOME");
  if (cache.empty()) {
    cache = absolute_of("HOME");
    if (cache.empty()) return {};
    cache /= ".cache";
  }
  return cache / "sluice" / "heat" / "";
}

}  // namespace sluice::cli
