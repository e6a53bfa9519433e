#include "support/edited_model.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>

#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::test {

EditedModel::EditedModel(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = read_bytes(path);
  gguf::ModelFile file = parse_bytes(bytes);
  for (const gguf::TensorInfo& tensor : file.tensors) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(tensor.offset_bytes);
    tensors.push_back({tensor.name,
                       tensor.type,
                       {tensor.dims.begin(), tensor.dims.begin() + tensor.n_dims},
                       {begin, begin + static_cast<std::ptrdiff_t>(tensor.size_bytes)}});
  }
  metadata = std::move(file.metadata);
}

EditedModel::Tensor& EditedModel::tensor(const std::string& name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& each) { return each.name == name; });
  if (found == tensors.end()) throw std::out_of_range(name);
  return *found;
}

std::vector<std::byte> EditedModel::file() const {
  gguf::Writer writer;
  for (const gguf::Metadata::Entry& entry : metadata.entries()) writer.metadata().add(entry.key, entry.value);
  std::vector<std::vector<std::byte>> data;
  for (const Tensor& each : tensors) {
    writer.add_tensor(each.name, each.type, each.dims);
    data.push_back(each.bytes);
  }
  return writer.write_all(data);
}

void EditedModel::write(const std::filesystem::path& path) const {
  const std::vector<std::byte> bytes = file();
  write_bytes(path, bytes.data(), bytes.size());
}

void EditedModel::write_shuffled(const std::filesystem::path& path, std::uint64_t seed) const {
  const std::vector<std::byte> ordered = file();
  const gguf::ModelFile parsed = parse_bytes(ordered);
  std::vector<const gguf::TensorInfo*> order;
  for (const gguf::TensorInfo& each : parsed.tensors) order.push_back(&each);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  const std::uint64_t data_begin = parsed.shards.front().data_offset_bytes;
  std::vector<std::byte> bytes(ordered.begin(), ordered.begin() + static_cast<std::ptrdiff_t>(data_begin));
  for (const gguf::TensorInfo* each : order) {
    // The table's entry: length and text of the name, number of dimensions, dimensions, type, offset.
    std::vector<std::byte> name(8 + each->name.size());
    const std::uint64_t n_bytes = each->name.size();
    std::memcpy(name.data(), &n_bytes, 8);
    std::memcpy(name.data() + 8, each->name.data(), each->name.size());
    const auto header_end = bytes.begin() + static_cast<std::ptrdiff_t>(data_begin);
    const auto at = std::search(bytes.begin(), header_end, name.begin(), name.end());
    if (at == header_end) throw std::out_of_range(each->name);
    const std::uint64_t offset = bytes.size() - data_begin;
    std::memcpy(&*at + name.size() + 4 + 8 * each->n_dims + 4, &offset, 8);
    const auto begin = ordered.begin() + static_cast<std::ptrdiff_t>(each->offset_bytes);
    bytes.insert(bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(each->size_bytes));
    bytes.resize((bytes.size() + 31) / 32 * 32);
  }
  write_bytes(path, bytes.data(), bytes.size());
}

}  // namespace sluice::test
