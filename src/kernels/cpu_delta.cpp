#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "kernels/cpu_table.hpp"
#include "kernels/delta_math.hpp"

namespace sluice::kernels {
namespace {

// Rough costs; only the size of chunks depends on them.
constexpr double k_convolve_ns = 1.0;  ///< Of a channel of a row.
constexpr double k_advance_ns = 3.0;   ///< Of k_delta_columns elements of the state and a row.

float* row_of(Rows rows, std::uint32_t row) noexcept {
  return rows.data + std::size_t{row} * rows.stride;
}

float logistic(float x) noexcept {
  return 1.0f / (1.0f + std::exp(-x));
}

float softplus(float x) noexcept {
  constexpr float k_linear = 20.0f;  // From here on the difference is below a float's last bit.
  return x > k_linear ? x : std::log1p(std::exp(x));
}

/// The one that the row belongs to.
const DeltaRun& run_of(std::span<const DeltaRun> runs, std::uint32_t row) noexcept {
  const auto after = std::upper_bound(runs.begin(), runs.end(), row,
                                      [](std::uint32_t r, const DeltaRun& run) { return r < run.first_row; });
  return *(after - 1);
}

void check_runs(std::span<const DeltaRun> runs, std::uint32_t n_rows) noexcept {
  std::uint32_t next = 0;
  for (const DeltaRun& run : runs) {
    SLUICE_CHECK(run.first_row == next && run.n_rows > 0 && run.to != nullptr);
    next += run.n_rows;
  }
  SLUICE_CHECK(next == n_rows);
}

/// Row `row` of the pass, or one before the run, which its state holds; null for zeros.
const float* input_row(Rows in, const DeltaShape& shape, const DeltaRun& run, std::int64_t row) noexcept {
  const std::int64_t before = std::int64_t{run.first_row} - row;
  if (before <= 0) return row_of(in, static_cast<std::uint32_t>(row));
  if (run.from == nullptr) return nullptr;
  return run.from + static_cast<std::size_t>(shape.n_taps - 1 - before) * shape.n_channels();
}

/// What the convolution of the next rows will see. `from` may be `to`: rows move to the front.
void keep_last_rows(Rows in, const DeltaShape& shape, const DeltaRun& run) noexcept {
  const std::uint32_t n_kept = shape.n_taps - 1;
  const std::size_t n = shape.n_channels();
  for (std::uint32_t i = 0; i < n_kept; ++i) {
    const std::int64_t row = std::int64_t{run.n_rows} - n_kept + i;
    float* to = run.to + i * n;
    if (row >= 0) {
      std::memcpy(to, row_of(in, run.first_row + static_cast<std::uint32_t>(row)), n * sizeof(float));
    } else if (run.from == nullptr) {
      std::memset(to, 0, n * sizeof(float));
    } else {
      std::memmove(to, run.from + static_cast<std::size_t>(row + n_kept) * n, n * sizeof(float));
    }
  }
}

/// Beta and decay of each value head take the places of what they are made of.
void make_gates(const DeltaShape& shape, const DeltaWeights& weights, const float* raw,
                float* gates) noexcept {
  for (std::uint32_t head = 0; head < shape.n_v_heads; ++head) {
    const std::uint32_t beta = shape.beta_column(head), alpha = shape.alpha_column(head);
    gates[beta] = logistic(raw[beta]);
    gates[alpha] = std::exp(weights.a[head] * softplus(raw[alpha] + weights.dt_bias[head]));
  }
}

}  // namespace

void CpuOps::prepare_delta_row(Rows in, const DeltaShape& shape, const DeltaWeights& weights, float eps,
                               const DeltaRun& run, std::uint32_t row, float* out) noexcept {
  const std::uint32_t n_channels = shape.n_channels(), dim = shape.head_dim;
  std::array<const float*, k_max_taps> inputs{};
  for (std::uint32_t i = 0; i < shape.n_taps; ++i)
    inputs[i] = input_row(in, shape, run, std::int64_t{row} + i + 1 - shape.n_taps);
  delta_math_.convolve(inputs.data(), weights.convolution, shape.n_taps, n_channels, out);
  const float q_scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (std::uint32_t head = 0; head < 2 * shape.n_k_heads; ++head) {
    float* x = out + std::size_t{head} * dim;
    const float length = std::max(std::sqrt(math_.sum_squares(x, dim)), eps);
    math_.scale(x, (head < shape.n_k_heads ? q_scale : 1.0f) / length, nullptr, x, dim);
  }
  make_gates(shape, weights, row_of(in, row) + n_channels, out + n_channels);
  if (run.log != nullptr) {
    std::memcpy(run.log + std::size_t{row - run.first_row} * shape.n_columns(), row_of(in, row),
                shape.n_columns() * sizeof(float));
  }
}

void CpuOps::advance_delta(const DeltaShape& shape, const DeltaRun& run, Rows work, std::size_t unit,
                           Rows y) noexcept {
  const std::uint32_t dim = shape.head_dim, n_blocks = dim / k_delta_columns;
  const auto v_head = static_cast<std::uint32_t>(unit / n_blocks);
  const std::size_t block = unit % n_blocks, column = v_head * dim + block * k_delta_columns;
  const std::size_t k_column = std::size_t{shape.k_head_of(v_head)} * dim, k_dim = shape.n_k_heads * dim;
  const float* first = row_of(work, run.first_row);
  const float* gates = first + shape.n_channels();
  DeltaHead head{};
  head.q = first + k_column;
  head.k = first + k_dim + k_column;
  head.v = first + 2 * k_dim + column;
  head.beta = gates + shape.beta_column(v_head);
  head.decay = gates + shape.alpha_column(v_head);
  head.stride = head.gate_stride = work.stride;
  if (y.data != nullptr) head.y = row_of(y, run.first_row) + column;
  head.y_stride = y.stride;
  head.n_rows = run.n_rows;
  head.head_dim = dim;
  const std::size_t offset =
      std::size_t{shape.n_taps - 1} * shape.n_channels() + unit * dim * k_delta_columns;
  delta_math_.advance(run.from == nullptr ? nullptr : run.from + offset, run.to + offset, head);
}

void CpuOps::delta_rule(Rows in, const DeltaShape& shape, const DeltaWeights& weights, float eps,
                        std::span<const DeltaRun> runs, Rows work, Rows y) {
  SLUICE_CHECK(shape.n_taps >= 2 && shape.n_taps <= k_max_taps && shape.head_dim % k_delta_columns == 0);
  SLUICE_CHECK(shape.n_k_heads > 0 && shape.n_v_heads % shape.n_k_heads == 0);
  SLUICE_CHECK(in.n_cols == shape.n_columns() && work.n_cols == in.n_cols && work.n_rows == in.n_rows);
  SLUICE_CHECK(y.data == nullptr || (y.n_cols == shape.v_dim() && y.n_rows == in.n_rows));
  check_runs(runs, in.n_rows);
  for_rows(in.n_rows, k_convolve_ns * in.n_cols, [&](std::uint32_t row, int) {
    prepare_delta_row(in, shape, weights, eps, run_of(runs, row), row, row_of(work, row));
  });
  // Units of work: a block of columns of one run.
  const std::size_t n_units = std::size_t{shape.n_v_heads} * (shape.head_dim / k_delta_columns);
  const double total_ns = k_advance_ns * in.n_rows * shape.head_dim * static_cast<double>(n_units);
  for_chunks(n_units * runs.size(), total_ns, [&](std::size_t chunk, int) {
    advance_delta(shape, runs[chunk / n_units], work, chunk % n_units, y);
  });
  for (const DeltaRun& run : runs) keep_last_rows(in, shape, run);
}

}  // namespace sluice::kernels
