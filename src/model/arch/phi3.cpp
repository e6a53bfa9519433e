#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Phi 3 and 4: one matrix for Q, K and V, one for gate and up. Long contexts rotate with frequencies of their
// own. The window that some files name is not used: the model's quality without it is what its authors and
// others measure, and other runtimes leave it out, too.
ModelSpec read_phi3(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  keys.ignore("attention.sliding_window");
  model.curves[0].factors = "rope_factors_short.weight";
  model.curves[0].long_factors = "rope_factors_long.weight";
  AttentionSpec attention = read_attention(keys);
  attention.projection = AttentionSpec::Projection::fused;
  FfnSpec ffn = read_ffn(keys);
  ffn.form = FfnSpec::Form::fused;
  add_layers(model, keys, attention, ffn);
  return model;
}

}  // namespace sluice::model::arch
