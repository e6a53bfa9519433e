#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::platform {

/// The text of a small file of /proc or /sys (at most 4 MiB); nothing when it cannot be read.
std::optional<std::string> read_text_file(const std::string& path);

/// Calls `use(line)` for each line of `text` without its newline.
template <typename Use>
void for_each_line(std::string_view text, Use&& use) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    use(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

/// Cuts the text up to the next blank off `text` and returns it; empty when none is left.
std::string_view take_word(std::string_view& text);

/// The decimal number that makes up all of `text` (blanks around it allowed); nothing for anything else, such
/// as "max", signs, or more than 64 bits.
std::optional<std::uint64_t> parse_number(std::string_view text);

/// parse_number() of the text of a file.
std::optional<std::uint64_t> read_number(const std::string& path);

/// The number after `key` in lines like "MemTotal:  123 kB" (times 1024 then) or "inactive_file 123". The key
/// must be the whole first word, with its colon where the file has one. Nothing when the line is missing or
/// garbled.
std::optional<std::uint64_t> find_number(std::string_view text, std::string_view key);

}  // namespace sluice::platform
