#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Gemma 2: scores and logits are capped, every second layer sees a window.
ModelSpec read_gemma2(Keys& keys) {
  AttentionSpec attention = read_attention(keys);
  attention.softcap = keys.get_positive_or("attn_logit_softcapping", 50.0f);
  constexpr std::uint32_t k_layers_27b = 46;
  ModelSpec model = read_gemma(keys, attention, k_layers_27b);
  model.logit_softcap = keys.get_positive_or("final_logit_softcapping", 30.0f);
  let_layers_slide(model, keys.get_or("attention.sliding_window", 4096, k_max_context), 2, 0);
  return model;
}

}  // namespace sluice::model::arch
