#include "sluice/tokenizer.hpp"

#include "base/error.hpp"
#include "engine/model/prepare.hpp"
#include "engine/model/tokenizer_impl.hpp"

namespace sluice {
namespace {

const tokenizer::Tokenizer& require(const Tokenizer::Impl& impl) {
  if (impl.tokenizer == nullptr) {
    base::fail(ErrorCode::unsupported,
               "{}: the file has no vocabulary (tokenizer.ggml.model), so text cannot be turned into tokens "
               "or back; use a file that has one, or the library with token ids (Model::step)",
               impl.path);
  }
  return *impl.tokenizer;
}

}  // namespace

Tokenizer Tokenizer::open(const std::filesystem::path& path, const std::string& pre_tokenizer) {
  const engine::Header header = engine::parse_header(path, /*allow_missing_data=*/true);
  auto impl = std::make_shared<Impl>();
  impl->tokenizer = tokenizer::make_tokenizer(header.file.metadata, {pre_tokenizer});
  impl->path = path.string();
  return Tokenizer(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  return require(*impl_).encode(text, {add_special, parse_special});
}

std::vector<TokenId> Tokenizer::encode_pieces(std::span<const TextPiece> pieces, TokenId previous) const {
  std::vector<tokenizer::TextPiece> inner;
  for (const TextPiece& piece : pieces) inner.push_back({piece.text, piece.is_markup});
  return require(*impl_).encode_pieces(inner, previous);
}

std::string Tokenizer::decode(const std::vector<TokenId>& tokens, bool special) const {
  return require(*impl_).decode(tokens, special);
}

std::string Tokenizer::token_bytes(TokenId token) const {
  return require(*impl_).token_bytes(token, /*special=*/true);
}

std::string Tokenizer::token_text(TokenId token) const {
  if (token < 0 || static_cast<std::size_t>(token) >= vocab_size()) return {};
  return std::string(require(*impl_).token_text(token));
}

std::size_t Tokenizer::vocab_size() const noexcept {
  return impl_->tokenizer == nullptr ? 0 : impl_->tokenizer->vocab_size();
}
TokenId Tokenizer::bos() const noexcept {
  return impl_->tokenizer == nullptr ? -1 : impl_->tokenizer->bos();
}
TokenId Tokenizer::eos() const noexcept {
  return impl_->tokenizer == nullptr ? -1 : impl_->tokenizer->eos();
}
bool Tokenizer::adds_bos() const noexcept {
  return impl_->tokenizer != nullptr && impl_->tokenizer->adds_bos();
}

bool Tokenizer::is_end_of_generation(TokenId token) const noexcept {
  return impl_->tokenizer != nullptr && impl_->tokenizer->is_end_of_generation(token);
}

TokenId Tokenizer::special_token(SpecialToken which) const noexcept {
  return impl_->tokenizer == nullptr ? -1 : impl_->tokenizer->special_token(which);
}

std::span<const TokenId> Tokenizer::suppressed_tokens() const noexcept {
  return impl_->tokenizer == nullptr ? std::span<const TokenId>() : impl_->tokenizer->suppressed_tokens();
}

TokenId Tokenizer::find_token(std::string_view text) const noexcept {
  return impl_->tokenizer == nullptr ? -1 : impl_->tokenizer->find_token(text);
}

struct TextStream::Impl {
  Tokenizer owner;  ///< Keeps the vocabulary alive.
  tokenizer::StreamDecoder decoder;
};

TextStream::TextStream(const Tokenizer& tokenizer, bool special, bool at_start)
    : impl_(new Impl{tokenizer, tokenizer::StreamDecoder(require(tokenizer.impl()), special, at_start)}) {}
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;
std::string TextStream::push(TokenId token) {
  return impl_->decoder.push(token);
}
std::string TextStream::finish() {
  return impl_->decoder.finish();
}

}  // namespace sluice
