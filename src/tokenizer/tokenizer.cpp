#include "tokenizer/tokenizer.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/log.hpp"
#include "tokenizer/bpe.hpp"
#include "tokenizer/pretokenizer.hpp"
#include "tokenizer/spm.hpp"

namespace sluice::tokenizer {
namespace {

const PreTokenizerSpec& choose_pre_tokenizer(const gguf::Metadata& metadata,
                                             const TokenizerOptions& options) {
  std::string_view name = options.pre_tokenizer;
  // The model's name says all, and files leave the other out.
  const bool is_gemma4 = metadata.get_string("tokenizer.ggml.model") == "gemma4";
  if (name.empty()) name = is_gemma4 ? "gemma4" : metadata.get_string("tokenizer.ggml.pre").value_or("");
  if (name.empty()) {
    base::warn(
        "{}: tokenizer.ggml.pre is missing, so \"default\" is used, which may split words otherwise than the "
        "model learnt; name the right one with --pre-tokenizer",
        metadata.source_name);
    name = "default";
  }
  const PreTokenizerSpec* spec = find_pre_tokenizer(name);
  if (spec == nullptr) {
    base::fail(ErrorCode::unsupported,
               "{}: the pre-tokenizer \"{}\" is not known; if it behaves like a known one, name that with "
               "--pre-tokenizer. Known: {}",
               metadata.source_name, name, fmt::join(known_pre_tokenizers(), ", "));
  }
  return *spec;
}

}  // namespace

bool Tokenizer::is_end_of_generation(TokenId token) const noexcept {
  return std::binary_search(eog_.begin(), eog_.end(), token);
}

const std::vector<std::string>& known_pre_tokenizers() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const PreTokenizerSpec& spec : pre_tokenizer_specs()) list.emplace_back(spec.name);
    return list;
  }();
  return names;
}

std::unique_ptr<Tokenizer> make_tokenizer(const gguf::Metadata& metadata, const TokenizerOptions& options) {
  const std::string_view model = metadata.get_string("tokenizer.ggml.model").value_or("none");
  if (model == "none" || model == "no_vocab") {
    base::fail(ErrorCode::unsupported,
               "{}: the file has no vocabulary (tokenizer.ggml.model is {}), so text cannot be turned into "
               "tokens; use "
               "a model file that was converted with its tokenizer",
               metadata.source_name,
               metadata.contains("tokenizer.ggml.model") ? fmt::format("\"{}\"", model) : "missing");
  }
  if (model == "gpt2" || model == "gemma4") {
    return std::make_unique<BpeTokenizer>(metadata, choose_pre_tokenizer(metadata, options));
  }
  if (model == "llama") {
    if (!options.pre_tokenizer.empty()) {
      base::fail(ErrorCode::invalid_argument,
                 "{}: --pre-tokenizer {} has no meaning for a SentencePiece vocabulary (tokenizer.ggml.model "
                 "\"llama\"); "
                 "leave it out",
                 metadata.source_name, options.pre_tokenizer);
    }
    return std::make_unique<SpmTokenizer>(metadata);
  }
  base::fail(ErrorCode::unsupported,
             "{}: tokenizer.ggml.model is \"{}\", supported are \"gpt2\", \"gemma4\" and \"llama\"",
             metadata.source_name, model);
}

}  // namespace sluice::tokenizer
