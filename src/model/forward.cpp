#include "model/forward.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"
#include "kernels/gemm.hpp"
#include "kernels/quant.hpp"

namespace sluice::model {
namespace {

using kernels::Product;
using kernels::Rows;
using kernels::Weight;
using residency::ExpertPart;

constexpr std::uint64_t k_buffer_alignment = 64;

/// Floats of each buffer of a pass. Attention, FFN and output follow one another, so they share one area.
struct BufferPlan {
  std::uint32_t n_rows = 0, n_logits = 0;
  std::uint64_t stream = 0;  ///< x and h together.
  std::uint64_t area = 0;
  std::uint64_t host = 0;  ///< Bytes.
  std::uint64_t device_bytes() const { return (stream + area) * sizeof(float); }
};

std::uint64_t padded(std::uint64_t n_floats) {
  return base::align_up(n_floats, k_buffer_alignment / sizeof(float));
}

/// Rows up to which a pass over streamed experts is treated as decoding: what it uses is worth keeping, and
/// the next layer's experts can be guessed.
std::uint32_t ahead_rows(std::uint32_t n_rows) {
  constexpr std::uint32_t k_max_decode_rows = 16;
  return std::min(n_rows, k_max_decode_rows);
}

BufferPlan plan_buffers(const HyperParams& params, std::uint32_t n_rows) {
  BufferPlan plan;
  plan.n_rows = n_rows;
  const std::uint64_t rows = n_rows;
  const std::uint64_t embd = padded(rows * params.n_embd);
  plan.stream = 2 * embd;
  const std::uint64_t attention = padded(rows * params.q_dim()) + padded(rows * params.k_dim()) +
                                  padded(rows * params.v_dim()) +
                                  padded(rows * params.n_heads * params.v_head_dim);
  std::uint64_t ffn = 2 * padded(rows * params.n_ff);
  if (params.is_moe()) {
    const std::uint64_t routed = rows * params.n_experts_used;
    ffn = std::max(ffn, padded(rows * params.n_experts) + padded(routed * params.n_embd) +
                            padded(std::uint64_t{ahead_rows(n_rows)} * params.n_embd) +
                            padded(std::uint64_t{ahead_rows(n_rows)} * params.n_experts));
    plan.host = routed * (sizeof(std::uint16_t) + sizeof(float) + 2 * sizeof(std::uint32_t)) +
                ahead_rows(n_rows) * params.n_experts_used * (2 * sizeof(std::uint16_t) + sizeof(float)) +
                params.n_experts * (sizeof(std::uint32_t) + sizeof(residency::UnitCache::Want));
  }
  // Several rows of logits share one read of the output matrix; as many as take the room of the stream.
  plan.n_logits = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(plan.stream / std::max(params.n_vocab, 1u), 1, 64));
  plan.n_logits = std::min(plan.n_logits, n_rows);
  plan.host += std::uint64_t{params.n_vocab} * sizeof(float);
  plan.area = std::max({attention, ffn, padded(std::uint64_t{plan.n_logits} * params.n_vocab)});
  return plan;
}

std::uint32_t widest_input(const HyperParams& params) {
  return std::max({params.n_embd, params.n_heads * params.v_head_dim, params.n_ff, params.n_ff_expert});
}

kernels::ScratchSize scratch_size(const HyperParams& params, std::uint32_t n_rows) {
  return {n_rows, widest_input(params), params.n_ff_expert, params.rope.n_rot};
}

/// A weight without its data.
Weight shape_of(const gguf::TensorInfo& tensor) {
  return {nullptr, tensor.type, static_cast<std::uint32_t>(tensor.dims[0]),
          static_cast<std::uint32_t>(tensor.dims[1]), gguf::row_bytes(tensor.type, tensor.dims[0])};
}

/// Takes rows from an area, whose first free float is `from`.
Rows carve(float*& from, std::uint32_t n_rows, std::uint32_t n_cols) {
  const Rows rows{from, n_rows, n_cols, n_cols};
  from += padded(std::uint64_t{n_rows} * n_cols);
  return rows;
}

Weight make_weight(const gguf::TensorInfo* tensor, const residency::WeightStore& store) {
  if (tensor == nullptr) return {};
  Weight weight = shape_of(*tensor);
  weight.data = store.find(*tensor);
  SLUICE_CHECK(weight.data != nullptr);
  return weight;
}

Weight make_weight(const residency::LayerUnits& layer, const residency::Lease& lease, ExpertPart which) {
  const auto part = static_cast<std::size_t>(which);
  const residency::PartShape& shape = layer.shapes[part];
  return {lease.part(part), shape.type, shape.n_in, shape.n_out, shape.row_bytes};
}

void check_cancel(const std::atomic<bool>* cancel) {
  if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::cancelled, "the computation was cancelled");
}

/// Ends the cache's fetch however the layer ends.
class FetchGuard {
 public:
  explicit FetchGuard(residency::UnitCache& cache) : cache_(cache) {}
  ~FetchGuard() { cache_.abandon(); }
  FetchGuard(const FetchGuard&) = delete;
  FetchGuard& operator=(const FetchGuard&) = delete;

 private:
  residency::UnitCache& cache_;
};

}  // namespace

std::uint64_t Forward::scratch_bytes(const HyperParams& params, const kernels::Ops& ops,
                                     std::uint32_t n_rows) {
  const BufferPlan plan = plan_buffers(params, n_rows);
  return plan.device_bytes() + plan.host + ops.scratch_bytes(scratch_size(params, n_rows));
}

Forward::Forward(const HyperParams& params, const ModelTensors& tensors, const residency::UnitMap& units,
                 const KvLayout& kv, kernels::Ops& ops, const residency::WeightStore& store,
                 const Streams& streams, std::uint32_t max_rows, bool looks_ahead)
    : params_(params),
      units_(units),
      kv_(kv),
      ops_(ops),
      cache_(streams.cache),
      blocks_(streams.blocks),
      embeddings_(streams.embeddings),
      looks_ahead_(looks_ahead) {
  SLUICE_CHECK(params.is_moe() == (cache_ != nullptr));
  for (const residency::LayerUnits& layer : units.layers) {
    for (const residency::PartShape& shape : layer.shapes) {
      if (kernels::find_gemm(shape.type, kernels::Isa::scalar).gemm == nullptr) {
        base::fail(ErrorCode::unsupported, "blk.{}.{}_exps.weight has type {}, which is not a weight type",
                   layer.layer_idx, shape.stem, gguf::type_name(shape.type));
      }
    }
  }
  token_embd_ =
      embeddings_ == nullptr ? make_weight(tensors.token_embd, store) : shape_of(*tensors.token_embd);
  output_ = make_weight(tensors.output, store);
  output_norm_ = make_vector(tensors.output_norm, store);
  for (const gguf::TensorInfo* tensor : tensors.pinned()) {
    if (tensor != tensors.token_embd && tensor != tensors.output) always_bytes_ += tensor->size_bytes;
  }
  for (const residency::LayerUnits& layer : units.layers)
    token_expert_bytes_ += layer.weight_bytes * params.n_experts_used;
  bind_layers(tensors, store);
  carve_buffers(max_rows);
  kernels::RopeParams curve = params.rope;
  curve.freq_factors = make_vector(tensors.rope_freqs, store);
  ops.set_curves({&curve, 1});
}

void Forward::bind_layers(const ModelTensors& tensors, const residency::WeightStore& store) {
  layers_.reserve(tensors.layers.size());
  for (const LayerTensors& from : tensors.layers) {
    LayerWeights layer;
    layer.attn_norm = make_vector(from.attn_norm, store);
    layer.q = make_matrix(from.q, store);
    layer.k = make_matrix(from.k, store);
    layer.v = make_matrix(from.v, store);
    layer.q_bias = make_vector(from.q_bias, store);
    layer.k_bias = make_vector(from.k_bias, store);
    layer.v_bias = make_vector(from.v_bias, store);
    layer.q_norm = make_vector(from.q_norm, store);
    layer.k_norm = make_vector(from.k_norm, store);
    layer.attn_out = make_matrix(from.attn_out, store);
    layer.attn_out_bias = make_vector(from.attn_out_bias, store);
    layer.ffn_norm = make_vector(from.ffn_norm, store);
    layer.router = make_weight(from.router, store);
    layer.gate = make_matrix(from.ffn_gate, store);
    layer.up = make_matrix(from.ffn_up, store);
    layer.down = make_matrix(from.ffn_down, store);
    layers_.push_back(layer);
  }
}

void Forward::carve_routing(float* next, std::uint32_t max_rows) {
  router_logits_ = carve(next, max_rows, params_.n_experts);
  expert_out_ = carve(next, max_rows * params_.n_experts_used, params_.n_embd);
  const std::uint32_t n_ahead = ahead_rows(max_rows);
  ahead_h_ = carve(next, n_ahead, params_.n_embd);
  ahead_logits_ = carve(next, n_ahead, params_.n_experts);
  ahead_ids_.resize(std::size_t{n_ahead} * params_.n_experts_used);
  ahead_weights_.resize(ahead_ids_.size());
  guesses_.reserve(ahead_ids_.size());
  const std::size_t routed = std::size_t{max_rows} * params_.n_experts_used;
  expert_ids_.resize(routed);
  expert_weights_.resize(routed);
  in_rows_.resize(routed);
  out_rows_.resize(routed);
  group_begin_.resize(params_.n_experts + 1);
  wants_.reserve(params_.n_experts);
}

void Forward::carve_buffers(std::uint32_t max_rows) {
  const BufferPlan plan = plan_buffers(params_, max_rows);
  ops_.reserve(scratch_size(params_, max_rows));
  auto* stream = reinterpret_cast<float*>(ops_.allocate(plan.stream * sizeof(float)));
  auto* area = reinterpret_cast<float*>(ops_.allocate(plan.area * sizeof(float)));
  x_ = carve(stream, max_rows, params_.n_embd);
  h_ = carve(stream, max_rows, params_.n_embd);
  float* next = area;
  q_ = carve(next, max_rows, params_.q_dim());
  k_ = carve(next, max_rows, params_.k_dim());
  v_ = carve(next, max_rows, params_.v_dim());
  a_ = carve(next, max_rows, params_.n_heads * params_.v_head_dim);
  next = area;
  gate_ = carve(next, max_rows, params_.n_ff);
  up_ = carve(next, max_rows, params_.n_ff);
  next = area;
  if (params_.is_moe()) carve_routing(next, max_rows);
  logits_ = {area, plan.n_logits, params_.n_vocab, params_.n_vocab};
  host_logits_.resize(params_.n_vocab);
  if (embeddings_ != nullptr) {
    gathered_ids_.resize(max_rows);
    std::iota(gathered_ids_.begin(), gathered_ids_.end(), 0);
  }
}

const float* Forward::make_vector(const gguf::TensorInfo* tensor, const residency::WeightStore& store) {
  if (tensor == nullptr) return nullptr;
  const std::byte* data = make_weight(tensor, store).data;
  if (converted_vector_bytes(*tensor) == 0) return reinterpret_cast<const float*>(data);
  std::vector<float>& floats = converted_.emplace_back(tensor->dims[0]);
  SLUICE_CHECK(kernels::dequantize_row(tensor->type, data, floats.data(), floats.size()));
  return floats.data();
}

Forward::Matrix Forward::make_matrix(const gguf::TensorInfo* tensor,
                                     const residency::WeightStore& store) const {
  const int index = blocks_ == nullptr ? -1 : blocks_->find(tensor);
  if (index < 0) return {make_weight(tensor, store), -1};
  Weight weight = shape_of(*tensor);
  weight.data = store.find(*tensor);
  return {weight, index};
}

void Forward::embed(std::span<const std::int32_t> tokens) {
  const Rows x = x_.first(static_cast<std::uint32_t>(tokens.size()));
  if (embeddings_ == nullptr) {
    ops_.embed(token_embd_, tokens, x);
    return;
  }
  Weight table = token_embd_;
  table.data = embeddings_->gather(tokens);
  table.n_out = x.n_rows;
  ops_.embed(table, std::span(gathered_ids_).first(tokens.size()), x);
}

void Forward::multiply(Rows x, std::span<const Target> targets) {
  constexpr std::size_t k_max_parts = 16;
  std::array<Product, k_max_parts> products;
  const int index = targets.front().matrix.stream_index;
  const auto first = static_cast<std::uint32_t>(index);
  if (index >= 0 && block_hook_) block_hook_(first);
  if (index < 0 || !blocks_->is_streamed(first)) {
    for (std::size_t i = 0; i < targets.size(); ++i)
      products[i] = {targets[i].matrix.w, targets[i].y, targets[i].bias};
    // Beside a stream one by one, since the drive gets its next reads in between.
    const std::size_t step = is_beside_stream() ? 1 : targets.size();
    for (std::size_t i = 0; i < targets.size(); i += step) {
      ops_.matmul(x, std::span(products).subspan(i, step));
      if (is_beside_stream()) blocks_->pump();
    }
    return;
  }
  // Rows of a product do not depend on one another, so parts give the same bits as the whole.
  std::array<residency::DenseStream::Part, k_max_parts> parts;
  while (const std::size_t n = blocks_->next(first + static_cast<std::uint32_t>(targets.size()), parts)) {
    for (std::size_t i = 0; i < n; ++i) {
      const residency::DenseStream::Part& part = parts[i];
      const Target& target = targets[part.tensor - first];
      Weight w = target.matrix.w;
      w.data = part.data;
      w.n_out = part.n_rows;
      products[i] = {w,
                     {target.y.data + part.first_row, target.y.n_rows, part.n_rows, target.y.stride},
                     target.bias == nullptr ? nullptr : target.bias + part.first_row};
    }
    ops_.matmul(x, std::span(products).first(n));
    blocks_->release();
  }
}

void Forward::run(const PassRows& rows, const std::atomic<bool>* cancel, LogitsReceiver receiver) {
  const auto n_rows = static_cast<std::uint32_t>(rows.tokens.size());
  SLUICE_CHECK(n_rows >= 1 && n_rows <= x_.n_rows && rows.tables.positions.size() == n_rows);
  check_cancel(cancel);
  n_tokens_done_ += n_rows;
  weight_bytes_ += always_bytes_ + n_rows * token_embd_.row_bytes;
  if (!rows.logits_rows.empty()) weight_bytes_ += output_.row_bytes * output_.n_out;
  if (blocks_ != nullptr) blocks_->begin_pass();
  ops_.begin_pass(rows.tables);
  embed(rows.tokens);
  for (std::uint32_t layer_idx = 0; layer_idx < params_.n_layers; ++layer_idx) {
    check_cancel(cancel);
    if (layer_hook_) layer_hook_(layer_idx);
    attention(layer_idx, n_rows);
    ops_.rms_norm(x_.first(n_rows), layers_[layer_idx].ffn_norm, params_.norm_eps, h_.first(n_rows));
    if (params_.is_moe()) {
      experts(layer_idx, n_rows, cancel);
    } else {
      dense_ffn(layer_idx, n_rows);
    }
  }
  output(rows, receiver);
}

void Forward::attention(std::uint32_t layer_idx, std::uint32_t n_rows) {
  const LayerWeights& layer = layers_[layer_idx];
  const Rows x = x_.first(n_rows), h = h_.first(n_rows);
  const Rows q = q_.first(n_rows), k = k_.first(n_rows), v = v_.first(n_rows), a = a_.first(n_rows);
  ops_.rms_norm(x, layer.attn_norm, params_.norm_eps, h);
  const std::array<Target, 3> qkv = {
      {{layer.q, q, layer.q_bias}, {layer.k, k, layer.k_bias}, {layer.v, v, layer.v_bias}}};
  multiply(h, qkv);
  if (busy_hook_) busy_hook_();
  if (params_.has_qk_norm) {
    ops_.rms_norm_heads(q, params_.k_head_dim, layer.q_norm, params_.norm_eps);
    ops_.rms_norm_heads(k, params_.k_head_dim, layer.k_norm, params_.norm_eps);
  }
  constexpr std::uint32_t k_curve = 0;
  ops_.rope(q, params_.k_head_dim, k_curve, 0);
  ops_.rope(k, params_.k_head_dim, k_curve, 0);
  const kernels::KvView& view = kv_.views[layer_idx];
  ops_.store_kv(k, v, view, 0);
  kernels::AttentionParams attention_params;
  attention_params.n_heads = params_.n_heads;
  attention_params.scale = params_.attention_scale;
  // Rows do not depend on one another. In slices, others get a turn in between: far into a long prompt one
  // call for all would take seconds.
  constexpr std::uint32_t k_slice_rows = 128;
  for (std::uint32_t row = 0; row < n_rows; row += k_slice_rows) {
    const std::uint32_t n = std::min(k_slice_rows, n_rows - row);
    ops_.attention(q.from(row).first(n), view, attention_params, row, a.from(row).first(n));
    if (busy_hook_) busy_hook_();
  }
  const std::array<Target, 1> out = {{{layer.attn_out, h, layer.attn_out_bias}}};
  multiply(a, out);
  ops_.add(h, x);
}

void Forward::dense_ffn(std::uint32_t layer_idx, std::uint32_t n_rows) {
  const LayerWeights& layer = layers_[layer_idx];
  const Rows h = h_.first(n_rows), gate = gate_.first(n_rows), up = up_.first(n_rows);
  const std::array<Target, 2> in = {{{layer.gate, gate}, {layer.up, up}}};
  multiply(h, in);
  ops_.swiglu(gate, up, gate);
  const std::array<Target, 1> out = {{{layer.down, h}}};
  multiply(gate, out);
  ops_.add(h, x_.first(n_rows));
}

void Forward::group_by_expert(std::uint32_t n_rows) {
  const std::uint32_t n_used = params_.n_experts_used;
  const std::uint32_t n_routed = n_rows * n_used;
  std::fill(group_begin_.begin(), group_begin_.end(), 0u);
  for (std::uint32_t i = 0; i < n_routed; ++i) ++group_begin_[expert_ids_[i] + 1u];
  for (std::uint32_t expert = 0; expert < params_.n_experts; ++expert)
    group_begin_[expert + 1] += group_begin_[expert];
  // Counting sort; group_begin_ is moved forward while filling and set back afterwards.
  for (std::uint32_t i = 0; i < n_routed; ++i) {
    const std::uint32_t place = group_begin_[expert_ids_[i]]++;
    in_rows_[place] = i / n_used;
    out_rows_[place] = i;
  }
  for (std::uint32_t expert = params_.n_experts; expert > 0; --expert)
    group_begin_[expert] = group_begin_[expert - 1];
  group_begin_[0] = 0;
}

void Forward::look_ahead(std::uint32_t layer_idx, std::uint32_t n_rows) {
  const LayerWeights& layer = layers_[layer_idx];
  const Rows h = ahead_h_.first(n_rows), logits = ahead_logits_.first(n_rows);
  ops_.rms_norm(x_.first(n_rows), layer.ffn_norm, params_.norm_eps, h);
  const std::array<Product, 1> routing = {{{layer.router, logits, nullptr}}};
  ops_.matmul(h, routing);
  ops_.route(logits, params_.router, ahead_ids_.data(), ahead_weights_.data());
  // Every row's first choice, then every row's second, and so on.
  guesses_.clear();
  for (std::uint32_t rank = 0; rank < params_.n_experts_used; ++rank) {
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      const std::uint16_t expert = ahead_ids_[row * params_.n_experts_used + rank];
      if (std::find(guesses_.begin(), guesses_.end(), expert) == guesses_.end()) guesses_.push_back(expert);
    }
  }
  cache_->look_ahead(layer_idx, guesses_);
}

void Forward::experts(std::uint32_t layer_idx, std::uint32_t n_rows, const std::atomic<bool>* cancel) {
  using residency::Lease;
  using residency::UnitCache;
  const std::uint32_t n_used = params_.n_experts_used;
  const LayerWeights& layer = layers_[layer_idx];
  const Rows h = h_.first(n_rows);
  const std::array<Product, 1> routing = {{{layer.router, router_logits_.first(n_rows), nullptr}}};
  ops_.matmul(h, routing);
  ops_.route(router_logits_.first(n_rows), params_.router, expert_ids_.data(), expert_weights_.data());
  if (routing_log_ != nullptr)
    routing_log_->insert(routing_log_->end(), expert_ids_.begin(), expert_ids_.begin() + n_rows * n_used);
  group_by_expert(n_rows);

  wants_.clear();
  const bool decode = n_rows <= ahead_rows(n_rows);
  if (n_rows == 1) {
    for (std::uint32_t rank = 0; rank < n_used; ++rank) wants_.push_back({expert_ids_[rank], 1});
  } else {
    // By rising id, which is the order they lie in the file.
    for (std::uint32_t expert = 0; expert < params_.n_experts; ++expert) {
      const std::uint32_t count = group_begin_[expert + 1] - group_begin_[expert];
      if (count != 0) wants_.push_back({expert, count});
    }
  }

  // A batch shares the worker threads. It stays small when many experts pass through few slots, so that reads
  // go on while it is computed.
  constexpr std::size_t k_max_batch = 16;
  std::array<Lease, k_max_batch> leases;
  std::array<kernels::ExpertCall, k_max_batch> calls;
  const residency::LayerUnits& units =
      units_.layers[static_cast<std::size_t>(units_.index_of_layer[layer_idx])];
  const std::size_t batch = wants_.size() <= k_max_batch ? k_max_batch : 2;
  weight_bytes_ += wants_.size() * units.weight_bytes;
  cache_->begin(layer_idx, wants_, decode ? UnitCache::Admission::always : UnitCache::Admission::if_better,
                n_tokens_done_);
  const FetchGuard guard(*cache_);
  if (decode && looks_ahead_ && cache_->is_streaming() && layer_idx + 1 < params_.n_layers)
    look_ahead(layer_idx + 1, n_rows);
  ops_.begin_experts(h);
  const Rows out = expert_out_.first(n_rows * n_used);
  while (const std::size_t n = cache_->next(std::span(leases).first(batch))) {
    cache_->require_all();
    check_cancel(cancel);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t expert = leases[i].expert();
      const std::uint32_t begin = group_begin_[expert], count = group_begin_[expert + 1] - begin;
      calls[i] = {make_weight(units, leases[i], ExpertPart::gate),
                  make_weight(units, leases[i], ExpertPart::up),
                  make_weight(units, leases[i], ExpertPart::down), std::span(in_rows_).subspan(begin, count),
                  std::span(out_rows_).subspan(begin, count)};
    }
    ops_.run_experts(std::span(calls).first(n), out);
    for (std::size_t i = 0; i < n; ++i) leases[i] = Lease();
    if (busy_hook_) busy_hook_();
  }
  cache_->require_all();
  ops_.combine_experts(out, expert_weights_.data(), n_used, x_.first(n_rows));
}

void Forward::multiply_output(Rows h, Rows logits) {
  // The largest matrix of all: in slices, the drive gets its next reads in between.
  const std::uint32_t n_slices = is_beside_stream() ? 16 : 1;
  const auto step = static_cast<std::uint32_t>(base::align_up((output_.n_out + n_slices - 1) / n_slices, 16));
  for (std::uint32_t row = 0; row < output_.n_out; row += step) {
    Weight w = output_;
    w.data += row * w.row_bytes;
    w.n_out = std::min(step, output_.n_out - row);
    const std::array<Product, 1> product = {
        {{w, {logits.data + row, logits.n_rows, w.n_out, logits.stride}, nullptr}}};
    ops_.matmul(h, product);
    if (is_beside_stream()) blocks_->pump();
  }
}

void Forward::output(const PassRows& rows, LogitsReceiver receiver) {
  std::size_t done = 0;
  while (done < rows.logits_rows.size()) {
    const auto n =
        static_cast<std::uint32_t>(std::min<std::size_t>(logits_.n_rows, rows.logits_rows.size() - done));
    for (std::uint32_t i = 0; i < n; ++i) {
      Rows from = x_.from(rows.logits_rows[done + i]).first(1);
      ops_.rms_norm(from, output_norm_, params_.norm_eps, h_.from(i).first(1));
    }
    multiply_output(h_.first(n), logits_.first(n));
    for (std::uint32_t i = 0; i < n; ++i) {
      const Rows row = logits_.from(i);
      ops_.download(reinterpret_cast<const std::byte*>(row.data), host_logits_.data(),
                    host_logits_.size() * sizeof(float));
      receiver(done + i, host_logits_);
    }
    done += n;
  }
}

}  // namespace sluice::model
