#include "model/architecture.hpp"

namespace sluice::model::arch {

// Qwen 3 dense: each head of Q and K is normalised before it rotates.
HyperParams read_qwen3(const gguf::Metadata& metadata) {
  HyperParams params = read_common_params(metadata, "qwen3");
  params.rope.neox = true;
  params.has_qk_norm = true;
  return params;
}

}  // namespace sluice::model::arch
