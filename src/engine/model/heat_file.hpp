#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "residency/hit_estimate.hpp"

namespace sluice::engine {

/// Which model use counts belong to.
struct HeatKey {
  std::string model;              ///< A name for people.
  std::uint64_t fingerprint = 0;  ///< Of what decides the routing.
  std::uint32_t n_layers = 0;     ///< That have experts.
  std::uint32_t n_experts = 0;    ///< Per layer.
};

using residency::HeatCounts;

constexpr double k_heat_half_life_tokens = 8192.0;
constexpr std::uint64_t k_max_heat_bytes = 8u << 20;  ///< Files larger than this are no heat files.

/// `old` aged by the tokens of `run`, plus `run`. Both must have the same number of uses.
HeatCounts merge_heat(const HeatCounts& old, const HeatCounts& run);

/// Text of a heat file: one JSON object.
std::string format_heat(const HeatKey& key, const HeatCounts& counts);
/// What parse_heat() makes of a text: counts, or why there are none.
struct ParsedHeat {
  std::optional<HeatCounts> counts;
  std::string why_not;
};
ParsedHeat parse_heat(const std::string& text, const HeatKey& key);

/// Reads a heat file. Nothing when there is none, or, with one warning, when it cannot be read, is damaged,
/// too large or belongs to another model.
std::optional<HeatCounts> load_heat(const std::filesystem::path& path, const HeatKey& key);

/// Adds the counts of a run to a heat file: what is there now, not what was there at the start, because
/// another run may have ended meanwhile. The sum is written beside the file ("PATH.tmp") and renamed, so that
/// PATH is always a whole file whatever ends the process; a ".tmp" that a killed process left is taken over.
/// Makes the folder. Leaves alone what is no heat file. Waits up to a second for another process that does
/// the same. A failure is one warning; false then.
bool add_heat(const std::filesystem::path& path, const HeatKey& key, const HeatCounts& run);

}  // namespace sluice::engine
