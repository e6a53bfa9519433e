#include "model/architecture.hpp"

namespace sluice::model::arch {

// Qwen 1.5, 2 and 2.5: biases on Q, K and V.
HyperParams read_qwen2(const gguf::Metadata& metadata) {
  HyperParams params = read_common_params(metadata, "qwen2");
  params.rope.neox = true;
  params.has_qkv_bias = true;
  return params;
}

}  // namespace sluice::model::arch
