#include "base/log.hpp"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "base/text.hpp"

namespace sluice::base {

void warn_text(std::string_view text) {
  constexpr std::size_t k_max_remembered = 256;
  static std::mutex mutex;
  static std::set<std::string, std::less<>> seen;
  const std::lock_guard lock(mutex);
  if (seen.find(text) != seen.end()) return;
  if (seen.size() < k_max_remembered) seen.emplace(text);
  // Names and paths may hold control characters, which a terminal would obey.
  std::fprintf(stderr, "sluice: warning: %s\n", printable(text).c_str());
}

}  // namespace sluice::base
