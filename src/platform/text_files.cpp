#include "platform/text_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "base/checked.hpp"
#include "base/descriptor.hpp"

namespace sluice::platform {
namespace {

// Mount tables of busy container hosts reach some hundred KiB; everything else is far smaller.
constexpr std::size_t k_max_text_bytes = 4u << 20;

bool is_blank(char c) noexcept {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

}  // namespace

std::optional<std::string> read_text_file(const std::string& path) {
  const base::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  std::string text;
  bool ok = false;
  while (text.size() < k_max_text_bytes) {
    char buffer[4096];
    const ssize_t n = read(file.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      ok = n == 0;
      break;
    }
    text.append(buffer, static_cast<std::size_t>(n));
  }
  if (!ok) return std::nullopt;
  return text;
}

std::string_view take_word(std::string_view& text) {
  std::size_t begin = 0;
  while (begin < text.size() && is_blank(text[begin])) ++begin;
  std::size_t end = begin;
  while (end < text.size() && !is_blank(text[end])) ++end;
  const std::string_view word = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return word;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  const std::string_view word = take_word(text);
  if (word.empty() || !take_word(text).empty()) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = read_text_file(path);
  return text ? parse_number(*text) : std::nullopt;
}

std::optional<std::uint64_t> find_number(std::string_view text, std::string_view key) {
  std::optional<std::uint64_t> found;
  for_each_line(text, [&](std::string_view line) {
    if (found || take_word(line) != key) return;
    const auto number = parse_number(take_word(line));
    if (!number) return;
    const bool is_kib = take_word(line) == "kB";
    found = is_kib ? base::checked_mul(*number, 1024) : number;
  });
  return found;
}

}  // namespace sluice::platform
