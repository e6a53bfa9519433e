#include <algorithm>

#include "base/check.hpp"
#include "kernels/cpu_table.hpp"

namespace sluice::kernels {
namespace {

// Rough rates of one core; only the size of chunks depends on them.
constexpr double k_quantize_ns = 0.25;
constexpr double k_decode_ns = 0.5;
constexpr double k_products_per_ns = 10;

HeadRows rows_of(const HeadRows& x, std::uint32_t first, std::uint32_t n) noexcept {
  HeadRows part = x;
  part.data = x.at(first, 0);
  part.n_rows = n;
  return part;
}

/// `n` rows of each head.
void check_heads(const HeadRows& x, const HeadWeight& w, const HeadRows& y, std::uint32_t n) noexcept {
  SLUICE_CHECK(x.n_heads > 0 && x.n_heads == y.n_heads && x.n_rows == y.n_rows);
  SLUICE_CHECK(w.row(x.n_heads - 1) + n <= w.w.n_out);
}

}  // namespace

void CpuOps::matmul_heads(const HeadRows& x, const HeadWeight& w, const HeadRows& y) {
  SLUICE_CHECK(w.w.n_in == x.dim);
  check_heads(x, w, y, y.dim);
  const GemmKernel& found = kernel(w.w);
  const std::size_t row_bytes = x.n_heads * activation_layout(found.activation, x.dim).row_bytes;
  SLUICE_CHECK(row_bytes > 0 && row_bytes <= layout_.head_activation_bytes);
  const auto rows_at_once = static_cast<std::uint32_t>(
      std::min<std::size_t>(layout_.head_activation_bytes / row_bytes, k_matmul_rows));
  for (std::uint32_t first = 0; first < x.n_rows; first += rows_at_once) {
    const std::uint32_t n_rows = std::min(rows_at_once, x.n_rows - first);
    multiply_heads(found, rows_of(x, first, n_rows), w, rows_of(y, first, n_rows));
  }
}

void CpuOps::multiply_heads(const GemmKernel& kernel, const HeadRows& x, const HeadWeight& w,
                            const HeadRows& y) {
  // A row's heads lie one behind the other.
  const Activations inputs{at(layout_.head_activations),
                           activation_layout(kernel.activation, x.dim).row_bytes};
  for_rows(x.n_rows * x.n_heads, k_quantize_ns * x.dim, [&](std::uint32_t i, int) {
    quantize_row(kernel, x.at(i / x.n_heads, i % x.n_heads), x.dim,
                 at(layout_.head_activations) + i * inputs.row_bytes);
  });
  Weight of_head = w.w;
  of_head.n_out = y.dim;
  const double total_ns = row_ns(of_head, x.n_rows) * y.dim * x.n_heads;
  const std::uint32_t n_out = chunk_rows(of_head, x.n_rows, chunk_ns(total_ns));
  const std::size_t chunks_per_head = (std::size_t{y.dim} + n_out - 1) / n_out;
  const std::uint32_t step = tile_rows(inputs.row_bytes);
  for_chunks(x.n_heads * chunks_per_head, total_ns, [&](std::size_t chunk, int) {
    const auto head = static_cast<std::uint32_t>(chunk / chunks_per_head);
    const auto begin = static_cast<std::uint32_t>(chunk % chunks_per_head) * n_out;
    const std::uint32_t n = std::min(n_out, y.dim - begin);
    const std::byte* rows = w.w.data + (w.row(head) + begin) * w.w.row_bytes;
    for (std::uint32_t row = 0; row < x.n_rows; row += step) {
      const std::uint32_t n_x = std::min(step, x.n_rows - row);
      float* out = y.at(row, head) + begin;
      kernel.gemm(rows, w.w.row_bytes, n, inputs.row(std::size_t{row} * x.n_heads + head),
                  x.n_heads * inputs.row_bytes, n_x, w.w.n_in, out, y.stride);
      finish_outputs(w.w, nullptr, out, n_x, n, y.stride);
    }
  });
}

void CpuOps::matmul_heads_transposed(const HeadRows& x, const HeadWeight& w, const HeadRows& y) {
  SLUICE_CHECK(layout_.bytes > 0 && w.w.n_in == y.dim && y.dim > 0 && y.dim <= k_max_head_dim);
  check_heads(x, w, y, x.dim);
  // How many rows are decoded at once depends on their length only, and so does the order of additions.
  const std::uint32_t rows_at_once = 2 * k_tile_outputs / y.dim;
  const double head_ns = static_cast<double>(x.dim) * y.dim * (k_decode_ns + x.n_rows / k_products_per_ns);
  for_chunks(x.n_heads, head_ns * x.n_heads, [&](std::size_t chunk, int thread) {
    const auto head = static_cast<std::uint32_t>(chunk);
    float* const decoded = of_thread(thread, layout_.thread.tiles);
    for (std::uint32_t row = 0; row < x.n_rows; ++row) std::fill_n(y.at(row, head), y.dim, 0.0f);
    for (std::uint32_t first = 0; first < x.dim; first += rows_at_once) {
      const std::uint32_t n = std::min(rows_at_once, x.dim - first);
      const std::byte* rows = w.w.data + (w.row(head) + first) * w.w.row_bytes;
      for (std::uint32_t i = 0; i < n; ++i)
        SLUICE_CHECK(
            dequantize_row(w.w.type, rows + i * w.w.row_bytes, decoded + std::size_t{i} * y.dim, y.dim));
      for (std::uint32_t row = 0; row < x.n_rows; ++row)
        math_.add_weighted(decoded, y.dim, x.at(row, head) + first, n, y.at(row, head), y.dim);
    }
    finish_outputs(w.w, nullptr, y.at(0, head), x.n_rows, y.dim, y.stride);
  });
}

}  // namespace sluice::kernels
