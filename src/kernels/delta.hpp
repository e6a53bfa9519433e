#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::kernels {

// Linear attention whose memory has a fixed size: the gated delta rule (Yang et al. 2024) behind a short
// causal convolution. A row projects to [q | k | v | beta | alpha]: q and k of n_k_heads heads, v, beta and
// alpha of n_v_heads. With s the state of a value head, a matrix [head_dim of k, head_dim of v]:
//   q, k, v = silu(convolution of the last n_taps rows of q, k, v);  q, k = q / |q|, k / |k|
//   decay = exp(a * softplus(alpha + dt_bias));  s *= decay
//   s += k (x) sigmoid(beta) * (v - k s);  y = q s / sqrt(head_dim)

struct DeltaShape {
  std::uint32_t n_k_heads = 0;
  std::uint32_t n_v_heads = 0;  ///< A multiple of n_k_heads.
  std::uint32_t head_dim = 0;   ///< Of keys and values; a multiple of k_delta_columns.
  std::uint32_t n_taps = 0;     ///< Rows that the convolution sees, its own included; 2 to k_max_taps.
  /// Which key head a value head uses. tiled: h % n_k_heads. grouped: h / r, with r = n_v_heads / n_k_heads;
  /// then beta and alpha lie side by side for each key head, r of each, not all beta before all alpha.
  enum class Order : std::uint8_t { tiled, grouped } order = Order::tiled;

  std::uint32_t v_dim() const noexcept { return n_v_heads * head_dim; }
  std::uint32_t n_channels() const noexcept { return 2 * n_k_heads * head_dim + v_dim(); }
  /// Of a projected row.
  std::uint32_t n_columns() const noexcept { return n_channels() + 2 * n_v_heads; }
  /// Floats of a sequence's state: the n_taps - 1 last rows of q, k, v as they were projected, then the state
  /// of each value head, in blocks of k_delta_columns columns.
  std::uint64_t n_state_floats() const noexcept {
    return std::uint64_t{n_taps - 1} * n_channels() + std::uint64_t{v_dim()} * head_dim;
  }
  std::uint32_t k_head_of(std::uint32_t v_head) const noexcept {
    return order == Order::tiled ? v_head % n_k_heads : v_head / (n_v_heads / n_k_heads);
  }
  /// Columns of a value head's beta and alpha, counted from the first.
  std::uint32_t beta_column(std::uint32_t v_head) const noexcept {
    const std::uint32_t r = n_v_heads / n_k_heads;
    return order == Order::tiled ? v_head : v_head / r * 2 * r + v_head % r;
  }
  std::uint32_t alpha_column(std::uint32_t v_head) const noexcept {
    return beta_column(v_head) + (order == Order::tiled ? n_v_heads : n_v_heads / n_k_heads);
  }
};

constexpr std::uint32_t k_delta_columns = 32;
constexpr std::uint32_t k_max_taps = 16;

struct DeltaWeights {
  const float* convolution = nullptr;  ///< [n_channels, n_taps], the latest row last.
  const float* dt_bias = nullptr;      ///< [n_v_heads]
  const float* a = nullptr;            ///< [n_v_heads], below 0.
};

/// Rows of one sequence, which follow one another, and the state before and behind them.
struct DeltaRun {
  std::uint32_t first_row = 0, n_rows = 0;
  const float* from = nullptr;  ///< n_state_floats; null: all zero. May be `to`.
  float* to = nullptr;
  float* log = nullptr;  ///< Gets the projected rows, n_columns apart, unless it is null.
};

}  // namespace sluice::kernels
