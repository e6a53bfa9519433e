#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sluice::residency {

/// Which model use counts belong to.
struct HeatKey {
  std::string model;              ///< A name for people.
  std::uint64_t fingerprint = 0;  ///< Of what decides the routing.
  std::uint32_t n_layers = 0;     ///< That have experts.
  std::uint32_t n_experts = 0;    ///< Per layer.
};

/// How often each expert was used. Older tokens weigh less.
struct HeatCounts {
  double n_tokens = 0;
  std::vector<double> uses;  ///< [n_layers, n_experts], each at most about n_tokens.
};

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

/// Writes a heat file beside itself ("PATH.tmp") and renames it, so that PATH is always a whole file whatever
/// ends the process; a ".tmp" that an earlier process left is taken over. Makes the folder. Leaves alone what
/// is no heat file. Does nothing while another process writes the same file. A failure is one warning.
void save_heat(const std::filesystem::path& path, const HeatKey& key, const HeatCounts& counts);

}  // namespace sluice::residency
