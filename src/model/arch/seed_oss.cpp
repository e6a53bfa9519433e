#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Seed-OSS: as Qwen 2, with another name for the norm before the feed-forward block.
ModelSpec read_seed_oss(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  AttentionSpec attention = read_attention(keys);
  attention.needs_qkv_bias = true;
  add_layers(model, keys, attention, read_ffn(keys));
  for (LayerSpec& layer : model.layers) layer.channel_norm = "post_attention_norm";
  return model;
}

}  // namespace sluice::model::arch
