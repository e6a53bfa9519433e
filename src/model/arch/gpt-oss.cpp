#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// gpt-oss: every second layer sees a window; each head has a sink; all products of attention and experts have
// biases; the activation is clamped.
ModelSpec read_gpt_oss(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  AttentionSpec attention = read_attention(keys);
  attention.needs_qkv_bias = true;
  attention.sinks = true;
  MoeSpec moe = read_experts(
      keys, {.scoring = kernels::RouterParams::Scoring::softmax_of_selected, .normalize = false});
  moe.biases = true;
  moe.expert.activation = kernels::Activation::swiglu_oai;
  add_layers(model, keys, attention, moe);
  for (LayerSpec& layer : model.layers) layer.channel_norm = "post_attention_norm";
  let_layers_slide(model, keys.require("attention.sliding_window", k_max_context), 2, 0);
  return model;
}

}  // namespace sluice::model::arch
