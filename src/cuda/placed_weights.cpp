#include "cuda/placed_weights.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "gguf/types.hpp"

namespace sluice::cuda {
namespace {

/// Kernels read up to a whole step behind the last block.
constexpr std::uint64_t k_slack_bytes = 256;

}  // namespace

void PlacedWeights::copy_in_new_order(const Kernel& repack, const kernels::Weight& weight, const Place& place,
                                      cudaStream_t stream) {
  constexpr std::uint64_t k_chunk_blocks = 1 << 18;
  const std::uint64_t n_blocks = place.bytes / place.block_bytes;
  const Memory chunk(std::min(n_blocks, k_chunk_blocks) * place.block_bytes, Memory::Where::device);
  for (std::uint64_t first = 0; first < n_blocks; first += k_chunk_blocks) {
    const std::uint64_t n = std::min(k_chunk_blocks, n_blocks - first);
    check(cudaMemcpyAsync(chunk.data(), weight.data + first * place.block_bytes, n * place.block_bytes,
                          cudaMemcpyHostToDevice, stream),
          "copying weights");
    RepackArgs args{reinterpret_cast<const std::uint8_t*>(chunk.data()),
                    reinterpret_cast<std::uint8_t*>(place.memory.data()), n, first, n_blocks};
    void* list[] = {&args};
    check(cudaLaunchKernel(repack.function, dim3(4096), dim3(repack.block), list, 0, stream),
          "ordering weights");
  }
  check(cudaStreamSynchronize(stream), "copying weights");
}

void PlacedWeights::place(const kernels::Weight& weight, cudaStream_t stream) {
  SLUICE_CHECK(weight.data != nullptr);
  const std::uint64_t bytes = weight.row_bytes * weight.n_out;
  if (const auto* known = find(weight.data)) {
    SLUICE_CHECK(weight.data + bytes <= known->first + known->second.bytes);
    return;
  }
  Place place{bytes, gguf::type_traits(weight.type).block_bytes,
              Memory(bytes + k_slack_bytes, Memory::Where::device)};
  const Kernel repack = repack_kernel(static_cast<int>(weight.type));
  if (repack.function != nullptr) {
    copy_in_new_order(repack, weight, place, stream);
  } else {
    check(cudaMemcpyAsync(place.memory.data(), weight.data, bytes, cudaMemcpyHostToDevice, stream),
          "copying weights");
    check(cudaStreamSynchronize(stream), "copying weights");
  }
  bytes_ += bytes;
  places_.emplace(weight.data, std::move(place));
}

const std::pair<const std::byte* const, PlacedWeights::Place>* PlacedWeights::find(
    const void* host) const noexcept {
  const auto* at = static_cast<const std::byte*>(host);
  auto after = places_.upper_bound(at);
  if (after == places_.begin()) return nullptr;
  --after;
  return at < after->first + after->second.bytes ? &*after : nullptr;
}

MatrixRef PlacedWeights::matrix(const kernels::Weight& weight) const {
  const auto* found = find(weight.data);
  SLUICE_CHECK(found != nullptr);
  const Place& place = found->second;
  const auto offset = static_cast<std::uint64_t>(weight.data - found->first);
  SLUICE_CHECK(offset % place.block_bytes == 0);
  return {reinterpret_cast<const std::uint8_t*>(place.memory.data()), place.bytes / place.block_bytes,
          offset / place.block_bytes};
}

const float* PlacedWeights::floats(const float* host) const {
  if (host == nullptr) return nullptr;
  const auto* found = find(host);
  if (found == nullptr) return host;
  const auto offset = reinterpret_cast<const std::byte*>(host) - found->first;
  return reinterpret_cast<const float*>(found->second.memory.data() + offset);
}

}  // namespace sluice::cuda
