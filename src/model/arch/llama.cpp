#include "model/architecture.hpp"

namespace sluice::model::arch {

// Llama 1 to 3, Mistral, and Mixtral's experts: the file format stores Q and K permuted, so that neighbouring
// elements rotate together. Mixtral's router is a softmax over the selected experts, which equals a
// renormalised softmax over all.
HyperParams read_llama(const gguf::Metadata& metadata) {
  HyperParams params = read_common_params(metadata, "llama");
  params.rope.neox = false;
  if (metadata.get_uint("llama.expert_count").value_or(0) != 0) read_expert_params(metadata, params, 0);
  return params;
}

}  // namespace sluice::model::arch
