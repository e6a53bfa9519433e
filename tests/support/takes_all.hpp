#pragma once

#include <cstdint>

namespace sluice::test {

/// Lets everything be taken (residency::MayTake).
inline constexpr auto takes_all = [](std::uint64_t) { return true; };

}  // namespace sluice::test
