#include <fmt/core.h>

#include <array>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "engine/synth_shapes.hpp"
#include "tokenizer/byte_alphabet.hpp"

namespace sluice::engine {
namespace {

// Token types of the GGUF format.
constexpr std::int32_t k_normal = 1;
constexpr std::int32_t k_control = 3;

/// Pairs in byte spelling; a left side that is no single byte was merged by an earlier line.
constexpr auto k_merges = std::to_array<std::string_view>({
    "h e",
    "i n",
    "e r",
    "o n",
    "a n",
    "r e",
    "\u0120 t",
    "\u0120 a",
    "\u0120t he",
    "i t",
    "o u",
    "e n",
    "\u0120a n",
    "\u0120an d",
    "in g",
    "\u0120 \u0120",
});

/// The family's special tokens; they are the last ones of the vocabulary.
struct Specials {
  std::array<std::string_view, 3> texts;
  std::size_t bos, eos;
  bool add_bos;
};
constexpr Specials k_qwen = {{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, 0, 2, false};
constexpr Specials k_llama3 = {{"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"}, 0, 1, true};

std::string without_space(std::string_view merge) {
  const std::size_t space = merge.find(' ');
  return std::string(merge.substr(0, space)) + std::string(merge.substr(space + 1));
}

}  // namespace

void add_vocabulary(std::string_view pre_tokenizer, std::uint32_t n_vocab, gguf::Metadata& metadata) {
  const Specials& specials = pre_tokenizer == "qwen2" ? k_qwen : k_llama3;
  SLUICE_CHECK(n_vocab >= 256 + k_merges.size() + specials.texts.size());
  gguf::StringArray tokens;
  std::vector<std::int32_t> types;
  const auto add = [&](std::string_view text, std::int32_t type) {
    tokens.push_back(text);
    types.push_back(type);
  };
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    tokenizer::append_byte_spelling(spelling, static_cast<unsigned char>(byte));
    add(spelling, k_normal);
  }
  gguf::StringArray merges;
  for (const std::string_view merge : k_merges) {
    add(without_space(merge), k_normal);
    merges.push_back(merge);
  }
  const std::size_t first_special = n_vocab - specials.texts.size();
  // Normal ones, so that what is sampled shows; no merge leads to them.
  while (tokens.size() < first_special) add(fmt::format("<fill_{}>", tokens.size()), k_normal);
  for (const std::string_view text : specials.texts) add(text, k_control);

  const auto string = [](std::string_view text) {
    return gguf::Value{gguf::ValueType::string, std::string(text)};
  };
  const auto strings = [](gguf::StringArray array) {
    return gguf::Value{gguf::ValueType::array, gguf::Array{gguf::ValueType::string, std::move(array)}};
  };
  const auto id = [&](std::size_t special) {
    return gguf::Value{gguf::ValueType::u32, std::uint64_t{first_special + special}};
  };
  metadata.set("tokenizer.ggml.model", string("gpt2"));
  metadata.set("tokenizer.ggml.pre", string(pre_tokenizer));
  metadata.set("tokenizer.ggml.tokens", strings(std::move(tokens)));
  metadata.set("tokenizer.ggml.token_type",
               {gguf::ValueType::array, gguf::Array{gguf::ValueType::i32, std::move(types)}});
  metadata.set("tokenizer.ggml.merges", strings(std::move(merges)));
  metadata.set("tokenizer.ggml.bos_token_id", id(specials.bos));
  metadata.set("tokenizer.ggml.eos_token_id", id(specials.eos));
  metadata.set("tokenizer.ggml.add_bos_token", {gguf::ValueType::boolean, specials.add_bos});
}

}  // namespace sluice::engine
