#pragma once

#include <memory>
#include <vector>

#include "model/block.hpp"
#include "model/kv_layout.hpp"
#include "model/pass.hpp"
#include "model/spec.hpp"
#include "model/state_layout.hpp"
#include "model/tensors.hpp"

namespace sluice::model {

/// The blocks of a model in the order of their use, with embedding and output around them. Without weights it
/// says which tensors it needs and what a pass takes; Forward gives it weights and runs it.
class Graph {
 public:
  struct Layer {
    Norm mixer_norm, channel_norm;
    const float *mixer_out_norm = nullptr, *channel_out_norm = nullptr;  ///< Null: none.
    std::unique_ptr<Block> mixer, channel;
    int next_units = -1;  ///< The next layer whose channel has units; -1: none.
  };

  explicit Graph(ModelSpec spec);
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;

  const ModelSpec& spec() const noexcept { return spec_; }
  const std::vector<Layer>& layers() const noexcept { return layers_; }
  /// Which tensors a file must have.
  Declaration declare();
  /// The same calls for every visitor.
  void visit(TensorVisitor& visitor);

  /// What each layer keeps in the KV cache.
  std::vector<KvLayer> kv_layers() const;
  const StateLayout& state() const noexcept { return state_; }

  kernels::Weight token_embd, output;  ///< `output` is empty when the embedding takes its place.
  Norm output_norm;
  const float *output_scale = nullptr, *output_bias = nullptr;
  struct RopeFactors {
    const float *usual = nullptr, *of_long_contexts = nullptr;
  };
  std::vector<RopeFactors> rope_factors;  ///< Of each curve.

 private:
  ModelSpec spec_;
  std::vector<Layer> layers_;
  StateLayout state_;
};

/// Whether a part of a layer is normalised before it is added.
bool has_out_norms(const ModelSpec& spec) noexcept;

/// Rows whose logits share one read of the output matrix.
std::uint32_t n_logits_rows(const ModelSpec& spec, std::uint32_t n_rows) noexcept;

/// What a pass takes.
struct PassMemory {
  std::uint64_t device_bytes = 0, host_bytes = 0;
  kernels::ScratchSize scratch;  ///< Of the operation table.
};
/// For passes of up to `n_rows` rows. Pure.
PassMemory pass_memory(const Graph& graph, std::uint32_t n_rows);

}  // namespace sluice::model
