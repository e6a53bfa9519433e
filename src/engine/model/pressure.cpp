#include "engine/model/pressure.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/units.hpp"

namespace sluice::engine {
namespace {

/// Pages for so much take some 50 ms, for which a pass waits; a cancel is seen behind each.
constexpr std::uint64_t k_growth_bytes = 128 * base::k_mib;
/// Looks between two times that memory is taken back, at least.
constexpr std::uint64_t k_patience = 8;

}  // namespace

Pressure::Pressure(ReadLimits read_limits, std::uint64_t interval_ns)
    : read_limits_(std::move(read_limits)),
      interval_ns_(interval_ns),
      random_(base::now_ns() ^ static_cast<std::uint64_t>(getpid()) << 32) {}

std::optional<residency::PressureFacts> Pressure::facts() const {
  auto known = memory_facts(read_limits_());
  if (!known) return std::nullopt;
  residency::PressureFacts& facts = *known;
  if (cache_ != nullptr) {
    facts.slot_bytes = cache_->own_slot_bytes();
    facts.planned_slot_bytes = cache_->planned_own_slot_bytes();
  }
  if (tiers_ != nullptr) {
    facts.block_bytes = tiers_->bytes();
    facts.planned_block_bytes = tiers_->planned_bytes();
    facts.next_block_bytes = tiers_->next_bytes();
  }
  return known;
}

std::optional<Pressure::Change> Pressure::look() {
  const std::uint64_t now = base::now_ns();
  if (now - looked_ns_ < interval_ns_) return std::nullopt;
  looked_ns_ = now;
  auto facts = this->facts();
  if (!facts) return std::nullopt;
  facts->fallen_bytes = seen_free_bytes_ - std::min(seen_free_bytes_, facts->free_bytes);
  facts->max_growth_bytes = k_growth_bytes;
  seen_free_bytes_ = facts->free_bytes;
  return Change{*facts, residency::governed_bytes(*facts)};
}

void Pressure::govern(std::uint32_t next_tensor) {
  if (tiers_ != nullptr) tiers_->settle(next_tensor);
  const auto change = look();
  if (!change) return;
  const residency::PressureFacts& facts = change->facts;
  const residency::GovernedBytes& wanted = change->wanted;
  const bool grows = wanted.slot_bytes > facts.slot_bytes || wanted.block_bytes > facts.block_bytes;
  if (grows && looked_ns_ < grows_from_ns_) return;
  if (wanted.slot_bytes == facts.slot_bytes && wanted.block_bytes == facts.block_bytes) return;
  // Giving way cannot wait, coming back can: each change of size waits for the reads under way. The waits
  // differ, so that two processes do not see the same room again and again.
  const std::uint64_t patience_ns = k_patience * interval_ns_;
  grows_from_ns_ = looked_ns_ + patience_ns + (patience_ns == 0 ? 0 : random_.below(patience_ns));
  if (wanted.slot_bytes != facts.slot_bytes) cache_->resize(wanted.slot_bytes);
  if (wanted.block_bytes != facts.block_bytes) tiers_->resize(wanted.block_bytes, next_tensor);
  remember(*change);
}

void Pressure::remember(const Change& change) noexcept {
  const auto given = [](std::uint64_t from, std::uint64_t to) { return from - std::min(from, to); };
  // What this model took itself must not look like a neighbour's greed.
  const bool grew = change.wanted.slot_bytes > change.facts.slot_bytes ||
                    change.wanted.block_bytes > change.facts.block_bytes;
  seen_free_bytes_ = grew ? 0
                          : change.facts.free_bytes +
                                given(change.facts.slot_bytes, change.wanted.slot_bytes) +
                                given(change.facts.block_bytes, change.wanted.block_bytes);
}

void Pressure::relieve() {
  auto change = look();
  if (!change) return;
  const residency::PressureFacts& facts = change->facts;
  residency::GovernedBytes& wanted = change->wanted;
  wanted.slot_bytes = std::min(wanted.slot_bytes, facts.slot_bytes);
  wanted.block_bytes = std::min(wanted.block_bytes, facts.block_bytes);
  if (wanted.slot_bytes < facts.slot_bytes) cache_->resize(wanted.slot_bytes);
  if (wanted.block_bytes < facts.block_bytes) tiers_->resize_between_passes(wanted.block_bytes);
  remember(*change);
}

}  // namespace sluice::engine
