#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Qwen 3 Next: as Qwen 3.5, but that the value heads of one key head lie side by side, and one matrix makes
// both gates of the delta rule.
ModelSpec read_qwen3next(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  DeltaSpec delta = read_delta(keys);
  delta.shape.order = kernels::DeltaShape::Order::grouped;
  delta.joint_gates = true;
  MoeSpec moe = read_experts(keys, {});
  moe.shared = read_shared_expert(keys);
  moe.shared_gate = true;
  add_hybrid_layers(model, keys, delta, moe);
  return model;
}

}  // namespace sluice::model::arch
