#include "gguf/reader.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "gguf/cursor.hpp"
#include "gguf/foreign_file.hpp"
#include "gguf/limits.hpp"
#include "gguf/shards.hpp"
#include "gguf/text.hpp"
#include "gguf/value_reader.hpp"

namespace sluice::gguf {
namespace {

constexpr std::string_view k_magic = "GGUF";
constexpr std::string_view k_alignment_key = "general.alignment";
constexpr std::uint32_t k_min_version = 2;
constexpr std::uint32_t k_max_version = 3;
/// A version above this is no future format but a damaged number.
constexpr std::uint32_t k_max_plausible_version = 255;
// Length, one byte of text, type id, one byte of value.
constexpr std::uint64_t k_min_entry_bytes = 8 + 1 + 4 + 1;
// Length, one byte of name, dimension count, one dimension, type id, offset.
constexpr std::uint64_t k_min_tensor_bytes = 8 + 1 + 4 + 8 + 4 + 8;

struct Header {
  std::uint32_t version = 0;
  std::uint64_t n_tensors = 0;
  std::uint64_t n_entries = 0;
};

std::uint32_t read_version(Cursor& cursor) {
  const std::uint64_t offset = cursor.position();
  const auto version = cursor.number<std::uint32_t>("the format version");
  if (version >= k_min_version && version <= k_max_version) return version;
  const std::uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= k_max_plausible_version) {
    cursor.fail_at(
        offset,
        "the file is big-endian (version {} with its bytes swapped), for another kind of machine: get or "
        "convert the little-endian file",
        swapped);
  }
  if (version == 1) {
    cursor.fail_at(
        offset,
        "GGUF version 1 is not supported (expected 2 or 3): it was replaced in 2023. Convert the model again "
        "or download a newer file");
  }
  if (version == 0 || version > k_max_plausible_version) {
    cursor.fail_at(offset, "{} is no GGUF version (expected 2 or 3): the file is damaged", version);
  }
  cursor.fail_at(
      offset,
      "GGUF version {} is newer than this program knows (expected 2 or 3): update Sluice, or get an older "
      "file",
      version);
}

Header read_header(Cursor& cursor) {
  Header header;
  header.version = read_version(cursor);
  const std::uint64_t counts_offset = cursor.position();
  header.n_tensors = cursor.number<std::uint64_t>("the number of tensors");
  header.n_entries = cursor.number<std::uint64_t>("the number of metadata entries");
  if (header.n_tensors > k_max_tensors) {
    cursor.fail_at(counts_offset, "the file claims {} tensors, more than the limit of {}: it is damaged",
                   header.n_tensors, k_max_tensors);
  }
  if (header.n_entries > k_max_metadata_entries) {
    cursor.fail_at(counts_offset + 8,
                   "the file claims {} metadata entries, more than the limit of {}: it is damaged",
                   header.n_entries, k_max_metadata_entries);
  }
  // Both counts are below their limits, so this cannot overflow.
  cursor.require(header.n_entries * k_min_entry_bytes + header.n_tensors * k_min_tensor_bytes,
                 "what the counts announce");
  return header;
}

std::uint32_t read_alignment(const Cursor& cursor, std::uint64_t offset, const Value& value) {
  std::uint64_t alignment = 0;
  if (const auto* number = std::get_if<std::uint64_t>(&value.data)) alignment = *number;
  const auto* number = std::get_if<std::int64_t>(&value.data);
  if (number != nullptr && *number > 0) alignment = static_cast<std::uint64_t>(*number);
  if (alignment == 0 || alignment % k_alignment_unit_bytes != 0 || alignment > k_max_alignment_bytes) {
    cursor.fail_at(offset, "the alignment must be a multiple of {} up to {}, but it is {} ({})",
                   k_alignment_unit_bytes, k_max_alignment_bytes, describe_value(value),
                   value_type_name(value.type));
  }
  return static_cast<std::uint32_t>(alignment);
}

void read_metadata(Cursor& cursor, std::uint64_t n_entries, ModelFile& model) {
  ValueReader values(cursor);
  for (std::uint64_t entry_idx = 0; entry_idx < n_entries; ++entry_idx) {
    cursor.set_context("metadata entry", entry_idx);
    const std::uint64_t key_offset = cursor.position();
    std::string key = cursor.string(k_max_key_bytes, "the key");
    if (key.empty()) cursor.fail_at(key_offset, "the key is empty: the file is damaged");
    if (!is_valid_utf8(key)) {
      cursor.fail_at(key_offset, "the key \"{}\" is not valid UTF-8: the file is damaged", printable(key));
    }
    cursor.set_context("metadata entry", entry_idx, key);
    const std::uint64_t value_offset = cursor.position();
    Value value = values.read();
    if (key == k_alignment_key) model.alignment_bytes = read_alignment(cursor, value_offset, value);
    // The context must not point into the key once it has moved away.
    cursor.set_context("metadata entry", entry_idx);
    if (model.metadata.contains(key)) {
      cursor.fail_at(key_offset,
                     "the key '{}' appears a second time: the file is damaged or was edited badly",
                     printable(key));
    }
    model.metadata.add(std::move(key), std::move(value));
  }
}

void read_dims(Cursor& cursor, TensorInfo& tensor) {
  const std::uint64_t offset = cursor.position();
  tensor.n_dims = cursor.number<std::uint32_t>("the number of dimensions");
  if (tensor.n_dims == 0 || tensor.n_dims > k_max_dims) {
    cursor.fail_at(offset, "the tensor has {} dimensions, expected 1 to {}: the file is damaged",
                   tensor.n_dims, k_max_dims);
  }
  std::uint64_t n_elements = 1;
  for (std::uint32_t dim_idx = 0; dim_idx < tensor.n_dims; ++dim_idx) {
    const std::uint64_t dim_offset = cursor.position();
    const auto dim = cursor.number<std::uint64_t>("a dimension");
    if (dim == 0) cursor.fail_at(dim_offset, "dimension {} of the tensor is 0: the file is damaged", dim_idx);
    const auto product = base::checked_mul(n_elements, dim);
    if (!product || *product > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      cursor.fail_at(
          dim_offset,
          "dimension {} of the tensor is {}: the tensor is too large to exist, the file is damaged", dim_idx,
          dim);
    }
    n_elements = *product;
    tensor.dims[dim_idx] = dim;
  }
}

/// Leaves the offset relative to the start of the data, which is not known before the last entry.
TensorInfo read_tensor(Cursor& cursor, std::uint64_t tensor_idx, std::uint32_t alignment_bytes) {
  cursor.set_context("tensor entry", tensor_idx);
  TensorInfo tensor;
  const std::uint64_t name_offset = cursor.position();
  tensor.name = cursor.string(k_max_tensor_name_bytes, "the tensor name");
  if (tensor.name.empty()) cursor.fail_at(name_offset, "the tensor name is empty: the file is damaged");
  if (!is_valid_utf8(tensor.name)) {
    cursor.fail_at(name_offset, "the tensor name \"{}\" is not valid UTF-8: the file is damaged",
                   printable(tensor.name));
  }
  cursor.set_context("tensor entry", tensor_idx, tensor.name);
  read_dims(cursor, tensor);

  const std::uint64_t type_offset = cursor.position();
  const auto type_id = cursor.number<std::uint32_t>("the tensor type");
  const std::optional<TypeTraits> traits = find_type_traits(type_id);
  if (!traits) {
    cursor.fail_at(type_offset, "{}", describe_unknown_type(type_id));
  }
  tensor.type = traits->type;
  if (tensor.dims[0] % traits->block_elements != 0) {
    cursor.fail_at(type_offset, "rows of {} elements cannot be {}, whose blocks have {} elements",
                   tensor.dims[0], traits->name, traits->block_elements);
  }
  // read_dims bounded the number of elements, so only the step from elements to bytes can overflow.
  const auto size = base::checked_mul(tensor.n_elements() / traits->block_elements, traits->block_bytes);
  if (!size) cursor.fail_at(type_offset, "the tensor is too large to exist: the file is damaged");
  tensor.size_bytes = *size;

  const std::uint64_t offset_offset = cursor.position();
  tensor.offset_bytes = cursor.number<std::uint64_t>("the tensor offset");
  if (tensor.offset_bytes % alignment_bytes != 0) {
    cursor.fail_at(offset_offset,
                   "the tensor offset {} is not a multiple of the alignment {}: the file is damaged",
                   tensor.offset_bytes, alignment_bytes);
  }
  const auto end = base::checked_add(tensor.offset_bytes, tensor.size_bytes);
  // Room for the header keeps the sum of all three below 2^64.
  if (!end || *end > std::numeric_limits<std::uint64_t>::max() - 2 * k_max_header_bytes) {
    cursor.fail_at(offset_offset, "the tensor offset {} lies beyond any possible file: the file is damaged",
                   tensor.offset_bytes);
  }
  cursor.set_context("tensor entry", tensor_idx);
  return tensor;
}

/// A download that began anew behind what was there already, or two files in one.
void check_tail(ByteSource& source, const ShardInfo& shard, std::uint64_t end,
                std::uint32_t alignment_bytes) {
  const std::uint64_t n_behind = shard.file_bytes - end;
  if (n_behind <= alignment_bytes) return;
  const auto is_header_at = [&](std::uint64_t offset) {
    std::array<char, 4> magic{};
    if (offset > shard.file_bytes - magic.size()) return false;
    source.read(offset, std::as_writable_bytes(std::span(magic)));
    return std::string_view(magic.data(), magic.size()) == k_magic;
  };
  // The whole file may end with padding or without.
  const std::uint64_t padding = base::round_up(end, alignment_bytes) - end;
  for (const std::uint64_t begin : {n_behind, n_behind - padding}) {
    if (begin >= end || !is_header_at(begin)) continue;
    base::fail(
        ErrorCode::invalid_file,
        "{}: {} bytes lie behind the last tensor, and at byte {} another GGUF file begins: a download was "
        "begun anew behind the first {} bytes. Download it again, or keep what begins there: tail -c +{} "
        "OLD > NEW",
        shard.path, n_behind, begin, begin, begin + 1);
  }
  const bool is_glued = is_header_at(end) || is_header_at(end + padding);
  base::warn("{}: {} bytes behind the last tensor are not used{}", shard.path, n_behind,
             is_glued
                 ? ": another GGUF file begins there (were two files joined that do not belong together?)"
                 : "");
}

enum class Fit : std::uint8_t { yes, no, unknown };

/// Whether the tensors that now have type `from` would have the sizes of `to`: where the data of one ends,
/// padded, the next begins. The last one of the file ends with it, which says nothing where data is missing,
/// so that one is only asked when it is the only one.
Fit sizes_fit(const ModelFile& model, TensorType from, TensorType to) {
  const TypeTraits& traits = type_traits(to);
  bool any = false;
  const auto fit = [&](const TensorInfo& tensor, std::uint64_t next) {
    if (tensor.dims[0] % traits.block_elements != 0) return Fit::no;
    const std::uint64_t bytes = tensor.n_elements() / traits.block_elements * traits.block_bytes;
    const std::uint64_t end = tensor.offset_bytes + bytes;
    if (next == end || next == base::round_up(end, model.alignment_bytes)) return Fit::yes;
    return next < end ? Fit::unknown : Fit::no;
  };
  for (std::size_t i = 0; i + 1 < model.tensors.size(); ++i) {
    if (model.tensors[i].type != from) continue;
    if (fit(model.tensors[i], model.tensors[i + 1].offset_bytes) != Fit::yes) return Fit::no;
    any = true;
  }
  if (any || model.tensors.empty() || model.tensors.back().type != from) return Fit::yes;
  return fit(model.tensors.back(), model.shards.front().file_bytes);
}

/// Q2_0 has blocks of 64 elements; a fork wrote blocks of 128 under the same id, which only the sizes show.
/// When they fit neither, nothing tells what the bytes mean. Requires tensors in order of offset.
void choose_q2_0_blocks(ModelFile& model) {
  constexpr TensorType standard = TensorType::q2_0, fork = TensorType::q2_0_g128;
  const Fit fits_standard = sizes_fit(model, standard, standard);
  if (fits_standard == Fit::yes) return;
  const TypeTraits &usual = type_traits(standard), &other = type_traits(fork);
  if (sizes_fit(model, standard, fork) == Fit::yes) {
    for (TensorInfo& tensor : model.tensors) {
      if (tensor.type != standard) continue;
      tensor.type = fork;
      tensor.size_bytes = tensor.n_elements() / other.block_elements * other.block_bytes;
    }
    return;
  }
  if (fits_standard == Fit::unknown) return;  // Data is missing, which check_extents judges.
  const auto first = std::find_if(model.tensors.begin(), model.tensors.end(),
                                  [](const TensorInfo& tensor) { return tensor.type == standard; });
  base::fail(
      ErrorCode::invalid_file,
      "{}: the sizes of the {} tensors (the first is '{}') fit neither blocks of {} elements in {} bytes, "
      "which the format has, nor of {} in {}, which a fork wrote: the file is damaged",
      model.shards.front().path, usual.name, printable(first->name), usual.block_elements, usual.block_bytes,
      other.block_elements, other.block_bytes);
}

/// Requires tensors in order of offset.
void check_extents(ByteSource& source, const ModelFile& model, const ParseOptions& options) {
  const ShardInfo& shard = model.shards.front();
  const TensorInfo* first_incomplete = nullptr;
  std::uint64_t end = shard.data_offset_bytes;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : model.tensors) {
    if (tensor.offset_bytes < end) {
      base::fail(ErrorCode::invalid_file,
                 "{}: byte {}: tensor '{}' overlaps tensor '{}', which ends at byte {}: the file is damaged",
                 shard.path, tensor.offset_bytes, printable(tensor.name), printable(previous->name), end);
    }
    end = tensor.offset_bytes + tensor.size_bytes;
    if (first_incomplete == nullptr && end > shard.file_bytes) first_incomplete = &tensor;
    previous = &tensor;
  }
  if (first_incomplete == nullptr && !model.tensors.empty())
    check_tail(source, shard, end, model.alignment_bytes);
  if (first_incomplete == nullptr || options.allow_missing_data) return;
  base::fail(
      ErrorCode::invalid_file,
      "{}: the file ends at byte {}, but its tensors reach to byte {}: {} bytes are missing, and the first "
      "incomplete tensor is '{}' (bytes {} to {}). The download is incomplete: resume or repeat it",
      shard.path, shard.file_bytes, end, end - shard.file_bytes, printable(first_incomplete->name),
      first_incomplete->offset_bytes, first_incomplete->offset_bytes + first_incomplete->size_bytes);
}

}  // namespace

ModelFile parse_file(ByteSource& source, const ParseOptions& options) {
  Cursor cursor(source);
  if (source.size() < k_magic.size() || cursor.view(k_magic.size(), "the magic") != k_magic) {
    base::fail(ErrorCode::invalid_file, "{}: byte 0: not a GGUF file: {}", source.name(),
               describe_foreign_file(source));
  }
  ModelFile model;
  model.metadata.source_name = source.name();
  model.alignment_bytes = k_default_alignment_bytes;
  const Header header = read_header(cursor);
  model.version = header.version;
  read_metadata(cursor, header.n_entries, model);
  for (std::uint64_t tensor_idx = 0; tensor_idx < header.n_tensors; ++tensor_idx) {
    model.tensors.push_back(read_tensor(cursor, tensor_idx, model.alignment_bytes));
  }

  ShardInfo shard{source.name(), source.size(), base::round_up(cursor.position(), model.alignment_bytes)};
  // A file without tensors may end without the padding.
  if (model.tensors.empty()) shard.data_offset_bytes = std::min(shard.data_offset_bytes, shard.file_bytes);
  for (TensorInfo& tensor : model.tensors) tensor.offset_bytes += shard.data_offset_bytes;
  model.shards.push_back(std::move(shard));
  model.index_tensors();
  choose_q2_0_blocks(model);
  check_extents(source, model, options);
  read_split_keys(model);
  return model;
}

}  // namespace sluice::gguf
