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
/// So much more often it looks while memory is nearly gone or others take it fast.
constexpr std::uint64_t k_alarm_divisor = 8;

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

std::uint64_t Pressure::pause_ns() const noexcept {
  return is_alarmed_ ? interval_ns_ / k_alarm_divisor : interval_ns_;
}

std::optional<Pressure::Change> Pressure::look() {
  const std::uint64_t now = base::now_ns();
  if (now - looked_ns_ < pause_ns()) return std::nullopt;
  looked_ns_ = now;
  auto facts = this->facts();
  if (!facts) return std::nullopt;
  // What is no longer free, and not because this process has it.
  const std::uint64_t held_bytes = platform::read_process_memory().rss_bytes;
  const std::uint64_t before = seen_free_bytes_ + seen_held_bytes_, after = facts->free_bytes + held_bytes;
  facts->taken_bytes = before - std::min(before, after);
  facts->max_growth_bytes = k_growth_bytes;
  // The first look cannot tell how fast others take memory, so the next must come soon.
  const bool is_first = seen_held_bytes_ == 0;
  seen_free_bytes_ = facts->free_bytes;
  seen_held_bytes_ = held_bytes;
  const std::uint64_t mark = residency::low_water_mark(*facts);
  is_alarmed_ = is_first || facts->free_bytes < mark || facts->taken_bytes > mark / 4;
  return Change{*facts, residency::governed_bytes(*facts)};
}

void Pressure::govern(std::uint32_t next_tensor) {
  if (tiers_ != nullptr) tiers_->end_returns(next_tensor);
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
}

void Pressure::give_way() {
  if (cache_ == nullptr) return;
  const auto change = look();
  if (!change || change->wanted.slot_bytes >= change->facts.slot_bytes) return;
  cache_->give_back(change->facts.slot_bytes - change->wanted.slot_bytes);
}

}  // namespace sluice::engine
