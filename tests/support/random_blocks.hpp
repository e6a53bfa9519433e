#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gguf/types.hpp"

namespace sluice::test {

/// `n_rows` rows of `n_cols` elements of valid random blocks, rows back to back, the same bytes for the same
/// seed on every machine. Every bit pattern a format allows occurs (quants, sub-block scales, signs, grid
/// indexes); only the floating-point scales are kept finite and below 2^-3 in size, of both signs where the
/// format has a sign. Elements of F32, F16 and BF16 lie within (-2, 2). `n_cols` must be a multiple of the
/// type's block; throws std::invalid_argument otherwise, and for integer types.
std::vector<std::byte> random_rows(gguf::TensorType type, std::size_t n_rows, std::size_t n_cols,
                                   std::uint64_t seed);

/// `n` floats, roughly normal (sum of uniforms), mean 0 and standard deviation 1: activations for tests.
std::vector<float> random_floats(std::size_t n, std::uint64_t seed);

}  // namespace sluice::test
