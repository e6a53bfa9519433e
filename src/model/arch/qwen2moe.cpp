#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Qwen 1.5 and 2 mixtures of experts: biases on Q, K and V, router weights that are not normalised, and a
// shared expert with a gate.
ModelSpec read_qwen2moe(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  AttentionSpec attention = read_attention(keys);
  attention.needs_qkv_bias = true;
  MoeSpec moe = read_experts(keys, {.normalize = false});
  moe.shared = read_shared_expert(keys);
  if (moe.shared.width == 0) moe.shared = read_ffn(keys);
  moe.shared_gate = true;
  add_layers(model, keys, attention, moe);
  return model;
}

}  // namespace sluice::model::arch
