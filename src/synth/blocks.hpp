#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "gguf/types.hpp"

namespace sluice::synth {

/// Draws that are the same on every machine.
class SynthRandom : public base::SplitMix64 {
 public:
  using SplitMix64::SplitMix64;
  /// Mean 0, deviation 1: the sum of twelve uniforms (Irwin-Hall), which needs no libm.
  float normal() noexcept;
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

}  // namespace sluice::synth
