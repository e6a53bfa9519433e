#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// OLMoE: queries and keys are normalised as whole rows, router weights are probabilities among all experts.
ModelSpec read_olmoe(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  AttentionSpec attention = read_attention(keys);
  attention.qk_norm = AttentionSpec::QkNorm::whole_row;
  add_layers(model, keys, attention, read_experts(keys, {.normalize = false}));
  return model;
}

}  // namespace sluice::model::arch
