// Speed of the GEMM kernels, every weight type on every instruction set of this machine; one thread, but for
// share/, which has all.
//   dram/<type>/<isa>        one activation row, weights from memory: GB/s of weight bytes
//   share/<type>/<isa>       the same, slices taking turns with plain reading of the same memory: both rates,
//                            and the median of their ratios, steady where memory is not
//   cache/<type>/<isa>       one activation row, weights from the L2 cache: GB/s of weight bytes
//   batch/<type>/<isa>/<n>   n activation rows: multiply-adds per second (GMAC/s)
//   quantize/<format>/<isa>  activation quantization: GB/s of f32
// Rows have 2048 elements; --columns=N, before all other options, is another number (a multiple of 256).
// --benchmark_filter picks, --benchmark_repetitions=5 shows the noise.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/thread_pool.hpp"
#include "gguf/types.hpp"
#include "kernels/gemm.hpp"
#include "platform/cpu_features.hpp"
#include "platform/stream_read.hpp"
#include "support/random_blocks.hpp"

namespace {

using namespace sluice;
using kernels::GemmKernel;
using kernels::Isa;
using kernels::TensorType;

std::size_t n_cols = 2048;  ///< Set by main, before anything runs.
constexpr std::size_t k_dram_bytes = 256u << 20;
constexpr std::size_t k_cache_bytes = 400u << 10;

struct Unmap {
  std::size_t bytes = 0;
  void operator()(std::byte* p) const { munmap(p, bytes); }
};
using Region = std::unique_ptr<std::byte, Unmap>;

/// Anonymous memory, on huge pages where the system gives them.
Region allocate(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return {};
  madvise(p, bytes, MADV_HUGEPAGE);
  return Region(static_cast<std::byte*>(p), Unmap{bytes});
}

/// `n_rows` rows of random blocks: a few different ones, repeated.
Region weights(TensorType type, std::size_t n_rows) {
  constexpr std::size_t n_distinct = 64;
  const std::vector<std::byte> rows = test::random_rows(type, n_distinct, n_cols, 1);
  const std::size_t row_bytes = gguf::row_bytes(type, n_cols);
  Region region = allocate(n_rows * row_bytes);
  for (std::size_t i = 0; region && i < n_rows; ++i) {
    std::memcpy(region.get() + i * row_bytes, rows.data() + i % n_distinct * row_bytes, row_bytes);
  }
  return region;
}

void run_gemm(benchmark::State& state, TensorType type, Isa isa, std::size_t weight_bytes, std::size_t n_x) {
  const GemmKernel kernel = kernels::find_gemm(type, isa);
  const std::size_t row_bytes = gguf::row_bytes(type, n_cols);
  const std::size_t n_rows = weight_bytes / row_bytes / 16 * 16;
  const Region w = weights(type, n_rows);
  const std::size_t x_row_bytes = kernels::activation_layout(kernel.activation, n_cols).row_bytes;
  const Region x = allocate(n_x * x_row_bytes);
  const std::vector<float> values = test::random_floats(n_x * n_cols, 2);
  std::vector<float> y(n_x * n_rows);
  if (!w || !x) return state.SkipWithError("no memory");
  for (std::size_t j = 0; j < n_x; ++j) {
    kernel.quantize(values.data() + j * n_cols, n_cols, x.get() + j * x_row_bytes);
  }
  for (auto _ : state) {
    kernel.gemm(w.get(), row_bytes, n_rows, x.get(), x_row_bytes, n_x, n_cols, y.data(), n_rows);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  const auto rate = [&](double amount) { return Counter(amount, Counter::kIsIterationInvariantRate); };
  state.counters["GB/s"] = rate(1e-9 * static_cast<double>(n_rows * row_bytes));
  state.counters["GMAC/s"] = rate(1e-9 * static_cast<double>(n_rows * n_cols * n_x));
}

void run_share(benchmark::State& state, TensorType type, Isa isa) {
  constexpr std::size_t n_slices = 32, slice_bytes = 24u << 20, chunk_bytes = 72u << 10;
  const GemmKernel kernel = kernels::find_gemm(type, isa);
  const std::size_t row_bytes = gguf::row_bytes(type, n_cols);
  const std::size_t chunk_rows = std::max<std::size_t>(chunk_bytes / row_bytes / 16, 1) * 16;
  const std::size_t n_chunks = slice_bytes / (chunk_rows * row_bytes), slice_rows = n_chunks * chunk_rows;
  const Region w = weights(type, n_slices * slice_rows);
  const std::size_t x_row_bytes = kernels::activation_layout(kernel.activation, n_cols).row_bytes;
  const Region x = allocate(x_row_bytes);
  const std::vector<float> values = test::random_floats(n_cols, 2);
  std::vector<float> y(slice_rows);
  if (!w || !x) return state.SkipWithError("no memory");
  kernel.quantize(values.data(), n_cols, x.get());
  base::ThreadPool pool(platform::usable_cpus());
  std::vector<double> kernel_ns, read_ns, shares;
  std::size_t slice = 0;
  const auto timed = [&](bool reads) {
    const std::byte* from = w.get() + slice++ * 7 % n_slices * slice_rows * row_bytes;
    const std::uint64_t begin = base::now_ns();
    pool.run(n_chunks, [&](std::size_t chunk, int) {
      const std::byte* rows = from + chunk * chunk_rows * row_bytes;
      if (reads) {
        benchmark::DoNotOptimize(platform::sum_words(
            {reinterpret_cast<const std::uint64_t*>(rows), chunk_rows * row_bytes / sizeof(std::uint64_t)}));
      } else {
        kernel.gemm(rows, row_bytes, chunk_rows, x.get(), x_row_bytes, 1, n_cols,
                    y.data() + chunk * chunk_rows, slice_rows);
      }
    });
    (reads ? read_ns : kernel_ns).push_back(static_cast<double>(base::now_ns() - begin));
  };
  for (auto _ : state) {
    const bool reads_first = slice / 2 % 2 == 0;
    timed(reads_first);
    timed(!reads_first);
    shares.push_back(read_ns.back() / kernel_ns.back());
  }
  const auto median = [](std::vector<double>& of) {
    std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2), of.end());
    return of[of.size() / 2];
  };
  const auto bytes = static_cast<double>(slice_rows * row_bytes);
  state.counters["GB/s"] = bytes / median(kernel_ns);
  state.counters["read GB/s"] = bytes / median(read_ns);
  state.counters["share"] = median(shares);
}

void run_quantize(benchmark::State& state, TensorType type, Isa isa) {
  const GemmKernel kernel = kernels::find_gemm(type, isa);
  const std::vector<float> values = test::random_floats(n_cols, 2);
  const Region x = allocate(kernels::activation_layout(kernel.activation, n_cols).row_bytes);
  if (!x) return state.SkipWithError("no memory");
  for (auto _ : state) {
    kernel.quantize(values.data(), n_cols, x.get());
    benchmark::ClobberMemory();
  }
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * sizeof(float) * n_cols, benchmark::Counter::kIsIterationInvariantRate);
}

void register_type(TensorType type, Isa isa) {
  const std::string name = std::string(gguf::type_name(type)) + "/" + platform::isa_name(isa);
  const auto add = [&](const std::string& title, std::size_t bytes, std::size_t n_x) {
    benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& state) {
      run_gemm(state, type, isa, bytes, n_x);
    })->Unit(benchmark::kMicrosecond);
  };
  // The scalar reference is a check, not a path for speed: a small share shows its rate.
  if (isa != Isa::scalar) {
    add("dram/" + name, k_dram_bytes, 1);
    benchmark::RegisterBenchmark(("share/" + name).c_str(),
                                 [=](benchmark::State& state) { run_share(state, type, isa); })
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(400);
  }
  add("cache/" + name, k_cache_bytes, 1);
  for (const std::size_t n_x : {2, 8, 64})
    add("batch/" + name + "/" + std::to_string(n_x), k_cache_bytes, n_x);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::string_view columns_option = "--columns=";
  if (argc > 1 && std::string_view(argv[1]).starts_with(columns_option)) {
    n_cols = std::strtoul(argv[1] + columns_option.size(), nullptr, 10);
    if (n_cols == 0 || n_cols % 256 != 0) {
      std::fprintf(stderr, "--columns wants a multiple of 256\n");
      return 1;
    }
    argv[1] = argv[0];
    ++argv;
    --argc;
  }
  using enum TensorType;
  for (const Isa isa : platform::supported_isas()) {
    for (const gguf::TypeTraits& traits : gguf::all_types()) {
      if (traits.use == gguf::TypeUse::weight) register_type(traits.type, isa);
    }
    const std::string set = platform::isa_name(isa);
    benchmark::RegisterBenchmark(("quantize/q8_32/" + set).c_str(),
                                 [=](benchmark::State& s) { run_quantize(s, q8_0, isa); });
    benchmark::RegisterBenchmark(("quantize/q8_256/" + set).c_str(),
                                 [=](benchmark::State& s) { run_quantize(s, q4_k, isa); });
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
