#include "gguf/raw_pieces.hpp"

#include <fmt/core.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/error.hpp"
#include "gguf/foreign_file.hpp"
#include "gguf/shards.hpp"

namespace sluice::gguf {
namespace {

constexpr std::size_t k_max_pieces = 999;
constexpr std::size_t k_max_listed = 32;  ///< A command that can be copied names all of them, up to here.

/// What the name of a piece says: BEFORE INDEX AFTER, where INDEX is a number or letters (a, aa).
struct PieceName {
  std::string before, index, after;
  std::string joined;          ///< What the whole file was probably called.
  std::size_t count = 0;       ///< 0: the name does not say.
  bool is_shard_name = false;  ///< Spelled as the files of a split model are, which are no raw pieces.

  bool has_letters() const { return std::isalpha(static_cast<unsigned char>(index.front())) != 0; }
};

std::size_t to_number(std::string_view digits) {
  std::size_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

std::string with_extension(std::string stem) {
  return stem.ends_with(".gguf") ? stem : stem + ".gguf";
}

struct PcreFree {
  void operator()(pcre2_code* code) const noexcept { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};

/// Bounds of a whole match of `name` and of its groups; empty when it does not match.
std::vector<std::string_view> match_name(std::string_view pattern, std::string_view name) {
  int error = 0;
  PCRE2_SIZE error_at = 0;
  const std::unique_ptr<pcre2_code, PcreFree> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOTALL, &error, &error_at, nullptr));
  SLUICE_CHECK(code != nullptr);
  const std::unique_ptr<pcre2_match_data, PcreFree> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  if (data == nullptr) return {};
  const int n = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                            data.get(), nullptr);
  if (n <= 0) return {};
  // Groups that took no part are empty at the end of the name.
  std::vector<std::string_view> groups(pcre2_get_ovector_count(data.get()), name.substr(name.size()));
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (bounds[2 * i] != PCRE2_UNSET)
      groups[i] = name.substr(bounds[2 * i], bounds[2 * i + 1] - bounds[2 * i]);
  }
  return groups;
}

/// Names of pieces. Group 1 is what stands before the marks of a piece, `index_group` the piece's index.
struct NamePattern {
  std::string_view pattern;
  std::size_t index_group;
};
constexpr NamePattern k_with_count = {
    // x.gguf.part1of2, x-part-01-of-12.gguf, x-00001-of-00002.gguf
    R"((?i)(.*?)([._-]*)(part|split|piece|chunk|vol)?([._-]*)(\d{1,5})([._-]*of[._-]*)(\d{1,5})(\.gguf)?)",
    5};
constexpr std::array<NamePattern, 4> k_without_count = {{
    // x.gguf-split-a, x.part1, x-part2.gguf
    {R"((?i)(.*?)([._-]*)(part|split|piece|chunk|vol)([._-]*)(\d{1,5}|[a-z]{1,2}|a[a-z]{2})(\.gguf)?)", 5},
    // x.gguf.00, x.gguf.aa, x.ggufab, x.001
    {R"((?i)(.*\.gguf)([._-]?)(\d{1,5}|[a-z]{1,2}|a[a-z]{2}))", 3},
    // xaa, as split calls its pieces when nobody says otherwise.
    {R"(()(x)([a-z]{2}))", 3},
    {R"((.+)(\.)(\d{3}))", 3},
}};

std::optional<PieceName> parse_piece_name(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  const std::string name = path.substr(folder.size());
  constexpr std::size_t k_max_name_bytes = 255;
  if (name.size() > k_max_name_bytes) return std::nullopt;
  PieceName piece;
  std::size_t index_group = k_with_count.index_group;
  std::vector<std::string_view> groups = match_name(k_with_count.pattern, name);
  if (!groups.empty()) {
    piece.count = to_number(groups[7]);
    piece.is_shard_name = groups[3].empty() && !groups[8].empty();
  }
  for (std::size_t i = 0; groups.empty() && i < k_without_count.size(); ++i) {
    groups = match_name(k_without_count[i].pattern, name);
    index_group = k_without_count[i].index_group;
  }
  if (groups.empty()) return std::nullopt;
  const auto index_at = static_cast<std::size_t>(groups[index_group].data() - name.data());
  piece.before = folder + name.substr(0, index_at);
  piece.index = groups[index_group];
  piece.after = name.substr(index_at + piece.index.size());
  piece.joined = folder + with_extension(groups[1].empty() ? "model" : std::string(groups[1]));
  return piece;
}

std::string next_letters(std::string letters) {
  for (std::size_t i = letters.size(); i-- > 0;) {
    if (letters[i] != 'z' && letters[i] != 'Z') {
      ++letters[i];
      return letters;
    }
    letters[i] = letters[i] == 'z' ? 'a' : 'A';
  }
  return {};  // It was the last.
}

/// The neighbours of a piece, found by opening them.
class Series {
 public:
  Series(PieceName name, const SourceOpener& open) : name_(std::move(name)), open_(open) { list(); }

  const std::vector<std::string>& paths() const noexcept { return paths_; }
  const std::vector<std::string>& missing() const noexcept { return missing_; }
  /// From 0; the number of paths() when the given piece is not among them.
  std::size_t given() const noexcept { return given_; }
  std::unique_ptr<ByteSource> open_path(const std::string& path) const {
    try {
      return open_(path);
    } catch (const Error&) {
      return nullptr;
    }
  }

 private:
  std::string path(const std::string& index) const { return name_.before + index + name_.after; }
  std::string first_index() const {
    if (name_.has_letters()) {
      return std::string(name_.index.size(), name_.index.front() >= 'a' ? 'a' : 'A');
    }
    // From 0 or 1, with leading zeros or without.
    for (const std::size_t width : {name_.index.size(), std::size_t{1}}) {
      for (const int first : {0, 1}) {
        std::string index = fmt::format("{:0{}}", first, width);
        if (open_path(path(index)) != nullptr) return index;
      }
    }
    return fmt::format("{:0{}}", 1, name_.index.front() == '0' ? name_.index.size() : std::size_t{1});
  }
  std::string next_index(const std::string& index) const {
    return name_.has_letters() ? next_letters(index)
                               : fmt::format("{:0{}}", to_number(index) + 1, index.size());
  }
  void list() {
    std::string index = first_index();
    const std::size_t n_named = std::min(name_.count, k_max_pieces);
    while (!index.empty() && paths_.size() < (n_named != 0 ? n_named : k_max_pieces)) {
      const bool exists = open_path(path(index)) != nullptr;
      const bool is_given = index == name_.index;
      if (is_given) given_ = paths_.size();
      // Without a number of pieces the series ends where a file is missing, but not before the given one.
      if (!exists && n_named == 0 && given_ != k_none && !is_given) break;
      if (!exists) missing_.push_back(path(index));
      paths_.push_back(path(index));
      index = next_index(index);
    }
    if (given_ == k_none) given_ = paths_.size();
  }

  static constexpr std::size_t k_none = ~std::size_t{0};
  PieceName name_;
  const SourceOpener& open_;
  std::vector<std::string> paths_, missing_;
  std::size_t given_ = k_none;
};

bool has_magic(ByteSource& source) {
  std::array<char, 4> magic{};
  if (source.size() < magic.size()) return false;
  source.read(0, std::as_writable_bytes(std::span(magic)));
  return std::string_view(magic.data(), magic.size()) == "GGUF";
}

enum class Contents { first_piece, later_piece, other };

/// `may_end_early`: a header that is cut is that of a first piece, too.
Contents contents_of(ByteSource& source, bool is_shard_name, bool may_end_early) {
  if (!has_magic(source)) {
    // Whatever is recognised as something else is no piece of a model.
    const bool is_unknown =
        source.size() >= 4 && describe_foreign_file(source).starts_with("expected the magic");
    return is_unknown ? Contents::later_piece : Contents::other;
  }
  try {
    const ModelFile file = parse_file(source, {.allow_missing_data = true});
    const auto ends_beyond = [&](const TensorInfo& tensor) {
      return tensor.offset_bytes + tensor.size_bytes > file.shards.front().file_bytes;
    };
    const bool is_cut = std::any_of(file.tensors.begin(), file.tensors.end(), ends_beyond);
    const bool is_shard = is_shard_name && read_split_keys(file).has_value();
    return is_cut && !is_shard ? Contents::first_piece : Contents::other;
  } catch (const Error&) {
    return may_end_early ? Contents::first_piece : Contents::other;
  }
}

std::string quoted(const std::string& path) {
  constexpr std::string_view k_plain = "_./=+,:@%-";
  const auto is_plain = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || k_plain.find(c) != std::string_view::npos;
  };
  if (std::all_of(path.begin(), path.end(), is_plain)) return path;
  std::string text = "'";
  for (const char c : path) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string joined_list(const std::vector<std::string>& paths, const char* separator) {
  std::string text;
  for (std::size_t i = 0; i < std::min(paths.size(), k_max_listed); ++i) {
    text += (i == 0 ? "" : separator) + quoted(paths[i]);
  }
  if (paths.size() > k_max_listed) text += fmt::format("{}... {}", separator, quoted(paths.back()));
  return text;
}

}  // namespace

std::optional<std::string> describe_raw_piece(const std::string& path, const SourceOpener& open) {
  const std::optional<PieceName> name = parse_piece_name(path);
  if (!name) return std::nullopt;
  const Series series(*name, open);
  if (series.given() >= series.paths().size()) return std::nullopt;
  const auto contents_at = [&](std::size_t index, bool may_end_early) {
    const auto source = series.open_path(series.paths()[index]);
    return source == nullptr ? Contents::other : contents_of(*source, name->is_shard_name, may_end_early);
  };
  const bool has_second = series.paths().size() > 1 && contents_at(1, false) == Contents::later_piece;
  const bool has_first = contents_at(0, has_second) == Contents::first_piece;
  if (series.given() == 0 && !has_first) return std::nullopt;
  if (series.given() != 0) {
    if (contents_at(series.given(), false) != Contents::later_piece) return std::nullopt;
    const bool first_is_missing = std::find(series.missing().begin(), series.missing().end(),
                                            series.paths()[0]) != series.missing().end();
    // A damaged file of a split model is called like that, too.
    if (!has_first && (!first_is_missing || name->is_shard_name)) return std::nullopt;
  }
  const bool is_alone = name->count == 0 && series.paths().size() == 1;
  std::string text =
      fmt::format("this is piece {}{} of a model file that was cut into pieces. ", series.given() + 1,
                  name->count == 0 ? "" : fmt::format(" of {}", name->count));
  if (is_alone) {
    text += "The others are not beside it: download them, too. Then join all in order: ";
  } else if (!series.missing().empty()) {
    text += fmt::format("{} {} missing: download what is missing. Then join all in order: ",
                        joined_list(series.missing(), ", "), series.missing().size() == 1 ? "is" : "are");
  } else {
    text += "Join them: ";
  }
  return text + fmt::format("cat {}{} > {}", joined_list(series.paths(), " "), is_alone ? " ..." : "",
                            quoted(name->joined));
}

}  // namespace sluice::gguf
