#include "gguf/text.hpp"

namespace sluice::gguf {

std::string printable(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view k_cut = "...";
  std::string result;
  std::size_t fits_with_cut = 0;  // The longest prefix of `result` that leaves room for the dots.
  while (!text.empty()) {
    if (text.front() == '"' || text.front() == '\\') result += '\\';
    base::append_printable(result, text);
    if (result.size() > max_bytes) {
      result.resize(fits_with_cut);
      return max_bytes < k_cut.size() ? std::string(k_cut.substr(0, max_bytes)) : result.append(k_cut);
    }
    if (result.size() + k_cut.size() <= max_bytes) fits_with_cut = result.size();
  }
  return result;
}

}  // namespace sluice::gguf
