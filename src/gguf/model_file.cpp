#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/error.hpp"
#include "gguf/reader.hpp"
#include "gguf/text.hpp"

namespace sluice::gguf {

void ModelFile::index_tensors() {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.shard_idx, a.offset_bytes, a.name) < std::tie(b.shard_idx, b.offset_bytes, b.name);
  });
  by_name_.resize(tensors.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [this](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  const auto twin = std::adjacent_find(
      by_name_.begin(), by_name_.end(),
      [this](std::uint32_t a, std::uint32_t b) { return tensors[a].name == tensors[b].name; });
  if (twin == by_name_.end()) return;
  const TensorInfo& first = tensors[std::min(twin[0], twin[1])];
  const TensorInfo& second = tensors[std::max(twin[0], twin[1])];
  const auto path_of = [this](const TensorInfo& tensor) {
    return tensor.shard_idx < shards.size() ? shards[tensor.shard_idx].path : std::string("model");
  };
  base::fail(ErrorCode::invalid_file,
             "{}: byte {}: tensor '{}' appears a second time (first in {} at byte {}): the file is damaged",
             path_of(second), second.offset_bytes, printable(second.name), path_of(first),
             first.offset_bytes);
}

const TensorInfo* ModelFile::find_tensor(std::string_view name) const noexcept {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [this](std::uint32_t index, std::string_view wanted) {
                                     return std::string_view(tensors[index].name) < wanted;
                                   });
  if (it == by_name_.end() || tensors[*it].name != name) return nullptr;
  return &tensors[*it];
}

std::uint64_t ModelFile::tensor_bytes() const noexcept {
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : tensors) total += tensor.size_bytes;
  return total;
}

}  // namespace sluice::gguf
