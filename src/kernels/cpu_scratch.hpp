#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/ops.hpp"
#include "kernels/quant.hpp"

namespace sluice::kernels {

/// Rows of activations that one pass of a matrix product takes: enough that reading the weights again for the
/// next pass is lost in the computing.
constexpr std::uint32_t k_matmul_rows = 512;
/// Same for products over plain floats whose input has to be copied to aligned rows first (rare).
constexpr std::uint32_t k_copied_rows = 64;
/// Rows that one pass of a product of heads takes at least.
constexpr std::uint32_t k_head_rows = 16;
/// Hidden rows of one wave of expert calls, at least and at most.
constexpr std::uint32_t k_min_wave_rows = 64, k_max_wave_rows = 1024;
/// Activation rows that a chunk multiplies at a time, and outputs (rows * columns) of an expert's tile.
constexpr std::uint32_t k_tile_rows = 64;
constexpr std::uint32_t k_tile_outputs = 4096;
/// Limits of the attention loops; a tile is a group of queries that share keys.
constexpr std::uint32_t k_max_head_dim = 1024;
constexpr std::uint32_t k_max_tile_queries = 64;
constexpr std::uint32_t k_tile_floats = 8192;
constexpr std::uint32_t k_value_floats = 4096;
constexpr std::uint32_t k_max_experts = 4096;

/// Where each part of the scratch lies: offsets in bytes from its start, all multiples of 64.
struct ScratchLayout {
  struct PerThread {
    std::size_t tiles = 0;  ///< 2 * k_tile_outputs floats; the router's work space as well.
    std::size_t keys = 0, values = 0, queries = 0, scores = 0, acc = 0, maxima_and_sums = 0;
    std::size_t bytes = 0;
  };
  std::uint32_t max_rows = 0, max_cols = 0, max_hidden = 0, rope_columns = 0;
  std::uint32_t matmul_rows = 0, copied_rows = 0, wave_rows = 0;
  std::array<std::size_t, 3> matmul_activations{};  ///< By ActivationFormat.
  std::array<std::size_t, 3> expert_activations{};  ///< By ActivationFormat; plain floats are used in place.
  std::size_t head_activations = 0, head_activation_bytes = 0;  ///< For products of heads, any format.
  std::size_t gather = 0, gather_bytes = 0;
  std::size_t hidden = 0, hidden_stride = 0;                     ///< Floats between rows.
  std::size_t hidden_quantized = 0, hidden_quantized_bytes = 0;  ///< Bytes between rows.
  std::size_t partials = 0, partial_floats = 0;  ///< Attention's segments that wait for their merge.
  std::size_t partial_states = 0;                ///< Running (max, sum) of every query of a wave.
  std::size_t attention_tiles = 0;               ///< First row of each tile, max_rows + 1 of them.
  std::size_t rope_tables = 0;                   ///< Of all curves, one behind the other.
  std::size_t per_thread = 0;
  PerThread thread;
  std::size_t bytes = 0;
};

/// Attention is split into segments when it has fewer tiles than this per thread.
constexpr std::uint32_t k_units_per_thread = 4;

/// Pure. Throws Error(budget) when the size does not fit an address space.
ScratchLayout scratch_layout(const ScratchSize& size, int n_threads);

/// Bytes between rows of an activation format for any n up to `max_cols`.
std::size_t widest_row_bytes(ActivationFormat format, std::uint32_t max_cols) noexcept;

}  // namespace sluice::kernels
