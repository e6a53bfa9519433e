#include "cli/json.hpp"
#include "cli/json_parts.hpp"

namespace sluice::cli {

std::string tokens_json(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens, bool with_texts) {
  Json json = {{"n_tokens", tokens.size()}, {"ids", tokens}};
  if (with_texts) {
    Json texts = Json::array();
    for (const TokenId token : tokens) {
      texts.push_back(
          {{"id", token}, {"text", tokenizer.token_bytes(token)}, {"spelling", tokenizer.token_text(token)}});
    }
    json["tokens"] = std::move(texts);
  }
  return print(json);
}

std::string decoded_json(const std::vector<TokenId>& tokens, const std::string& text) {
  return print({{"text", text}, {"n_tokens", tokens.size()}, {"ids", tokens}});
}

}  // namespace sluice::cli
