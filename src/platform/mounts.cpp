#include "platform/mounts.hpp"

#include "platform/text_files.hpp"

namespace sluice::platform {
namespace {

// The kernel writes blanks, newlines and backslashes of paths as \ooo (proc(5)).
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool is_below(std::string_view path, std::string_view point) noexcept {
  if (point == "/") return path.starts_with('/');
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

}  // namespace

std::vector<Mount> parse_mounts(std::string_view mountinfo) {
  std::vector<Mount> mounts;
  for_each_line(mountinfo, [&](std::string_view line) {
    // id parent major:minor root mount-point options [tag ...] - type source super-options
    for (int i = 0; i < 2; ++i) take_word(line);
    Mount mount;
    mount.device = take_word(line);
    mount.root = unescape(take_word(line));
    mount.point = unescape(take_word(line));
    std::string_view word;
    do {
      word = take_word(line);
    } while (!word.empty() && word != "-");
    mount.file_system = take_word(line);
    mount.source = unescape(take_word(line));
    mount.super_options = take_word(line);
    if (!mount.point.empty() && !mount.file_system.empty()) mounts.push_back(std::move(mount));
  });
  return mounts;
}

std::optional<Mount> find_mount(std::string_view mountinfo, std::string_view path) {
  std::optional<Mount> found;
  for (Mount& mount : parse_mounts(mountinfo)) {
    if (is_below(path, mount.point) && (!found || mount.point.size() >= found->point.size()))
      found = std::move(mount);
  }
  return found;
}

}  // namespace sluice::platform
