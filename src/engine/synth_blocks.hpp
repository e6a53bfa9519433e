#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "gguf/types.hpp"

namespace sluice::engine {

/// SplitMix64 (Steele, Lea, Flood 2014): the same draws on every machine for a seed.
class SynthRandom {
 public:
  explicit SynthRandom(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// Below `bound`, which must not be 0; the bias is that of a 64-bit draw.
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }
  /// Mean 0, deviation 1: the sum of twelve uniforms (Irwin-Hall), which needs no libm.
  float normal() noexcept;

 private:
  std::uint64_t state_;
};

/// Whether BlockPool can make blocks of a type.
bool can_synthesize(gguf::TensorType type) noexcept;

/// A prime number of random blocks, about 4 MiB, that weights are taken from again and again. Because it is
/// prime, rows of several blocks do not repeat before every block was the first of one.
class BlockPool {
 public:
  /// Blocks of random bits with scales such that the values have mean 0 and the deviation `std_dev`. Requires
  /// can_synthesize(type).
  BlockPool(gguf::TensorType type, float std_dev, std::uint64_t seed);

  std::size_t n_blocks() const noexcept { return bytes_.size() / block_bytes_; }
  /// Hands out `n` blocks in pieces, beginning with block `phase` and going round.
  void take(std::size_t phase, std::uint64_t n,
            const std::function<void(std::span<const std::byte>)>& sink) const;
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  void fill_floats(gguf::TensorType type, float std_dev, SynthRandom& random);
  void fill_blocks(gguf::TensorType type, float std_dev, SynthRandom& random);

  std::size_t block_bytes_;
  std::vector<std::byte> bytes_;
};

/// One pool for each type and deviation that was asked for.
class BlockPools {
 public:
  explicit BlockPools(std::uint64_t seed) noexcept : seed_(seed) {}
  const BlockPool& get(gguf::TensorType type, float std_dev);

 private:
  std::uint64_t seed_;
  std::map<std::pair<gguf::TensorType, float>, BlockPool> pools_;
};

}  // namespace sluice::engine
