#pragma once

#include <cstdint>

// What kernels are called with: each takes one structure, so that the host can keep a list of launches,
// compare lists and replay them. Pointers are device addresses.
namespace sluice::cuda {

/// Rows of a matrix as it lies on the device (layout.hpp): block b of row r is block first_block + r *
/// blocks_per_row + b of the n_blocks that lie at `base`.
struct MatrixRef {
  const std::uint8_t* base;
  std::uint64_t n_blocks;
  std::uint64_t first_block;
};

/// Quantized rows: numbers, one scale a block, sums of 16; or floats. See layout.hpp.
struct QuantizedRows {
  const std::int8_t* q;
  const float* d;
  const std::int16_t* sums;
  std::uint32_t q_stride, d_stride, sum_stride;  ///< Elements from row to row.
  std::uint32_t zero = 0;                        ///< No stray bits: arguments are compared.
};

constexpr int k_max_parts = 4;

/// y = x * w^T * scale (+ bias) for matrices that share type and input.
struct ProductArgs {
  struct Part {
    MatrixRef w;
    float* y;
    const float* bias;  ///< Or null.
    float* sum;         ///< Or null: sum += y, too.
    float scale;
    std::uint32_t n_out, y_stride, sum_stride;
    std::uint32_t end_group;  ///< One behind the last group of rows of this part.
  };
  Part parts[k_max_parts];
  QuantizedRows x;
  const float* x_floats;  ///< For weights that are plain numbers.
  std::uint32_t x_stride, n_rows, blocks_per_row, n_parts;
};

/// One expert and up to k_job_rows of the rows that chose it.
constexpr std::uint32_t k_job_rows = 8;
struct ExpertJob {
  MatrixRef gate, up, down;
  float gate_scale, up_scale, down_scale;
  std::uint32_t n_rows, hidden_row;  ///< Hidden rows of a job follow one another.
  std::uint32_t in_rows[k_job_rows], out_rows[k_job_rows];
};

/// The experts of a layer: choice i of a route is expert ids[i], for row i / n_used.
struct RoutedArgs {
  MatrixRef gate, up, down;                            ///< Of the first expert.
  const float *gate_scales, *up_scales, *down_scales;  ///< [n_experts] or null.
  std::uint64_t gate_blocks, up_blocks, down_blocks;   ///< Of one expert.
  const std::uint16_t* ids;
  std::uint32_t n_used, zero;
};

/// Gate and up, or down: a block works on one job, or on one choice when there are no jobs.
struct ExpertArgs {
  const ExpertJob* jobs;  ///< Or null.
  RoutedArgs routed;
  QuantizedRows x;
  float* y;
  std::uint32_t y_stride, n_out, blocks_per_row, zero;
};

/// Quantizes x, or silu(x) * up, which then is y, too.
struct QuantizeArgs {
  const float* x;
  const float* up;  ///< Or null.
  float* y;
  std::int8_t* q;
  float* d;
  std::int16_t* sums;  ///< Null for blocks of 32.
  std::uint32_t n_rows, n_cols, x_stride, up_stride, y_stride, q_stride, d_stride, sum_stride;
};

/// Normalizes, and quantizes the result where `k` or `b` has somewhere to go.
struct NormArgs {
  const float* x;
  const float* gain;  ///< Or null.
  float* y;
  QuantizeArgs k, b;  ///< Blocks of 256 and of 32; q null: not wanted.
  float eps;
  std::uint32_t n_rows, n_cols, x_stride, y_stride;
};

/// Queries and keys are treated alike: one launch does both.
constexpr std::uint32_t k_max_targets = 2;

struct NormHeadsArgs {
  struct Target {
    float* x;
    const float* gain;  ///< Or null.
    std::uint32_t n_heads, stride;
  };
  Target targets[k_max_targets];
  float eps;
  std::uint32_t n_targets, n_rows, head_dim;
};

struct RopeTableArgs {
  const std::uint32_t* positions;
  const double* frequencies;
  float* table;  ///< [n_rows, cosines and sines].
  double magnitude;
  std::uint32_t n_rows, n_pairs;
};

struct RopeArgs {
  struct Target {
    const float* x;
    float* y;  ///< Or x.
    std::uint32_t n_heads, x_step, y_step, x_stride, y_stride, zero;
  };
  Target targets[k_max_targets];
  const float* table;
  std::uint32_t n_targets, n_rows, n_rot, is_neox;
};

/// Element-wise operations.
struct ElementArgs {
  const float *a, *b;
  float* y;
  const std::uint32_t* rows;  ///< keep_rows() only.
  const std::uint32_t* positions;
  float factor;
  std::uint32_t n_rows, n_cols, a_stride, b_stride, y_stride, interval, offset;
};

struct EmbedArgs {
  MatrixRef table;
  const std::int32_t* ids;
  float* y;
  std::uint32_t n_rows, n_cols, blocks_per_row, y_stride, type;
};

/// Where keys and values lie, and which rows of the pass are meant.
struct KvArgs {
  std::uint8_t* base;  ///< Of the group, at the layer's part of a page.
  std::uint64_t page_bytes, v_offset;
  const std::uint32_t* positions;    ///< Of the rows.
  const std::uint32_t* sequence_of;  ///< Of the rows.
  const std::uint32_t* first_page;   ///< Of each sequence: where in `pages` its list begins.
  const std::uint32_t* pages;
  std::uint32_t n_kv_heads, k_dim, v_dim, v_step, is_q8, zero;
};

struct StoreKvArgs {
  KvArgs kv;
  const float *k, *v;  ///< v null: values are parts of keys.
  std::uint32_t n_rows, k_stride, v_stride;
};

struct AttentionArgs {
  KvArgs kv;
  const float* q;
  float* partials;  ///< [row, head, segment]: v_dim sums, then the maximum and the sum of weights.
  float* out;
  float scale, softcap;
  std::uint32_t n_rows, n_heads, window, chunk, q_stride, out_stride, n_segments, n_chunks;
};

struct RouteArgs {
  const float* logits;
  const float* selection_bias;  ///< Or null.
  std::uint16_t* ids;
  float* weights;
  float scale;
  std::uint32_t n_rows, n_experts, n_used, stride, scoring, normalize;
  std::uint32_t n_groups, n_groups_used, n_group_best;
};

struct CombineArgs {
  const float* x;
  const float* weights;
  float* y;
  std::uint32_t n_rows, n_cols, n_used, x_stride, y_stride;
};

struct RepackArgs {
  const std::uint8_t* from;
  std::uint8_t* to;
  std::uint64_t n_blocks, first_block, n_total;
};

/// A kernel and the shape of its launch.
struct Kernel {
  const void* function = nullptr;
  std::uint32_t block = 0;
  std::uint32_t rows = 1;    ///< Of a block, where it computes rows: of weights in a product.
  std::uint32_t groups = 1;  ///< Groups of rows of a block of a product: one of its warps, or all.
  std::uint32_t tile = 1;    ///< Activation rows of a block of a product.
};

// product.cu, for a type's id and a number of activation rows of at most k_max_product_rows.
constexpr std::uint32_t k_max_product_rows = 8;
Kernel product_kernel(int type, std::uint32_t n_rows) noexcept;
// product_mma.cu, for more rows than this; no function: the type has none.
constexpr std::uint32_t k_max_rows_without_mma = 16;
Kernel product_mma_kernel(int type) noexcept;
Kernel expert_up_kernel(int type, std::uint32_t n_rows) noexcept;
Kernel expert_down_kernel(int type, std::uint32_t n_rows) noexcept;
// layout.cu. No function: the type stays as it is.
Kernel repack_kernel(int type) noexcept;
Kernel embed_kernel() noexcept;
// rows.cu
Kernel quantize_kernel(bool is_256) noexcept;
Kernel norm_kernel() noexcept;
Kernel norm_heads_kernel() noexcept;
Kernel rope_table_kernel() noexcept;
Kernel rope_kernel() noexcept;
Kernel swiglu_kernel() noexcept;
Kernel clear_kernel() noexcept;
Kernel softcap_kernel() noexcept;
Kernel add_kernel() noexcept;
Kernel add_gated_kernel() noexcept;
Kernel scale_kernel() noexcept;
Kernel scale_by_position_kernel() noexcept;
Kernel keep_rows_kernel() noexcept;
Kernel scale_rows_kernel() noexcept;
// experts.cu
Kernel route_kernel() noexcept;
Kernel combine_kernel() noexcept;
// attention.cu
Kernel store_kv_kernel() noexcept;
constexpr std::uint32_t k_max_group_queries = 8;
Kernel attention_kernel(std::uint32_t n_queries) noexcept;
Kernel merge_kernel() noexcept;
constexpr std::uint32_t k_attention_segment = 256;
constexpr std::uint32_t k_max_attention_dim = 576, k_max_value_dim = 512;

}  // namespace sluice::cuda
