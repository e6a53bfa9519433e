#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>

#include "cuda/device.hpp"
#include "cuda/kernels/args.hpp"
#include "kernels/ops.hpp"

namespace sluice::cuda {

/// Copies of weights on the device, found by the addresses of the originals.
class PlacedWeights {
 public:
  /// Nothing happens when the weight is there. Throws Error(budget).
  void place(const kernels::Weight& weight, cudaStream_t stream);
  /// Rows of a matrix that was placed.
  MatrixRef matrix(const kernels::Weight& weight) const;
  /// Numbers that were placed, or that are on the device already. Null stays null.
  const float* floats(const float* host) const;
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Place {
    std::uint64_t bytes;
    std::uint32_t block_bytes;
    Memory memory;
  };
  const std::pair<const std::byte* const, Place>* find(const void* host) const noexcept;
  void copy_in_new_order(const Kernel& repack, const kernels::Weight& weight, const Place& place,
                         cudaStream_t stream);

  std::map<const std::byte*, Place> places_;  ///< By the address of the first byte.
  std::uint64_t bytes_ = 0;
};

}  // namespace sluice::cuda
