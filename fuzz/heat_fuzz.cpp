// Feeds arbitrary bytes to the reader of heat files. What it accepts must have the model's shape, and must be
// read back from what is written of it.
#include <cmath>

#include "engine/model/heat_file.hpp"
#include "input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  using fuzz::require;
  const engine::HeatKey key{"a model", 0x123456789abcdef0u, 2, 3};
  const engine::ParsedHeat parsed =
      engine::parse_heat(std::string(reinterpret_cast<const char*>(data), size), key);
  if (!parsed.counts) {
    require(!parsed.why_not.empty(), "a file is refused without a reason");
    return 0;
  }
  require(parsed.counts->n_tokens > 0 && parsed.counts->uses.size() == 6, "counts of another shape");
  for (const double uses : parsed.counts->uses) require(std::isfinite(uses) && uses >= 0, "a count is none");
  const engine::ParsedHeat again = engine::parse_heat(format_heat(key, *parsed.counts), key);
  require(again.counts && again.counts->uses == parsed.counts->uses &&
              again.counts->n_tokens == parsed.counts->n_tokens,
          "counts change when they are written and read");
  const residency::HeatCounts merged = engine::merge_heat(*parsed.counts, *again.counts);
  for (const double uses : merged.uses) require(std::isfinite(uses), "merging gives no number");
  return 0;
}
