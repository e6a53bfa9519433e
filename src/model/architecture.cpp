#include "model/architecture.hpp"

#include "base/error.hpp"
#include "model/arch/parts.hpp"

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

ModelSpec read_spec(const gguf::Metadata& metadata) {
  Keys keys(metadata);
  std::string known;
  for (const Architecture& architecture : known_architectures()) {
    if (keys.architecture() == architecture.name) {
      ModelSpec model = architecture.read(keys);
      keys.refuse_unread();
      return model;
    }
    known += known.empty() ? architecture.name : std::string(", ") + architecture.name;
  }
  base::fail(ErrorCode::unsupported, "{}: architecture \"{}\" cannot be run by this version; known are {}",
             metadata.source_name, keys.architecture(), known);
}

}  // namespace sluice::model
