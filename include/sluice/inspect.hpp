#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sluice/options.hpp"
#include "sluice/plan.hpp"

namespace sluice {

struct TensorFact {
  std::string name;
  std::string type;                 ///< "Q4_K".
  std::vector<std::uint64_t> dims;  ///< Contiguous dimension first.
  std::uint64_t bytes = 0;
  std::uint32_t shard = 0;
  std::uint64_t offset = 0;  ///< In its shard's file.
  Role role = Role::other;
};

struct MetadataFact {
  std::string key;
  std::string type;   ///< "u32", "string", "array of string [151936]".
  std::string value;  ///< Text for people, long values cut.
};

/// What a file holds, read from its header only.
struct Inspection {
  std::string path;
  std::uint32_t gguf_version = 0;
  std::string architecture;
  std::string name;
  std::uint64_t file_bytes = 0;
  std::uint64_t n_parameters = 0;
  std::vector<std::string> shards;
  std::vector<MetadataFact> metadata;
  std::vector<TensorFact> tensors;
  std::map<std::string, std::uint64_t> bytes_by_role;
  bool runnable = false;   ///< This version can run the model.
  std::string why_not;     ///< When it cannot.
  Plan plan;               ///< Placement for the options; empty when not runnable.
  std::string plan_error;  ///< Why no plan fits the budget.
};

/// Reads the header; loads no weights. Throws Error(io | invalid_file).
Inspection inspect(const std::filesystem::path& path, const OpenOptions& options = {});

}  // namespace sluice
