#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/function_ref.hpp"
#include "model/graph.hpp"
#include "model/pass.hpp"
#include "model/weights.hpp"
#include "residency/row_gather.hpp"

namespace sluice::model {

/// Receives the logits of logits_rows[index], valid during the call.
using LogitsReceiver = base::FunctionRef<void(std::size_t index, std::span<const float> logits)>;

/// Runs a graph over an operation table: embedding, per layer a mixer and a channel that add to the residual
/// stream, output. Weights come pinned from the store, leased from the unit cache or in parts from the
/// stream; where they were makes no difference to a single bit of the result.
class Forward {
 public:
  /// Where the weights are that the store does not hold.
  struct Streams {
    residency::UnitCache* cache = nullptr;       ///< Null for dense models, and with placed experts.
    residency::DenseStream* blocks = nullptr;    ///< Null when all of them are pinned for good.
    residency::RowGather* embeddings = nullptr;  ///< Null when they are pinned.
    /// Experts of each layer that has some, placed on the device (Ops::place); none: they come by the cache.
    std::span<const kernels::RoutedExperts> placed_experts;
  };
  /// For passes of up to `max_rows` rows of sequences of up to `n_ctx` positions.
  struct Limits {
    std::uint32_t max_rows = 0;
    std::uint32_t n_ctx = 0;
  };
  /// Borrows everything; gives the graph its weights and allocates all buffers. Throws Error(unsupported) for
  /// a weight type without a kernel, Error(budget) when memory is refused.
  Forward(Graph& graph, const BoundTensors& tensors, const residency::UnitMap& units, const KvLayout& kv,
          kernels::Ops& ops, const residency::WeightStore& store, const Streams& streams, Limits limits,
          bool looks_ahead);

  /// Bytes the constructor allocates for passes of `n_rows` rows, activations and the table's own scratch.
  /// Pure.
  static std::uint64_t scratch_bytes(const Graph& graph, const kernels::Ops& ops, std::uint32_t n_rows);

  /// Computes one pass. Requires 1 <= rows <= max_rows, tokens inside the vocabulary, pages for all
  /// positions. `cancel` may be null; when it is raised the pass ends within one layer with Error(cancelled).
  /// Throws Error(io) when weights cannot be read that all rows need.
  ///
  /// Returns the sequences that failed by themselves: those that wanted an expert that cannot be read, and
  /// those whose own flag was raised. They get no logits, and the others get the same bits as without them.
  /// The KV entries that the pass made for them, and after an exception for all, are undefined.
  std::vector<SequenceFailure> run(const PassRows& rows, const std::atomic<bool>* cancel,
                                   LogitsReceiver receiver);

  /// Computes the recurrent state again: `to` becomes what it was behind the first n_rows rows of the log,
  /// from log_row on, of which `from` is the state before. The same bits as in the pass that wrote the log.
  /// Not while a pass runs.
  void replay(const kernels::StateSlots& slots, std::uint32_t n_rows);

  /// From now on each pass appends the ids its routers chose to `log`, [expert layers, rows, used], rows of a
  /// layer together. The caller empties and owns it. Null ends it.
  void log_routing(std::vector<std::uint16_t>* log) noexcept { routing_log_ = log; }

  /// Called before each layer of a pass, when no expert is leased. Must not throw.
  void set_layer_hook(std::function<void(std::uint32_t layer_idx)> hook) { layer_hook_ = std::move(hook); }
  /// Called between two parts of a layer that take long: products of attention, batches of experts. No expert
  /// is leased then, but some may be wanted or being read. Must not throw.
  void set_busy_hook(std::function<void()> hook) { busy_hook_ = std::move(hook); }
  /// See Weights::set_block_hook().
  void set_block_hook(std::function<void(std::uint32_t next_tensor)> hook) {
    weights_.set_block_hook(std::move(hook));
  }

  /// Bytes of weights that all passes needed so far, and that a pass of one row with logits needs; see Stats.
  std::uint64_t weight_bytes() const noexcept { return weight_bytes_; }
  std::uint64_t weight_bytes_per_token() const noexcept {
    return always_bytes_ + token_embd_.row_bytes + output_.row_bytes * output_.n_out + token_expert_bytes_;
  }

 private:
  void receive_weights(const BoundTensors& tensors, std::uint32_t n_ctx);
  void count_weights(const BoundTensors& tensors);
  void embed(std::span<const std::int32_t> tokens, kernels::Rows x);
  /// Cuts out rows of sequences that failed; false when none is left.
  bool cut_failed(Pass& pass);
  /// False when no row has come through all layers.
  bool run_layers(Pass& pass, kernels::Rows all_h, kernels::Rows all_parts);
  /// Adds the block's result to the residual stream, normalised when there is a norm for it. `part` has room
  /// for it then.
  void run_part(Pass& pass, Block& block, const float* out_norm, kernels::Rows h, kernels::Rows part);
  void multiply_output(kernels::Rows h, kernels::Rows logits);
  void output(Pass& pass, kernels::Rows h, LogitsReceiver receiver);

  Graph& graph_;
  const residency::UnitMap& units_;
  const KvLayout& kv_;
  kernels::Ops& ops_;
  residency::UnitCache* cache_;
  std::vector<kernels::RoutedExperts> placed_experts_;
  residency::RowGather* embeddings_;
  Weights weights_;
  std::uint32_t max_rows_;
  bool looks_ahead_;
  kernels::Weight token_embd_, output_;
  Arena arena_;
  std::vector<std::byte> host_;
  std::vector<std::int32_t> gathered_ids_;  ///< 0, 1, 2 ...: rows of a gathered table.
  std::uint64_t n_tokens_done_ = 0;         ///< The cache policy's clock.
  std::uint64_t always_bytes_ = 0;          ///< Weights of every pass, without embedding and output.
  std::uint64_t token_expert_bytes_ = 0;    ///< Experts of one row in all layers.
  std::uint64_t weight_bytes_ = 0;
  std::function<void(std::uint32_t)> layer_hook_;
  std::function<void()> busy_hook_;
  std::vector<std::uint16_t>* routing_log_ = nullptr;
};

}  // namespace sluice::model
