#include "gguf/foreign_file.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "gguf/text.hpp"

namespace sluice::gguf {
namespace {

constexpr std::uint64_t k_sniff_bytes = 512;

struct Signature {
  std::string_view bytes;
  const char* meaning;
};

// A string view with an explicit length keeps the zero bytes.
constexpr std::array k_signatures{
    Signature{"PK\x03\x04",
              "a ZIP archive (a PyTorch .bin or .pt checkpoint is one): convert the model to GGUF, or "
              "unpack the archive if it holds a .gguf file"},
    Signature{"\x1f\x8b", "compressed with gzip: decompress it first"},
    Signature{"\x28\xb5\x2f\xfd", "compressed with zstd: decompress it first"},
    Signature{std::string_view("\xfd"
                               "7zXZ\0",
                               6),
              "compressed with xz: decompress it first"},
    Signature{"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"},
    Signature{"BZh", "compressed with bzip2: decompress it first"},
    Signature{"FUGG", "a GGUF file for big-endian machines: get or convert the little-endian one"},
    Signature{"\x89HDF\r\n", "an HDF5 file: convert the model to GGUF"},
};

// Formats of ggml before GGUF. Each was written as a 32-bit number, so the letters lie in the file in
// reverse.
constexpr std::array<std::string_view, 5> k_legacy_magics{"ggml", "ggmf", "ggjt", "ggla", "ggsn"};

char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string lower_text(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

bool is_legacy_magic(std::string_view head) {
  if (head.size() < 4) return false;
  std::string magic = lower_text(head.substr(0, 4));
  const auto known = [](const std::string& text) {
    return std::find(k_legacy_magics.begin(), k_legacy_magics.end(), text) != k_legacy_magics.end();
  };
  if (known(magic)) return true;
  std::reverse(magic.begin(), magic.end());
  return known(magic);
}

bool is_safetensors(std::string_view head, std::uint64_t file_bytes) {
  if (head.size() < 9 || head[8] != '{') return false;
  std::uint64_t json_bytes = 0;
  std::memcpy(&json_bytes, head.data(), sizeof json_bytes);
  return json_bytes >= 2 && json_bytes <= file_bytes - 8;
}

bool is_pickle(std::string_view head) {
  return head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

std::string_view skip_space(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  while (!text.empty() && std::string_view(" \t\r\n").find(text.front()) != std::string_view::npos) {
    text.remove_prefix(1);
  }
  return text;
}

std::string describe_pointer(std::string_view head) {
  std::string size_text;
  if (const std::size_t at = head.find("\nsize "); at != std::string_view::npos) {
    std::string_view digits = head.substr(at + 6);
    digits = digits.substr(0, std::min(digits.find_first_not_of("0123456789"), digits.size()));
    if (!digits.empty() && digits.size() <= 20) size_text = fmt::format(" to a file of {} bytes", digits);
  }
  return fmt::format(
      "it is a Git LFS pointer{}, not the model: run 'git lfs pull' in the repository, or download the file "
      "itself",
      size_text);
}

std::string describe_text(std::string_view head) {
  const std::string_view text = skip_space(head);
  const std::string start = lower_text(text.substr(0, 16));
  const std::string shown = printable(text.substr(0, 160), 100);
  if (start.starts_with("<!doctype html") || start.starts_with("<html") || start.starts_with("<head")) {
    return fmt::format(
        "it is an HTML page, not a model: the download got a web page instead (a login page, or a link to "
        "the page "
        "rather than to the file). It starts with \"{}\"",
        shown);
  }
  if (start.starts_with("<?xml") || start.starts_with("<error")) {
    return fmt::format("it is an XML document, probably the error of a download server: \"{}\"", shown);
  }
  if (start.starts_with("{") || start.starts_with("[")) {
    return fmt::format(
        "it is JSON text, not a model: probably the error of a download server, or an index file. It starts "
        "with "
        "\"{}\"",
        shown);
  }
  return {};
}

}  // namespace

std::string describe_foreign_file(ByteSource& source) {
  const std::uint64_t file_bytes = source.size();
  if (file_bytes == 0) return "the file is empty (0 bytes): download it again";
  std::array<char, k_sniff_bytes> storage{};
  const auto n_bytes = static_cast<std::size_t>(std::min(file_bytes, k_sniff_bytes));
  source.read(0, std::as_writable_bytes(std::span(storage).first(n_bytes)));
  const std::string_view head(storage.data(), n_bytes);

  if (head.size() < 4 && std::string_view("GGUF").starts_with(head)) {
    return fmt::format(
        "the file is truncated: it ends after {} bytes, inside the GGUF magic. Download it again",
        file_bytes);
  }
  if (head.starts_with("version https://git-lfs")) return describe_pointer(head);
  if (std::string text = describe_text(head); !text.empty()) return text;
  for (const Signature& signature : k_signatures) {
    if (head.starts_with(signature.bytes)) return fmt::format("it is {}", signature.meaning);
  }
  if (is_safetensors(head, file_bytes)) return "it is a safetensors file: convert the model to GGUF";
  if (is_pickle(head)) return "it is a Python pickle (an old PyTorch checkpoint): convert the model to GGUF";
  if (is_legacy_magic(head)) {
    return fmt::format(
        "it is in the legacy ggml format \"{}\" from before GGUF: convert it, or download the model as GGUF",
        printable(head.substr(0, 4)));
  }
  if (head.find_first_not_of('\0') == std::string_view::npos) {
    return fmt::format(
        "its first {} bytes are all zero: the space was reserved but the download never wrote it. Download "
        "it again",
        head.size());
  }
  return fmt::format("expected the magic \"GGUF\", found \"{}\"", printable(head.substr(0, 4)));
}

}  // namespace sluice::gguf
