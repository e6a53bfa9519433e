#include "kernels/scalar/gemm_scalar.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/scalar/activation.hpp"
#include "kernels/scalar/visit_block.hpp"

namespace sluice::kernels::scalar {
namespace {

// All three kernels walk row by row and block by block, keeping the running sums in y: a block is unpacked
// once for all activation rows, and the sum of one (i, j) sees its blocks in the same order whatever n_rows
// and n_x are.

const std::byte* row_at(const void* base, std::size_t row_bytes, std::size_t row) noexcept {
  return static_cast<const std::byte*>(base) + row * row_bytes;
}

void clear_column(float* y, std::size_t y_stride, std::size_t n_x) noexcept {
  for (std::size_t j = 0; j < n_x; ++j) y[j * y_stride] = 0.0f;
}

std::int32_t dot(const std::int8_t* a, const std::int8_t* b, std::size_t n) noexcept {
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::int32_t{a[i]} * std::int32_t{b[i]};
  return sum;
}

/// Parts of a quantized activation row.
template <typename Sum>
struct ActivationRow {
  const std::int8_t* q;
  const float* scales;
  const Sum* sums;
  ActivationRow(const std::byte* row, const ActivationLayout& layout) noexcept
      : q(reinterpret_cast<const std::int8_t*>(row)),
        scales(reinterpret_cast<const float*>(row + layout.scale_offset)),
        sums(reinterpret_cast<const Sum*>(row + layout.sum_offset)) {}
};

template <typename Block>
constexpr bool k_has_min = requires {
  Block::k_has_min;
};

template <UnpacksTo32 Block>
void gemm_q8_32(const void* w, std::size_t w_row_bytes, std::size_t n_rows, const void* x,
                std::size_t x_row_bytes, std::size_t n_x, std::size_t n_cols, float* y,
                std::size_t y_stride) noexcept {
  const ActivationLayout layout = activation_layout(ActivationFormat::q8_32, n_cols);
  for (std::size_t i = 0; i < n_rows; ++i) {
    const auto* blocks = reinterpret_cast<const Block*>(row_at(w, w_row_bytes, i));
    clear_column(y + i, y_stride, n_x);
    for (std::size_t b = 0; b < n_cols / 32; ++b) {
      Unpacked32 block;
      unpack(blocks[b], block);
      for (std::size_t j = 0; j < n_x; ++j) {
        const ActivationRow<std::int32_t> row(row_at(x, x_row_bytes, j), layout);
        const float d_x = row.scales[b];
        float term = (block.scale * d_x) * static_cast<float>(dot(block.q, row.q + 32 * b, 32));
        if constexpr (k_has_min<Block>) term += (block.min * d_x) * static_cast<float>(row.sums[b]);
        y[j * y_stride + i] += term;
      }
    }
  }
}

/// Blocks of several parts, of which one or two lie in the 32 activations of a scale.
template <UnpacksToParts Block>
void gemm_q8_parts(const void* w, std::size_t w_row_bytes, std::size_t n_rows, const void* x,
                   std::size_t x_row_bytes, std::size_t n_x, std::size_t n_cols, float* y,
                   std::size_t y_stride) noexcept {
  constexpr std::size_t n = Block::k_part_elements;
  const ActivationLayout layout = activation_layout(ActivationFormat::q8_32, n_cols);
  for (std::size_t i = 0; i < n_rows; ++i) {
    const auto* blocks = reinterpret_cast<const Block*>(row_at(w, w_row_bytes, i));
    clear_column(y + i, y_stride, n_x);
    for (std::size_t column = 0; column < n_cols; column += n) {
      UnpackedPart<n> part;
      unpack(blocks[column / Block::k_elements], column % Block::k_elements / n, part);
      for (std::size_t j = 0; j < n_x; ++j) {
        const ActivationRow<std::int32_t> row(row_at(x, x_row_bytes, j), layout);
        const auto exact = static_cast<float>(dot(part.q, row.q + column, n));
        y[j * y_stride + i] += (part.scale * row.scales[column / 32]) * exact;
      }
    }
  }
}

template <UnpacksTo256 Block>
void gemm_q8_256(const void* w, std::size_t w_row_bytes, std::size_t n_rows, const void* x,
                 std::size_t x_row_bytes, std::size_t n_x, std::size_t n_cols, float* y,
                 std::size_t y_stride) noexcept {
  const ActivationLayout layout = activation_layout(ActivationFormat::q8_256, n_cols);
  for (std::size_t i = 0; i < n_rows; ++i) {
    const auto* blocks = reinterpret_cast<const Block*>(row_at(w, w_row_bytes, i));
    clear_column(y + i, y_stride, n_x);
    for (std::size_t b = 0; b < n_cols / 256; ++b) {
      Unpacked256 block;
      unpack(blocks[b], block);
      for (std::size_t j = 0; j < n_x; ++j) {
        const ActivationRow<std::int16_t> row(row_at(x, x_row_bytes, j), layout);
        // The largest, Q6_K's 16 sub-blocks of 16 * (32 * 127) * 128, stays below 2^27.
        std::int32_t scaled_dots = 0;
        std::int32_t scaled_sums = 0;
        for (std::size_t s = 0; s < 16; ++s) {
          scaled_dots += block.scale[s] * dot(block.q + 16 * s, row.q + 256 * b + 16 * s, 16);
          if constexpr (k_has_min<Block>) scaled_sums += block.min[s] * row.sums[16 * b + s];
        }
        const float d_x = row.scales[b];
        float term = (block.d * d_x) * static_cast<float>(scaled_dots);
        if constexpr (k_has_min<Block>) term -= (block.d_min * d_x) * static_cast<float>(scaled_sums);
        y[j * y_stride + i] += term;
      }
    }
  }
}

/// Element e goes to partial sum e % 16; the sixteen are added pairwise. Compilers can vectorize this without
/// changing the order.
float dot(const float* a, const float* b, std::size_t n) noexcept {
  constexpr std::size_t k_lanes = 16;
  float lanes[k_lanes] = {};
  std::size_t e = 0;
  for (; e + k_lanes <= n; e += k_lanes) {
    for (std::size_t l = 0; l < k_lanes; ++l) lanes[l] += a[e + l] * b[e + l];
  }
  for (std::size_t l = 0; e + l < n; ++l) lanes[l] += a[e + l] * b[e + l];
  for (std::size_t width = k_lanes / 2; width > 0; width /= 2) {
    for (std::size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

/// A multiple of every block size.
constexpr std::size_t k_chunk = 256;

template <typename Block>
void gemm_decoded(const void* w, std::size_t w_row_bytes, std::size_t n_rows, const void* x,
                  std::size_t x_row_bytes, std::size_t n_x, std::size_t n_cols, float* y,
                  std::size_t y_stride) noexcept {
  static_assert(k_chunk % Block::k_elements == 0);
  for (std::size_t i = 0; i < n_rows; ++i) {
    const auto* blocks = reinterpret_cast<const Block*>(row_at(w, w_row_bytes, i));
    clear_column(y + i, y_stride, n_x);
    for (std::size_t first = 0; first < n_cols; first += k_chunk) {
      const std::size_t n = std::min(k_chunk, n_cols - first);
      float decoded[k_chunk];
      decode_row<Block>(blocks + first / Block::k_elements, decoded, n);
      for (std::size_t j = 0; j < n_x; ++j) {
        const auto* row = reinterpret_cast<const float*>(row_at(x, x_row_bytes, j));
        y[j * y_stride + i] += dot(decoded, row + first, n);
      }
    }
  }
}

template <typename Block>
GemmKernel kernel_of() noexcept {
  if constexpr (UnpacksTo32<Block>) {
    return {ActivationFormat::q8_32, gemm_q8_32<Block>, quantize_q8_32, Isa::scalar};
  } else if constexpr (UnpacksToParts<Block>) {
    return {ActivationFormat::q8_32, gemm_q8_parts<Block>, quantize_q8_32, Isa::scalar};
  } else if constexpr (UnpacksTo256<Block>) {
    return {ActivationFormat::q8_256, gemm_q8_256<Block>, quantize_q8_256, Isa::scalar};
  } else {
    return {ActivationFormat::f32, gemm_decoded<Block>, quantize_f32, Isa::scalar};
  }
}

}  // namespace

GemmKernel find_scalar_gemm(TensorType type) noexcept {
  GemmKernel kernel;
  switch (type) {
#define SLUICE_KERNEL_weight(Code) kernel_of<Block##Code>()
#define SLUICE_KERNEL_activation(Code) kernel_of<Block##Code>()
#define SLUICE_KERNEL_number(Code) \
  {}
#define SLUICE_TYPE(id, type, Code, name, elements, bytes, use, similar) \
  case TensorType::type:                                                 \
    kernel = SLUICE_KERNEL_##use(Code);                                  \
    break;
#include "gguf/types.def"
#undef SLUICE_KERNEL_weight
#undef SLUICE_KERNEL_activation
#undef SLUICE_KERNEL_number
  }
  return kernel;
}

}  // namespace sluice::kernels::scalar
