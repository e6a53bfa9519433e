#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Qwen 3.5 dense: of each "full_attention_interval" layers the last has gated attention, the others the gated
// delta rule.
ModelSpec read_qwen35(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::halves);
  add_hybrid_layers(model, keys, read_delta(keys), read_ffn(keys));
  return model;
}

}  // namespace sluice::model::arch
