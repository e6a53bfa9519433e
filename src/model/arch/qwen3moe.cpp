#include "model/architecture.hpp"

namespace sluice::model::arch {

// Qwen 3 mixture of experts: as Qwen 3, every FFN a set of experts, router weights renormalised over the
// chosen.
HyperParams read_qwen3moe(const gguf::Metadata& metadata) {
  HyperParams params = read_common_params(metadata, "qwen3moe");
  params.rope.neox = true;
  params.has_qk_norm = true;
  read_expert_params(metadata, params, 0);
  return params;
}

}  // namespace sluice::model::arch
