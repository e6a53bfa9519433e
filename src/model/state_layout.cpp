#include "model/state_layout.hpp"

#include "base/checked.hpp"

namespace sluice::model {

StateLayout plan_state(std::span<const StateNeed> layers) {
  constexpr std::uint64_t k_alignment = 64;
  StateLayout layout;
  for (const StateNeed& layer : layers) {
    layout.views.push_back({layout.slot_bytes, layout.log_bytes, layer.log_row_bytes});
    layout.slot_bytes += base::align_up(layer.bytes, k_alignment);
    layout.log_bytes += base::align_up(k_state_log_rows * layer.log_row_bytes, k_alignment);
  }
  return layout;
}

}  // namespace sluice::model
