#include "model/architecture_parts.hpp"

namespace sluice::model::arch {

// Llama 1 to 3, Mistral, and Mixtral's experts: the file format stores Q and K permuted, so that neighbouring
// elements rotate together. Mixtral's router is a softmax over the selected experts, which equals a
// renormalised softmax over all.
ModelSpec read_llama(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::neighbours);
  const bool has_experts = keys.count("expert_count", k_max_experts) != 0;
  keys.count("expert_used_count", k_max_experts);  // 0 in files of dense models.
  add_layers(model, keys, read_attention(keys),
             has_experts ? ChannelSpec(read_experts(keys, {})) : ChannelSpec(read_ffn(keys)));
  return model;
}

}  // namespace sluice::model::arch
