#include "model/architecture.hpp"

#include "base/error.hpp"
#include "model/architectures.inc"

namespace sluice::model {

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
