#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Qwen 3.5 and 3.6 mixtures of experts: as Qwen 3.5 dense, with experts and a shared one with a gate.
ModelSpec read_qwen35moe(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  MoeSpec moe = read_experts(keys, {});
  moe.shared = read_shared_expert(keys);
  moe.shared_gate = true;
  add_hybrid_layers(model, keys, read_delta(keys), moe);
  return model;
}

}  // namespace sluice::model::arch
