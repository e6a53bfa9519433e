#include "residency/take_memory.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::residency {

void take_memory(platform::MappedRegion& region, std::uint64_t offset, std::uint64_t bytes,
                 MayTake may_take) {
  // Small beside what is kept free on the smallest machine or group that runs a model.
  constexpr std::uint64_t k_part_bytes = base::k_mib;
  // A page that was begun may already be read into.
  const std::uint64_t end = offset + bytes;
  std::uint64_t at = base::align_up(offset, static_cast<std::uint64_t>(getpagesize()));
  while (at < end) {
    const std::uint64_t n = std::min(k_part_bytes, end - at);
    if (!may_take(n) || !region.restore_pages(at, n)) {
      base::fail(ErrorCode::budget,
                 "{} of memory that this model cannot do without are not there any more: others have taken "
                 "what was free. End some of them, or use a smaller --memory or --ctx",
                 base::format_bytes(end - at));
    }
    at += n;
  }
}

}  // namespace sluice::residency
