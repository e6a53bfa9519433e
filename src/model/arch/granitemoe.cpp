#include "base/error.hpp"
#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Granite 3 mixtures of experts: fixed factors on embeddings, attention, residual additions and logits.
ModelSpec read_granitemoe(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::neighbours);
  model.embedding_scale = keys.get_positive_or("embedding_scale", 1.0f);
  model.residual_scale = keys.get_positive_or("residual_scale", 1.0f);
  model.logit_scale = 1.0f / keys.get_positive_or("logit_scale", 1.0f);
  if (!keys.get_bool_or("rope.scaling.finetuned", true)) {
    base::fail(ErrorCode::unsupported, "{}: {} is false: models without rotation cannot be run yet",
               keys.file(), keys.full("rope.scaling.finetuned"));
  }
  MoeSpec moe = read_experts(keys, {});
  moe.shared = read_shared_expert(keys);
  add_layers(model, keys, read_attention(keys), moe);
  return model;
}

}  // namespace sluice::model::arch
