#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/block.hpp"

namespace sluice::model {

/// Rows that a sequence's log of its state holds, and so the tokens of one call that it can always take back.
constexpr std::uint32_t k_state_log_rows = 32;

/// Where the recurrent state of a layer lies: in a slot, which has the states of all layers at one position,
/// and in a log of the rows that made it, whose rows of one layer follow one another.
struct StateView {
  std::uint64_t slot_offset = 0, log_offset = 0;  ///< Bytes.
  std::uint64_t log_row_bytes = 0;                ///< 0: the layer has no state.
};

struct StateLayout {
  std::uint64_t slot_bytes = 0, log_bytes = 0;  ///< 0: no layer has state.
  std::vector<StateView> views;                 ///< Of each layer.
};

/// Pure. All parts are multiples of 64 bytes.
StateLayout plan_state(std::span<const StateNeed> layers);

}  // namespace sluice::model
