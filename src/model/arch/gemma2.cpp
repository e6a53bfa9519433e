#include <cmath>

#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Gemma 2: norms before and behind each part, scores and logits capped, every second layer sees a window.
ModelSpec read_gemma2(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  model.embedding_scale = std::sqrt(static_cast<float>(model.n_embd));
  model.logit_softcap = keys.get_positive_or("final_logit_softcapping", 30.0f);
  AttentionSpec attention = read_attention(keys);
  attention.softcap = keys.get_positive_or("attn_logit_softcapping", 50.0f);
  FfnSpec ffn = read_ffn(keys);
  ffn.activation = kernels::Activation::gelu_tanh;
  add_layers(model, keys, attention, ffn);
  constexpr std::uint32_t k_layers_27b = 46;
  finish_gemma_layers(model, k_layers_27b);
  let_layers_slide(model, keys.get_or("attention.sliding_window", 4096, k_max_context), 2, 0);
  return model;
}

}  // namespace sluice::model::arch
