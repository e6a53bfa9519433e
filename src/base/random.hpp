#pragma once

#include <cstdint>

namespace sluice::base {

/// SplitMix64 (Steele, Lea, Flood 2014): the same draws on every machine for a seed.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    const std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    return mix((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u);
  }
  /// The last steps of a draw: spreads the bits of a product over all 64.
  static constexpr std::uint64_t mix(std::uint64_t z) noexcept {
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// Below `bound`, which must not be 0; the bias is that of a 64-bit draw.
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }
  /// Uniform in [0, 1), a multiple of 2^-53.
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::base
