#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/error.hpp"
#include "kernels/cpu_table.hpp"

namespace sluice::kernels {
namespace {

// Rough rates of one core; only the size of chunks depends on them.
constexpr double k_weight_bytes_per_ns = 12;
constexpr double k_products_per_ns = 150;
constexpr double k_quantize_ns = 0.25;
// A chunk's weights stay in the second-level cache while its activation tiles pass, and a tile while the
// weights do.
constexpr std::size_t k_chunk_bytes = 256 << 10;
constexpr std::size_t k_tile_bytes = 256 << 10;
// Sixteen outputs are one cache line: no two chunks write to the same.
constexpr std::uint32_t k_row_step = 16;
constexpr std::size_t k_max_products = 16;

}  // namespace

const GemmKernel& CpuOps::kernel(const Weight& w) const {
  const GemmKernel& found = kernels_[static_cast<std::size_t>(w.type)];
  if (found.gemm == nullptr) {
    base::fail(ErrorCode::unsupported, "no matrix product for weights of type {}; use another quantization",
               gguf::type_name(w.type));
  }
  return found;
}

double CpuOps::row_ns(const Weight& w, std::uint32_t n_x) noexcept {
  return std::max(static_cast<double>(w.row_bytes) / k_weight_bytes_per_ns,
                  static_cast<double>(w.n_in) * n_x / k_products_per_ns);
}

std::uint32_t CpuOps::chunk_rows(const Weight& w, std::uint32_t n_x, double target_ns) const noexcept {
  double rows = target_ns / std::max(row_ns(w, n_x), 1.0);
  if (n_x > k_tile_rows) {
    rows = std::min(rows, static_cast<double>(k_chunk_bytes / std::max<std::uint64_t>(w.row_bytes, 1)));
  }
  const double steps = std::clamp(rows / k_row_step, 1.0, w.n_out / k_row_step + 1.0);
  return static_cast<std::uint32_t>(steps) * k_row_step;
}

std::uint32_t CpuOps::tile_rows(std::size_t x_row_bytes) noexcept {
  const std::size_t rows = k_tile_bytes / std::max<std::size_t>(x_row_bytes, 1) / 8 * 8;
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(rows, 8, k_tile_rows));
}

bool CpuOps::usable_in_place(Rows x) noexcept {
  return x.n_cols % 16 == 0 && x.stride % 16 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 64 == 0;
}

void CpuOps::quantize_row(const GemmKernel& kernel, const float* x, std::size_t n,
                          std::byte* out) const noexcept {
  if (kernel.activation == ActivationFormat::f32) {
    std::memcpy(out, x, n * sizeof(float));
    std::memset(out + n * sizeof(float), 0,
                activation_layout(ActivationFormat::f32, n).row_bytes - n * sizeof(float));
  } else if (kernel.quantize != nullptr) {
    kernel.quantize(x, n, out);
  } else {
    quantize_activation(kernel.activation, x, n, out);
  }
}

void CpuOps::finish_outputs(const Weight& w, const float* bias, float* y, std::uint32_t n_x, std::uint32_t n,
                            std::size_t stride) const noexcept {
  if (w.scale == 1.0f && bias == nullptr) return;
  for (std::uint32_t j = 0; j < n_x; ++j, y += stride) {
    if (w.scale != 1.0f) math_.scale(y, w.scale, nullptr, y, n);
    if (bias != nullptr) math_.add(bias, y, n);
  }
}

CpuOps::Activations CpuOps::quantize(const GemmKernel& kernel, Rows x, std::byte* out) {
  const Activations result{out, activation_layout(kernel.activation, x.n_cols).row_bytes};
  for_rows(x.n_rows, k_quantize_ns * x.n_cols, [&](std::uint32_t row, int) {
    quantize_row(kernel, x.data + std::size_t{row} * x.stride, x.n_cols, out + row * result.row_bytes);
  });
  return result;
}

void CpuOps::matmul(Rows x, std::span<const Product> products) {
  SLUICE_CHECK(layout_.bytes > 0 && x.n_cols <= layout_.max_cols);
  bool copies = false;
  for (const Product& product : products) {
    SLUICE_CHECK(product.w.n_in == x.n_cols && product.w.n_out == product.y.n_cols);
    SLUICE_CHECK(product.y.n_rows == x.n_rows);
    copies = copies || (kernel(product.w).activation == ActivationFormat::f32 && !usable_in_place(x));
  }
  const std::uint32_t rows_at_once = copies ? layout_.copied_rows : layout_.matmul_rows;
  for (std::uint32_t first = 0; first < x.n_rows; first += rows_at_once) {
    const std::uint32_t n_rows = std::min(rows_at_once, x.n_rows - first);
    for (std::size_t done = 0; done < products.size(); done += k_max_products) {
      const std::size_t n = std::min(k_max_products, products.size() - done);
      std::array<Product, k_max_products> part;
      for (std::size_t i = 0; i < n; ++i) {
        part[i] = products[done + i];
        part[i].y = part[i].y.from(first).first(n_rows);
      }
      multiply(x.from(first).first(n_rows), std::span(part.data(), n));
    }
  }
}

void CpuOps::multiply(Rows x, std::span<const Product> products) {
  struct Part {
    const GemmKernel* kernel;
    Activations x;
    std::uint32_t chunk_rows;
    std::size_t first_chunk;
  };
  std::array<Part, k_max_products> parts;
  std::array<Activations, 3> inputs{};
  double total_ns = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    Part& part = parts[i];
    part.kernel = &kernel(products[i].w);
    const auto format = static_cast<std::size_t>(part.kernel->activation);
    if (inputs[format].data == nullptr) {
      if (part.kernel->activation == ActivationFormat::f32 && usable_in_place(x)) {
        inputs[format] = {reinterpret_cast<const std::byte*>(x.data), std::size_t{x.stride} * sizeof(float)};
      } else {
        inputs[format] = quantize(*part.kernel, x, at(layout_.matmul_activations[format]));
      }
    }
    part.x = inputs[format];
    total_ns += row_ns(products[i].w, x.n_rows) * products[i].w.n_out;
  }
  const double target_ns = chunk_ns(total_ns);
  std::size_t n_chunks = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    parts[i].chunk_rows = chunk_rows(products[i].w, x.n_rows, target_ns);
    parts[i].first_chunk = n_chunks;
    n_chunks += (std::size_t{products[i].w.n_out} + parts[i].chunk_rows - 1) / parts[i].chunk_rows;
  }
  for_chunks(n_chunks, total_ns, [&](std::size_t chunk, int) {
    std::size_t i = products.size() - 1;
    while (parts[i].first_chunk > chunk) --i;
    const Part& part = parts[i];
    const Weight& w = products[i].w;
    const Rows y = products[i].y;
    const auto begin = static_cast<std::uint32_t>((chunk - part.first_chunk) * part.chunk_rows);
    const std::uint32_t n = std::min(part.chunk_rows, w.n_out - begin);
    const std::uint32_t step = tile_rows(part.x.row_bytes);
    for (std::uint32_t row = 0; row < x.n_rows; row += step) {
      const std::uint32_t n_x = std::min(step, x.n_rows - row);
      float* out = y.data + std::size_t{row} * y.stride + begin;
      part.kernel->gemm(w.data + begin * w.row_bytes, w.row_bytes, n, part.x.row(row), part.x.row_bytes, n_x,
                        w.n_in, out, y.stride);
      const float* bias = products[i].bias == nullptr ? nullptr : products[i].bias + begin;
      finish_outputs(w, bias, out, n_x, n, y.stride);
    }
  });
}

}  // namespace sluice::kernels
