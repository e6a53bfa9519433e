#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Qwen 3 mixture of experts: as Qwen 3, every FFN a set of experts, router weights renormalised over the
// chosen.
ModelSpec read_qwen3moe(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  AttentionSpec attention = read_attention(keys);
  attention.qk_norm = AttentionSpec::QkNorm::per_head;
  add_layers(model, keys, attention, read_experts(keys, {}));
  return model;
}

}  // namespace sluice::model::arch
