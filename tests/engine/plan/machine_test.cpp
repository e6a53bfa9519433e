// Goal: what a machine is and delivers is reported within the limits the caller sets, and the weights that
// computing reads are counted to the byte.
#include "sluice/machine.hpp"

#include <gtest/gtest.h>

#include <array>

#include "gguf/reader.hpp"
#include "kernels/gemm.hpp"
#include "platform/cpu_features.hpp"
#include "sluice/error.hpp"
#include "sluice/inspect.hpp"
#include "sluice/model.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "support/tiny_model.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t k_mib = 1u << 20;

TEST(Machine, ReadRateIsMeasuredWithinTheCallersLimit) {
  const MachineRates rates = measure_machine(2, 8 * k_mib);
  EXPECT_EQ(rates.n_threads, 2);
  EXPECT_EQ(rates.buffer_bytes, 8 * k_mib);
  EXPECT_GT(rates.read_bytes_per_second, 0);
  EXPECT_GE(rates.n_passes, 2u);
  if (rates.cache_bytes == 0 || rates.cache_bytes > 2 * k_mib) {
    EXPECT_FALSE(rates.beyond_cache) << "8 MiB fit the cache";
  }
  EXPECT_EQ(measure_machine(1, 1).buffer_bytes, k_mib) << "the smallest buffer";
}

TEST(Machine, ThreadsOutOfRangeAreRefused) {
  for (const int n_threads : {-1, 257}) {
    try {
      measure_machine(n_threads, k_mib);
      ADD_FAILURE() << n_threads << " threads were accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(std::to_string(n_threads)), std::string::npos);
    }
  }
}

TEST(Machine, InfoNamesWhatResultsDependOn) {
  const MachineInfo info = machine_info();
  EXPECT_FALSE(info.cpu_model.empty());
  EXPECT_FALSE(info.isa.empty());
  EXPECT_EQ(info.kernel.find('\n'), std::string::npos);
  EXPECT_GE(info.n_usable_cpus, 1);
  EXPECT_GE(info.memory_bytes, k_mib);
}

/// A build without SIMD kernels on a machine that has AVX2 runs, and names, the scalar ones.
TEST(Machine, InfoAndStatisticsNameTheKernelsThatRun) {
  const kernels::GemmKernel kernel = kernels::find_gemm(gguf::TensorType::q4_k, platform::choose_isa());
  const std::string running = platform::isa_name(kernel.isa);
  EXPECT_EQ(machine_info().isa, running);
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), {});
  EXPECT_EQ(Model::open(path, {}).stats().isa, running);
}

/// What one token needs, worked out from the tensor table of the file.
std::uint64_t active_bytes(const std::filesystem::path& path, const ModelInfo& info) {
  std::uint64_t bytes = 0, head = 0, embedding = 0;
  for (const TensorFact& tensor : inspect(path).tensors) {
    switch (tensor.role) {
      case Role::token_embedding:
        embedding = tensor.bytes;
        break;
      case Role::output_head:
        head = tensor.bytes;
        break;
      case Role::expert:
        // A tensor of all experts, or of one.
        bytes += tensor.dims.size() == 3 ? tensor.bytes / info.n_experts * info.n_experts_used
                                         : tensor.bytes * info.n_experts_used / info.n_experts;
        break;
      default:
        bytes += tensor.bytes;
    }
  }
  return bytes + embedding / info.n_vocab + (head != 0 ? head : embedding);
}

struct Steps {
  std::uint64_t active = 0;   ///< Bytes per token as the model states them.
  std::uint64_t decode = 0;   ///< Bytes that one decoded token took.
  std::uint64_t silent = 0;   ///< The same without logits.
  std::uint64_t prefill = 0;  ///< Bytes of one pass of 40 tokens.
  std::uint64_t expected = 0;
};

Steps count_steps(const test::TinyModel& tiny) {
  const test::TempDir dir;
  const auto path = test::write_tiny_model(dir.path(), tiny);
  OpenOptions options;
  options.n_threads = 1;
  options.prefill_chunk = 64;
  Model model = Model::open(path, options);
  Sequence sequence = model.new_sequence();
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < 40; ++token) tokens.push_back(token * 5 + 1);
  const auto bytes_of = [&](std::span<const TokenId> part, LogitsWanted logits) {
    const StepItem item{&sequence, part, logits};
    const std::uint64_t before = model.stats().weight_bytes;
    model.step({&item, 1}, [](std::size_t, std::size_t, std::span<const float>) {});
    return model.stats().weight_bytes - before;
  };
  Steps steps;
  steps.active = model.stats().active_weight_bytes_per_token;
  steps.prefill = bytes_of(tokens, LogitsWanted::last);
  steps.decode = bytes_of(std::span(tokens).first(1), LogitsWanted::last);
  steps.silent = bytes_of(std::span(tokens).first(1), LogitsWanted::none);
  steps.expected = active_bytes(path, model.info());
  return steps;
}

TEST(WeightBytes, OfATokenAreTheGraphsWeightsAndItsExperts) {
  std::array<test::TinyModel, 4> models;
  models[1].tied_output = true;
  models[2].split_experts = true;
  models[3].architecture = "qwen3";
  models[3].n_experts = 0;
  models[3].n_experts_used = 0;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const Steps steps = count_steps(models[i]);
    EXPECT_EQ(steps.active, steps.expected) << i;
    EXPECT_EQ(steps.decode, steps.active) << i;
    EXPECT_LT(steps.silent, steps.decode) << i;
    // One pass reads the always-used weights once, and an expert once for all of its tokens.
    EXPECT_GT(steps.prefill, steps.active) << i;
    EXPECT_LT(steps.prefill, 40 * steps.active) << i;
  }
}

}  // namespace
}  // namespace sluice
