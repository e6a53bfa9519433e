#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Qwen 1.5, 2 and 2.5: biases on Q, K and V.
ModelSpec read_qwen2(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  AttentionSpec attention = read_attention(keys);
  attention.needs_qkv_bias = true;
  add_layers(model, keys, attention, read_ffn(keys));
  return model;
}

}  // namespace sluice::model::arch
