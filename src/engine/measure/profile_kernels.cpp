#include "engine/measure/profile_kernels.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "gguf/types.hpp"
#include "kernels/gemm.hpp"
#include "kernels/quant.hpp"
#include "platform/memory.hpp"
#include "synth/blocks.hpp"

namespace sluice::engine {
namespace {

using gguf::TensorType;

constexpr std::array<std::uint32_t, 2> k_row_counts = {1, 64};
/// A matrix of this size has 144 KiB in Q4_K and 512 KiB in F16.
constexpr std::size_t k_n_in = 2048, k_n_out = 128;
/// The best round counts: what another user of the machine takes away comes and goes within seconds.
constexpr int k_n_rounds = 3;
constexpr std::uint64_t k_seed = 1;
constexpr std::size_t k_cache_line_bytes = 64;

/// Rows of activations in a kernel's format.
class Activations {
 public:
  Activations(const kernels::GemmKernel& kernel, std::uint32_t n_rows)
      : row_bytes_(kernels::activation_layout(kernel.activation, k_n_in).row_bytes),
        region_(platform::MappedRegion::allocate(row_bytes_ * n_rows, /*prefault=*/true)) {
    synth::SynthRandom random(k_seed);
    std::vector<float> row(k_n_in);
    for (std::uint32_t i = 0; i < n_rows; ++i) {
      for (float& value : row) value = random.normal();
      kernels::quantize_activation(kernel.activation, row.data(), row.size(),
                                   region_.data() + i * row_bytes_);
    }
  }
  const std::byte* data() const noexcept { return region_.data(); }
  std::size_t row_bytes() const noexcept { return row_bytes_; }

 private:
  std::size_t row_bytes_;
  platform::MappedRegion region_;
};

/// The types that stand for those like them.
std::vector<TensorType> measured_types() {
  std::vector<TensorType> types;
  for (const gguf::TypeTraits& traits : gguf::all_types()) {
    if (traits.use == gguf::TypeUse::weight && traits.similar == traits.type) types.push_back(traits.type);
  }
  return types;
}

double products_per_second(base::ThreadPool& pool, const kernels::GemmKernel& kernel,
                           const synth::BlockPool& weights, std::size_t row_bytes, std::uint32_t n_rows,
                           std::uint64_t duration_ns) {
  const Activations x(kernel, n_rows);
  const auto n_threads = static_cast<std::size_t>(pool.n_threads());
  std::vector<std::vector<float>> y(n_threads, std::vector<float>(k_n_out * n_rows + k_cache_line_bytes));
  // Each chunk belongs to one thread and runs until the time is over, so none waits for another.
  std::vector<double> rates(n_threads, 0);
  pool.run(n_threads, [&](std::size_t chunk, int) {
    const auto pass = [&] {
      kernel.gemm(weights.bytes().data(), row_bytes, k_n_out, x.data(), x.row_bytes(), n_rows, k_n_in,
                  y[chunk].data(), k_n_out);
    };
    pass();
    const std::uint64_t begin = base::now_ns();
    std::uint64_t n_passes = 0, elapsed_ns = 0;
    while (elapsed_ns < duration_ns) {
      pass();
      ++n_passes;
      elapsed_ns = base::now_ns() - begin;
    }
    const double products = static_cast<double>(n_passes) * k_n_out * k_n_in * n_rows;
    rates[chunk] = products * 1e9 / static_cast<double>(std::max<std::uint64_t>(elapsed_ns, 1));
  });
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace

std::vector<KernelRate> measure_kernels(base::ThreadPool& pool, platform::Isa isa, double seconds,
                                        const std::atomic<bool>* cancel) {
  const std::vector<TensorType> types = measured_types();
  const auto duration_ns = static_cast<std::uint64_t>(
      seconds * 1e9 / static_cast<double>(types.size() * k_row_counts.size() * k_n_rounds));
  std::vector<KernelRate> rates;
  for (int round = 0; round < k_n_rounds; ++round) {
    std::size_t next = 0;
    for (const TensorType type : types) {
      const kernels::GemmKernel kernel = kernels::find_gemm(type, isa);
      SLUICE_CHECK(kernel.gemm != nullptr);
      const synth::BlockPool weights(type, /*std_dev=*/1.0f, k_seed);
      const gguf::TypeTraits& traits = gguf::type_traits(type);
      const std::size_t row_bytes = k_n_in / traits.block_elements * traits.block_bytes;
      SLUICE_CHECK(row_bytes * k_n_out <= weights.bytes().size());
      for (const std::uint32_t n_rows : k_row_counts) {
        if (cancel != nullptr && cancel->load()) return rates;
        const double rate = products_per_second(pool, kernel, weights, row_bytes, n_rows, duration_ns);
        if (round == 0) rates.push_back({traits.name, n_rows, 0});
        rates[next].products_per_second = std::max(rates[next].products_per_second, rate);
        ++next;
      }
    }
  }
  return rates;
}

}  // namespace sluice::engine
