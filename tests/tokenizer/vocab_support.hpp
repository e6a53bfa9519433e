#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/reader.hpp"
#include "tokenizer/tokenizer.hpp"

namespace sluice::test {

class FileSource final : public gguf::ByteSource {
 public:
  explicit FileSource(const std::filesystem::path& path)
      : name_(path.string()), file_(path, std::ios::binary), size_(std::filesystem::file_size(path)) {}
  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t offset, std::span<std::byte> out) override {
    file_.seekg(static_cast<std::streamoff>(offset));
    file_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  }

 private:
  std::string name_;
  std::ifstream file_;
  std::uint64_t size_;
};

inline gguf::Metadata load_metadata(const std::filesystem::path& path) {
  FileSource source(path);
  return gguf::parse_file(source, {.allow_missing_data = true}).metadata;
}

inline std::unique_ptr<tokenizer::Tokenizer> load_tokenizer(const std::filesystem::path& path) {
  return tokenizer::make_tokenizer(load_metadata(path));
}

/// A vocabulary in memory, to be given to make_tokenizer.
class VocabBuilder {
 public:
  explicit VocabBuilder(std::string model, std::string pre = "") {
    metadata.source_name = "test.gguf";
    set_string("tokenizer.ggml.model", std::move(model));
    if (!pre.empty()) set_string("tokenizer.ggml.pre", std::move(pre));
  }

  tokenizer::TokenId add(std::string_view text, tokenizer::TokenKind kind = tokenizer::TokenKind::normal,
                         float score = 0) {
    texts_.push_back(text);
    kinds_.push_back(static_cast<std::int32_t>(kind));
    scores_.push_back(score);
    return static_cast<tokenizer::TokenId>(kinds_.size() - 1);
  }
  void add_merge(std::string_view line) { merges_.push_back(line); }
  void set_string(std::string key, std::string text) {
    metadata.set(std::move(key), {gguf::ValueType::string, std::move(text)});
  }
  void set_uint(std::string key, std::uint64_t value) {
    metadata.set(std::move(key), {gguf::ValueType::u32, value});
  }
  void set_bool(std::string key, bool value) {
    metadata.set(std::move(key), {gguf::ValueType::boolean, value});
  }
  std::vector<std::int32_t>& kinds() { return kinds_; }
  std::vector<float>& scores() { return scores_; }

  /// Also leaves the arrays in `metadata`.
  std::unique_ptr<tokenizer::Tokenizer> build(const tokenizer::TokenizerOptions& options = {}) {
    using gguf::Array;
    using gguf::ValueType;
    metadata.set("tokenizer.ggml.tokens", {ValueType::array, Array{ValueType::string, texts_}});
    metadata.set("tokenizer.ggml.token_type", {ValueType::array, Array{ValueType::i32, kinds_}});
    metadata.set("tokenizer.ggml.scores", {ValueType::array, Array{ValueType::f32, scores_}});
    metadata.set("tokenizer.ggml.merges", {ValueType::array, Array{ValueType::string, merges_}});
    return tokenizer::make_tokenizer(metadata, options);
  }

  gguf::Metadata metadata;

 private:
  gguf::StringArray texts_, merges_;
  std::vector<std::int32_t> kinds_;
  std::vector<float> scores_;
};

}  // namespace sluice::test
