#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/args.hpp"
#include "kernels/ops.hpp"

namespace sluice::cuda {

/// Memory for quantized rows; offsets in bytes.
struct QuantizedLayout {
  std::uint64_t q = 0, d = 0, sums = 0;
  std::uint32_t q_stride = 0, d_stride = 0, sum_stride = 0;  ///< Elements.
};

/// Where the parts of the scratch begin, in bytes.
struct ScratchLayout {
  std::uint32_t max_rows = 0, max_cols = 0, max_hidden = 0, rope_columns = 0;
  std::uint32_t wave_rows = 0;  ///< Hidden rows of experts at once.
  QuantizedLayout x[2];         ///< In blocks of 32 and of 256.
  QuantizedLayout expert_x[2], hidden_x[2];
  std::uint64_t hidden = 0, ids = 0, weights = 0, rope_tables = 0, frequencies = 0, partials = 0;
  std::uint64_t bytes = 0;
};

/// Memory of partial results of attention: passes with more take their rows in parts.
constexpr std::uint64_t k_partial_bytes = std::uint64_t{64} << 20;
constexpr std::uint32_t k_max_used_experts = 64;

ScratchLayout scratch_layout(const kernels::ScratchSize& size) noexcept;

/// The rows at `memory`, for rows of n_cols.
QuantizedRows quantized_rows(const QuantizedLayout& layout, std::byte* memory) noexcept;

}  // namespace sluice::cuda
