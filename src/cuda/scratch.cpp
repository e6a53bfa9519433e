#include "cuda/scratch.hpp"

#include <algorithm>

#include "cuda/kernels/layout.hpp"

namespace sluice::cuda {
namespace {

constexpr std::uint64_t k_alignment = 256;

class Taker {
 public:
  std::uint64_t take(std::uint64_t bytes) noexcept {
    const std::uint64_t at = at_;
    at_ += (bytes + k_alignment - 1) / k_alignment * k_alignment;
    return at;
  }
  std::uint64_t bytes() const noexcept { return at_; }

 private:
  std::uint64_t at_ = 0;
};

std::uint32_t align_up(std::uint32_t n, std::uint32_t to) noexcept {
  return (n + to - 1) / to * to;
}

QuantizedLayout quantized_layout(Taker& taker, std::uint64_t n_rows, std::uint32_t n_cols,
                                 bool is_256) noexcept {
  QuantizedLayout layout;
  layout.q_stride = align_up(n_cols, is_256 ? k_step_256 : k_step_32);
  layout.d_stride = align_up(n_cols, 256) / (is_256 ? 256 : 32);
  layout.sum_stride = is_256 ? align_up(n_cols, 256) / 16 : 0;
  layout.q = taker.take(n_rows * layout.q_stride);
  layout.d = taker.take(n_rows * layout.d_stride * sizeof(float));
  layout.sums = taker.take(n_rows * layout.sum_stride * sizeof(std::int16_t));
  return layout;
}

}  // namespace

ScratchLayout scratch_layout(const kernels::ScratchSize& size) noexcept {
  ScratchLayout layout;
  layout.max_rows = size.max_rows;
  layout.max_hidden = size.max_hidden;
  layout.rope_columns = size.rope_columns;
  Taker taker;
  layout.max_cols = std::max(size.max_cols, size.head_columns);
  for (int i = 0; i < 2; ++i) layout.x[i] = quantized_layout(taker, size.max_rows, layout.max_cols, i == 1);
  if (size.max_hidden > 0) {
    constexpr std::uint32_t k_min_wave = 1024, k_max_wave = 8192;
    layout.wave_rows = std::clamp(size.max_rows * 8, k_min_wave, k_max_wave);
    const std::uint64_t n_routed = std::uint64_t{size.max_rows} * k_max_used_experts;
    for (int i = 0; i < 2; ++i) {
      layout.expert_x[i] = quantized_layout(taker, size.max_rows, size.max_cols, i == 1);
      layout.hidden_x[i] = quantized_layout(taker, layout.wave_rows, size.max_hidden, i == 1);
    }
    layout.hidden = taker.take(std::uint64_t{layout.wave_rows} * size.max_hidden * sizeof(float));
    layout.ids = taker.take(n_routed * sizeof(std::uint16_t));
    layout.weights = taker.take(n_routed * sizeof(float));
  }
  layout.rope_tables = taker.take(std::uint64_t{size.max_rows} * size.rope_columns * sizeof(float));
  layout.frequencies = taker.take(size.rope_columns * sizeof(double));
  layout.partials = taker.take(k_partial_bytes);
  layout.bytes = taker.bytes();
  return layout;
}

QuantizedRows quantized_rows(const QuantizedLayout& layout, std::byte* memory) noexcept {
  return {reinterpret_cast<const std::int8_t*>(memory + layout.q),
          reinterpret_cast<const float*>(memory + layout.d),
          layout.sum_stride == 0 ? nullptr : reinterpret_cast<const std::int16_t*>(memory + layout.sums),
          layout.q_stride,
          layout.d_stride,
          layout.sum_stride};
}

}  // namespace sluice::cuda
