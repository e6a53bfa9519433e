#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// ERNIE 4.5 with experts: the first layers are dense; the others have experts, chosen by probabilities with a
// bias, beside one that every row gets.
ModelSpec read_ernie4_5_moe(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::neighbours);
  MoeSpec moe = read_experts(keys, {});
  moe.selection_bias = true;
  moe.shared = read_shared_experts(keys, moe);
  add_mixed_layers(model, keys, read_attention(keys), moe);
  return model;
}

}  // namespace sluice::model::arch
