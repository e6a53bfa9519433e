#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/function_ref.hpp"
#include "kernels/ops.hpp"
#include "model/binding.hpp"
#include "model/hyper_params.hpp"
#include "model/kv_layout.hpp"
#include "residency/dense_stream.hpp"
#include "residency/row_gather.hpp"
#include "residency/unit_cache.hpp"
#include "residency/weight_store.hpp"

namespace sluice::model {

/// The rows of one pass over the layers: tokens of one or several sequences.
struct PassRows {
  std::span<const std::int32_t> tokens;
  kernels::PassTables tables;                  ///< Of as many rows.
  std::span<const std::uint32_t> logits_rows;  ///< Rows whose logits are wanted, rising.
};

/// Receives the logits of logits_rows[index], valid during the call.
using LogitsReceiver = base::FunctionRef<void(std::size_t index, std::span<const float> logits)>;

/// The forward graph of a decoder-only transformer over an operation table: norm, attention, norm, FFN or
/// experts, with residual additions. Weights come pinned from the store, leased from the unit cache or in
/// parts from the stream; where they were makes no difference to a single bit of the result.
class Forward {
 public:
  /// Where the weights are that the store does not hold.
  struct Streams {
    residency::UnitCache* cache = nullptr;       ///< Null for dense models.
    residency::DenseStream* blocks = nullptr;    ///< Null when all of them are pinned for good.
    residency::RowGather* embeddings = nullptr;  ///< Null when they are pinned.
  };
  /// Borrows everything. Allocates all buffers for passes of up to max_rows
  /// rows. Throws Error(unsupported) for a weight type without a kernel, Error(budget) when memory is
  /// refused.
  Forward(const HyperParams& params, const ModelTensors& tensors, const residency::UnitMap& units,
          const KvLayout& kv, kernels::Ops& ops, const residency::WeightStore& store, const Streams& streams,
          std::uint32_t max_rows, bool looks_ahead);

  /// Bytes the constructor allocates for passes of `n_rows` rows, activations and the table's own scratch.
  /// Pure.
  static std::uint64_t scratch_bytes(const HyperParams& params, const kernels::Ops& ops,
                                     std::uint32_t n_rows);

  /// Computes one pass. Requires 1 <= rows <= max_rows, tokens inside the vocabulary, pages for all
  /// positions. `cancel` may be null; when it is raised the pass ends within one layer with Error(cancelled).
  /// Throws Error(io) when a unit cannot be read. After an exception the KV entries of the pass are
  /// undefined.
  void run(const PassRows& rows, const std::atomic<bool>* cancel, LogitsReceiver receiver);

  /// From now on each pass appends the ids its routers chose to `log`, [expert layers, rows, used], rows of a
  /// layer together. The caller empties and owns it. Null ends it.
  void log_routing(std::vector<std::uint16_t>* log) noexcept { routing_log_ = log; }

  /// Called before each layer of a pass, when no expert is leased. Must not throw.
  void set_layer_hook(std::function<void(std::uint32_t layer_idx)> hook) { layer_hook_ = std::move(hook); }
  /// Called between two parts of a layer that take long: products of attention, batches of experts. No expert
  /// is leased then, but some may be wanted or being read. Must not throw.
  void set_busy_hook(std::function<void()> hook) { busy_hook_ = std::move(hook); }
  /// Called before the products of each matrix of Streams::blocks, when neither a pinned matrix nor an expert
  /// is in use, so that weights may move: `next_tensor` is the first that the pass will use.
  void set_block_hook(std::function<void(std::uint32_t next_tensor)> hook) { block_hook_ = std::move(hook); }

  /// Bytes of weights that all passes needed so far, and that a pass of one row with logits needs; see Stats.
  std::uint64_t weight_bytes() const noexcept { return weight_bytes_; }
  std::uint64_t weight_bytes_per_token() const noexcept {
    return always_bytes_ + token_embd_.row_bytes + output_.row_bytes * output_.n_out + token_expert_bytes_;
  }

 private:
  /// A weight of every pass.
  struct Matrix {
    kernels::Weight w;      ///< Without data when the plan streams it; not to be read while it is streamed.
    int stream_index = -1;  ///< In Streams::blocks; -1 when it is always pinned.
  };
  struct Target {
    const Matrix& matrix;
    kernels::Rows y;
    const float* bias = nullptr;
  };
  struct LayerWeights {
    const float* attn_norm = nullptr;
    Matrix q, k, v, attn_out;
    const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *attn_out_bias = nullptr;
    const float *q_norm = nullptr, *k_norm = nullptr;
    const float* ffn_norm = nullptr;
    kernels::Weight router;
    Matrix gate, up, down;
  };

  const float* make_vector(const gguf::TensorInfo* tensor, const residency::WeightStore& store);
  Matrix make_matrix(const gguf::TensorInfo* tensor, const residency::WeightStore& store) const;
  void bind_layers(const ModelTensors& tensors, const residency::WeightStore& store);
  void carve_buffers(std::uint32_t max_rows);
  /// The buffers of routers and experts, from `next` on.
  void carve_routing(float* next, std::uint32_t max_rows);
  /// y = x * w^T (+ bias) for each target, all pinned or all streamed, in the stream's order.
  void multiply(kernels::Rows x, std::span<const Target> targets);
  void embed(std::span<const std::int32_t> tokens);
  void attention(std::uint32_t layer_idx, std::uint32_t n_rows);
  void dense_ffn(std::uint32_t layer_idx, std::uint32_t n_rows);
  void experts(std::uint32_t layer_idx, std::uint32_t n_rows, const std::atomic<bool>* cancel);
  void multiply_output(kernels::Rows h, kernels::Rows logits);
  void output(const PassRows& rows, LogitsReceiver receiver);
  void group_by_expert(std::uint32_t n_rows);
  /// Whether the drive waits for room in the ring while something is computed.
  bool is_beside_stream() const noexcept { return blocks_ != nullptr && blocks_->is_streaming(); }
  /// Asks the cache for the experts that the router of a layer would choose if nothing but attention came
  /// between the current layer's router and it: most layers change the state little.
  void look_ahead(std::uint32_t layer_idx, std::uint32_t n_rows);

  const HyperParams& params_;
  const residency::UnitMap& units_;
  const KvLayout& kv_;
  kernels::Ops& ops_;
  residency::UnitCache* cache_;
  residency::DenseStream* blocks_;
  residency::RowGather* embeddings_;
  bool looks_ahead_;
  std::vector<LayerWeights> layers_;
  std::deque<std::vector<float>> converted_;  ///< Vectors that are not F32 in the file.
  kernels::Weight token_embd_, output_;
  const float* output_norm_ = nullptr;
  std::uint64_t n_tokens_done_ = 0;       ///< The cache policy's clock.
  std::uint64_t always_bytes_ = 0;        ///< Weights of every pass, without embedding and output.
  std::uint64_t token_expert_bytes_ = 0;  ///< Experts of one row in all layers.
  std::uint64_t weight_bytes_ = 0;

  kernels::Rows x_, h_;          ///< Residual stream and its normalised copy.
  kernels::Rows q_, k_, v_, a_;  ///< Attention; shares memory with the FFN's and the output's buffers.
  kernels::Rows gate_, up_;
  kernels::Rows router_logits_, expert_out_;
  kernels::Rows ahead_h_, ahead_logits_;  ///< Of a few rows, beside the two above.
  kernels::Rows logits_;
  std::vector<float> host_logits_;
  std::vector<std::int32_t> gathered_ids_;  ///< 0, 1, 2 ...: rows of a gathered table.
  // Routing of the pass, on the host.
  std::vector<std::uint16_t> expert_ids_;  ///< [n_rows, n_used]
  std::vector<float> expert_weights_;      ///< [n_rows, n_used]
  std::vector<std::uint16_t> ahead_ids_;   ///< [few rows, n_used] of the next layer, as guessed
  std::vector<std::uint16_t> guesses_;     ///< Each of them once, best first.
  std::vector<float> ahead_weights_;
  std::vector<std::uint32_t> group_begin_;  ///< [n_experts + 1] into the two below.
  std::vector<std::uint32_t> in_rows_, out_rows_;
  std::vector<residency::UnitCache::Want> wants_;
  std::function<void(std::uint32_t)> layer_hook_, block_hook_;
  std::function<void()> busy_hook_;
  std::vector<std::uint16_t>* routing_log_ = nullptr;
};

}  // namespace sluice::model
