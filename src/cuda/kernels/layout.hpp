#pragma once

#include <cstdint>

// How things lie on the device.
//
// Weights: as many bytes as in the file. Blocks whose size is a multiple of 16 stay as they are (Q4_K, Q5_K,
// plain numbers); those of other types are taken apart, so that every part can be read 16 bytes at a time:
// for all blocks of a tensor first all quants, then all that comes behind them.
//   Q8_0 : q 32 | d 2
//   Q6_K : ql 128 | qh 64 | scales 16 | d 2
//   Q4_0 : quants 16 | d 2
//   Q5_0 : quants 16 | fifth bits 4 | d 2
//   MXFP4: quants 16, the nibbles in the order of the elements | e 1
//
// Quantized activations: numbers in steps of 32 lanes. A lane of the product works on 64 elements that follow
// one another for blocks of 256 (a step is 2048 elements), on 32 for blocks of 32 (a step is 1024), and reads
// 16 at a time: element e of lane l lies at e / 16 * 512 + l * 16 + e % 16 in its step.
namespace sluice::cuda {

constexpr std::uint32_t k_piece_256 = 64, k_piece_32 = 32;
constexpr std::uint32_t k_step_256 = 32 * k_piece_256, k_step_32 = 32 * k_piece_32;

/// Where element `i` of a row lies.
template <std::uint32_t Piece>
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr std::uint32_t
    place_of(std::uint32_t i) noexcept {
  const std::uint32_t in_step = i % (32 * Piece), lane = in_step / Piece, e = in_step % Piece;
  return i / (32 * Piece) * (32 * Piece) + e / 16 * 512 + lane * 16 + e % 16;
}

}  // namespace sluice::cuda
