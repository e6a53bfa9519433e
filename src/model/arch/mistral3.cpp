#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Ministral 3 and Mistral Large 3's dense text models: as Llama, with YaRN, and queries that grow with the
// position behind the context that YaRN began from.
ModelSpec read_mistral3(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::neighbours);
  AttentionSpec attention = read_attention(keys);
  attention.temperature.scale = keys.get_float_or("attention.temperature_scale", 0.0f);
  attention.temperature.interval = model.curves[0].params.n_ctx_orig;
  add_layers(model, keys, attention, read_ffn(keys));
  return model;
}

}  // namespace sluice::model::arch
