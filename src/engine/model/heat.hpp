#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/function_ref.hpp"
#include "engine/model/heat_file.hpp"
#include "gguf/reader.hpp"
#include "residency/hit_estimate.hpp"
#include "residency/plan.hpp"
#include "residency/unit_cache.hpp"
#include "residency/unit_map.hpp"
#include "sluice/predict.hpp"

namespace sluice::engine {

/// So many bytes of a tensor from an offset inside it, valid until the next call; null where they are not at
/// hand.
using TensorBytes = base::FunctionRef<const std::byte*(const gguf::TensorInfo& tensor, std::uint64_t offset,
                                                       std::size_t bytes)>;

/// Hash of what decides which experts a model uses: its tensors' names, types and shapes, and the ends of its
/// routers, because synthetic files of one shape differ only in the last part of a router's rows. The same
/// wherever the file lies and however it is split.
std::uint64_t model_fingerprint(const gguf::ModelFile& file, TensorBytes bytes_of);

/// Nothing when the counts are of too few tokens, or all experts stay in memory.
std::optional<HeatForecast> forecast(const residency::HeatCounts& counts, const residency::UnitMap& units,
                                     const residency::Placement& placement);

/// The memory of which experts are hot, from one run to the next.
class Heat {
 public:
  Heat() = default;  ///< None.
  /// `where` as OpenOptions::heat. Asks for the bytes of routers, and passes on what that throws.
  Heat(const std::filesystem::path& where, const gguf::ModelFile& file, const residency::UnitMap& units,
       TensorBytes bytes_of);

  /// What the file says now; nothing where there is none, or, with one warning, where it is of no use.
  std::optional<residency::HeatCounts> load() const;
  /// Tells the cache what an earlier run used most: as a prior of its policy, and to read into free slots
  /// when nothing else is to be read, the hottest of every layer first.
  void warm(residency::UnitCache& cache, const residency::HeatCounts& counts) const;
  /// Adds to the file what the cache has counted in `n_tokens` tokens, but for what was saved already.
  void save(const residency::UnitCache& cache, std::uint64_t n_tokens);

 private:
  std::filesystem::path path_;  ///< Empty: none.
  HeatKey key_;
  std::vector<std::uint32_t> saved_uses_;  ///< [n_layers, n_experts]; empty when nothing was saved.
  std::uint64_t saved_tokens_ = 0;
};

}  // namespace sluice::engine
