#include "base/log.hpp"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace sluice::base {

void warn_text(std::string_view text) {
  constexpr std::size_t k_max_remembered = 256;
  static std::mutex mutex;
  static std::set<std::string, std::less<>> seen;
  const std::lock_guard lock(mutex);
  if (seen.find(text) != seen.end()) return;
  if (seen.size() < k_max_remembered) seen.emplace(text);
  std::fprintf(stderr, "sluice: warning: %.*s\n", static_cast<int>(text.size()), text.data());
}

}  // namespace sluice::base
