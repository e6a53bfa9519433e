#include "model/forward.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"

namespace sluice::model {

using kernels::Product;
using kernels::Rows;
using kernels::Weight;

namespace {

void check_type(const kernels::Ops& ops, const std::string& name, gguf::TensorType type, kernels::Use use) {
  if (ops.supports(type, use)) return;
  base::fail(ErrorCode::unsupported,
             "{} has type {}, which the {} operations cannot use; use another quantization of the model, or "
             "another device",
             name, gguf::type_name(type), ops.name());
}

/// Throws Error(unsupported) naming a weight that the device cannot use.
void check_types(const kernels::Ops& ops, const BoundTensors& tensors, const residency::UnitMap& units) {
  for (const BoundTensor& bound : tensors.all) {
    if (bound.info == nullptr || bound.need.is_floats()) continue;
    const bool is_embedding = bound.info == tensors.token_embd;
    if (is_embedding) check_type(ops, bound.info->name, bound.info->type, kernels::Use::embedding);
    if (!is_embedding || tensors.output == tensors.token_embd)
      check_type(ops, bound.info->name, bound.info->type, kernels::Use::product);
  }
  for (const residency::LayerUnits& layer : units.layers) {
    for (const residency::PartShape& shape : layer.shapes) {
      check_type(ops, fmt::format("blk.{}.{}_exps.weight", layer.layer_idx, shape.stem), shape.type,
                 kernels::Use::product);
    }
  }
}

}  // namespace

std::uint64_t Forward::scratch_bytes(const Graph& graph, const kernels::Ops& ops, std::uint32_t n_rows) {
  const PassMemory memory = pass_memory(graph, n_rows);
  return memory.device_bytes + memory.host_bytes + ops.scratch_bytes(memory.scratch);
}

Forward::Forward(Graph& graph, const BoundTensors& tensors, const residency::UnitMap& units,
                 const KvLayout& kv, kernels::Ops& ops, const residency::WeightStore& store,
                 const Streams& streams, Limits limits, bool looks_ahead)
    : graph_(graph),
      units_(units),
      kv_(kv),
      ops_(ops),
      cache_(streams.cache),
      placed_experts_(streams.placed_experts.begin(), streams.placed_experts.end()),
      embeddings_(streams.embeddings),
      weights_(tensors, ops, store, streams.blocks),
      max_rows_(limits.max_rows),
      looks_ahead_(looks_ahead) {
  SLUICE_CHECK(units.layers.empty() == (cache_ == nullptr && placed_experts_.empty()));
  check_types(ops, tensors, units);
  const PassMemory memory = pass_memory(graph, max_rows_);
  ops_.reserve(memory.scratch);
  receive_weights(tensors, limits.n_ctx);
  count_weights(tensors);
  constexpr std::size_t k_alignment = 64;
  host_.resize(memory.host_bytes + k_alignment);
  void* host = host_.data();
  std::size_t space = host_.size();
  arena_ = Arena(ops_.allocate(memory.device_bytes),
                 static_cast<std::byte*>(std::align(k_alignment, memory.host_bytes, host, space)),
                 {memory.device_bytes, memory.host_bytes});
  if (embeddings_ != nullptr) {
    gathered_ids_.resize(max_rows_);
    std::iota(gathered_ids_.begin(), gathered_ids_.end(), 0);
  }
}

void Forward::receive_weights(const BoundTensors& tensors, std::uint32_t n_ctx) {
  Weights::Receiving receiving(weights_);
  graph_.visit(receiving);
  token_embd_ = graph_.token_embd;
  SLUICE_CHECK(token_embd_.data != nullptr || embeddings_ != nullptr);
  output_ = tensors.output == tensors.token_embd ? graph_.token_embd : graph_.output;
  if (graph_.output_scale != nullptr) output_.scale = *graph_.output_scale;
  std::vector<kernels::RopeParams> curves;
  for (std::size_t i = 0; i < graph_.spec().curves.size(); ++i) {
    const RopeCurve& curve = graph_.spec().curves[i];
    kernels::RopeParams& rope = curves.emplace_back(curve.params);
    const bool is_long = curve.long_factors != nullptr && n_ctx > rope.n_ctx_orig;
    const Graph::RopeFactors& factors = graph_.rope_factors[i];
    rope.freq_factors = is_long ? factors.of_long_contexts : factors.usual;
  }
  ops_.set_curves(curves);
}

void Forward::count_weights(const BoundTensors& tensors) {
  for (const BoundTensor& bound : tensors.all) {
    if (bound.info != nullptr && bound.info != tensors.token_embd && bound.info != tensors.output)
      always_bytes_ += bound.info->size_bytes;
  }
  for (const residency::LayerUnits& layer : units_.layers)
    token_expert_bytes_ += layer.weight_bytes * graph_.spec().n_experts_used();
}

void Forward::embed(std::span<const std::int32_t> tokens, Rows x) {
  if (embeddings_ == nullptr) {
    ops_.embed(token_embd_, tokens, x);
  } else {
    Weight table = token_embd_;
    table.data = embeddings_->gather(tokens);
    table.n_out = x.n_rows;
    ops_.embed(table, std::span(gathered_ids_).first(tokens.size()), x);
  }
  if (graph_.spec().embedding_scale != 1.0f) ops_.scale(x, graph_.spec().embedding_scale);
}

std::vector<SequenceFailure> Forward::run(const PassRows& rows, const std::atomic<bool>* cancel,
                                          LogitsReceiver receiver) {
  const auto n_rows = static_cast<std::uint32_t>(rows.tokens.size());
  const ModelSpec& spec = graph_.spec();
  SLUICE_CHECK(n_rows >= 1 && n_rows <= max_rows_);
  n_tokens_done_ += n_rows;
  const ArenaScope scope(arena_);
  LiveRows live(arena_, rows);
  Pass pass{ops_,         weights_,       arena_,       cache_,       placed_experts_, units_,
            kv_,          graph_.state(), live,         cancel,       n_tokens_done_,  busy_hook_,
            routing_log_, spec.norm_eps,  looks_ahead_, weight_bytes_};
  pass.check_cancel();
  weight_bytes_ += always_bytes_ + n_rows * token_embd_.row_bytes;
  if (!rows.logits_rows.empty()) weight_bytes_ += output_.row_bytes * output_.n_out;
  if (weights_.stream() != nullptr) weights_.stream()->begin_pass();
  pass.x = arena_.rows(n_rows, spec.n_embd);
  const Rows h = arena_.rows(n_rows, spec.n_embd);
  const Rows part = has_out_norms(spec) ? arena_.rows(n_rows, spec.n_embd) : Rows{};
  ops_.begin_pass(rows.tables);
  embed(rows.tokens, pass.x);
  if (run_layers(pass, h, part)) output(pass, h, receiver);
  return std::move(live.failures());
}

void Forward::replay(const kernels::StateSlots& slots, std::uint32_t n_rows) {
  SLUICE_CHECK(n_rows >= 1 && n_rows <= k_state_log_rows && slots.log != nullptr);
  const StateLayout& state = graph_.state();
  for (std::size_t i = 0; i < state.views.size(); ++i) {
    const StateView& view = state.views[i];
    if (view.log_row_bytes == 0) continue;
    graph_.layers()[i].mixer->replay(
        {ops_, arena_, slots.from == nullptr ? nullptr : slots.from + view.slot_offset,
         slots.to + view.slot_offset, slots.log + view.log_offset + slots.log_row * view.log_row_bytes,
         n_rows, max_rows_, graph_.spec().norm_eps});
  }
}

bool Forward::cut_failed(Pass& pass) {
  pass.rows.fail_cancelled();
  if (!pass.rows.cut()) return pass.rows.n_rows() != 0;
  ops_.keep_rows(pass.x, pass.rows.kept());
  pass.x = pass.x.first(pass.rows.n_rows());
  if (pass.rows.n_rows() == 0) return false;
  ops_.begin_pass(pass.rows.tables());
  return true;
}

bool Forward::run_layers(Pass& pass, Rows all_h, Rows all_parts) {
  const ModelSpec& spec = graph_.spec();
  for (std::uint32_t layer_idx = 0; layer_idx < spec.n_layers(); ++layer_idx) {
    const Graph::Layer& layer = graph_.layers()[layer_idx];
    pass.check_cancel();
    if (!cut_failed(pass)) return false;
    if (layer_hook_) layer_hook_(layer_idx);
    pass.layer_idx = layer_idx;
    pass.next_units = nullptr;
    if (layer.next_units >= 0) {
      const Graph::Layer& next = graph_.layers()[static_cast<std::size_t>(layer.next_units)];
      pass.next_units = next.channel.get();
      pass.next_units_layer = static_cast<std::uint32_t>(layer.next_units);
      pass.next_units_norm = next.channel_norm;
    }
    const Rows h = all_h.first(pass.x.n_rows), part = all_parts.first(pass.x.n_rows);
    normalize(ops_, pass.x, layer.mixer_norm, spec.norm_eps, h);
    run_part(pass, *layer.mixer, layer.mixer_out_norm, h, part);
    normalize(ops_, pass.x, layer.channel_norm, spec.norm_eps, h);
    run_part(pass, *layer.channel, layer.channel_out_norm, h, part);
  }
  return cut_failed(pass);
}

void Forward::run_part(Pass& pass, Block& block, const float* out_norm, Rows h, Rows part) {
  const ModelSpec& spec = graph_.spec();
  if (out_norm == nullptr) return block.run(pass, h, pass.x, spec.residual_scale);
  ops_.clear(part);
  block.run(pass, h, part, 1.0f);
  ops_.rms_norm(part, out_norm, spec.norm_eps, part);
  ops_.add(part, spec.residual_scale, pass.x);
}

void Forward::multiply_output(Rows h, Rows logits) {
  // The largest matrix of all: in slices, the drive gets its next reads in between.
  const std::uint32_t n_slices = weights_.is_beside_stream() ? 16 : 1;
  const auto step = static_cast<std::uint32_t>(base::align_up((output_.n_out + n_slices - 1) / n_slices, 16));
  for (std::uint32_t row = 0; row < output_.n_out; row += step) {
    Weight w = output_;
    w.data += row * w.row_bytes;
    w.n_out = std::min(step, output_.n_out - row);
    const std::array<Product, 1> product = {
        {{w,
          {logits.data + row, logits.n_rows, w.n_out, logits.stride},
          graph_.output_bias == nullptr ? nullptr : graph_.output_bias + row}}};
    ops_.matmul(h, product);
    if (weights_.is_beside_stream()) weights_.stream()->pump();
  }
}

void Forward::output(Pass& pass, Rows h, LogitsReceiver receiver) {
  const ModelSpec& spec = graph_.spec();
  const std::span<const std::uint32_t> wanted = pass.rows.logits_rows();
  const ArenaScope scope(arena_);
  const Rows logits = arena_.rows(std::min(n_logits_rows(spec, max_rows_), pass.x.n_rows), spec.n_vocab);
  const std::span<float> host_logits = arena_.list<float>(spec.n_vocab);
  for (std::size_t done = 0; done < wanted.size();) {
    const auto n = static_cast<std::uint32_t>(std::min<std::size_t>(logits.n_rows, wanted.size() - done));
    for (std::uint32_t i = 0; i < n; ++i)
      normalize(ops_, pass.x.from(wanted[done + i]).first(1), graph_.output_norm, spec.norm_eps,
                h.from(i).first(1));
    multiply_output(h.first(n), logits.first(n));
    if (spec.logit_scale != 1.0f) ops_.scale(logits.first(n), spec.logit_scale);
    if (spec.logit_softcap != 0.0f) ops_.softcap(logits.first(n), spec.logit_softcap);
    for (std::uint32_t i = 0; i < n; ++i) {
      ops_.download(reinterpret_cast<const std::byte*>(logits.from(i).data), host_logits.data(),
                    host_logits.size_bytes());
      receiver(pass.rows.logits_index(done + i), host_logits);
    }
    done += n;
  }
}

}  // namespace sluice::model
