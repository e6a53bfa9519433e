#pragma once

#include <cstdint>
#include <filesystem>

#include "gguf/reader.hpp"
#include "residency/heat_file.hpp"
#include "residency/unit_cache.hpp"
#include "residency/unit_map.hpp"
#include "residency/weight_store.hpp"

namespace sluice::engine {

/// Hash of what decides which experts a model uses: its tensors' names, types and shapes, and the first rows
/// of its routers. The same wherever the file lies and however it is split.
std::uint64_t model_fingerprint(const gguf::ModelFile& file, const residency::WeightStore& store);

/// The memory of which experts are hot, from one run to the next.
class Heat {
 public:
  Heat() = default;  ///< None.
  /// `where` as OpenOptions::heat. Reads nothing yet.
  Heat(const std::filesystem::path& where, const std::string& model, const gguf::ModelFile& file,
       const residency::UnitMap& units, const residency::WeightStore& store);

  /// Tells the cache what an earlier run used most: as a prior of its policy, and to read into free slots
  /// when nothing else is to be read, the hottest of every layer first.
  void warm(residency::UnitCache& cache) const;
  /// Adds the uses the cache has counted in `n_tokens` tokens to the file.
  void save(const residency::UnitCache& cache, std::uint64_t n_tokens) const;

 private:
  std::filesystem::path path_;  ///< Empty: none.
  residency::HeatKey key_;
};

}  // namespace sluice::engine
