// Stop strings and a text cut in pieces, all from the input: the result must be that of the definition, and
// the same for one piece as for many.
#include <algorithm>
#include <vector>

#include "engine/generate/stop_scanner.hpp"
#include "input.hpp"
#include "sluice/error.hpp"

namespace {

using namespace sluice;
using fuzz::require;

struct Result {
  std::string text, match;
  bool operator==(const Result&) const = default;
};

/// The first end at which some stop string is complete, and the longest there.
Result by_definition(const std::vector<std::string>& stop, std::string_view text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string_view longest;
    for (const std::string& one : stop) {
      if (one.size() > longest.size() && text.substr(0, end).ends_with(one)) longest = one;
    }
    if (!longest.empty()) return {std::string(text.substr(0, end - longest.size())), std::string(longest)};
  }
  return {std::string(text), ""};
}

Result scan(engine::StopScanner scanner, const std::vector<std::string_view>& pieces) {
  std::string text;
  for (const std::string_view piece : pieces) scanner.push(piece, text);
  scanner.finish(text);
  return {text, std::string(scanner.match())};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, std::min<std::size_t>(size, 4096));
  // Few different letters make matches and near matches likely; all bytes find what the letters cannot.
  const bool few_letters = input.byte() % 4 != 0;
  const auto letters = [few_letters](std::string_view text) {
    std::string out(text);
    for (char& c : out) {
      if (few_letters) c = static_cast<char>('a' + static_cast<unsigned char>(c) % 3);
    }
    return out;
  };
  std::vector<std::string> stop(input.below(5));
  for (std::string& one : stop) {
    const std::size_t n_bytes = 1 + input.below(8);
    one = letters(input.text(n_bytes));
  }
  std::vector<std::size_t> cuts(input.below(16));
  for (std::size_t& cut : cuts) cut = input.below(12);
  const std::string text = letters(input.rest());
  const bool is_valid = std::all_of(
      stop.begin(), stop.end(), [](const std::string& one) { return !one.empty() && engine::is_utf8(one); });
  try {
    std::vector<std::string_view> pieces;
    std::string_view rest = text;
    for (std::size_t i = 0; !rest.empty(); ++i) {
      pieces.push_back(rest.substr(0, i < cuts.size() ? cuts[i] : rest.size()));
      rest.remove_prefix(pieces.back().size());
    }
    const Result expected = by_definition(stop, text);
    require(scan(engine::StopScanner(stop), pieces) == expected, "pieces give another result");
    require(scan(engine::StopScanner(stop), {text}) == expected, "one piece gives another result");
    require(is_valid, "a stop string that cannot work is accepted");
  } catch (const Error& error) {
    require(!is_valid && error.code() == ErrorCode::invalid_argument, "a good stop string is refused");
  }
  return 0;
}
