#include "base/log.hpp"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "sluice/warnings.hpp"

namespace sluice {
namespace base {
namespace {

/// Of the whole process, as standard error is.
struct Warnings {
  std::mutex mutex;
  WarningSink sink;
  std::set<std::string, std::less<>> seen;
};

Warnings& warnings() {
  static Warnings all;
  return all;
}

}  // namespace

void warn_text(std::string_view text) {
  constexpr std::size_t k_max_remembered = 256;
  Warnings& all = warnings();
  const std::lock_guard lock(all.mutex);
  if (all.seen.find(text) != all.seen.end()) return;
  if (all.seen.size() < k_max_remembered) all.seen.emplace(text);
  if (all.sink) {
    all.sink(text);
  } else {
    // Names and paths may hold control characters, which a terminal would obey.
    std::fprintf(stderr, "sluice: warning: %s\n", printable(text).c_str());
  }
}

}  // namespace base

void set_warning_sink(WarningSink sink) {
  base::Warnings& all = base::warnings();
  const std::lock_guard lock(all.mutex);
  all.sink = std::move(sink);
}

}  // namespace sluice
