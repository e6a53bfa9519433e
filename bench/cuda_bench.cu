// Rates of the GPU's products: bytes of weights over the time of a product, beside a plain read of as many bytes.
//   cuda_bench   needs libsluice_cuda.so beside it or in LD_LIBRARY_PATH
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "cuda/loader.hpp"
#include "gguf/types.hpp"
#include "kernels/ops.hpp"
#include "support/random_blocks.hpp"

namespace {

using namespace sluice;
using kernels::Product;
using kernels::Rows;
using kernels::Weight;

__global__ void read_all(const uint4* data, std::size_t n, unsigned* out) {
  unsigned all = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n; i += std::size_t{gridDim.x} * blockDim.x) {
    const uint4 v = __ldcs(data + i);
    all ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (all == 0x12345678u) *out = all;
}

double plain_read_rate() {
  const std::size_t bytes = std::size_t{4} << 30;
  uint4* data = nullptr;
  unsigned* out = nullptr;
  cudaMalloc(&data, bytes);
  cudaMalloc(&out, 4);
  cudaMemset(data, 1, bytes);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  float best = 1e9f;
  for (int i = 0; i < 10; ++i) {
    cudaEventRecord(begin);
    read_all<<<132 * 16, 512>>>(data, bytes / 16, out);
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    best = std::min(best, ms);
  }
  cudaFree(data);
  cudaFree(out);
  return static_cast<double>(bytes) / best / 1e6;
}

struct Shape {
  std::uint32_t n_in, n_out;
};

/// Matrices that together are far larger than the L2 cache.
class Matrices {
 public:
  Matrices(kernels::Ops& ops, gguf::TensorType type, Shape shape)
      : ops_(ops), shape_(shape), bytes_(gguf::row_bytes(type, shape.n_in) * shape.n_out) {
    n_ = std::max<std::uint32_t>(4, static_cast<std::uint32_t>((400u << 20) / bytes_));
    static std::vector<std::vector<std::byte>> kept;  // Addresses are names: none is used twice.
    const std::vector<std::byte> some = test::random_rows(type, 64, shape.n_in, 3);
    std::vector<std::byte>& all = kept.emplace_back(bytes_ * n_);
    for (std::size_t at = 0; at < all.size(); at += some.size())
      std::copy_n(some.begin(), std::min(some.size(), all.size() - at), all.begin() + static_cast<std::ptrdiff_t>(at));
    first_ = {all.data(), type, shape.n_in, shape.n_out * n_, gguf::row_bytes(type, shape.n_in)};
    ops.place(first_);
    first_.n_out = shape.n_out;
  }

  /// Products one after the other: GB/s of weights.
  double rate(std::uint32_t n_rows) {
    ops_.reserve({n_rows, shape_.n_in, 0});
    const std::vector<float> values = test::random_floats(std::size_t{n_rows} * shape_.n_in, 5);
    const Rows x = rows(n_rows, shape_.n_in), y = rows(n_rows, shape_.n_out);
    ops_.upload(values.data(), reinterpret_cast<std::byte*>(x.data), values.size() * 4);
    const int n_rounds = n_rows > 8 ? 1 : 4;
    std::uint64_t best = ~0ull;
    for (int i = 0; i < 6; ++i) {
      for (int round = 0; round < n_rounds; ++round) {
        for (std::uint32_t m = 0; m < n_; ++m) {
          Weight one = first_;
          one.data += m * bytes_;
          const Product product[] = {{one, y, nullptr}};
          ops_.matmul(x, product);
        }
      }
      const std::uint64_t start = base::now_ns();
      ops_.wait(ops_.mark());
      best = std::min(best, base::now_ns() - start);
    }
    return static_cast<double>(n_rounds) * static_cast<double>(bytes_) * n_ / static_cast<double>(best);
  }

 private:
  Rows rows(std::uint32_t n_rows, std::uint32_t n_cols) {
    return {reinterpret_cast<float*>(ops_.allocate(std::size_t{n_rows} * n_cols * 4)), n_rows, n_cols, n_cols};
  }
  kernels::Ops& ops_;
  Shape shape_;
  std::uint64_t bytes_;
  std::uint32_t n_ = 0;
  Weight first_;
};

}  // namespace

int main() {
  try {
    const std::unique_ptr<kernels::Ops> ops = cuda::make_ops(0);
    const double plain = plain_read_rate();
    std::printf("%s: plain reading %.0f GB/s\n", ops->name(), plain);
    const Shape shapes[] = {{4096, 4096}, {4096, 28672}, {14336, 4096}};
    for (const Shape shape : shapes) {
      for (const auto type : {gguf::TensorType::q4_k, gguf::TensorType::q5_k, gguf::TensorType::q6_k, gguf::TensorType::q8_0,
                              gguf::TensorType::mxfp4, gguf::TensorType::f16}) {
        std::printf("%u x %u %s:", shape.n_in, shape.n_out, std::string(gguf::type_name(type)).c_str());
        Matrices matrices(*ops, type, shape);
        for (const std::uint32_t n_rows : {1u, 2u, 4u, 8u, 512u}) {
          const double gbps = matrices.rate(n_rows);
          if (n_rows <= 8) {
            std::printf("  %u rows %.0f GB/s (%.0f %%)", n_rows, gbps, 100 * gbps / plain);
          } else {
            const double per_byte = static_cast<double>(shape.n_in) / static_cast<double>(gguf::row_bytes(type, shape.n_in));
            std::printf("  %u rows %.1f TFLOP/s", n_rows, 2e-3 * gbps * per_byte * n_rows);
          }
        }
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
