#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// GLM 4 dense: norms before and behind each part, one matrix for gate and up; part of a head rotates. Models
// that also see images have their queries and keys in another order, and text has one position for all their
// sections.
ModelSpec read_glm4(Keys& keys) {
  const bool sees_images = keys.has("rope.dimension_sections");
  keys.ignore("rope.dimension_sections");
  ModelSpec model = read_decoder(keys, sees_images ? Pairs::halves : Pairs::neighbours);
  FfnSpec ffn = read_ffn(keys);
  ffn.form = FfnSpec::Form::fused;
  add_layers(model, keys, read_attention(keys), ffn);
  for (LayerSpec& layer : model.layers) {
    layer.mixer_out_norm = "post_attention_norm";
    layer.channel_out_norm = "post_ffw_norm";
  }
  return model;
}

}  // namespace sluice::model::arch
