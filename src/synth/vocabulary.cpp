#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "synth/shapes.hpp"
#include "tokenizer/byte_alphabet.hpp"

namespace sluice::synth {
namespace {

// Token types of the GGUF format.
constexpr std::int32_t k_normal = 1;
constexpr std::int32_t k_control = 3;
constexpr std::int32_t k_byte = 6;

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

/// What differs between the vocabularies. The special tokens are the last ones.
struct Vocabulary {
  std::string_view pre_tokenizer;
  std::array<std::string_view, 3> specials;
  std::size_t bos, eos;
  bool add_bos;
  std::string_view model = "gpt2";
};
constexpr auto k_vocabularies = std::to_array<Vocabulary>({
    {"qwen2", {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, 0, 2, false},
    {"qwen35", {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, 0, 2, false},
    {"llama-bpe", {"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"}, 0, 1, true},
    {"gpt-4o", {"<|startoftext|>", "<|endoftext|>", "<|return|>"}, 0, 2, false},
    {"glm4", {"<|endoftext|>", "[gMASK]", "<|user|>"}, 1, 0, false},
    {"deepseek-v3",
     {"<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
      "<\uff5cUser\uff5c>"},
     0,
     1,
     true},
    {"kimi-k2", {"[BOS]", "[EOS]", "<|im_end|>"}, 0, 2, false},
    {"gemma4", {"<bos>", "<eos>", "<unk>"}, 0, 1, true, "gemma4"},
});

const Vocabulary& find_vocabulary(std::string_view pre_tokenizer) {
  const auto* found = std::find_if(
      k_vocabularies.begin(), k_vocabularies.end(),
      [pre_tokenizer](const Vocabulary& vocabulary) { return vocabulary.pre_tokenizer == pre_tokenizer; });
  SLUICE_CHECK(found != k_vocabularies.end());
  return *found;
}

/// What the merges begin with: every byte in GPT-2's alphabet, or byte tokens and the printable characters of
/// ASCII with U+2581 for a space.
template <typename Add>
void add_bytes(bool marks_spaces, const Add& add) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    if (marks_spaces) {
      spelling = fmt::format("<0x{:02X}>", byte);
    } else {
      tokenizer::append_byte_spelling(spelling, static_cast<unsigned char>(byte));
    }
    add(spelling, marks_spaces ? k_byte : k_normal);
  }
  if (!marks_spaces) return;
  add("\u2581", k_normal);
  for (char c = '!'; c <= '~'; ++c) add(std::string(1, c), k_normal);
}

/// A merge of the list, in the vocabulary's spelling.
std::string spelled(std::string_view merge, bool marks_spaces) {
  constexpr std::string_view k_space = "\u0120", k_mark = "\u2581";
  std::string text(merge);
  if (!marks_spaces) return text;
  for (std::size_t at = 0; (at = text.find(k_space, at)) != std::string::npos; at += k_mark.size())
    text.replace(at, k_space.size(), k_mark);
  return text;
}

std::string without_space(std::string_view merge) {
  const std::size_t space = merge.find(' ');
  return std::string(merge.substr(0, space)) + std::string(merge.substr(space + 1));
}

}  // namespace

void add_vocabulary(std::string_view pre_tokenizer, std::uint32_t n_vocab, gguf::Metadata& metadata) {
  const Vocabulary& vocabulary = find_vocabulary(pre_tokenizer);
  constexpr std::size_t k_max_bytes_and_characters = 256 + 1 + 94;
  SLUICE_CHECK(n_vocab >= k_max_bytes_and_characters + k_merges.size() + vocabulary.specials.size());
  gguf::StringArray tokens;
  std::vector<std::int32_t> types;
  const auto add = [&](std::string_view text, std::int32_t type) {
    tokens.push_back(text);
    types.push_back(type);
  };
  const bool marks_spaces = vocabulary.model == "gemma4";
  add_bytes(marks_spaces, add);
  gguf::StringArray merges;
  for (const std::string_view listed : k_merges) {
    const std::string merge = spelled(listed, marks_spaces);
    add(without_space(merge), k_normal);
    merges.push_back(merge);
  }
  const std::size_t first_special = n_vocab - vocabulary.specials.size();
  // Normal ones, so that what is sampled shows; no merge leads to them.
  while (tokens.size() < first_special) add(fmt::format("<fill_{}>", tokens.size()), k_normal);
  for (const std::string_view text : vocabulary.specials) add(text, k_control);

  const auto string = [](std::string_view text) {
    return gguf::Value{gguf::ValueType::string, std::string(text)};
  };
  const auto strings = [](gguf::StringArray array) {
    return gguf::Value{gguf::ValueType::array, gguf::Array{gguf::ValueType::string, std::move(array)}};
  };
  const auto id = [&](std::size_t special) {
    return gguf::Value{gguf::ValueType::u32, std::uint64_t{first_special + special}};
  };
  metadata.set("tokenizer.ggml.model", string(vocabulary.model));
  metadata.set("tokenizer.ggml.pre", string(pre_tokenizer));
  metadata.set("tokenizer.ggml.tokens", strings(std::move(tokens)));
  metadata.set("tokenizer.ggml.token_type",
               {gguf::ValueType::array, gguf::Array{gguf::ValueType::i32, std::move(types)}});
  metadata.set("tokenizer.ggml.merges", strings(std::move(merges)));
  metadata.set("tokenizer.ggml.bos_token_id", id(vocabulary.bos));
  metadata.set("tokenizer.ggml.eos_token_id", id(vocabulary.eos));
  metadata.set("tokenizer.ggml.add_bos_token", {gguf::ValueType::boolean, vocabulary.add_bos});
}

}  // namespace sluice::synth
