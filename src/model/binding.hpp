#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gguf/reader.hpp"
#include "kernels/ops.hpp"
#include "model/hyper_params.hpp"
#include "sluice/plan.hpp"

namespace sluice::model {

/// Tensors of one layer, by use; null where the layer has none. Experts are not here: residency holds them.
struct LayerTensors {
  const gguf::TensorInfo* attn_norm = nullptr;
  const gguf::TensorInfo* q = nullptr;
  const gguf::TensorInfo* k = nullptr;
  const gguf::TensorInfo* v = nullptr;
  const gguf::TensorInfo* q_bias = nullptr;
  const gguf::TensorInfo* k_bias = nullptr;
  const gguf::TensorInfo* v_bias = nullptr;
  const gguf::TensorInfo* q_norm = nullptr;
  const gguf::TensorInfo* k_norm = nullptr;
  const gguf::TensorInfo* attn_out = nullptr;
  const gguf::TensorInfo* attn_out_bias = nullptr;
  const gguf::TensorInfo* ffn_norm = nullptr;
  const gguf::TensorInfo* router = nullptr;
  const gguf::TensorInfo* ffn_gate = nullptr;
  const gguf::TensorInfo* ffn_up = nullptr;
  const gguf::TensorInfo* ffn_down = nullptr;
};

/// Which tensor of the file plays which part of the graph.
struct ModelTensors {
  const gguf::TensorInfo* token_embd = nullptr;
  const gguf::TensorInfo* output_norm = nullptr;
  const gguf::TensorInfo* output = nullptr;      ///< The embedding when the file ties them.
  const gguf::TensorInfo* rope_freqs = nullptr;  ///< Divisors of the rotation frequencies (Llama 3), or null.
  std::vector<LayerTensors> layers;

  /// Matrices of one layer that follow one another in a pass and need not stay in memory.
  struct Block {
    Role role = Role::dense_ffn;                   ///< dense_ffn or attention.
    std::vector<const gguf::TensorInfo*> tensors;  ///< In the order of their use.
  };
  /// All of them, in the order of their use.
  std::vector<Block> blocks() const;

  /// Every bound tensor once, sorted as the file lies: what a pass needs whatever is routed.
  std::vector<const gguf::TensorInfo*> pinned() const;
  /// Norms, biases and rotation divisors, which a pass uses as floats; each once.
  std::vector<const gguf::TensorInfo*> vectors() const;
};

/// What a vector takes as floats beside its own bytes: 0 when it is F32 in the file, too.
std::uint64_t converted_vector_bytes(const gguf::TensorInfo& tensor) noexcept;

/// Finds and checks all tensors of the graph; fills params.n_vocab. Throws Error(invalid_file) naming every
/// required tensor that is missing, or the first whose shape or type does not fit. Tensors the graph does not
/// use are named in a warning.
ModelTensors bind_tensors(const gguf::ModelFile& file, HyperParams& params);

}  // namespace sluice::model
