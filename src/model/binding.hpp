#pragma once

#include <cstdint>
#include <vector>

#include "gguf/reader.hpp"
#include "model/tensors.hpp"

namespace sluice::model {

/// A declared tensor and the file's; null when an optional one is not there.
struct BoundTensor {
  TensorNeed need;
  const gguf::TensorInfo* info = nullptr;
};

/// Which tensor of the file plays which part of the graph. Experts are not here: residency holds them.
struct BoundTensors {
  std::vector<BoundTensor> all;  ///< As declared, in the order of use.
  const gguf::TensorInfo* token_embd = nullptr;
  const gguf::TensorInfo* output = nullptr;  ///< The embedding when the file ties them.

  /// Matrices that follow one another in a pass and need not stay in memory.
  struct Block {
    Role role = Role::dense_ffn;
    std::vector<const gguf::TensorInfo*> tensors;  ///< In the order of their use.
  };
  std::vector<Block> blocks;  ///< In the order of their use.

  /// Every bound tensor once, sorted as the file lies: what a pass needs whatever is routed.
  std::vector<const gguf::TensorInfo*> pinned() const;
};

/// What a vector takes as floats beside its own bytes: 0 when it is F32 in the file, too.
std::uint64_t converted_vector_bytes(const gguf::TensorInfo& tensor) noexcept;

/// The rows of the embedding: the size of the vocabulary, to which the tokenizer is held. 0 when there is
/// none, which bind() says. Throws Error(invalid_file) for a size that makes no sense.
std::uint32_t vocabulary_rows(const gguf::ModelFile& file);

/// Finds and checks all declared tensors. Throws Error(invalid_file) naming every required tensor that is
/// missing, or the first whose shape or type does not fit; Error(unsupported) naming the tensors of the file
/// that nothing uses, unless they are known to make no difference.
BoundTensors bind(const gguf::ModelFile& file, const Declaration& declaration);

}  // namespace sluice::model
