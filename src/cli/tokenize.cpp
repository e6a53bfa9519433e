#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/input.hpp"
#include "cli/json.hpp"
#include "cli/models.hpp"
#include "sluice/tokenizer.hpp"

namespace sluice::cli {
namespace {

/// Between ids. With brackets, because lists of other programs have them.
constexpr std::string_view k_separators = " \t\r\n,[]";

/// One id that ends with the word; throws Error(invalid_argument).
TokenId parse_id(std::string_view word, std::size_t index, std::size_t n_vocab) {
  constexpr std::size_t k_shown_bytes = 40;
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
  if (error == std::errc() && end == word.data() + word.size() && id < n_vocab)
    return static_cast<TokenId>(id);
  base::fail(ErrorCode::invalid_argument,
             "tokenize --decode: the id at place {} is '{}', expected a whole number from 0 to {}, with "
             "spaces, commas or newlines between ids",
             index + 1, word.substr(0, k_shown_bytes), n_vocab - 1);
}

std::vector<TokenId> parse_ids(std::string_view text, std::size_t n_vocab) {
  std::vector<TokenId> ids;
  for (std::size_t pos = 0; (pos = text.find_first_not_of(k_separators, pos)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(k_separators, pos), text.size());
    ids.push_back(parse_id(text.substr(pos, end - pos), ids.size(), n_vocab));
    pos = end;
  }
  return ids;
}

/// In parts, so that the memory of a long text is that of its tokens.
void print_tokens(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens, bool only_ids,
                  Output& output) {
  constexpr std::size_t k_part_bytes = 64 * 1024;
  std::string part;
  for (const TokenId token : tokens) {
    part += only_ids ? fmt::format("{}\n", token)
                     : fmt::format("{:>7}  '{}'\n", token, base::printable(tokenizer.token_bytes(token)));
    if (part.size() < k_part_bytes) continue;
    if (!output.write(part)) return;
    part.clear();
  }
  output.write(part);
}

}  // namespace

int tokenize(const TokenizeCommand& command, Output& output) {
  const Tokenizer tokenizer = Tokenizer::open(find_model(command.model), command.pre_tokenizer);
  const std::string text = command.prompt ? *command.prompt : read_text(command.file.value_or("-"));
  if (command.decode) {
    const std::vector<TokenId> ids = parse_ids(text, tokenizer.vocab_size());
    const std::string decoded = tokenizer.decode(ids, !command.no_special);
    if (command.json) {
      output.write(decoded_json(ids, decoded));
    } else {
      output.write_answer(decoded);
      output.end_line();
    }
    return exit_status(output);
  }
  const std::vector<TokenId> tokens = tokenizer.encode(text, !command.no_special, !command.no_special);
  if (command.json) {
    output.write(tokens_json(tokenizer, tokens, !command.ids));
  } else {
    print_tokens(tokenizer, tokens, command.ids, output);
  }
  return exit_status(output);
}

}  // namespace sluice::cli
