#include "model/architecture.hpp"

#include "base/error.hpp"

namespace sluice::model {

const std::vector<Architecture>& known_architectures() {
  static const std::vector<Architecture> k_table = {
      {"llama", arch::read_llama},
      {"qwen2", arch::read_qwen2},
      {"qwen3", arch::read_qwen3},
      {"qwen3moe", arch::read_qwen3moe},
  };
  return k_table;
}

HyperParams read_hyper_params(const gguf::Metadata& metadata) {
  const std::string name(metadata.require_string("general.architecture"));
  std::string known;
  for (const Architecture& architecture : known_architectures()) {
    if (name == architecture.name) return architecture.read_params(metadata);
    known += known.empty() ? architecture.name : std::string(", ") + architecture.name;
  }
  base::fail(ErrorCode::unsupported, "{}: architecture \"{}\" cannot be run by this version; known are {}",
             metadata.source_name, name, known);
}

}  // namespace sluice::model
