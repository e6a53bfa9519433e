#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// MiniMax M2: queries and keys are normalised as whole rows, half of a head rotates, experts are chosen by
// logistic scores with a bias.
ModelSpec read_minimax_m2(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  AttentionSpec attention = read_attention(keys);
  attention.qk_norm = AttentionSpec::QkNorm::whole_row;
  MoeSpec moe = read_experts(keys, {.scoring = kernels::RouterParams::Scoring::sigmoid});
  moe.selection_bias = true;
  add_layers(model, keys, attention, moe);
  return model;
}

}  // namespace sluice::model::arch
