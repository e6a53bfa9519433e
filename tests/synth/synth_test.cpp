// Goal: synthetic files have the tensors of the real ones, run, depend on the seed only, and appear whole or
// not at all.
#include "sluice/synth.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "gguf/types.hpp"
#include "gguf/writer.hpp"
#include "kernels/quant.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/test_data.hpp"
#include "synth/blocks.hpp"
#include "synth/shapes.hpp"

namespace sluice {
namespace {

using gguf::TensorType;
using synth::TensorSpec;

SynthOptions tiny(std::uint64_t seed = 1) {
  SynthOptions options;
  options.shape = "tiny-moe";
  options.seed = seed;
  return options;
}

std::string refusal(const std::filesystem::path& path, ErrorCode code, const SynthOptions& options,
                    const SynthProgress& progress = {}) {
  try {
    synthesize(path, options, progress);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << path << " was written";
  return {};
}

std::map<TensorType, std::size_t> count_types(const char* shape_name) {
  const synth::ShapeSpec& shape = synth::find_shape(shape_name);
  std::map<TensorType, std::size_t> counts;
  for (const TensorSpec& spec : synth::tensor_specs(shape, {}, shape.n_layers)) ++counts[spec.type];
  return counts;
}

TEST(SynthShapes, HaveTheTypeCountsOfTheRealFiles) {
  using Counts = std::map<TensorType, std::size_t>;
  EXPECT_EQ(count_types("qwen3-30b-a3b"),
            (Counts{{TensorType::f32, 241}, {TensorType::q4_k, 289}, {TensorType::q6_k, 49}}));
  EXPECT_EQ(
      count_types("llama3-70b"),
      (Counts{
          {TensorType::f32, 162}, {TensorType::q4_k, 441}, {TensorType::q5_k, 40}, {TensorType::q6_k, 81}}));
}

/// "name dims type" of every tensor in a table of a real file.
std::set<std::string> read_table(const std::filesystem::path& path) {
  std::set<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name, dims, type;
    fields >> name >> dims >> type;
    lines.insert(fmt::format("{} {} {}", name, dims, type));
  }
  return lines;
}

std::set<std::string> table_of(const char* shape_name) {
  const synth::ShapeSpec& shape = synth::find_shape(shape_name);
  std::set<std::string> lines;
  for (const TensorSpec& spec : synth::tensor_specs(shape, {}, shape.n_layers)) {
    std::string type = gguf::type_name(spec.type);
    std::transform(type.begin(), type.end(), type.begin(),
                   [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); });
    lines.insert(fmt::format("{} {} {}", spec.name, fmt::join(spec.dims, ","), type));
  }
  return lines;
}

TEST(SynthShapes, HaveEveryTensorOfTheRealFiles) {
  SLUICE_NEEDS_DATA(folder, "shapes");
  const std::map<const char*, const char*> tables = {
      {"qwen3-30b-a3b", "Qwen3-30B-A3B.Q4_K_M.tsv"},
      {"mixtral-8x7b", "Mixtral-8x7B-Instruct-v0.1.Q4_K_M.tsv"},
      {"llama3-70b", "Llama-3.3-70B-Instruct.Q4_K_M.tsv"},
      {"gpt-oss-120b", "gpt-oss-120b.Q4_K_M.tsv"},
      {"glm-4.5-air", "GLM-4.5-Air.q4_K.tsv"},
      {"qwen3.5-35b-a3b", "Qwen3.5-35B-A3B.q4_K.tsv"},
      {"qwen3.5-397b-a17b", "Qwen3.5-397B-A17B.q4_K.tsv"},
      {"qwen3.8-27b", "Qwen3.8-27B.q4_K.tsv"},
      {"deepseek-v3.1", "DeepSeek-V3.1-Terminus.q4_K.tsv"},
      {"kimi-k2", "Kimi-K2-Thinking.q4_K.tsv"},
      {"glm-5.2", "GLM-5.2.q4_K.tsv"},
      {"gemma-4-31b", "gemma-4-31B-it.q4_K.tsv"},
  };
  for (const auto& [shape, table] : tables) {
    const std::set<std::string> made = table_of(shape), real = read_table(folder / table);
    ASSERT_FALSE(real.empty()) << table;
    std::vector<std::string> missing, extra;
    std::set_difference(real.begin(), real.end(), made.begin(), made.end(), std::back_inserter(missing));
    std::set_difference(made.begin(), made.end(), real.begin(), real.end(), std::back_inserter(extra));
    EXPECT_TRUE(missing.empty() && extra.empty()) << fmt::format(
        "{} lacks\n  {}\nand has\n  {}", shape, fmt::join(missing, "\n  "), fmt::join(extra, "\n  "));
  }
}

/// "key value" of every hyper-parameter, numbers only: six digits, as the listings of real files have.
std::set<std::string> facts_of(const char* shape_name) {
  const synth::ShapeSpec& shape = synth::find_shape(shape_name);
  gguf::Metadata metadata;
  synth::add_metadata(shape, {}, shape.n_layers, metadata);
  const std::string prefix = std::string(synth::architecture_name(shape)) + ".";
  std::set<std::string> facts;
  for (const gguf::Metadata::Entry& entry : metadata.entries()) {
    if (!entry.key.starts_with(prefix)) continue;
    if (const auto* integer = std::get_if<std::uint64_t>(&entry.value.data))
      facts.insert(fmt::format("{} {}", entry.key, *integer));
    if (const auto* real = std::get_if<double>(&entry.value.data))
      facts.insert(fmt::format("{} {:.6f}", entry.key, *real));
  }
  return facts;
}

TEST(SynthShapes, HaveTheHyperParametersOfTheRealFiles) {
  SLUICE_NEEDS_DATA(folder, "shapes/kv");
  const std::map<const char*, const char*> listings = {
      {"gpt-oss-120b", "2026-07-15-route-trace_gptoss.json"},
      {"glm-4.5-air", "GLM-4.5-Air.bf16.250.json"},
      {"qwen3.5-35b-a3b", "Qwen3.5-35B-A3B.bf16.829.json"},
      {"qwen3.5-397b-a17b", "Qwen3.5-397B-A17B.q8_0.829.json"},
      {"qwen3.8-27b", "Qwen3.8-27B.bf16.580.json"},
      {"deepseek-v3.1", "DeepSeek-V3.1-Terminus.iq4_nl.250.json"},
      {"kimi-k2", "Kimi-K2-Thinking.iq3_xxs.250.json"},
      // Of the version before, which differs in its context and the base of its rotation.
      {"glm-5.2", "GLM-5.1.iq5_k.250.json"},
      {"gemma-4-31b", "gemma-4-31B-it.bf16.210.json"},
  };
  for (const auto& [shape, listing] : listings) {
    const std::string architecture = synth::architecture_name(synth::find_shape(shape));
    const std::set<std::string> made = facts_of(shape);
    // Lines "key": ..., "type": ..., "value": ... in this order.
    std::istringstream lines(test::read_text(folder / listing));
    std::string key;
    std::size_t n_compared = 0;
    const auto text_after = [](const std::string& line, const std::string& name) {
      const std::string begin = fmt::format("\"{}\": \"", name);
      if (!line.starts_with(begin)) return std::string();
      return line.substr(begin.size(), line.rfind('"') - begin.size());
    };
    bool is_number = false;
    for (std::string line; std::getline(lines, line);) {
      if (const std::string text = text_after(line, "key"); !text.empty()) key = text;
      if (const std::string text = text_after(line, "type"); !text.empty())
        is_number = text == "u32" || text == "f32";
      const std::string value = text_after(line, "value");
      if (value.empty() || !is_number || !key.starts_with(architecture + ".")) continue;
      // One group of experts is what is meant without groups.
      if (key.find(".expert_group") != std::string::npos) continue;
      if (shape == std::string("glm-5.2") &&
          (key.ends_with(".context_length") || key.ends_with(".freq_base")))
        continue;
      EXPECT_TRUE(made.contains(key + " " + value)) << shape << ": " << key << " " << value;
      ++n_compared;
    }
    EXPECT_GE(n_compared, 10u) << shape;
  }
}

TEST(SynthShapes, HaveTheRealNumbersOfWeights) {
  const auto billions = [](const char* name) {
    const synth::ShapeSpec& shape = synth::find_shape(name);
    double n_weights = 0;
    for (const TensorSpec& spec : synth::tensor_specs(shape, {}, shape.n_layers)) {
      double n = 1;
      for (const std::uint64_t dim : spec.dims) n *= static_cast<double>(dim);
      n_weights += n;
    }
    return n_weights * 1e-9;
  };
  // As their publishers state them, rounded to what they state.
  EXPECT_NEAR(billions("gpt-oss-20b"), 20.9, 0.05);
  EXPECT_NEAR(billions("gpt-oss-120b"), 116.8, 0.05);
  EXPECT_NEAR(billions("qwen3-coder-next"), 80, 0.5);
}

/// A file with the header of a shape's first layers and no data but holes.
void write_hollow_file(const synth::ShapeSpec& shape, std::uint32_t n_layers,
                       const std::filesystem::path& path) {
  gguf::Writer writer;
  synth::add_metadata(shape, {}, n_layers, writer.metadata());
  for (const TensorSpec& spec : synth::tensor_specs(shape, {}, n_layers))
    writer.add_tensor(spec.name, spec.type, spec.dims);
  std::ofstream file(path, std::ios::binary);
  writer.write_header([&file](std::span<const std::byte> part) {
    file.write(reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
  });
  file.close();
  const gguf::TensorInfo& last = writer.tensors().back();
  std::filesystem::resize_file(path, last.offset_bytes + last.size_bytes);
}

TEST(SynthShapes, AreShownAndThoseThatDoNotRunAreRefused) {
  const test::TempDir dir;
  std::set<std::string> seen, refused;
  for (const synth::ShapeSpec& shape : synth::shape_specs()) {
    if (!seen.insert(synth::architecture_name(shape)).second) continue;
    const std::uint32_t n_layers = std::min(shape.n_layers, 4u);
    const std::filesystem::path path = dir / "m.gguf";
    write_hollow_file(shape, n_layers, path);
    const Inspection inspection = inspect(path);
    EXPECT_EQ(inspection.tensors.size(), synth::tensor_specs(shape, {}, n_layers).size()) << shape.name;
    // Behind the header the file is one hole, which is all that may be wrong with an architecture that runs.
    if (inspection.why_not.find("all zero") != std::string::npos) continue;
    refused.insert(synth::architecture_name(shape));
    try {
      Model::open(path);
      ADD_FAILURE() << shape.name << " was opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported) << shape.name << error.what();
      EXPECT_NE(std::string(error.what()).find(synth::architecture_name(shape)), std::string::npos)
          << error.what();
    }
  }
  for (const char* architecture : {"llama", "qwen2", "qwen3", "qwen3moe"})
    EXPECT_FALSE(refused.contains(architecture)) << architecture;
}

TEST(SynthShapes, CanBeMadeOfEveryTypeThatIsOffered) {
  for (const synth::ShapeSpec& shape : synth::shape_specs()) {
    for (const TensorSpec& spec : synth::tensor_specs(shape, {TensorType::iq4_xs}, 1))
      EXPECT_EQ(spec.dims[0] % gguf::type_traits(spec.type).block_elements, 0u) << shape.name << spec.name;
  }
}

TEST(SynthBlocks, HaveTheDeviationAskedForAndNoMean) {
  constexpr float k_std_dev = 0.02f;
  std::size_t n_types = 0;
  for (const gguf::TypeTraits& type_traits : gguf::all_types()) {
    const gguf::TypeTraits* traits = &type_traits;
    if (!synth::can_synthesize(traits->type)) continue;
    ++n_types;
    const synth::BlockPool pool(traits->type, k_std_dev, 3);
    // Not all of the pool: the slowest formats take long to decode.
    const std::size_t n_blocks = std::min<std::size_t>(pool.n_blocks(), (1u << 18) / traits->block_elements);
    const std::size_t n = n_blocks * traits->block_elements;
    std::vector<float> values(n);
    ASSERT_TRUE(kernels::dequantize_row(traits->type, pool.bytes().data(), values.data(), n));
    double sum = 0, squares = 0;
    for (const float value : values) {
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double count = static_cast<double>(n);
    const double std_dev = std::sqrt(squares / count);
    // Scales have 10 bits of mantissa and the pool was scaled by a sample of it. MXFP4's scale is a power
    // of 2.
    const double tolerance = traits->type == TensorType::mxfp4 ? 0.42 : 0.03;
    EXPECT_NEAR(std_dev / static_cast<double>(k_std_dev), 1.0, tolerance) << traits->name;
    // The values of a block share a scale and may lean to one side together: its mean is off by up to 1/2 of
    // a deviation, and its sign is random. Five deviations of the mean of all blocks.
    const double blocks = static_cast<double>(n_blocks);
    EXPECT_NEAR(sum / count / std_dev, 0.0, 5.0 * (0.5 / std::sqrt(blocks) + 1.0 / std::sqrt(count)))
        << traits->name;
  }
  EXPECT_EQ(n_types, 29u);
}

/// Logits of a few tokens, all rows; with memory for a share of the experts.
std::vector<float> logits_of(const std::filesystem::path& path, double share_of_experts = 1) {
  OpenOptions options;
  options.n_ctx = 256;
  options.n_threads = 1;
  const Inspection inspection = inspect(path, options);
  const auto experts = static_cast<double>(inspection.bytes_by_role.at("experts"));
  if (share_of_experts < 1) {
    options.memory_bytes =
        inspection.plan.resident_from_bytes - static_cast<std::uint64_t>(experts * (1 - share_of_experts));
  }
  Model model = Model::open(path, options);
  Sequence sequence = model.new_sequence();
  const std::vector<TokenId> tokens = model.tokenizer().encode("in the beginning\n");
  EXPECT_GE(tokens.size(), 5u);
  EXPECT_EQ(model.tokenizer().decode(tokens), "in the beginning\n");
  const StepItem item{&sequence, tokens, LogitsWanted::all};
  std::vector<float> all;
  model.step({&item, 1}, [&](std::size_t, std::size_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  });
  EXPECT_EQ(all.size(), tokens.size() * model.info().n_vocab);
  return all;
}

TEST(Synth, EveryTinyShapeRunsTheSameResidentAndStreamed) {
  const test::TempDir dir;
  std::size_t n_shapes = 0;
  for (const SynthShape& shape : synth_shapes()) {
    if (!shape.name.starts_with("tiny-")) continue;
    ++n_shapes;
    SynthOptions options;
    options.shape = shape.name;
    options.overwrite = true;
    synthesize(dir / "m.gguf", options);
    const std::vector<float> logits = logits_of(dir / "m.gguf");
    double squares = 0;
    for (const float logit : logits) {
      ASSERT_TRUE(std::isfinite(logit)) << shape.name;
      squares += static_cast<double>(logit) * static_cast<double>(logit);
    }
    const double std_dev = std::sqrt(squares / static_cast<double>(logits.size()));
    EXPECT_GT(std_dev, 0.3) << shape.name;
    EXPECT_LT(std_dev, 3.0) << shape.name;
    EXPECT_EQ(logits_of(dir / "m.gguf", 0.5), logits) << shape.name << ", half of the experts streamed";
  }
  EXPECT_GE(n_shapes, 4u);
}

TEST(Synth, FilesRunAndGiveFiniteLogitsWithEveryType) {
  const test::TempDir dir;
  double locality = 0;
  for (const std::string& type : synth_types()) {
    SynthOptions options = tiny();
    options.type = type;
    options.locality = locality;
    options.overwrite = true;
    // The next type gets the other kind of embedding.
    locality = 1 - locality;
    const SynthResult result = synthesize(dir / "m.gguf", options);
    EXPECT_EQ(result.file_bytes, std::filesystem::file_size(dir / "m.gguf"));
    double squares = 0;
    const std::vector<float> logits = logits_of(dir / "m.gguf");
    for (const float logit : logits) {
      ASSERT_TRUE(std::isfinite(logit)) << type;
      squares += static_cast<double>(logit) * static_cast<double>(logit);
    }
    EXPECT_EQ(logits_of(dir / "m.gguf", 0.5), logits) << type << ", half of the experts streamed";
    // Weights are scaled so that the logits vary by about 1.
    const double std_dev = std::sqrt(squares / static_cast<double>(logits.size()));
    EXPECT_GT(std_dev, 0.3) << type;
    EXPECT_LT(std_dev, 3.0) << type;
  }
}

TEST(Synth, TheSeedDecidesTheFile) {
  const test::TempDir dir;
  synthesize(dir / "a.gguf", tiny(7));
  synthesize(dir / "b.gguf", tiny(7));
  synthesize(dir / "c.gguf", tiny(8));
  EXPECT_EQ(test::read_bytes(dir / "a.gguf"), test::read_bytes(dir / "b.gguf"));
  EXPECT_NE(test::read_bytes(dir / "a.gguf"), test::read_bytes(dir / "c.gguf"));
}

TEST(Synth, ExpertsDiffer) {
  const test::TempDir dir;
  SynthOptions options = tiny();
  options.n_layers = 1;
  synthesize(dir / "m.gguf", options);
  const Inspection inspection = inspect(dir / "m.gguf");
  const std::vector<std::byte> bytes = test::read_bytes(dir / "m.gguf");
  std::set<std::vector<std::byte>> experts;
  for (const TensorFact& tensor : inspection.tensors) {
    if (tensor.name != "blk.0.ffn_up_exps.weight") continue;
    const std::uint64_t expert_bytes = tensor.bytes / tensor.dims[2];
    for (std::uint64_t expert = 0; expert < tensor.dims[2]; ++expert) {
      const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(tensor.offset + expert * expert_bytes);
      experts.emplace(begin, begin + static_cast<std::ptrdiff_t>(expert_bytes));
    }
  }
  EXPECT_EQ(experts.size(), 16u);
}

TEST(Synth, LayersAreCutAndMetadataFollows) {
  const test::TempDir dir;
  SynthOptions options = tiny();
  options.n_layers = 1;
  EXPECT_EQ(synthesize(dir / "m.gguf", options).n_layers, 1u);
  const Inspection inspection = inspect(dir / "m.gguf");
  EXPECT_TRUE(inspection.runnable) << inspection.why_not;
  EXPECT_EQ(inspection.plan.n_units, 16u);
  for (const MetadataFact& fact : inspection.metadata) {
    if (fact.key == "qwen3moe.block_count") {
      EXPECT_EQ(fact.value, "1");
    }
  }
}

/// Share of the expert uses that the caches served, when half of the experts fit.
double hit_rate(const std::filesystem::path& path) {
  OpenOptions options;
  options.n_ctx = 256;
  options.n_threads = 1;
  options.prefill_chunk = 1;
  const Inspection inspection = inspect(path, options);
  options.memory_bytes = inspection.plan.resident_from_bytes - inspection.bytes_by_role.at("experts") / 2;
  Model model = Model::open(path, options);
  Sequence sequence = model.new_sequence();
  std::vector<TokenId> tokens;
  synth::SynthRandom random(5);
  for (int i = 0; i < 200; ++i) tokens.push_back(static_cast<TokenId>(random.below(1000)));
  const StepItem item{&sequence, tokens, LogitsWanted::none};
  model.step({&item, 1});
  return model.stats().hit_rate();
}

TEST(Synth, LocalityRaisesTheHitRate) {
  const test::TempDir dir;
  SynthOptions options = tiny();
  synthesize(dir / "even.gguf", options);
  options.locality = 1;
  synthesize(dir / "uneven.gguf", options);
  EXPECT_GT(hit_rate(dir / "uneven.gguf"), hit_rate(dir / "even.gguf") + 0.1);
}

TEST(Synth, UnknownNamesAreAnsweredWithTheKnownOnes) {
  const test::TempDir dir;
  SynthOptions options = tiny();
  options.shape = "qwen9";
  EXPECT_NE(refusal(dir / "m.gguf", ErrorCode::invalid_argument, options).find("mixtral-8x7b"),
            std::string::npos);
  options = tiny();
  options.type = "Q9_Z";
  EXPECT_NE(refusal(dir / "m.gguf", ErrorCode::invalid_argument, options).find("IQ4_XS"), std::string::npos);
  // A type of the format, but not of weights.
  options.type = "I32";
  refusal(dir / "m.gguf", ErrorCode::invalid_argument, options);
}

TEST(Synth, OptionsOutOfRangeAreRefused) {
  const test::TempDir dir;
  SynthOptions options = tiny();
  options.n_layers = 3;
  EXPECT_NE(refusal(dir / "m.gguf", ErrorCode::invalid_argument, options).find("has 2"), std::string::npos);
  for (const double locality : {-0.1, 1.1, std::nan("")}) {
    options = tiny();
    options.locality = locality;
    refusal(dir / "m.gguf", ErrorCode::invalid_argument, options);
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Synth, FilesThatExistAreReplacedOnlyWhenAsked) {
  const test::TempDir dir;
  std::ofstream(dir / "m.gguf") << "precious";
  EXPECT_NE(refusal(dir / "m.gguf", ErrorCode::invalid_argument, tiny()).find("m.gguf exists"),
            std::string::npos);
  EXPECT_EQ(test::read_text(dir / "m.gguf"), "precious");
  SynthOptions options = tiny();
  options.overwrite = true;
  synthesize(dir / "m.gguf", options);
  EXPECT_TRUE(inspect(dir / "m.gguf").runnable);
  refusal(dir.path(), ErrorCode::invalid_argument, options);
  refusal("/dev/null", ErrorCode::invalid_argument, options);
}

TEST(Synth, TheFileOfAnotherWriterIsLeftAlone) {
  const test::TempDir dir;
  std::ofstream(dir / "m.gguf.partial") << "another";
  EXPECT_NE(refusal(dir / "m.gguf", ErrorCode::io, tiny()).find("m.gguf.partial exists"), std::string::npos);
  EXPECT_EQ(test::read_text(dir / "m.gguf.partial"), "another");
}

TEST(Synth, AFolderThatIsMissingIsNamed) {
  const test::TempDir dir;
  EXPECT_NE(refusal(dir / "none/m.gguf", ErrorCode::io, tiny()).find("none"), std::string::npos);
}

TEST(Synth, AFolderThatIsNotWritableIsNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const test::TempDir dir;
  std::filesystem::permissions(dir.path(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_NE(refusal(dir / "m.gguf", ErrorCode::io, tiny()).find("m.gguf"), std::string::npos);
  std::filesystem::permissions(dir.path(), std::filesystem::perms::owner_all);
}

TEST(Synth, StoppingLeavesNothingBehind) {
  const test::TempDir dir;
  std::atomic<bool> stop{false};
  SynthOptions options = tiny();
  options.cancel = &stop;
  bool was_partial = false;
  refusal(dir / "m.gguf", ErrorCode::cancelled, options, [&](std::uint64_t written, std::uint64_t total) {
    EXPECT_LE(written, total);
    was_partial = std::filesystem::exists(dir / "m.gguf.partial");
    if (written > total / 2) stop.store(true);
  });
  EXPECT_TRUE(was_partial);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace sluice
