#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Qwen 3 dense: each head of Q and K is normalised before it rotates.
ModelSpec read_qwen3(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  AttentionSpec attention = read_attention(keys);
  attention.qk_norm = AttentionSpec::QkNorm::per_head;
  add_layers(model, keys, attention, read_ffn(keys));
  return model;
}

}  // namespace sluice::model::arch
