#include "engine/model/heat.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fnv.hpp"
#include "engine/model/prepare.hpp"
#include "residency/roles.hpp"

namespace sluice::engine {
namespace {

std::string file_name(const HeatKey& key) {
  constexpr std::size_t k_max_name = 64;
  std::string name;
  for (const char c : std::string_view(key.model).substr(0, k_max_name)) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
    name += is_plain && !(c == '.' && name.empty()) ? c : '-';
  }
  return fmt::format("{}-{:016x}.json", name, key.fingerprint);
}

}  // namespace

std::uint64_t model_fingerprint(const gguf::ModelFile& file, TensorBytes bytes_of) {
  constexpr std::uint64_t k_router_bytes = 4096;
  base::Fnv1a hash;
  std::vector<const gguf::TensorInfo*> tensors;
  for (const gguf::TensorInfo& tensor : file.tensors) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const gguf::TensorInfo* tensor : tensors) {
    hash.add(tensor->name.data(), tensor->name.size());
    hash.add(static_cast<std::uint64_t>(tensor->type));
    for (const std::uint64_t dim : tensor->dims) hash.add(dim);
    if (residency::classify_tensor(tensor->name) != Role::router) continue;
    const std::size_t bytes = std::min(tensor->size_bytes, k_router_bytes);
    if (const std::byte* data = bytes_of(*tensor, tensor->size_bytes - bytes, bytes)) hash.add(data, bytes);
  }
  return hash.value();
}

std::optional<HeatForecast> forecast(const residency::HeatCounts& counts, const residency::UnitMap& units,
                                     const residency::Placement& placement) {
  if (units.layers.empty() || placement.plan.n_cached_units == placement.plan.n_units) return std::nullopt;
  const auto hit_rate =
      residency::hit_rate_from_heat(counts, units.layers.front().n_experts, placement.slots_per_layer);
  if (!hit_rate) return std::nullopt;
  return HeatForecast{counts.n_tokens, *hit_rate};
}

Heat::Heat(const std::filesystem::path& where, const gguf::ModelFile& file, const residency::UnitMap& units,
           TensorBytes bytes_of) {
  if (where.empty() || units.layers.empty()) return;
  key_.model = model_name(file);
  key_.fingerprint = model_fingerprint(file, bytes_of);
  key_.n_layers = static_cast<std::uint32_t>(units.layers.size());
  key_.n_experts = units.layers.front().n_experts;
  path_ = where.has_filename() ? where : where / file_name(key_);
}

std::optional<residency::HeatCounts> Heat::load() const {
  if (path_.empty()) return std::nullopt;
  return load_heat(path_, key_);
}

void Heat::warm(residency::UnitCache& cache, const residency::HeatCounts& counts) const {
  std::vector<residency::UnitCache::Unit> units;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> places;  ///< Rank in its layer, index in `units`.
  std::vector<std::uint32_t> order(key_.n_experts);
  for (std::uint32_t layer = 0; layer < key_.n_layers; ++layer) {
    const double* uses = counts.uses.data() + std::size_t{layer} * key_.n_experts;
    for (std::uint32_t expert = 0; expert < key_.n_experts; ++expert)
      cache.seed(layer, expert, std::min(1.0, uses[expert] / counts.n_tokens));
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [uses](auto a, auto b) { return uses[a] > uses[b]; });
    const std::uint32_t n = std::min(cache.n_layer_slots(layer), key_.n_experts);
    for (std::uint32_t rank = 0; rank < n && uses[order[rank]] > 0; ++rank) {
      places.emplace_back(rank, static_cast<std::uint32_t>(units.size()));
      units.push_back({layer, order[rank]});
    }
  }
  std::stable_sort(places.begin(), places.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<residency::UnitCache::Unit> by_rank;
  by_rank.reserve(units.size());
  for (const auto& [rank, idx] : places) by_rank.push_back(units[idx]);
  cache.queue_preload(std::move(by_rank));
}

void Heat::save(const residency::UnitCache& cache, std::uint64_t n_tokens) {
  if (path_.empty() || n_tokens == saved_tokens_) return;
  std::vector<std::uint32_t> uses;
  for (std::uint32_t layer = 0; layer < key_.n_layers; ++layer) {
    for (std::uint32_t expert = 0; expert < key_.n_experts; ++expert)
      uses.push_back(cache.n_uses(layer, expert));
  }
  saved_uses_.resize(uses.size());
  HeatCounts fresh;
  fresh.n_tokens = static_cast<double>(n_tokens - saved_tokens_);
  for (std::size_t i = 0; i < uses.size(); ++i) fresh.uses.push_back(uses[i] - saved_uses_[i]);
  if (!add_heat(path_, key_, fresh)) return;
  saved_uses_ = std::move(uses);
  saved_tokens_ = n_tokens;
}

}  // namespace sluice::engine
