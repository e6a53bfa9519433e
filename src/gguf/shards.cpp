#include "gguf/shards.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "gguf/limits.hpp"
#include "gguf/raw_pieces.hpp"
#include "gguf/text.hpp"

namespace sluice::gguf {
namespace {

constexpr const char* k_no_key = "split.no";
constexpr const char* k_count_key = "split.count";
constexpr const char* k_tensors_key = "split.tensors.count";
constexpr const char* k_arch_key = "general.architecture";
constexpr std::size_t k_max_listed = 8;  ///< Shards named one by one in a message.

/// The parts of NAME-00002-of-00005.gguf. Numbers keep their width, so that siblings are spelled alike.
struct ShardPath {
  std::string prefix;
  std::uint64_t number = 0;  ///< From 1.
  std::uint64_t count = 0;
  std::size_t number_width = 0;
  std::size_t count_width = 0;

  std::string sibling(std::uint64_t shard_idx) const {
    return fmt::format("{}-{:0{}}-of-{:0{}}.gguf", prefix, shard_idx + 1, number_width, count, count_width);
  }
};

/// Takes the digits at the end of `text`; nothing when there are none or too many for any shard.
std::optional<std::string_view> take_digits(std::string_view& text) {
  std::size_t n_digits = 0;
  while (n_digits < text.size() && text[text.size() - 1 - n_digits] >= '0' &&
         text[text.size() - 1 - n_digits] <= '9') {
    ++n_digits;
  }
  if (n_digits == 0 || n_digits > 9) return std::nullopt;
  const std::string_view digits = text.substr(text.size() - n_digits);
  text.remove_suffix(n_digits);
  return digits;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

std::optional<ShardPath> parse_shard_path(std::string_view path) {
  if (!take_suffix(path, ".gguf")) return std::nullopt;
  const auto count = take_digits(path);
  if (!count || !take_suffix(path, "-of-")) return std::nullopt;
  const auto number = take_digits(path);
  if (!number || !take_suffix(path, "-")) return std::nullopt;
  ShardPath result;
  result.prefix = path;
  result.number_width = number->size();
  result.count_width = count->size();
  // At most nine digits: they always fit.
  std::from_chars(number->data(), number->data() + number->size(), result.number);
  std::from_chars(count->data(), count->data() + count->size(), result.count);
  return result;
}

/// "a.gguf, b.gguf and 3 more".
std::string list_paths(const std::vector<std::string>& paths) {
  std::string text;
  for (std::size_t i = 0; i < std::min(paths.size(), k_max_listed); ++i) {
    text += (i == 0 ? "" : ", ") + paths[i];
  }
  if (paths.size() > k_max_listed) text += fmt::format(" and {} more", paths.size() - k_max_listed);
  return text;
}

/// Where the shards of one model lie, and what they must agree on.
class ShardSet {
 public:
  ShardSet(const ShardPath& naming, std::uint64_t n_shards) : naming_(naming), parts_(n_shards) {}

  /// Takes the parsed file that lies under the name of shard `shard_idx`.
  void place(std::uint64_t shard_idx, ModelFile file) { parts_[shard_idx] = std::move(file); }

  /// Parses whatever was not placed yet. Throws when some of the files cannot be opened, listing them.
  void load_rest(const SourceOpener& open, const ParseOptions& options);
  void check_numbers() const;
  void check_agreement() const;
  ModelFile merge();

 private:
  std::string path(std::uint64_t shard_idx) const { return naming_.sibling(shard_idx); }
  SplitKeys keys(std::uint64_t shard_idx) const;

  ShardPath naming_;
  std::vector<std::optional<ModelFile>> parts_;
};

void ShardSet::load_rest(const SourceOpener& open, const ParseOptions& options) {
  std::vector<std::string> missing;
  std::string first_reason;
  for (std::uint64_t shard_idx = 0; shard_idx < parts_.size(); ++shard_idx) {
    if (parts_[shard_idx]) continue;
    std::unique_ptr<ByteSource> source;
    try {
      source = open(path(shard_idx));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::io) throw;
      if (missing.empty()) first_reason = error.what();
    }
    if (source == nullptr) {
      missing.push_back(path(shard_idx));
    } else if (missing.empty()) {
      parts_[shard_idx] = parse_file(*source, options);
    }
  }
  if (missing.empty()) return;
  base::fail(ErrorCode::io,
             "{} of the {} shards of the model are missing: {}. All shards must lie in one folder under "
             "their original "
             "names: download what is missing{}{}",
             missing.size(), parts_.size(), list_paths(missing), first_reason.empty() ? "" : "; ",
             first_reason);
}

SplitKeys ShardSet::keys(std::uint64_t shard_idx) const {
  const std::optional<SplitKeys> keys = read_split_keys(*parts_[shard_idx]);
  if (!keys || keys->n_shards != parts_.size()) {
    base::fail(ErrorCode::invalid_file,
               "{}: {} says {} shards, but this model has {}: the file is foreign, it belongs to another "
               "split. Replace "
               "it by shard {} of this model",
               path(shard_idx), k_count_key, keys ? keys->n_shards : 1, parts_.size(), shard_idx + 1);
  }
  return *keys;
}

void ShardSet::check_numbers() const {
  std::map<std::uint64_t, std::uint64_t> holder_of;  // What split.no says -> which file said so first.
  std::optional<std::uint64_t> misnumbered;
  for (std::uint64_t shard_idx = 0; shard_idx < parts_.size(); ++shard_idx) {
    const std::uint64_t claimed = keys(shard_idx).shard_idx;
    const auto [holder, is_new] = holder_of.emplace(claimed, shard_idx);
    if (!is_new) {
      const std::uint64_t copy = holder->second == claimed ? shard_idx : holder->second;
      base::fail(
          ErrorCode::invalid_file,
          "{}: {} is {}, as in {}: shard {} is duplicated and shard {} is missing. Download shard {} again",
          path(shard_idx), k_no_key, claimed, path(holder->second), claimed + 1, copy + 1, copy + 1);
    }
    if (claimed != shard_idx && !misnumbered) misnumbered = shard_idx;
  }
  if (!misnumbered) return;
  const std::uint64_t claimed = keys(*misnumbered).shard_idx;
  base::fail(ErrorCode::invalid_file,
             "{}: the file is misnumbered: its name says shard {}, its {} says {} (shard {}). Rename the "
             "files to their "
             "original names",
             path(*misnumbered), *misnumbered + 1, k_no_key, claimed, claimed + 1);
}

void ShardSet::check_agreement() const {
  const SplitKeys first_keys = keys(0);
  const std::optional<std::string_view> first_arch = parts_[0]->metadata.get_string(k_arch_key);
  std::uint64_t n_tensors = 0;
  for (std::uint64_t shard_idx = 0; shard_idx < parts_.size(); ++shard_idx) {
    const SplitKeys shard_keys = keys(shard_idx);
    n_tensors += parts_[shard_idx]->tensors.size();
    if (shard_keys.n_tensors != first_keys.n_tensors) {
      const auto text = [](const SplitKeys& k) {
        return k.n_tensors ? fmt::format("{}", *k.n_tensors) : "missing";
      };
      base::fail(ErrorCode::invalid_file,
                 "{}: {} is {}, but {} in {}: the file is foreign, it belongs to another model. Replace it "
                 "by shard {} "
                 "of this model",
                 path(shard_idx), k_tensors_key, text(shard_keys), text(first_keys), path(0), shard_idx + 1);
    }
    // Later shards usually carry no architecture at all.
    const std::optional<std::string_view> arch = parts_[shard_idx]->metadata.get_string(k_arch_key);
    if (arch && first_arch && *arch != *first_arch) {
      base::fail(ErrorCode::invalid_file,
                 "{}: the architecture is '{}', but '{}' in {}: the file is foreign, it belongs to another "
                 "model. Replace "
                 "it by shard {} of this model",
                 path(shard_idx), printable(*arch), printable(*first_arch), path(0), shard_idx + 1);
    }
  }
  if (first_keys.n_tensors && *first_keys.n_tensors != n_tensors) {
    base::fail(ErrorCode::invalid_file,
               "{}: {} is {}, but the {} shards hold {} tensors together: one of them is foreign or was made "
               "by another "
               "split. Download all shards from one place",
               path(0), k_tensors_key, *first_keys.n_tensors, parts_.size(), n_tensors);
  }
}

ModelFile ShardSet::merge() {
  ModelFile model = std::move(*parts_[0]);
  for (std::uint64_t shard_idx = 1; shard_idx < parts_.size(); ++shard_idx) {
    ModelFile& part = *parts_[shard_idx];
    for (TensorInfo& tensor : part.tensors) {
      tensor.shard_idx = static_cast<std::uint32_t>(shard_idx);
      model.tensors.push_back(std::move(tensor));
    }
    model.shards.push_back(std::move(part.shards.front()));
    parts_[shard_idx].reset();
  }
  if (model.tensors.size() > k_max_tensors) {
    base::fail(ErrorCode::invalid_file, "{}: the shards hold {} tensors together, more than the limit of {}",
               path(0), model.tensors.size(), k_max_tensors);
  }
  model.index_tensors();
  return model;
}

std::unique_ptr<ByteSource> open_or_fail(const std::string& path, const SourceOpener& open) {
  std::unique_ptr<ByteSource> source = open(path);
  if (source == nullptr) base::fail(ErrorCode::io, "{}: cannot be opened", path);
  return source;
}

/// The file that the user named: what is wrong with it may be that it is only a piece of one.
ModelFile parse_given(const std::string& path, const SourceOpener& open, const ParseOptions& options) {
  try {
    return parse_file(*open_or_fail(path, open), options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_file) throw;
    const std::optional<std::string> piece = describe_raw_piece(path, open);
    if (!piece) throw;
    base::fail(ErrorCode::invalid_file, "{}: {}", path, *piece);
  }
}

}  // namespace

std::optional<SplitKeys> read_split_keys(const ModelFile& file) {
  const std::uint64_t n_shards = file.metadata.get_uint(k_count_key).value_or(0);
  const std::string& path = file.metadata.source_name;
  if (n_shards > k_max_shards) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, more than the limit of {} shards: the file is damaged",
               path, k_count_key, n_shards, k_max_shards);
  }
  const std::optional<std::uint64_t> shard_idx = file.metadata.get_uint(k_no_key);
  if (n_shards > 1 && !shard_idx) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, but {} is missing: the file is damaged", path,
               k_count_key, n_shards, k_no_key);
  }
  if (shard_idx && *shard_idx >= std::max<std::uint64_t>(n_shards, 1)) {
    base::fail(ErrorCode::invalid_file,
               "{}: {} is {}, but {} is {} (shards count from 0): the file is damaged", path, k_no_key,
               *shard_idx, k_count_key, n_shards);
  }
  const std::optional<std::uint64_t> n_tensors = file.metadata.get_uint(k_tensors_key);
  if (n_shards <= 1) return std::nullopt;
  if (n_tensors && *n_tensors < file.tensors.size()) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, but this shard alone holds {}: the file is damaged",
               path, k_tensors_key, *n_tensors, file.tensors.size());
  }
  return SplitKeys{*shard_idx, n_shards, n_tensors};
}

std::vector<std::string> shard_paths(const std::string& path, std::size_t n_shards) {
  // A model of one file may have any name, even that of a shard.
  if (n_shards == 1) return {path};
  const std::optional<ShardPath> naming = parse_shard_path(path);
  const std::uint64_t n_named = naming ? naming->count : 1;
  if (n_named != n_shards) {
    base::fail(ErrorCode::invalid_argument, "{}: the name is that of a model of {} files, expected one of {}",
               path, n_named, n_shards);
  }
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < n_shards; ++i) paths.push_back(naming->sibling(i));
  return paths;
}

ModelFile parse_model(const std::string& path, const SourceOpener& open, const ParseOptions& options) {
  ModelFile given = parse_given(path, open, options);
  const std::optional<SplitKeys> keys = read_split_keys(given);
  if (!keys) return given;

  const std::optional<ShardPath> naming = parse_shard_path(path);
  if (!naming) {
    base::fail(ErrorCode::invalid_file,
               "{}: this is shard {} of {} of a split model, but its name does not end in "
               "-{:05}-of-{:05}.gguf, so the "
               "other shards cannot be found. Give all shards their original names",
               path, keys->shard_idx + 1, keys->n_shards, keys->shard_idx + 1, keys->n_shards);
  }
  if (naming->count != keys->n_shards || naming->number == 0 || naming->number > naming->count) {
    base::fail(ErrorCode::invalid_file,
               "{}: the file is misnumbered: its name says shard {} of {}, but it is shard {} of {}. Give "
               "all shards their "
               "original names",
               path, naming->number, naming->count, keys->shard_idx + 1, keys->n_shards);
  }
  ShardSet shards(*naming, keys->n_shards);
  shards.place(naming->number - 1, std::move(given));
  shards.load_rest(open, options);
  shards.check_numbers();
  shards.check_agreement();
  return shards.merge();
}

}  // namespace sluice::gguf
