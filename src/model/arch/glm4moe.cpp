#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// GLM 4.5 to 4.7 with experts: biases on Q, K and V, in the large ones norms of heads, too; part of a head
// rotates. Experts are chosen by logistic scores with a bias, beside one that every row gets; the first
// layers are dense.
ModelSpec read_glm4moe(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  // Places in images. Text has one position for all sections.
  keys.ignore("rope.dimension_sections");
  AttentionSpec attention = read_attention(keys);
  attention.qk_norm = AttentionSpec::QkNorm::per_head;
  attention.needs_qk_norm = false;
  MoeSpec moe = read_experts(keys, {.scoring = kernels::RouterParams::Scoring::sigmoid});
  moe.selection_bias = true;
  moe.shared = read_shared_experts(keys, moe);
  add_mixed_layers(model, keys, attention, moe);
  for (LayerSpec& layer : model.layers) layer.channel_norm = "post_attention_norm";
  return model;
}

}  // namespace sluice::model::arch
