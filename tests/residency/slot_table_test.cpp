// Goal: the table always says of every slot what a list of the operations says, chooses only what may leave
// and of that what the policy values least, and no lease is forgotten or ended too early.
#include "residency/slot_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace sluice::residency {
namespace {

constexpr std::uint32_t k_none = SlotTable::k_none;

/// What is known of a slot that holds a unit, kept in the simplest way.
struct Held {
  UnitId unit;
  SlotState state = SlotState::reading;
  ReadFor read_for = ReadFor::demand;
  std::uint32_t n_leases = 0;
};

/// A device whose work is over when the test says so.
class FakeDevice {
 public:
  base::Ticket next() { return ++last_; }
  void finish_up_to(base::Ticket ticket) { done_ = std::max(done_, ticket); }
  bool is_done(base::Ticket ticket) const { return ticket <= done_; }
  base::Ticket last() const { return last_; }

 private:
  base::Ticket last_ = 0, done_ = 0;
};

/// The table, and beside it a model of it.
class Game {
 public:
  explicit Game(std::uint32_t seed, CachePolicy policy)
      : random_(seed), table_(k_layers, k_n_transit, policy), n_used_{3, 5, 2} {
    for (std::uint32_t layer = 0; layer < k_layers.size(); ++layer) table_.grow(layer, n_used_[layer]);
    table_.use_transit();
  }

  void play() {
    ++now_;
    const UnitId unit{below(3), below(8)};
    switch (below(9)) {
      case 0:
      case 1:
        return miss(unit);
      case 2:
        return finish();
      case 3:
        table_.policy(unit.layer).touch(unit.expert, now_);
        return want(unit);
      case 4:
      case 5:
        return end_lease();
      case 6:
        device_.finish_up_to(below(static_cast<std::uint32_t>(device_.last() + 1)));
        return hear();
      case 7:
        return resize(unit.layer);
      default:
        return choose_guess(unit.layer);
    }
  }

  void check() const {
    std::size_t n_usable = k_n_transit, n_leased = 0;
    for (std::uint32_t layer = 0; layer < k_layers.size(); ++layer) {
      EXPECT_EQ(table_.n_slots(layer), n_used_[layer]);
      n_usable += n_used_[layer];
      for (std::uint32_t expert = 0; expert < k_layers[layer].n_experts; ++expert) {
        const std::uint32_t slot = table_.find({layer, expert});
        const bool is_held = std::any_of(held_.begin(), held_.end(), [&](const auto& entry) {
          return entry.second.unit == UnitId{layer, expert};
        });
        ASSERT_EQ(slot != k_none, is_held) << "layer " << layer << " expert " << expert;
      }
    }
    for (std::uint32_t slot = 0; slot < table_.size(); ++slot) {
      const auto found = held_.find(slot);
      if (found == held_.end()) {
        EXPECT_EQ(table_[slot].state, is_usable(slot) ? SlotState::free : SlotState::retired) << slot;
        EXPECT_EQ(table_[slot].n_leases, 0u);
        continue;
      }
      ASSERT_TRUE(is_usable(slot));
      ASSERT_EQ(table_.find(found->second.unit), slot);
      EXPECT_EQ(table_[slot].unit, found->second.unit);
      EXPECT_EQ(table_[slot].state, found->second.state);
      EXPECT_EQ(table_[slot].read_for, found->second.read_for);
      EXPECT_EQ(table_[slot].n_leases, found->second.n_leases);
      n_leased += found->second.n_leases != 0;
    }
    EXPECT_EQ(table_.n_usable(), n_usable);
    EXPECT_EQ(table_.n_leased(), n_leased);
    EXPECT_EQ(table_.n_wasted(), n_wasted_);
  }

 private:
  static constexpr std::array<SlotTable::LayerSize, 3> k_layers = {{{5, 8}, {8, 8}, {3, 8}}};
  static constexpr std::uint32_t k_n_transit = 3;

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  double score(UnitId unit) const { return table_.policy(unit.layer).score(unit.expert, now_); }
  bool is_usable(std::uint32_t slot) const {
    for (std::uint32_t layer = 0; layer < k_layers.size(); ++layer) {
      const std::uint32_t first = table_.first_slot(layer);
      if (slot >= first && slot < first + k_layers[layer].n_slots) return slot < first + n_used_[layer];
    }
    return true;
  }
  void drop(std::uint32_t slot) {
    const auto found = held_.find(slot);
    if (found == held_.end()) return;
    EXPECT_EQ(found->second.n_leases, 0u);
    EXPECT_NE(found->second.state, SlotState::reading);
    n_wasted_ += found->second.read_for == ReadFor::guess;
    held_.erase(found);
  }
  void drop_if_useless(std::uint32_t slot) {
    const Held& held = held_.at(slot);
    if (held.n_leases != 0 || held.state == SlotState::reading) return;
    if (slot >= table_.first_transit() || held.state == SlotState::failed) drop(slot);
  }
  /// What lowest() must return: any free slot of the layer, else the lowest score that may leave.
  void expect_lowest(std::uint32_t layer, std::span<const std::uint16_t> keep, std::uint32_t slot) const {
    bool has_free = false;
    double lowest = 1e300;
    const std::uint32_t first = table_.first_slot(layer);
    for (std::uint32_t i = first; i < first + n_used_[layer]; ++i) {
      const auto found = held_.find(i);
      has_free |= found == held_.end();
      if (found == held_.end() || found->second.n_leases != 0) continue;
      if (found->second.state != SlotState::ready) continue;
      if (std::find(keep.begin(), keep.end(), found->second.unit.expert) != keep.end()) continue;
      lowest = std::min(lowest, score(found->second.unit));
    }
    if (has_free) {
      ASSERT_NE(slot, k_none);
      EXPECT_EQ(table_[slot].state, SlotState::free);
    } else if (lowest == 1e300) {
      EXPECT_EQ(slot, k_none);
    } else {
      ASSERT_NE(slot, k_none);
      EXPECT_EQ(score(held_.at(slot).unit), lowest);
    }
  }

  void miss(UnitId unit) {
    if (table_.find(unit) != k_none) return;
    const auto admission = below(2) == 0 ? Admission::always : Admission::if_better;
    const std::uint32_t own = table_.lowest(unit.layer, {}, now_);
    expect_lowest(unit.layer, {}, own);
    const std::uint32_t slot = table_.choose(unit, admission, now_);
    const bool takes_own = own != k_none && (held_.count(own) == 0 || admission == Admission::always ||
                                             score(held_.at(own).unit) < score(unit));
    if (takes_own) {
      ASSERT_EQ(slot, own);
    } else if (slot != k_none) {
      ASSERT_GE(slot, table_.first_transit());
      EXPECT_EQ(held_.count(slot), 0u);
    } else {
      for (std::uint32_t i = 0; i < k_n_transit; ++i) EXPECT_EQ(held_.count(table_.first_transit() + i), 1u);
      return;
    }
    const auto read_for = static_cast<ReadFor>(below(3));
    drop(slot);
    held_[slot] = {unit, SlotState::reading, read_for, 0};
    table_.fill(slot, unit, read_for);
  }

  void finish() {
    for (auto& [slot, held] : held_) {
      if (held.state != SlotState::reading || below(2) == 0) continue;
      const bool ok = below(4) != 0;
      held.state = ok ? SlotState::ready : SlotState::failed;
      if (held.read_for == ReadFor::preload) held.read_for = ReadFor::demand;
      const std::uint32_t idx = slot;
      table_.finish(idx, ok);
      return drop_if_useless(idx);
    }
  }

  void want(UnitId unit) {
    const std::uint32_t slot = table_.find(unit);
    if (slot == k_none) return;
    Held& held = held_.at(slot);
    EXPECT_EQ(table_.want(slot), held.read_for);
    held.read_for = ReadFor::demand;
    ++held.n_leases;
    leases_.push_back(slot);
  }

  void end_lease() {
    if (leases_.empty()) return;
    const std::size_t which = below(static_cast<std::uint32_t>(leases_.size()));
    const std::uint32_t slot = leases_[which];
    leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(which));
    if (below(2) == 0) {
      const base::Ticket ticket = device_.next();
      awaited_.emplace(ticket, slot);
      return table_.release_after(slot, ticket);
    }
    table_.release_after(slot, 0);
    --held_.at(slot).n_leases;
    drop_if_useless(slot);
  }

  void hear() {
    EXPECT_EQ(table_.first_ticket(), awaited_.empty() ? 0 : awaited_.begin()->first);
    table_.end_leases([this](base::Ticket ticket) { return device_.is_done(ticket); });
    while (!awaited_.empty() && device_.is_done(awaited_.begin()->first)) {
      const std::uint32_t slot = awaited_.begin()->second;
      --held_.at(slot).n_leases;
      drop_if_useless(slot);
      awaited_.erase(awaited_.begin());
    }
  }

  void resize(std::uint32_t layer) {
    const std::uint32_t first = table_.first_slot(layer), n_used = n_used_[layer];
    if (below(2) == 0) {
      const std::uint32_t n = below(k_layers[layer].n_slots - n_used + 1);
      table_.grow(layer, n);
      n_used_[layer] += n;
      return;
    }
    std::uint32_t n_idle = 0;
    for (; n_idle < n_used; ++n_idle) {
      const auto found = held_.find(first + n_used - 1 - n_idle);
      if (found != held_.end() && (found->second.n_leases != 0 || found->second.state != SlotState::ready))
        break;
    }
    ASSERT_EQ(table_.n_idle(layer), n_idle);
    const std::uint32_t n = below(n_idle + 1), end = first + n_used - n;
    // What may stay is the best of all that is idle.
    std::multiset<double, std::greater<>> scores;
    std::uint32_t n_places = 0;
    for (std::uint32_t slot = first; slot < first + n_used; ++slot) {
      const auto found = held_.find(slot);
      const bool is_idle =
          found == held_.end() || (found->second.n_leases == 0 && found->second.state == SlotState::ready);
      if (is_idle && slot < end) ++n_places;
      if (is_idle && found != held_.end()) scores.insert(score(found->second.unit));
    }
    table_.shrink(layer, n, now_, [this](std::uint32_t from, std::uint32_t to) {
      drop(to);
      held_[to] = held_.at(from);
      held_.erase(from);
    });
    for (std::uint32_t slot = end; slot < first + n_used; ++slot) drop(slot);
    n_used_[layer] -= n;
    for (std::uint32_t slot = first; slot < end; ++slot) {
      const auto found = held_.find(slot);
      if (found == held_.end() || found->second.n_leases != 0 || found->second.state != SlotState::ready)
        continue;
      const double kept = score(found->second.unit);
      ASSERT_TRUE(scores.count(kept) != 0);
      // Units that nobody used score lowest of all and are not worth a copy.
      const auto n_better = static_cast<std::uint32_t>(std::distance(scores.begin(), scores.find(kept)));
      EXPECT_LT(n_better, n_places) << "a unit left that scores higher";
    }
  }

  void choose_guess(std::uint32_t layer) {
    const std::array<std::uint16_t, 2> keep = {static_cast<std::uint16_t>(below(8)),
                                               static_cast<std::uint16_t>(below(8))};
    expect_lowest(layer, keep, table_.lowest(layer, keep, now_));
  }

  std::mt19937 random_;
  SlotTable table_;
  std::array<std::uint32_t, 3> n_used_;
  std::uint64_t now_ = 0, n_wasted_ = 0;
  std::map<std::uint32_t, Held> held_;
  std::vector<std::uint32_t> leases_;
  std::map<base::Ticket, std::uint32_t> awaited_;
  FakeDevice device_;
};

TEST(SlotTable, AgreesWithASimpleModelOverRandomOperations) {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Game game(seed, seed % 2 == 0 ? CachePolicy::lfru : CachePolicy::lru);
    for (int i = 0; i < 600; ++i) {
      game.play();
      game.check();
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(SlotTable, ALeaseEndsWhenItsTicketIsDoneAndNotBefore) {
  const std::array<SlotTable::LayerSize, 1> layers = {{{1, 2}}};
  SlotTable table(layers, 0, CachePolicy::lfru);
  table.grow(0, 1);
  table.fill(0, {0, 0}, ReadFor::demand);
  table.want(0);
  table.finish(0, true);
  FakeDevice device;
  const auto is_done = [&](base::Ticket ticket) { return device.is_done(ticket); };
  const base::Ticket first = device.next();
  table.release_after(0, first);
  // The same unit is wanted again meanwhile, for work that ends earlier than it is heard of.
  table.want(0);
  table.release_after(0, device.next());
  table.end_leases(is_done);
  EXPECT_EQ(table.choose({0, 1}, Admission::always, 1), k_none);
  EXPECT_EQ(table.n_idle(0), 0u);
  device.finish_up_to(first);
  table.end_leases(is_done);
  EXPECT_EQ(table.choose({0, 1}, Admission::always, 1), k_none) << "the second lease is not over";
  device.finish_up_to(first + 1);
  EXPECT_EQ(table.choose({0, 1}, Admission::always, 1), k_none) << "nobody has told the table";
  table.end_leases(is_done);
  EXPECT_EQ(table.choose({0, 1}, Admission::always, 1), 0u);
  EXPECT_EQ(table.first_ticket(), 0u);
}

TEST(SlotTable, TransitSlotsComeAndGo) {
  const std::array<SlotTable::LayerSize, 1> layers = {{{1, 3}}};
  SlotTable table(layers, 1, CachePolicy::lfru);
  table.grow(0, 1);
  EXPECT_EQ(table.choose({0, 0}, Admission::always, 1), 0u);
  table.fill(0, {0, 0}, ReadFor::demand);
  EXPECT_EQ(table.choose({0, 1}, Admission::always, 1), k_none) << "the transit slot has no memory yet";
  table.use_transit();
  EXPECT_EQ(table.choose({0, 1}, Admission::always, 1), 1u);
  EXPECT_EQ(table.n_usable(), 2u);
  table.retire_transit();
  EXPECT_EQ(table.choose({0, 1}, Admission::always, 1), k_none);
  EXPECT_EQ(table.n_usable(), 1u);
}

}  // namespace
}  // namespace sluice::residency
