#include "residency/cache_policy.hpp"

#include <cmath>
#include <utility>

#include "base/check.hpp"

namespace sluice::residency {

LayerPolicy::LayerPolicy(CachePolicy kind, std::uint32_t n_experts) : kind_(kind), uses_(n_experts) {}

void LayerPolicy::touch(std::uint32_t expert, std::uint64_t now, std::uint32_t n_uses) noexcept {
  SLUICE_CHECK(expert < uses_.size());
  Use& use = uses_[expert];
  const double decay =
      use.used ? std::exp2(-static_cast<double>(now - use.last_use) / k_half_life_tokens) : 0.0;
  use.frequency = static_cast<float>(use.frequency * decay + n_uses);
  use.last_use = now;
  use.used = true;
  use.n_uses += n_uses;
}

void LayerPolicy::seed(std::uint32_t expert, double share_of_tokens) noexcept {
  SLUICE_CHECK(expert < uses_.size());
  Use& use = uses_[expert];
  if (use.used || share_of_tokens <= 0) return;
  // What the moving count of a unit used with this probability at every token tends to.
  const double decay = std::exp2(-1.0 / k_half_life_tokens);
  use.frequency = static_cast<float>(share_of_tokens / (1.0 - decay));
  use.used = true;
}

void LayerPolicy::order_by_score(std::span<std::uint32_t> experts, std::uint64_t now) const noexcept {
  for (std::size_t i = 1; i < experts.size(); ++i) {
    for (std::size_t j = i; j > 0 && score(experts[j - 1], now) < score(experts[j], now); --j)
      std::swap(experts[j - 1], experts[j]);
  }
}

double LayerPolicy::score(std::uint32_t expert, std::uint64_t now) const noexcept {
  const Use& use = uses_[expert];
  if (!use.used) return -1.0;
  const double age = static_cast<double>(now - use.last_use);
  if (kind_ == CachePolicy::lru) return 1.0 / (1.0 + age);
  return use.frequency * std::exp2(-age / k_half_life_tokens) / (1.0 + age);
}

}  // namespace sluice::residency
