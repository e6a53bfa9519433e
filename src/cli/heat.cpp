#include "cli/heat.hpp"

#include "base/cache_folder.hpp"

namespace sluice::cli {

std::filesystem::path heat_place(const std::string& option) {
  if (option == "off") return {};
  if (option != "auto") return option;
  const std::filesystem::path cache = base::cache_folder();
  if (cache.empty()) return {};
  return cache / "sluice" / "heat" / "";
}

}  // namespace sluice::cli
