#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gguf/metadata.hpp"
#include "gguf/types.hpp"

namespace sluice::test {

/// A model file taken apart, to be changed and written again: files as other programs write them.
struct EditedModel {
  struct Tensor {
    std::string name;
    gguf::TensorType type = gguf::TensorType::f32;
    std::vector<std::uint64_t> dims;
    std::vector<std::byte> bytes;
  };
  gguf::Metadata metadata;
  std::vector<Tensor> tensors;

  explicit EditedModel(const std::filesystem::path& path);
  Tensor& tensor(const std::string& name);
  void write(const std::filesystem::path& path) const;
  /// The data of the tensors lies in another order than their table names them.
  void write_shuffled(const std::filesystem::path& path, std::uint64_t seed) const;

 private:
  std::vector<std::byte> file() const;
};

}  // namespace sluice::test
