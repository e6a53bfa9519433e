#include "kernels/cpu_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "base/error.hpp"
#include "kernels/cpu_table.hpp"
#include "kernels/rope.hpp"
#include "kernels/router.hpp"

namespace sluice::kernels {
namespace {

// A loop shorter than this is over before a sleeping worker has woken.
constexpr double k_min_shared_ns = 15'000;
constexpr double k_min_chunk_ns = 6'000;
constexpr double k_chunks_per_thread = 16;
// Rough costs per element; only the size of chunks depends on them.
constexpr double k_stream_ns = 0.15;
constexpr double k_exp_ns = 0.5;
constexpr double k_decode_ns = 0.5;
constexpr double k_sine_ns = 40;

float* row_of(Rows rows, std::uint32_t row) noexcept {
  return rows.data + std::size_t{row} * rows.stride;
}

void check_same_shape(Rows a, Rows b) noexcept {
  SLUICE_CHECK(a.n_rows == b.n_rows && a.n_cols == b.n_cols);
}

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(base::ThreadPool& pool, platform::Isa isa) {
  return std::make_unique<CpuOps>(pool, isa);
}

CpuOps::CpuOps(base::ThreadPool& pool, Isa isa)
    : pool_(pool), math_(vector_math(isa)), attention_math_(attention_math(isa)) {
  for (std::uint32_t id = 0; id < kernels_.size(); ++id) {
    if (gguf::find_type_traits(id)) kernels_[id] = find_gemm(static_cast<TensorType>(id), isa);
  }
}

std::byte* CpuOps::allocate(std::size_t bytes) {
  regions_.push_back(platform::MappedRegion::allocate(std::max<std::size_t>(bytes, 1), false));
  return regions_.back().data();
}

std::size_t CpuOps::scratch_bytes(std::uint32_t max_rows, std::uint32_t max_cols,
                                  std::uint32_t max_hidden) const {
  return scratch_layout(max_rows, max_cols, max_hidden, pool_.n_threads()).bytes;
}

std::size_t CpuOps::reserve(std::uint32_t max_rows, std::uint32_t max_cols, std::uint32_t max_hidden) {
  const ScratchLayout layout = scratch_layout(max_rows, max_cols, max_hidden, pool_.n_threads());
  // The old scratch goes first, so that both never count against the budget at once; when the new one is
  // refused the table is left without any, and its operations say so.
  layout_ = {};
  scratch_ = {};
  rope_.valid = false;
  expert_x_ = {};
  scratch_ = platform::MappedRegion::allocate(layout.bytes, false);
  layout_ = layout;
  return layout_.bytes;
}

void CpuOps::upload(const void* host, std::byte* device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuOps::download(const std::byte* device, void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void CpuOps::for_chunks(std::size_t n_chunks, double total_ns, ChunkTask task) {
  if (total_ns >= k_min_shared_ns) {
    pool_.run(n_chunks, task);
    return;
  }
  for (std::size_t chunk = 0; chunk < n_chunks; ++chunk) task(chunk, 0);
}

double CpuOps::chunk_ns(double total_ns) const noexcept {
  return std::max(k_min_chunk_ns, total_ns / (k_chunks_per_thread * pool_.n_threads()));
}

void CpuOps::for_rows(std::uint32_t n_rows, double ns_per_row, RowTask task) {
  const double total_ns = ns_per_row * n_rows;
  const double wanted = std::ceil(chunk_ns(total_ns) / std::max(ns_per_row, 1.0));
  const auto rows_per_chunk = static_cast<std::uint32_t>(std::clamp(wanted, 1.0, n_rows + 1.0));
  const std::size_t n_chunks = (std::size_t{n_rows} + rows_per_chunk - 1) / rows_per_chunk;
  for_chunks(n_chunks, total_ns, [&](std::size_t chunk, int thread) {
    const std::size_t begin = chunk * rows_per_chunk;
    const std::size_t end = std::min<std::size_t>(begin + rows_per_chunk, n_rows);
    for (std::size_t row = begin; row < end; ++row) task(static_cast<std::uint32_t>(row), thread);
  });
}

void CpuOps::embed(const Weight& table, std::span<const std::int32_t> ids, Rows y) {
  SLUICE_CHECK(ids.size() == y.n_rows && table.n_in == y.n_cols);
  for (const std::int32_t id : ids) SLUICE_CHECK(id >= 0 && static_cast<std::uint32_t>(id) < table.n_out);
  // A type that cannot be decoded fails on its first row, before any work is shared.
  if (y.n_rows > 0 &&
      !dequantize_row(table.type, table.data + static_cast<std::size_t>(ids[0]) * table.row_bytes, y.data,
                      table.n_in)) {
    base::fail(ErrorCode::unsupported,
               "embedding table of type {} cannot be decoded; use another quantization",
               gguf::type_name(table.type));
  }
  for_rows(y.n_rows, k_decode_ns * y.n_cols, [&](std::uint32_t row, int) {
    dequantize_row(table.type, table.data + static_cast<std::size_t>(ids[row]) * table.row_bytes,
                   row_of(y, row), table.n_in);
  });
}

void CpuOps::rms_norm(Rows x, const float* gain, float eps, Rows y) {
  check_same_shape(x, y);
  for_rows(x.n_rows, 2 * k_stream_ns * x.n_cols, [&](std::uint32_t row, int) {
    const float mean = math_.sum_squares(row_of(x, row), x.n_cols) / static_cast<float>(x.n_cols);
    math_.scale(row_of(x, row), 1.0f / std::sqrt(mean + eps), gain, row_of(y, row), x.n_cols);
  });
}

void CpuOps::rms_norm_heads(Rows x, std::uint32_t head_dim, const float* gain, float eps) {
  SLUICE_CHECK(head_dim > 0 && x.n_cols % head_dim == 0);
  for_rows(x.n_rows, 2 * k_stream_ns * x.n_cols, [&](std::uint32_t row, int) {
    for (std::uint32_t column = 0; column < x.n_cols; column += head_dim) {
      float* head = row_of(x, row) + column;
      const float mean = math_.sum_squares(head, head_dim) / static_cast<float>(head_dim);
      math_.scale(head, 1.0f / std::sqrt(mean + eps), gain, head, head_dim);
    }
  });
}

void CpuOps::swiglu(Rows gate, Rows up, Rows out) {
  check_same_shape(gate, up);
  check_same_shape(gate, out);
  for_rows(gate.n_rows, k_exp_ns * gate.n_cols, [&](std::uint32_t row, int) {
    math_.swiglu(row_of(gate, row), row_of(up, row), row_of(out, row), gate.n_cols);
  });
}

void CpuOps::add(Rows x, Rows y) {
  check_same_shape(x, y);
  for_rows(x.n_rows, k_stream_ns * x.n_cols,
           [&](std::uint32_t row, int) { math_.add(row_of(x, row), row_of(y, row), x.n_cols); });
}

void CpuOps::combine_experts(Rows expert_out, const float* weights, std::uint32_t n_used, Rows y) {
  SLUICE_CHECK(expert_out.n_cols == y.n_cols && expert_out.n_rows >= std::size_t{y.n_rows} * n_used);
  for_rows(y.n_rows, k_stream_ns * y.n_cols * n_used, [&](std::uint32_t row, int) {
    const std::size_t first = std::size_t{row} * n_used;
    math_.add_weighted(expert_out.data + first * expert_out.stride, expert_out.stride, weights + first,
                       n_used, row_of(y, row), y.n_cols);
  });
}

void CpuOps::route(Rows logits, const RouterParams& params, std::uint16_t* ids, float* weights) {
  SLUICE_CHECK(layout_.bytes > 0);
  SLUICE_CHECK(params.n_used > 0 && params.n_used <= logits.n_cols && logits.n_cols <= k_max_experts);
  for_rows(logits.n_rows, 4.0 * logits.n_cols, [&](std::uint32_t row, int thread) {
    float* work = of_thread(thread, layout_.thread.tiles);
    const std::size_t first = std::size_t{row} * params.n_used;
    route_row(math_, row_of(logits, row), logits.n_cols, params, work, work + k_max_experts, ids + first,
              weights + first);
  });
}

void CpuOps::prepare_rope(const RopeParams& params, std::span<const RowPosition> rows) {
  const std::uint32_t n_pairs = params.n_rot / 2;
  auto* positions = at<std::uint32_t>(layout_.rope_positions);
  float* factors = at<float>(layout_.rope_factors);
  const RopeParams& old = rope_.params;
  const bool same_curve =
      rope_.valid && old.n_rot == params.n_rot && old.base == params.base &&
      old.freq_scale == params.freq_scale && old.ext_factor == params.ext_factor &&
      old.attn_factor == params.attn_factor && old.beta_fast == params.beta_fast &&
      old.beta_slow == params.beta_slow && old.n_ctx_orig == params.n_ctx_orig &&
      (old.freq_factors == nullptr) == (params.freq_factors == nullptr) &&
      (params.freq_factors == nullptr || std::equal(factors, factors + n_pairs, params.freq_factors));
  const bool same_rows =
      same_curve && rope_.n_rows == rows.size() &&
      std::equal(rows.begin(), rows.end(), positions,
                 [](const RowPosition& row, std::uint32_t position) { return row.position == position; });
  if (same_rows) return;

  const std::span<double> frequencies(at<double>(layout_.rope_frequencies), n_pairs);
  if (!same_curve) {
    if (params.freq_factors != nullptr) std::copy_n(params.freq_factors, n_pairs, factors);
    rope_.params = params;
    rope_.magnitude = rope_frequencies(params, frequencies);
  }
  rope_.n_rows = static_cast<std::uint32_t>(rows.size());
  for (std::size_t row = 0; row < rows.size(); ++row) positions[row] = rows[row].position;
  float* table = at<float>(layout_.rope_table);
  for_rows(rope_.n_rows, k_sine_ns * n_pairs, [&](std::uint32_t row, int) {
    float* cosines = table + std::size_t{row} * params.n_rot;
    rope_angles(frequencies, rope_.magnitude, positions[row], cosines, cosines + n_pairs);
  });
  rope_.valid = true;
}

void CpuOps::rope(Rows x, std::uint32_t head_dim, const RopeParams& params,
                  std::span<const RowPosition> rows) {
  SLUICE_CHECK(head_dim > 0 && x.n_cols % head_dim == 0 && rows.size() == x.n_rows);
  SLUICE_CHECK(params.n_rot <= head_dim && params.n_rot % 2 == 0 && params.n_rot <= k_max_head_dim);
  SLUICE_CHECK(layout_.bytes > 0 && x.n_rows <= layout_.max_rows);
  if (params.n_rot == 0) return;
  // The sines of a step serve queries, keys and all layers; they are computed anew only when positions
  // change.
  const auto rows_at_once = static_cast<std::uint32_t>(layout_.rope_table_floats / params.n_rot);
  const float* table = at<float>(layout_.rope_table);
  for (std::uint32_t first = 0; first < x.n_rows; first += rows_at_once) {
    const std::uint32_t n_rows = std::min(rows_at_once, x.n_rows - first);
    prepare_rope(params, rows.subspan(first, n_rows));
    for_rows(n_rows, 2 * k_stream_ns * x.n_cols, [&](std::uint32_t row, int) {
      const float* cosines = table + std::size_t{row} * params.n_rot;
      for (std::uint32_t column = 0; column < x.n_cols; column += head_dim) {
        math_.rotate(row_of(x, first + row) + column, cosines, cosines + params.n_rot / 2, params.n_rot / 2,
                     params.neox);
      }
    });
  }
}

}  // namespace sluice::kernels
