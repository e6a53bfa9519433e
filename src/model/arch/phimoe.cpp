#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Phi 3.5 MoE: all products of attention, the norms and the output have biases. Long contexts rotate with
// frequencies of their own, as those of Phi 3. The norms do not take the mean off: the authors' own program
// does, but llama.cpp, which these files are made for, does not.
ModelSpec read_phimoe(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  keys.ignore("attention.sliding_window");
  keys.ignore("attention.layer_norm_epsilon");
  model.norm_biases = true;
  model.output_bias = true;
  model.curves[0].factors = "rope_factors_short.weight";
  model.curves[0].long_factors = "rope_factors_long.weight";
  AttentionSpec attention = read_attention(keys);
  attention.needs_qkv_bias = true;
  add_layers(model, keys, attention, read_experts(keys, {}));
  return model;
}

}  // namespace sluice::model::arch
