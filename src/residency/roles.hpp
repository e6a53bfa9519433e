#pragma once

#include <cstdint>
#include <string_view>

#include "sluice/plan.hpp"

namespace sluice::residency {

/// A tensor name taken apart: "blk.12.ffn_gate_exps.weight" is layer 12, part "ffn_gate_exps", suffix
/// "weight"; the older "blk.3.ffn_up.5.weight" is layer 3, part "ffn_up", expert 5. Names outside a block
/// have layer -1.
struct TensorName {
  int layer = -1;
  std::string_view part;  ///< Points into the name.
  int expert = -1;
  std::string_view suffix;  ///< "weight", "bias", or empty.
};
TensorName parse_tensor_name(std::string_view name) noexcept;

/// What a tensor is for, from its name (GGUF naming convention).
Role classify_tensor(std::string_view name) noexcept;

}  // namespace sluice::residency
