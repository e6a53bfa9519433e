#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Hunyuan A13B: heads of Q and K are normalised after they rotated; experts beside one that every row gets.
ModelSpec read_hunyuan_moe(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  AttentionSpec attention = read_attention(keys);
  attention.qk_norm = AttentionSpec::QkNorm::per_head;
  attention.norms_rotated = true;
  MoeSpec moe = read_experts(keys, {});
  moe.shared = read_shared_experts(keys, moe);
  if (moe.shared.width == 0) moe.shared = read_ffn(keys);
  add_layers(model, keys, attention, moe);
  return model;
}

}  // namespace sluice::model::arch
