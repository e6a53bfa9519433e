#pragma once

#include <vector>

#include "gguf/metadata.hpp"
#include "model/keys.hpp"
#include "model/spec.hpp"

namespace sluice::model {

/// One entry of the table of architectures. Adding one is a file in arch/: CMake makes the table from
/// their names.
struct Architecture {
  const char* name;  ///< As general.architecture spells it.
  ModelSpec (*read)(Keys& keys);
};

/// Architectures this version can run.
const std::vector<Architecture>& known_architectures();

/// What a file's metadata say of the model. Throws Error(invalid_file) when the file names no architecture or
/// a key makes no sense, Error(unsupported) listing the known architectures when it names another, and
/// naming the keys that the architecture's file does not read.
ModelSpec read_spec(const gguf::Metadata& metadata);

}  // namespace sluice::model
