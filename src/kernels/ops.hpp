#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ticket.hpp"
#include "gguf/types.hpp"
#include "kernels/delta.hpp"
#include "kernels/kv.hpp"

namespace sluice::kernels {

using gguf::TensorType;

// The operation table: everything a forward graph may ask of a device. Pointers are addresses on the device
// that implements the table; the graph never dereferences them, except through the transfer functions.

/// A weight matrix [n_out, n_in] in GGUF blocks, or a vector when n_out is 1. A product with it is `scale`
/// times that with the blocks' numbers; other uses of it do not look at the scale.
///
/// The scale is a second one over those of the blocks, which converters of NVFP4 models write as F32 tensors
/// beside the matrix `X.weight`: `X.scale` with one number, for a matrix of experts one number for each. It
/// belongs to the output of the product before a bias is added: of gate and of up before the activation, of
/// down before the router's weight. Where gate and up are one matrix, its scale is called that of up. Their
/// `X.input_scale`, for activations of four bits, is not needed where activations have eight.
struct Weight {
  const std::byte* data = nullptr;
  TensorType type = TensorType::f32;
  std::uint32_t n_in = 0;
  std::uint32_t n_out = 0;
  std::uint64_t row_bytes = 0;
  float scale = 1.0f;
  explicit operator bool() const noexcept { return data != nullptr; }
};

/// f32 rows [n_rows, n_cols], `stride` floats apart.
struct Rows {
  float* data = nullptr;
  std::uint32_t n_rows = 0;
  std::uint32_t n_cols = 0;
  std::uint32_t stride = 0;
  Rows first(std::uint32_t n) const noexcept { return {data, n, n_cols, stride}; }
  Rows from(std::uint32_t row) const noexcept {
    return {data + std::size_t{row} * stride, n_rows - row, n_cols, stride};
  }
  Rows columns(std::uint32_t first_col, std::uint32_t n) const noexcept {
    return {data == nullptr ? nullptr : data + first_col, n_rows, n, stride};
  }
};

/// The same columns of every head of rows [n_rows, n_heads * step].
struct HeadRows {
  float* data = nullptr;  ///< Of the first row's first head.
  std::uint32_t n_rows = 0;
  std::uint32_t n_heads = 0;
  std::uint32_t dim = 0;     ///< Columns of a head.
  std::uint32_t step = 0;    ///< Floats between heads.
  std::uint32_t stride = 0;  ///< Floats between rows.
  float* at(std::uint32_t row, std::uint32_t head) const noexcept {
    return data + std::size_t{row} * stride + std::size_t{head} * step;
  }
};

/// Columns [first_col, first_col + dim) of the heads of `x`, which are `step` wide.
inline HeadRows heads_of(Rows x, std::uint32_t step, std::uint32_t first_col, std::uint32_t dim) noexcept {
  return {x.data + first_col, x.n_rows, x.n_cols / step, dim, step, x.stride};
}

/// The same rows of every head of a matrix [n_heads * step, w.n_in].
struct HeadWeight {
  Weight w;
  std::uint32_t first = 0;  ///< Row of a head.
  std::uint32_t step = 0;   ///< Rows between heads.
  std::size_t row(std::uint32_t head) const noexcept { return std::size_t{head} * step + first; }
};

/// Rotary position embedding (Su et al. 2021) with its length extensions.
struct RopeParams {
  std::uint32_t n_rot = 0;  ///< Leading elements of a head that rotate.
  bool neox = false;        ///< Pairs (i, i + n_rot/2); otherwise (2i, 2i + 1).
  float base = 10000.0f;
  float freq_scale = 1.0f;  ///< 1 / linear scaling factor.
  /// [n_rot/2] divisors (llama3 scaling, rope_freqs.weight), or null. Host memory.
  const float* freq_factors = nullptr;
  // YaRN (Peng et al. 2023): ext_factor 0 switches it off.
  float ext_factor = 0.0f;
  float attn_factor = 1.0f;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  std::uint32_t n_ctx_orig = 0;
};

/// Queries that grow with the logarithm of the position: times 1 + scale * ln(1 + floor((position + offset) /
/// interval)).
struct Temperature {
  float scale = 0;  ///< 0: none.
  std::uint32_t interval = 1;
  std::uint32_t offset = 0;
};

struct AttentionParams {
  std::uint32_t n_heads = 0;
  float scale = 0;           ///< Usually 1 / sqrt(k_head_dim).
  float softcap = 0;         ///< tanh soft cap of the scores; 0 = none.
  std::uint32_t window = 0;  ///< Sliding window in tokens; 0 = all earlier positions.
  std::uint32_t chunk = 0;   ///< Only positions of the row's own chunk of so many; 0 = all.
  /// [n_heads], one score of each head that takes part in the softmax but has no value, or null. It is
  /// neither scaled nor capped.
  const float* sinks = nullptr;
};

/// What becomes of gate and up in a gated feed-forward block (Shazeer 2020).
enum class Activation : std::uint8_t {
  silu,       ///< gate * sigmoid(gate) * up
  gelu_tanh,  ///< gelu(gate) * up, with gelu by its tanh formula (Hendrycks & Gimpel 2016)
  /// min(gate, 7) * sigmoid(1.702 * min(gate, 7)) * (clamp(up, -7, 7) + 1), of gpt-oss.
  swiglu_oai,
};

/// One product of a group that shares its input: y = x * w^T (+ bias).
struct Product {
  Weight w;
  Rows y;
  const float* bias = nullptr;  ///< [w.n_out] or null.
};

/// One expert's share of a step: which rows of the layer's input it gets and where each result row goes.
struct ExpertCall {
  Weight gate, up, down;
  std::span<const std::uint32_t> in_rows;
  std::span<const std::uint32_t> out_rows;
  /// Of the products, as long as their outputs, or null.
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
};

/// How a router's logits become experts and weights.
struct RouterParams {
  std::uint32_t n_used = 0;
  enum class Scoring : std::uint8_t { softmax, sigmoid, softmax_of_selected } scoring = Scoring::softmax;
  bool normalize = true;  ///< Weights of the selected experts sum to 1.
  float scale = 1.0f;
  const float* selection_bias = nullptr;  ///< [n_experts] added for selection only, or null.
  /// Neighbouring experts form groups of equal size, and only those of the best `n_groups_used` are chosen
  /// from. A group is as good as its best `n_group_best` experts together, biases included.
  std::uint32_t n_groups = 1, n_groups_used = 1, n_group_best = 1;
};

/// Where a router's choice goes: lists of [n_rows, n_used] in memory that host and device both see.
struct Route {
  std::span<std::uint16_t> ids;
  std::span<float> weights;
};

/// All experts of a layer, in the device's memory: those of one part follow one another as rows of one
/// matrix, whose n_out is that of a single expert.
struct RoutedExperts {
  Weight gate, up, down;
  std::uint32_t n_used = 0;
  /// Second scales, [n_experts] each, or null.
  const float *gate_scales = nullptr, *up_scales = nullptr, *down_scales = nullptr;
};

/// What a weight is used for.
enum class Use : std::uint8_t { product, embedding };

/// The largest pass and its widest parts.
struct ScratchSize {
  std::uint32_t max_rows = 0;
  std::uint32_t max_cols = 0;      ///< Of any input.
  std::uint32_t max_hidden = 0;    ///< Of an expert; 0 without experts.
  std::uint32_t rope_columns = 0;  ///< RopeParams::n_rot of all curves together.
  std::uint32_t head_columns =
      0;  ///< Of matmul_heads()'s inputs: heads times their columns, rounded up to 256.
};

/// Requirements common to all operations: shapes agree (a mismatch is a programmer error), outputs do not
/// alias inputs unless stated. Each output element is computed in an order that does not depend on the number
/// of rows, on the other rows, or on the number of threads. Nothing here allocates except allocate(),
/// reserve() and set_curves().
///
/// Operations are a device's work: a call may return before the work is done, in the order of the calls. The
/// host reads results after download() or routed(), and reuses memory that the work reads after wait(mark()).
/// The CPU is done when a call returns, so its tickets are 0.
class Ops : public base::TicketSource {
 public:
  virtual ~Ops() = default;
  virtual const char* name() const noexcept = 0;
  /// Whether weights of the type can be used so.
  virtual bool supports(TensorType type, Use use) const noexcept = 0;
  /// A point behind all that was asked for so far.
  virtual base::Ticket mark() = 0;

  /// Device memory, 64-byte aligned, zeroed, freed with the table. Throws Error(budget).
  virtual std::byte* allocate(std::size_t bytes) = 0;
  /// Weights on the host that operations will name by their addresses, whole or in part: a device with a
  /// memory of its own takes a copy, and the originals are not read again. Throws Error(budget).
  virtual void place(const Weight& /*weight*/) {}
  /// Internal scratch; returns its bytes, which do not change until the next call. `scratch_bytes` tells
  /// without allocating. Throws Error(budget).
  virtual std::size_t reserve(const ScratchSize& size) = 0;
  virtual std::size_t scratch_bytes(const ScratchSize& size) const = 0;
  /// The curves that rope() refers to by their place here; copied. Call it after reserve().
  virtual void set_curves(std::span<const RopeParams> curves) = 0;
  /// What rope(), store_kv() and attention() refer to until the next call. Borrowed: the arrays stay as they
  /// are until then.
  virtual void begin_pass(const PassTables& tables) = 0;

  /// Device memory to device memory; they do not overlap.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void upload(const void* host, std::byte* device, std::size_t bytes) = 0;
  virtual void download(const std::byte* device, void* host, std::size_t bytes) = 0;

  /// y[r] = decoded row ids[r] of the table.
  virtual void embed(const Weight& table, std::span<const std::int32_t> ids, Rows y) = 0;
  /// y = x / sqrt(mean(x^2) + eps) * gain, per row (Zhang & Sennrich 2019). y may be x. gain may be null (no
  /// gain).
  virtual void rms_norm(Rows x, const float* gain, float eps, Rows y) = 0;
  /// x += bias, [n_cols], per row.
  virtual void add_bias(Rows x, const float* bias) = 0;
  /// The norm for every head of every row: rows are [n_heads * head_dim], gain is [head_dim] or null. In
  /// place.
  virtual void rms_norm_heads(Rows x, std::uint32_t head_dim, const float* gain, float eps) = 0;
  /// All products of one input; the input is quantized once per activation format.
  virtual void matmul(Rows x, std::span<const Product> products) = 0;
  /// A matrix for each head: y[r][head] = x[r][head] * w[head]^T, with y.dim rows of a head.
  virtual void matmul_heads(const HeadRows& x, const HeadWeight& w, const HeadRows& y) = 0;
  /// y[r][head] = x[r][head] * w[head], with x.dim rows of a head and y.dim at most 1024. Slower, as rows are
  /// decoded to floats.
  virtual void matmul_heads_transposed(const HeadRows& x, const HeadWeight& w, const HeadRows& y) = 0;
  // Row i of these five is row first_row + i of the pass.
  /// Rotates every head of every row in place; rows are [n_heads * head_dim].
  virtual void rope(Rows x, std::uint32_t head_dim, std::uint32_t curve, std::uint32_t first_row) = 0;
  /// y[r][head] = x[r][head], rotated. Heads are as wide as what rotates.
  virtual void rope_heads(const HeadRows& x, std::uint32_t curve, std::uint32_t first_row,
                          const HeadRows& y) = 0;
  /// Scales each row by its position.
  virtual void scale_by_position(Rows x, const Temperature& temperature, std::uint32_t first_row) = 0;
  /// Writes each row's K and V [n_kv_heads * head_dim] to its position, as the view says. Where values are
  /// parts of keys, V has no rows.
  virtual void store_kv(Rows k, Rows v, const KvView& view, std::uint32_t first_row) = 0;
  /// Causal attention of each row over positions [0, its own] of its sequence, grouped queries (n_heads a
  /// multiple of n_kv_heads): q [n_heads * k_head_dim] -> out [n_heads * v_head_dim]. Keys are processed in
  /// fixed segments of positions whose partial results are merged in order (FlashDecoding's scheme, Dao et
  /// al. 2023). With a window, pages that lie wholly before it
  /// are not read.
  virtual void attention(Rows q, const KvView& view, const AttentionParams& params, std::uint32_t first_row,
                         Rows out) = 0;
  /// Rows of `both` hold two parts of head_dim for each head side by side; they become rows of the first
  /// parts and rows of the second.
  virtual void split_heads(Rows both, std::uint32_t head_dim, Rows first, Rows second) = 0;
  /// x *= sigmoid(gates).
  virtual void gate(Rows x, Rows gates) = 0;
  /// The gated delta rule (delta.hpp) over projected rows `in` [n_columns]: y [v_dim], which may be without
  /// data when only the states are wanted. The runs are all rows, one behind the other. eps: the least length
  /// that a key or query is divided by. `work` is as large as `in`. Rows pass through one by one however many
  /// there are, so that runs may be cut anywhere without changing a bit.
  virtual void delta_rule(Rows in, const DeltaShape& shape, const DeltaWeights& weights, float eps,
                          std::span<const DeltaRun> runs, Rows work, Rows y) = 0;
  /// out may be gate or up.
  virtual void activate(Rows gate, Rows up, Activation activation, Rows out) = 0;
  /// y += factor * x.
  virtual void add(Rows x, float factor, Rows y) = 0;
  /// y[r] += factor * sigmoid(gate[r]) * x[r]; gate is [n_rows, 1].
  virtual void add_gated(Rows x, Rows gate, float factor, Rows y) = 0;
  /// Moves row kept[i] to row i; `kept` rises.
  virtual void keep_rows(Rows x, std::span<const std::uint32_t> kept) = 0;
  /// x *= factor.
  virtual void scale(Rows x, float factor) = 0;
  /// y[r] = factors[r] * x[r]; y may be x.
  virtual void scale_rows(Rows x, std::span<const float> factors, Rows y) = 0;
  /// x = 0.
  virtual void clear(Rows x) = 0;
  /// x = cap * tanh(x / cap), with cap > 0.
  virtual void softcap(Rows x, float cap) = 0;
  /// Top-k routing of each row, best first, ties to the lower id.
  virtual void route(Rows logits, const RouterParams& params, const Route& route) = 0;
  /// Returns when the host may read the route.
  virtual void routed(const Route& route) = 0;
  /// Starts the expert stage of a layer: `x` stays valid until the next begin and is quantized at most once.
  virtual void begin_experts(Rows x, Activation activation) = 0;
  /// For each call: out[out_rows[i]] = down(activation(gate(x[in_rows[i]]), up(x[in_rows[i]]))), each product
  /// with its bias. All calls share the worker threads, so one call with several experts is better than
  /// several calls.
  virtual void run_experts(std::span<const ExpertCall> calls, Rows out) = 0;
  /// Whether run_routed() can be used: experts that were placed need nobody on the host who knows the route.
  virtual bool runs_routed() const noexcept { return false; }
  /// The same as run_experts() for what the last route() chose; row r * n_used + i of `out` is that of choice
  /// i of row r. Without routed() the host does not wait.
  virtual void run_routed(const Route& /*route*/, const RoutedExperts& /*experts*/, Rows /*out*/) {}
  /// y[r] += sum over rank i = 0 .. n_used-1, in that order, of weights[r * n_used + i] * out[r * n_used +
  /// i].
  virtual void combine_experts(Rows expert_out, const float* weights, std::uint32_t n_used, Rows y) = 0;
};

}  // namespace sluice::kernels
