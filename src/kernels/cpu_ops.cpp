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
    : pool_(pool),
      math_(vector_math(isa)),
      attention_math_(attention_math(isa)),
      delta_math_(delta_math(isa)) {
  for (const gguf::TypeTraits& traits : gguf::all_types())
    kernels_[static_cast<std::size_t>(traits.type)] = find_gemm(traits.type, isa);
}

bool CpuOps::supports(TensorType type, Use use) const noexcept {
  const auto id = static_cast<std::size_t>(type);
  switch (use) {
    case Use::product:
      return id < kernels_.size() && kernels_[id].gemm != nullptr;
    case Use::embedding:
      return dequantize_row(type, nullptr, nullptr, 0);
  }
  return false;
}

std::byte* CpuOps::allocate(std::size_t bytes) {
  regions_.push_back(platform::MappedRegion::allocate(std::max<std::size_t>(bytes, 1), false));
  return regions_.back().data();
}

std::size_t CpuOps::scratch_bytes(const ScratchSize& size) const {
  return scratch_layout(size, pool_.n_threads()).bytes;
}

std::size_t CpuOps::reserve(const ScratchSize& size) {
  const ScratchLayout layout = scratch_layout(size, pool_.n_threads());
  // The old scratch goes first, so that both never count against the budget at once; when the new one is
  // refused the table is left without any, and its operations say so.
  layout_ = {};
  scratch_ = {};
  curves_.clear();
  pass_ = {};
  expert_x_ = {};
  scratch_ = platform::MappedRegion::allocate(layout.bytes, false);
  layout_ = layout;
  return layout_.bytes;
}

void CpuOps::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
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

void CpuOps::add_bias(Rows x, const float* bias) {
  for_rows(x.n_rows, k_stream_ns * x.n_cols,
           [&](std::uint32_t row, int) { math_.add(bias, row_of(x, row), x.n_cols); });
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

void CpuOps::activate(Rows gate, Rows up, Activation activation, Rows out) {
  check_same_shape(gate, up);
  check_same_shape(gate, out);
  const auto kind = static_cast<std::size_t>(activation);
  for_rows(gate.n_rows, k_exp_ns * gate.n_cols, [&](std::uint32_t row, int) {
    math_.activate[kind](row_of(gate, row), row_of(up, row), row_of(out, row), gate.n_cols);
  });
}

void CpuOps::add(Rows x, float factor, Rows y) {
  check_same_shape(x, y);
  for_rows(x.n_rows, k_stream_ns * x.n_cols, [&](std::uint32_t row, int) {
    if (factor == 1.0f) {
      math_.add(row_of(x, row), row_of(y, row), x.n_cols);
    } else {
      math_.add_weighted(row_of(x, row), 0, &factor, 1, row_of(y, row), x.n_cols);
    }
  });
}

void CpuOps::add_gated(Rows x, Rows gate, float factor, Rows y) {
  check_same_shape(x, y);
  SLUICE_CHECK(gate.n_rows == x.n_rows && gate.n_cols == 1);
  for_rows(x.n_rows, k_stream_ns * x.n_cols, [&](std::uint32_t row, int) {
    const float weight = factor / (1.0f + std::exp(-*row_of(gate, row)));
    math_.add_weighted(row_of(x, row), 0, &weight, 1, row_of(y, row), x.n_cols);
  });
}

void CpuOps::split_heads(Rows both, std::uint32_t head_dim, Rows first, Rows second) {
  check_same_shape(first, second);
  SLUICE_CHECK(both.n_rows == first.n_rows && both.n_cols == 2 * first.n_cols);
  SLUICE_CHECK(head_dim > 0 && first.n_cols % head_dim == 0);
  const std::size_t bytes = std::size_t{head_dim} * sizeof(float);
  for_rows(both.n_rows, k_stream_ns * both.n_cols, [&](std::uint32_t row, int) {
    for (std::uint32_t column = 0; column < first.n_cols; column += head_dim) {
      const float* head = row_of(both, row) + std::size_t{2} * column;
      std::memcpy(row_of(first, row) + column, head, bytes);
      std::memcpy(row_of(second, row) + column, head + head_dim, bytes);
    }
  });
}

void CpuOps::gate(Rows x, Rows gates) {
  check_same_shape(x, gates);
  for_rows(x.n_rows, k_exp_ns * x.n_cols,
           [&](std::uint32_t row, int) { math_.gate(row_of(gates, row), row_of(x, row), x.n_cols); });
}

void CpuOps::keep_rows(Rows x, std::span<const std::uint32_t> kept) {
  SLUICE_CHECK(kept.size() <= x.n_rows);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    SLUICE_CHECK(kept[i] >= i && kept[i] < x.n_rows);
    if (kept[i] != i)
      std::memcpy(x.data + i * x.stride, row_of(x, kept[i]), std::size_t{x.n_cols} * sizeof(float));
  }
}

void CpuOps::scale(Rows x, float factor) {
  for_rows(x.n_rows, k_stream_ns * x.n_cols, [&](std::uint32_t row, int) {
    math_.scale(row_of(x, row), factor, nullptr, row_of(x, row), x.n_cols);
  });
}

void CpuOps::scale_rows(Rows x, std::span<const float> factors, Rows y) {
  check_same_shape(x, y);
  SLUICE_CHECK(factors.size() >= x.n_rows);
  for_rows(x.n_rows, k_stream_ns * x.n_cols, [&](std::uint32_t row, int) {
    math_.scale(row_of(x, row), factors[row], nullptr, row_of(y, row), x.n_cols);
  });
}

void CpuOps::clear(Rows x) {
  for_rows(x.n_rows, k_stream_ns * x.n_cols,
           [&](std::uint32_t row, int) { std::fill_n(row_of(x, row), x.n_cols, 0.0f); });
}

void CpuOps::softcap(Rows x, float cap) {
  SLUICE_CHECK(cap > 0);
  // A row of logits is long: several threads share it. Each element stands alone.
  constexpr std::uint32_t k_columns = 8192;
  const std::uint32_t n_parts = (x.n_cols + k_columns - 1) / k_columns;
  for_rows(x.n_rows * n_parts, k_exp_ns * k_columns, [&](std::uint32_t part, int) {
    const std::uint32_t first = part % n_parts * k_columns;
    math_.softcap(row_of(x, part / n_parts) + first, cap, std::min(k_columns, x.n_cols - first));
  });
}

void CpuOps::combine_experts(Rows expert_out, const float* weights, std::uint32_t n_used, Rows y) {
  SLUICE_CHECK(expert_out.n_cols == y.n_cols && expert_out.n_rows >= std::size_t{y.n_rows} * n_used);
  for_rows(y.n_rows, k_stream_ns * y.n_cols * n_used, [&](std::uint32_t row, int) {
    const std::size_t first = std::size_t{row} * n_used;
    math_.add_weighted(expert_out.data + first * expert_out.stride, expert_out.stride, weights + first,
                       n_used, row_of(y, row), y.n_cols);
  });
}

void CpuOps::route(Rows logits, const RouterParams& params, const Route& route) {
  SLUICE_CHECK(layout_.bytes > 0);
  SLUICE_CHECK(params.n_used > 0 && params.n_used <= logits.n_cols && logits.n_cols <= k_max_experts);
  SLUICE_CHECK(params.n_groups > 0 && params.n_groups <= k_max_expert_groups);
  SLUICE_CHECK(logits.n_cols % params.n_groups == 0 && params.n_groups_used <= params.n_groups);
  SLUICE_CHECK(params.n_used <= logits.n_cols / params.n_groups * params.n_groups_used);
  SLUICE_CHECK(params.n_group_best <= std::min(logits.n_cols / params.n_groups, k_max_expert_groups));
  const std::size_t n_routed = std::size_t{logits.n_rows} * params.n_used;
  SLUICE_CHECK(route.ids.size() >= n_routed && route.weights.size() >= n_routed);
  for_rows(logits.n_rows, 4.0 * logits.n_cols, [&](std::uint32_t row, int thread) {
    float* work = of_thread(thread, layout_.thread.tiles);
    const std::size_t first = std::size_t{row} * params.n_used;
    route_row(math_, row_of(logits, row), logits.n_cols, params, work, work + k_max_experts,
              route.ids.data() + first, route.weights.data() + first);
  });
}

void CpuOps::set_curves(std::span<const RopeParams> curves) {
  curves_.clear();
  std::size_t n_columns = 0;
  for (const RopeParams& params : curves) {
    SLUICE_CHECK(params.n_rot % 2 == 0 && params.n_rot <= k_max_head_dim);
    Curve& curve = curves_.emplace_back();
    curve.n_rot = params.n_rot;
    curve.neox = params.neox;
    curve.frequencies.resize(params.n_rot / 2);
    curve.magnitude = rope_frequencies(params, curve.frequencies);
    curve.table = n_columns * layout_.max_rows;
    n_columns += params.n_rot;
  }
  SLUICE_CHECK(n_columns <= layout_.rope_columns);
}

void CpuOps::begin_pass(const PassTables& tables) {
  SLUICE_CHECK(tables.positions.size() == tables.sequence_of.size());
  SLUICE_CHECK(layout_.bytes > 0 && tables.positions.size() <= layout_.max_rows);
  pass_ = tables;
  for (Curve& curve : curves_) curve.is_ready = false;
}

const float* CpuOps::rope_table(Curve& curve) {
  float* table = at<float>(layout_.rope_tables) + curve.table;
  if (curve.is_ready) return table;
  const std::uint32_t n_pairs = curve.n_rot / 2;
  for_rows(
      static_cast<std::uint32_t>(pass_.positions.size()), k_sine_ns * n_pairs, [&](std::uint32_t row, int) {
        float* cosines = table + std::size_t{row} * curve.n_rot;
        rope_angles(curve.frequencies, curve.magnitude, pass_.positions[row], cosines, cosines + n_pairs);
      });
  curve.is_ready = true;
  return table;
}

void CpuOps::scale_by_position(Rows x, const Temperature& temperature, std::uint32_t first_row) {
  SLUICE_CHECK(temperature.interval > 0 && std::size_t{first_row} + x.n_rows <= pass_.positions.size());
  for_rows(x.n_rows, k_stream_ns * x.n_cols, [&](std::uint32_t row, int) {
    const std::uint32_t n_intervals =
        (pass_.positions[first_row + row] + temperature.offset) / temperature.interval;
    const float factor = 1.0f + temperature.scale * std::log(1.0f + static_cast<float>(n_intervals));
    math_.scale(row_of(x, row), factor, nullptr, row_of(x, row), x.n_cols);
  });
}

void CpuOps::rope_heads(const HeadRows& x, std::uint32_t curve_idx, std::uint32_t first_row,
                        const HeadRows& y) {
  SLUICE_CHECK(curve_idx < curves_.size());
  Curve& curve = curves_[curve_idx];
  SLUICE_CHECK(x.dim == curve.n_rot && y.dim == x.dim && y.n_heads == x.n_heads && y.n_rows == x.n_rows);
  SLUICE_CHECK(std::size_t{first_row} + x.n_rows <= pass_.positions.size());
  const float* table = rope_table(curve);
  for_rows(x.n_rows, 2 * k_stream_ns * x.dim * x.n_heads, [&](std::uint32_t row, int) {
    const float* cosines = table + std::size_t{first_row + row} * curve.n_rot;
    for (std::uint32_t head = 0; head < x.n_heads; ++head) {
      std::copy_n(x.at(row, head), x.dim, y.at(row, head));
      math_.rotate(y.at(row, head), cosines, cosines + curve.n_rot / 2, curve.n_rot / 2, curve.neox);
    }
  });
}

void CpuOps::rope(Rows x, std::uint32_t head_dim, std::uint32_t curve_idx, std::uint32_t first_row) {
  SLUICE_CHECK(curve_idx < curves_.size());
  Curve& curve = curves_[curve_idx];
  SLUICE_CHECK(head_dim > 0 && x.n_cols % head_dim == 0 && curve.n_rot <= head_dim);
  SLUICE_CHECK(std::size_t{first_row} + x.n_rows <= pass_.positions.size());
  if (curve.n_rot == 0) return;
  const float* table = rope_table(curve);
  for_rows(x.n_rows, 2 * k_stream_ns * x.n_cols, [&](std::uint32_t row, int) {
    const float* cosines = table + std::size_t{first_row + row} * curve.n_rot;
    for (std::uint32_t column = 0; column < x.n_cols; column += head_dim) {
      math_.rotate(row_of(x, row) + column, cosines, cosines + curve.n_rot / 2, curve.n_rot / 2, curve.neox);
    }
  });
}

}  // namespace sluice::kernels
