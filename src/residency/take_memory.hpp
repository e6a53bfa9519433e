#pragma once

#include <cstdint>

#include "base/function_ref.hpp"
#include "platform/memory.hpp"

namespace sluice::residency {

/// Asked before memory is taken: whether so many bytes more may be. May wait until others have given some
/// back.
using MayTake = base::FunctionRef<bool(std::uint64_t bytes)>;

/// Makes [offset, offset + bytes) of a region present in small parts, each after a question. Throws
/// Error(budget) when the answer is no or the system refuses.
void take_memory(platform::MappedRegion& region, std::uint64_t offset, std::uint64_t bytes, MayTake may_take);

}  // namespace sluice::residency
