#include "residency/cache_policy.hpp"

#include <cmath>

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
}

double LayerPolicy::score(std::uint32_t expert, std::uint64_t now) const noexcept {
  const Use& use = uses_[expert];
  if (!use.used) return -1.0;
  const double age = static_cast<double>(now - use.last_use);
  if (kind_ == CachePolicy::lru) return 1.0 / (1.0 + age);
  return use.frequency * std::exp2(-age / k_half_life_tokens) / (1.0 + age);
}

}  // namespace sluice::residency
