#include "simulation/subjects.hpp"

#include <fmt/core.h>

#include <array>

#include "support/test_data.hpp"

namespace sluice::simulation {
namespace {

using gguf::TensorType;

constexpr std::array k_types = {TensorType::f32,  TensorType::q8_0, TensorType::q4_0,   TensorType::q4_k,
                                TensorType::bf16, TensorType::q6_k, TensorType::iq4_nl, TensorType::iq3_s};

/// Three shapes of mixtures of experts for one dense one, and every type with each of them; some of both have
/// recurrent layers.
test::TinyModel shape_of(std::uint32_t index) {
  base::SplitMix64 random(index);
  test::TinyModel tiny;
  tiny.seed = 100 + index;
  tiny.type = k_types[index % k_types.size()];
  const bool has_large_blocks =
      tiny.type == TensorType::q4_k || tiny.type == TensorType::q6_k || tiny.type == TensorType::iq3_s;
  tiny.n_layers = 2 + static_cast<std::uint32_t>(random.below(has_large_blocks ? 2 : 4));
  if (has_large_blocks) {
    // Heads of 64 make the attention's output 256 wide, too.
    tiny.n_embd = tiny.n_ff = 256;
    tiny.head_dim = 64;
  }
  tiny.n_ctx = Subjects::k_max_ctx;
  tiny.tied_output = random.below(3) == 0;
  if (index % 4 == 3) {
    constexpr std::array k_dense = {"llama", "qwen2", "qwen3"};
    tiny.architecture = k_dense[random.below(k_dense.size())];
    tiny.n_experts = 0;
    tiny.n_layers += 3;
    return tiny;
  }
  // Of types whose blocks fit the widths of recurrent layers.
  const bool is_recurrent = index % k_types.size() == 1 || index % k_types.size() == 6;
  if (is_recurrent) {
    tiny.architecture = index % k_types.size() == 1 ? "qwen35moe" : "qwen35";
    tiny.n_layers = 4;
    tiny.n_experts = tiny.architecture == "qwen35" ? 0 : 8;
    return tiny;
  }
  tiny.architecture = random.below(3) == 0 ? "llama" : "qwen3moe";
  tiny.split_experts = tiny.architecture == "llama" && random.below(2) == 0;
  tiny.n_experts = 4 + static_cast<std::uint32_t>(random.below(has_large_blocks ? 5 : 13));
  tiny.n_experts_used = 1 + static_cast<std::uint32_t>(random.below(4));
  return tiny;
}

}  // namespace

std::pair<std::uint64_t, std::uint64_t> Subject::budget_range(const OpenOptions& options) {
  const Shape shape{options.n_ctx, options.max_sequences, options.prefill_chunk, options.n_threads};
  const auto found = budgets.find(shape);
  if (found != budgets.end()) return found->second;
  OpenOptions whole;
  whole.memory_bytes = std::uint64_t{1} << 30;
  std::tie(whole.n_ctx, whole.max_sequences, whole.prefill_chunk, whole.n_threads) = shape;
  engine::Hooks hooks;
  hooks.process_bytes = 0;
  const Model model = engine::open_model(path, whole, hooks);
  const std::pair range{model.plan().floor_bytes, model.plan().resident_from_bytes};
  budgets[shape] = range;
  return range;
}

Subject& Subjects::get(std::uint32_t index) {
  Subject& subject = subjects_[index];
  if (subject.reference != nullptr) return subject;
  const test::TinyModel shape = shape_of(index);
  subject.is_moe = shape.n_experts != 0;
  subject.is_recurrent = shape.architecture.starts_with("qwen35");
  subject.bytes = std::make_shared<const std::vector<std::byte>>(test::make_tiny_model(shape));
  subject.path = dir_ / fmt::format("{}.gguf", index);
  subject.copy = dir_ / fmt::format("{}-copy.gguf", index);
  for (const auto& path : {subject.path, subject.copy})
    test::write_bytes(path, subject.bytes->data(), subject.bytes->size());
  OpenOptions options;
  options.n_threads = 1;
  options.memory_bytes = std::uint64_t{1} << 30;
  options.n_ctx = k_max_ctx;
  options.max_sequences = k_max_sequences;
  subject.reference = std::make_unique<Model>(Model::open(subject.path, options));
  return subject;
}

std::filesystem::path Subjects::heat_path() {
  return dir_ / fmt::format("heat-{}.json", n_heat_++);
}

}  // namespace sluice::simulation
