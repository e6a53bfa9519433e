#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Gemma 3: norms of queries and keys; five of six layers see a window and rotate by a curve of their own that
// knows no longer contexts.
ModelSpec read_gemma3(Keys& keys) {
  AttentionSpec attention = read_attention(keys);
  attention.qk_norm = AttentionSpec::QkNorm::per_head;
  constexpr std::uint32_t k_layers_27b = 62;
  ModelSpec model = read_gemma(keys, attention, k_layers_27b);
  model.logit_softcap = keys.get_float_or("final_logit_softcapping", 0.0f);
  RopeCurve local;
  local.params.neox = true;
  local.params.n_rot = model.curves[0].params.n_rot;
  local.params.base = keys.get_positive_or("rope.freq_base_swa", 10000.0f);
  local.factors = nullptr;
  model.curves.push_back(local);
  let_layers_slide(model, keys.count("attention.sliding_window", k_max_context), 6, 1);
  return model;
}

}  // namespace sluice::model::arch
