#include "support/tiny_model.hpp"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "gguf/writer.hpp"
#include "kernels/quant.hpp"
#include "model/architecture.hpp"
#include "model/graph.hpp"
#include "support/random_blocks.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::test {
namespace {

struct TensorData {
  std::string name;
  gguf::TensorType type;
  std::vector<std::uint64_t> dims;
  std::vector<std::byte> bytes;
};

/// Makes every tensor that the graph asks for, in the order of use.
class TensorMaker final : public model::TensorVisitor {
 public:
  explicit TensorMaker(const TinyModel& model) : model_(model), seed_(model.seed * 1000) {}

  void begin_block(Role) override {}
  void matrix(model::Matrix&, std::string_view name, std::uint32_t n_in, std::uint32_t n_out,
              model::Need need) override {
    if (!is_wanted(name, need)) return;
    add_matrix(full(name) + ".weight", {n_in, n_out});
    const float* unused = nullptr;
    scales(unused, Role::other, std::string(name) + ".scale", 1);
  }
  void pinned(kernels::Weight&, Role, std::string_view name, std::uint32_t n_in, std::uint32_t n_out,
              model::Need need) override {
    if (!is_wanted(name, need)) return;
    add_matrix(full(name), n_out == 1 ? Dims{n_in} : Dims{n_in, n_out});
  }
  void stacked(kernels::Weight&, Role, std::string_view name, std::uint32_t n_in, std::uint32_t n_out,
               std::uint32_t n_stacked) override {
    add_matrix(full(name), {n_in, n_out, n_stacked});
  }
  void vector(const float*&, Role role, std::string_view name, std::uint32_t n, model::Need need) override {
    if (!is_wanted(name, need)) return;
    if (role == Role::norm && !name.ends_with(".bias")) return add_vector(full(name), n, 1.0f, 0.1f);
    if (role == Role::rope_table) return add_vector(full(name), n, 2.0f, 0.25f);
    // The recurrent state decays.
    add_vector(full(name), n, name == "ssm_a" ? -1.5f : 0.0f, 0.3f);
  }
  void vectors(const float*&, Role, std::string_view name, std::uint32_t n,
               std::uint32_t n_vectors) override {
    add_vector(full(name), std::uint64_t{n} * n_vectors, 0.0f, 0.3f);
    list.back().dims = {n, n_vectors};
  }
  void scales(const float*&, Role, std::string_view name, std::uint32_t n) override {
    if (model_.second_scales && !(model_.tied_output && name == "output.scale"))
      add_vector(full(name), n, 1.0f, 0.25f);
  }
  void units(std::uint32_t n_experts, std::vector<residency::UnitPartSpec> parts) override {
    if (!model_.split_experts) {
      for (const residency::UnitPartSpec& part : parts)
        add_matrix(fmt::format("{}_exps.weight", full(part.stem)), {part.n_in, part.n_out, n_experts});
      return;
    }
    for (std::uint32_t expert = 0; expert < n_experts; ++expert) {
      for (const residency::UnitPartSpec& part : parts)
        add_matrix(fmt::format("{}.{}.weight", full(part.stem), expert), {part.n_in, part.n_out});
    }
  }

  std::vector<TensorData> list;

 private:
  using Dims = std::vector<std::uint64_t>;

  bool is_wanted(std::string_view name, model::Need need) const {
    if (name == "output.weight") return !model_.tied_output;
    if (name == "rope_freqs.weight") return model_.rope_freqs;
    return need == model::Need::required || model_.optional_tensors;
  }
  void add_matrix(const std::string& name, const Dims& dims) {
    std::uint64_t n_rows = 1;
    for (std::size_t i = 1; i < dims.size(); ++i) n_rows *= dims[i];
    std::vector<std::byte> bytes;
    if (model_.type == gguf::TensorType::f32) {
      bytes = floats(dims[0] * n_rows, 0.0f, 1.0f / std::sqrt(static_cast<float>(dims[0])));
    } else {
      bytes = random_rows(model_.type, n_rows, dims[0], ++seed_);
    }
    list.push_back({name, model_.type, dims, std::move(bytes)});
  }
  void add_vector(const std::string& name, std::uint64_t n, float mean, float deviation) {
    std::vector<std::byte> bytes = floats(n, mean, deviation);
    if (model_.vector_type) bytes = coarse(bytes, *model_.vector_type);
    list.push_back({name, model_.vector_type.value_or(gguf::TensorType::f32), {n}, std::move(bytes)});
  }
  std::vector<std::byte> floats(std::uint64_t n, float mean, float deviation) {
    std::vector<float> values = random_floats(n, ++seed_);
    for (float& value : values) value = mean + deviation * value;
    std::vector<std::byte> bytes(n * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }

  /// Multiples of 1/64, in another type.
  static std::vector<std::byte> coarse(std::span<const std::byte> floats, gguf::TensorType type) {
    std::vector<std::byte> out;
    const auto append = [&out](auto value) {
      const auto bytes = std::as_bytes(std::span(&value, 1));
      out.insert(out.end(), bytes.begin(), bytes.end());
    };
    for (std::size_t i = 0; i < floats.size(); i += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, floats.data() + i, sizeof value);
      value = std::round(value * 64) / 64;
      if (type == gguf::TensorType::f32) append(value);
      if (type == gguf::TensorType::f64) append(static_cast<double>(value));
      if (type == gguf::TensorType::i32) append(static_cast<std::int32_t>(value));
      if (type == gguf::TensorType::f16) append(kernels::f32_to_f16(value));
      if (type == gguf::TensorType::bf16) {
        append(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
      }
    }
    return out;
  }

  const TinyModel& model_;
  std::uint64_t seed_;
};

/// GPT-2's printable spelling of the 256 bytes, then two control tokens and two merged pairs.
std::vector<std::string> byte_vocabulary() {
  std::vector<std::string> tokens;
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const std::uint32_t code = printable ? byte : next++;
    std::string text;
    if (code < 0x80) {
      text.push_back(static_cast<char>(code));
    } else {
      text.push_back(static_cast<char>(0xc0 | (code >> 6)));
      text.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
    tokens.push_back(text);
  }
  tokens.emplace_back("<|endoftext|>");
  tokens.emplace_back("<|im_end|>");
  tokens.emplace_back("he");
  tokens.emplace_back("ll");
  return tokens;
}

/// Of DeepSeek V3, or with `second_version` V2: keys of 32 plain elements and those that rotate, values of
/// 64, made from 96.
void fill_latent_keys(gguf::Metadata& metadata, const TinyModel& model) {
  const auto set = [&](const char* name, gguf::Value value) {
    metadata.set(model.architecture + "." + name, std::move(value));
  };
  const std::uint32_t n_rot = model.n_rot == 0 ? 32 : model.n_rot, rank = 96;
  set("attention.kv_lora_rank", uint_value(rank));
  if (model.undivided) {
    set("attention.head_count_kv", uint_value(model.n_heads));
    set("attention.key_length", uint_value(32 + n_rot));
    set("attention.value_length", uint_value(64));
  } else {
    set("attention.head_count_kv", uint_value(1));
    set("attention.key_length", uint_value(rank + n_rot));
    set("attention.value_length", uint_value(rank));
    set("attention.key_length_mla", uint_value(32 + n_rot));
    set("attention.value_length_mla", uint_value(64));
  }
  set("rope.dimension_count", uint_value(n_rot));
  if (!model.second_version) set("attention.q_lora_rank", uint_value(64));
  if (!model.rope_scaling.empty()) set("rope.scaling.yarn_log_multiplier", float_value(0.05));
  set("leading_dense_block_count", uint_value(1));
  set("expert_shared_count", uint_value(1));
  set("expert_gating_func", uint_value(model.second_version ? 1 : 2));
  set("expert_weights_norm", bool_value(!model.second_version));
  set("expert_weights_scale", float_value(2.5));
  set("expert_group_count", uint_value(4));
  set("expert_group_used_count", uint_value(2));
}

/// What an architecture's files have beside the usual keys: each value differs from its default.
void fill_own_keys(gguf::Metadata& metadata, const TinyModel& model) {
  const auto set = [&](const char* name, gguf::Value value) {
    metadata.set(model.architecture + "." + name, std::move(value));
  };
  // Shorter than the texts of the tests, not a multiple of anything.
  constexpr std::uint32_t k_window = 13;
  if (model.architecture == "gemma2") {
    set("attention.sliding_window", uint_value(k_window));
    set("attn_logit_softcapping", float_value(4.0));
    set("final_logit_softcapping", float_value(3.0));
  } else if (model.architecture == "gemma3") {
    set("attention.sliding_window", uint_value(k_window));
    set("rope.freq_base_swa", float_value(500.0));
    set("final_logit_softcapping", float_value(3.0));
  } else if (model.architecture == "gpt-oss") {
    set("attention.sliding_window", uint_value(k_window));
  } else if (model.architecture == "deepseek2") {
    fill_latent_keys(metadata, model);
  } else if (model.architecture == "ernie4_5-moe") {
    set("leading_dense_block_count", uint_value(1));
    set("expert_shared_feed_forward_length", uint_value(2 * model.n_ff));
  } else if (model.architecture == "llama4") {
    set("interleave_moe_layer_step", uint_value(2));
  } else if (model.architecture == "hunyuan-moe") {
    set("expert_shared_count", uint_value(2));
  } else if (model.architecture == "glm4moe") {
    // A dense layer, then experts; behind them a layer that is not run.
    set("block_count", uint_value(model.n_layers + 1));
    set("nextn_predict_layers", uint_value(1));
    set("leading_dense_block_count", uint_value(1));
    set("expert_shared_count", uint_value(2));
    set("expert_gating_func", uint_value(2));
    set("expert_weights_scale", float_value(1.5));
  } else if (model.architecture == "granitemoe") {
    set("embedding_scale", float_value(6.0));
    set("residual_scale", float_value(0.25));
    set("attention.scale", float_value(0.125));
    set("logit_scale", float_value(4.0));
    set("expert_shared_feed_forward_length", uint_value(2 * model.n_ff));
  } else if (model.architecture == "minimax-m2") {
    set("expert_gating_func", uint_value(2));
    set("expert_weights_scale", float_value(1.5));
  } else if (model.architecture == "mistral3") {
    set("attention.temperature_scale", float_value(0.25));
    if (model.rope_scaling == "yarn") set("rope.scaling.yarn_log_multiplier", float_value(0.5));
  } else if (model.architecture.starts_with("phi")) {
    set("rope.scaling.attn_factor", float_value(1.25));
  } else if (model.architecture == "qwen2moe") {
    set("expert_shared_feed_forward_length", uint_value(2 * model.n_ff));
  } else if (model.architecture.starts_with("qwen35") || model.architecture == "qwen3next") {
    if (model.n_experts != 0) set("expert_shared_feed_forward_length", uint_value(2 * model.n_ff));
    if (model.architecture == "qwen35moe") {
      // Behind the others a layer that is not run.
      set("block_count", uint_value(model.n_layers + 1));
      set("nextn_predict_layers", uint_value(1));
    }
    set("full_attention_interval", uint_value(3));
    set("ssm.conv_kernel", uint_value(4));
    set("ssm.state_size", uint_value(32));
    set("ssm.group_count", uint_value(2));
    set("ssm.time_step_rank", uint_value(4));
    set("ssm.inner_size", uint_value(4 * 32));
  }
}

void fill_metadata(gguf::Metadata& metadata, const TinyModel& model) {
  const std::string arch = model.architecture;
  const auto key = [&](const char* name) { return arch + "." + name; };
  metadata.set("general.architecture", string_value(arch));
  metadata.set("general.name", string_value("tiny"));
  if (model.alignment_bytes != 32) metadata.set("general.alignment", uint_value(model.alignment_bytes));
  metadata.set(key("block_count"), uint_value(model.n_layers));
  metadata.set(key("context_length"), uint_value(model.n_ctx));
  metadata.set(key("embedding_length"), uint_value(model.n_embd));
  metadata.set(key("feed_forward_length"), uint_value(model.n_ff));
  metadata.set(key("attention.head_count"), uint_value(model.n_heads));
  metadata.set(key("attention.head_count_kv"), uint_value(model.n_kv_heads));
  metadata.set(key("attention.key_length"), uint_value(model.head_dim));
  metadata.set(key("attention.value_length"), uint_value(model.head_dim));
  metadata.set(key("attention.layer_norm_rms_epsilon"), float_value(1e-6));
  metadata.set(key("rope.freq_base"), float_value(10000.0));
  metadata.set(key("rope.dimension_count"), uint_value(model.n_rot == 0 ? model.head_dim : model.n_rot));
  if (model.n_experts != 0) {
    metadata.set(key("expert_count"), uint_value(model.n_experts));
    metadata.set(key("expert_used_count"), uint_value(model.n_experts_used));
    metadata.set(key("expert_feed_forward_length"), uint_value(model.n_ff));
  }
  if (!model.rope_scaling.empty()) {
    metadata.set(key("rope.scaling.type"), string_value(model.rope_scaling));
    metadata.set(key("rope.scaling.factor"), float_value(4.0));
  }
  if (model.n_ctx_orig != 0)
    metadata.set(key("rope.scaling.original_context_length"), uint_value(model.n_ctx_orig));
  fill_own_keys(metadata, model);
  const std::vector<std::string> tokens = byte_vocabulary();
  std::vector<std::int32_t> kinds(tokens.size(), 1);
  kinds[256] = kinds[257] = 3;
  metadata.set("tokenizer.ggml.model", string_value("gpt2"));
  metadata.set("tokenizer.ggml.pre", string_value("qwen2"));
  metadata.set("tokenizer.ggml.tokens", strings_value(tokens));
  metadata.set("tokenizer.ggml.token_type", array_value(gguf::ValueType::i32, kinds));
  metadata.set("tokenizer.ggml.merges", strings_value({"h e", "l l"}));
  metadata.set("tokenizer.ggml.eos_token_id", uint_value(256));
}

std::vector<TensorData> make_tensors(const TinyModel& model) {
  gguf::Metadata metadata;
  fill_metadata(metadata, model);
  model::ModelSpec spec = model::read_spec(metadata);
  spec.n_vocab = static_cast<std::uint32_t>(byte_vocabulary().size());
  const std::uint32_t n_layers = spec.n_layers(), n_blocks = n_layers + spec.n_prediction_layers;
  TensorMaker tensors(model);
  model::Graph(std::move(spec)).visit(tensors);
  const float* unused = nullptr;
  for (std::uint32_t i = n_layers; i < n_blocks; ++i) {
    tensors.begin_layer(i);
    tensors.vector(unused, Role::norm, "nextn.enorm.weight", model.n_embd, model::Need::required);
  }
  return std::move(tensors.list);
}

std::vector<std::byte> write(gguf::Writer& writer, const std::vector<TensorData>& tensors, std::size_t begin,
                             std::size_t end) {
  std::vector<std::vector<std::byte>> data;
  for (std::size_t i = begin; i < end; ++i) {
    writer.add_tensor(tensors[i].name, tensors[i].type, tensors[i].dims);
    data.push_back(tensors[i].bytes);
  }
  return writer.write_all(data);
}

}  // namespace

TinyModel tiny_model_of(const std::string& architecture) {
  TinyModel model;
  model.architecture = architecture;
  const bool has_experts = architecture.ends_with("moe") || architecture == "minimax-m2" ||
                           architecture == "gpt-oss" || architecture == "deepseek2" ||
                           architecture == "llama4" || architecture == "qwen3next";
  if (!has_experts) model.n_experts = 0;
  // Of other seeds a router's choice is so near to a tie that rounding the keys decides it.
  if (architecture == "gpt-oss") model.seed = 4;
  if (architecture == "gemma3") model.n_layers = 6;  // Only the sixth sees all positions.
  if (architecture == "llama4") {
    model.n_layers = 4;
    model.n_experts_used = 1;
  }
  return model;
}

std::vector<std::byte> make_tiny_model(const TinyModel& model) {
  gguf::Writer writer;
  fill_metadata(writer.metadata(), model);
  const std::vector<TensorData> tensors = make_tensors(model);
  return write(writer, tensors, 0, tensors.size());
}

std::filesystem::path write_tiny_model(const std::filesystem::path& folder, const TinyModel& model) {
  const std::vector<std::byte> bytes = make_tiny_model(model);
  const std::filesystem::path path = folder / "tiny.gguf";
  write_bytes(path, bytes.data(), bytes.size());
  return path;
}

std::vector<std::filesystem::path> write_tiny_shards(const std::filesystem::path& folder,
                                                     const TinyModel& model, std::uint32_t n_shards) {
  const std::vector<TensorData> tensors = make_tensors(model);
  std::vector<std::filesystem::path> paths;
  for (std::uint32_t shard = 0; shard < n_shards; ++shard) {
    gguf::Writer writer;
    if (shard == 0) fill_metadata(writer.metadata(), model);
    writer.metadata().set("split.no", uint_value(shard, gguf::ValueType::u16));
    writer.metadata().set("split.count", uint_value(n_shards, gguf::ValueType::u16));
    writer.metadata().set("split.tensors.count", int_value(static_cast<std::int64_t>(tensors.size())));
    const std::vector<std::byte> bytes =
        write(writer, tensors, tensors.size() * shard / n_shards, tensors.size() * (shard + 1) / n_shards);
    paths.push_back(folder / fmt::format("tiny-{:05}-of-{:05}.gguf", shard + 1, n_shards));
    write_bytes(paths.back(), bytes.data(), bytes.size());
  }
  return paths;
}

}  // namespace sluice::test
