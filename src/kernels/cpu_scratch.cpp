#include "kernels/cpu_scratch.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace sluice::kernels {
namespace {

/// Hands out consecutive parts and fails when their sum leaves 47 bits, which no machine can map.
class Parts {
 public:
  explicit Parts(std::size_t start = 0) : next_(start) {}
  std::size_t take(std::size_t count, std::size_t element_bytes) {
    const std::size_t offset = next_;
    const auto bytes = base::checked_mul(count, element_bytes);
    const auto end = bytes ? base::checked_add(offset, *bytes) : std::nullopt;
    if (!end || *end > (std::uint64_t{1} << 47)) {
      base::fail(ErrorCode::budget,
                 "the kernels' scratch of {} x {} bytes cannot be addressed; use a smaller batch", count,
                 element_bytes);
    }
    next_ = base::align_up(*end, 64);
    return offset;
  }
  std::size_t end() const noexcept { return next_; }

 private:
  std::size_t next_;
};

ScratchLayout::PerThread thread_layout() {
  ScratchLayout::PerThread thread;
  Parts parts;
  thread.tiles = parts.take(std::max(2 * k_tile_outputs, 2 * k_max_experts), sizeof(float));
  thread.keys = parts.take(std::size_t{16} * k_max_head_dim, sizeof(float));
  thread.values = parts.take(k_value_floats, sizeof(float));
  thread.queries = parts.take(k_tile_floats, sizeof(float));
  thread.scores = parts.take(std::size_t{256} * k_max_tile_queries, sizeof(float));
  thread.acc = parts.take(k_tile_floats, sizeof(float));
  thread.maxima_and_sums = parts.take(4 * k_max_tile_queries, sizeof(float));
  thread.bytes = parts.end();
  return thread;
}

}  // namespace

std::size_t widest_row_bytes(ActivationFormat format, std::uint32_t max_cols) noexcept {
  return activation_layout(format, base::align_up(max_cols, 256)).row_bytes;
}

ScratchLayout scratch_layout(const ScratchSize& size, int n_threads) {
  constexpr ActivationFormat quantized[] = {ActivationFormat::q8_32, ActivationFormat::q8_256};
  ScratchLayout layout;
  const auto [max_rows, max_cols, max_hidden, rope_columns, head_columns] = size;
  layout.max_rows = max_rows;
  layout.max_cols = max_cols;
  layout.max_hidden = max_hidden;
  layout.rope_columns = rope_columns;
  layout.matmul_rows = std::clamp(max_rows, 1u, k_matmul_rows);
  layout.copied_rows = std::clamp(max_rows, 1u, k_copied_rows);
  Parts parts;
  for (ActivationFormat format : quantized) {
    layout.matmul_activations[static_cast<std::size_t>(format)] =
        parts.take(layout.matmul_rows, widest_row_bytes(format, max_cols));
  }
  layout.matmul_activations[0] =
      parts.take(layout.copied_rows, widest_row_bytes(ActivationFormat::f32, max_cols));
  if (head_columns > 0) {
    // No format takes more than floats of whole blocks.
    layout.head_activation_bytes =
        std::size_t{std::clamp(max_rows, 1u, k_head_rows)} * head_columns * sizeof(float);
    layout.head_activations = parts.take(layout.head_activation_bytes, 1);
  }
  if (max_hidden > 0) {
    layout.wave_rows = std::clamp(max_rows, k_min_wave_rows, k_max_wave_rows);
    std::size_t widest = 0, widest_hidden = 0;
    for (ActivationFormat format : quantized) {
      const std::size_t row_bytes = widest_row_bytes(format, max_cols);
      layout.expert_activations[static_cast<std::size_t>(format)] = parts.take(max_rows, row_bytes);
      widest = std::max(widest, row_bytes);
      widest_hidden = std::max(widest_hidden, widest_row_bytes(format, max_hidden));
    }
    layout.gather = parts.take(layout.wave_rows, widest);
    layout.gather_bytes = layout.wave_rows * widest;
    layout.hidden_stride = base::align_up(max_hidden, 16);
    layout.hidden = parts.take(layout.wave_rows, layout.hidden_stride * sizeof(float));
    layout.hidden_quantized_bytes = widest_hidden;
    layout.hidden_quantized = parts.take(layout.wave_rows, widest_hidden);
  }
  const std::size_t n_units = std::size_t{k_units_per_thread} * static_cast<std::size_t>(n_threads);
  layout.partial_floats = n_units * (k_tile_floats + 2 * k_max_tile_queries);
  layout.partials = parts.take(layout.partial_floats, sizeof(float));
  layout.partial_states = parts.take(n_units * 2 * k_max_tile_queries, sizeof(float));
  layout.attention_tiles = parts.take(std::size_t{max_rows} + 1, sizeof(std::uint32_t));
  layout.rope_tables = parts.take(max_rows, std::size_t{rope_columns} * sizeof(float));
  layout.thread = thread_layout();
  layout.per_thread = parts.take(static_cast<std::size_t>(n_threads), layout.thread.bytes);
  // Whole pages, because that is what it costs.
  layout.bytes = base::align_up(parts.end(), 4096);
  return layout;
}

}  // namespace sluice::kernels
