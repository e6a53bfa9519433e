#include "replay/caches.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace sluice::replay {
namespace {

using residency::LayerPolicy;
using Want = Fetch::Want;

/// One layer as the engine's UnitCache keeps it: units of the running fetch are leased, all others compete by
/// the layer's policy.
class LayerSlots {
 public:
  LayerSlots(CachePolicy kind, std::uint32_t n_experts, std::uint64_t n_slots)
      : policy_(kind, n_experts),
        n_slots_(n_slots),
        is_cached_(n_experts, false),
        is_leased_(n_experts, false) {}

  void run(const Fetch& fetch, std::span<bool> hit) {
    const auto admission = residency::pass_admission(fetch.admission, fetch.wants.size(), n_slots_);
    for (std::size_t i = 0; i < fetch.wants.size(); ++i) {
      const Want& want = fetch.wants[i];
      policy_.touch(want.expert, fetch.now, want.n_rows);
      hit[i] = is_cached_[want.expert];
      is_leased_[want.expert] = hit[i];
    }
    misses_.clear();
    for (std::size_t i = 0; i < fetch.wants.size(); ++i) {
      if (!hit[i]) misses_.push_back(fetch.wants[i].expert);
    }
    if (admission != fetch.admission) policy_.order_by_score(misses_, fetch.now);
    for (const std::uint32_t expert : misses_) admit(expert, admission, fetch.now);
    for (const Want& want : fetch.wants) is_leased_[want.expert] = false;
  }

 private:
  void admit(std::uint32_t expert, residency::Admission admission, std::uint64_t now) {
    if (slots_.size() < n_slots_) {
      slots_.push_back(expert);
    } else {
      std::uint32_t* victim = nullptr;
      double victim_score = 0;
      for (std::uint32_t& slot : slots_) {
        if (is_leased_[slot]) continue;
        const double score = policy_.score(slot, now);
        if (victim != nullptr && score >= victim_score) continue;
        victim = &slot;
        victim_score = score;
      }
      if (victim == nullptr || !residency::may_displace(admission, victim_score, policy_.score(expert, now)))
        return;
      is_cached_[*victim] = false;
      *victim = expert;
    }
    is_cached_[expert] = is_leased_[expert] = true;
  }

  LayerPolicy policy_;
  std::uint64_t n_slots_;
  std::vector<std::uint32_t> slots_, misses_;
  std::vector<bool> is_cached_, is_leased_;
};

/// Keeps of what it is offered the units that are used soonest. Offering what was just used and keeping none
/// of it is allowed: a miss can be computed from a slot that it only passes through.
class SoonestUsed {
 public:
  SoonestUsed(std::uint64_t n_slots, std::size_t n_units) : n_slots_(n_slots), next_use_(n_units, k_absent) {}

  bool has(std::size_t unit) const { return next_use_[unit] != k_absent; }

  void offer(std::size_t unit, std::uint64_t next_use) {
    if (next_use == Fetch::k_never) {
      remove(unit);
      return;
    }
    n_cached_ += !has(unit);
    next_use_[unit] = next_use;
    heap_.emplace_back(next_use, unit);
    std::push_heap(heap_.begin(), heap_.end());
  }

  void shrink() {
    while (n_cached_ > n_slots_) {
      const auto [use, unit] = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      if (next_use_[unit] == use) remove(unit);
    }
    // Entries of uses that have gone by are never popped.
    if (heap_.size() <= 4 * n_cached_ + 1024) return;
    std::erase_if(heap_, [this](const auto& entry) { return next_use_[entry.second] != entry.first; });
    std::make_heap(heap_.begin(), heap_.end());
  }

 private:
  static constexpr std::uint64_t k_absent = Fetch::k_never;

  void remove(std::size_t unit) {
    n_cached_ -= has(unit);
    next_use_[unit] = k_absent;
  }

  std::uint64_t n_slots_, n_cached_ = 0;
  std::vector<std::uint64_t> next_use_;
  std::vector<std::pair<std::uint64_t, std::size_t>> heap_;  ///< Latest use first.
};

std::uint64_t slots_of_layer(std::uint32_t layer, std::uint32_t n_layers, std::uint64_t n_slots) {
  return n_slots / n_layers + (layer < n_slots % n_layers ? 1 : 0);
}

class PerLayer : public Cache {
 public:
  PerLayer(CachePolicy kind, std::uint32_t n_layers, std::uint32_t n_experts, std::uint64_t n_slots) {
    for (std::uint32_t layer = 0; layer < n_layers; ++layer)
      layers_.emplace_back(kind, n_experts, slots_of_layer(layer, n_layers, n_slots));
  }
  void run(const Fetch& fetch, std::span<bool> hit) override { layers_[fetch.layer].run(fetch, hit); }

 private:
  std::vector<LayerSlots> layers_;
};

/// Belady's rule, per layer or for one pool.
class Belady : public Cache {
 public:
  Belady(bool per_layer, std::uint32_t n_layers, std::uint32_t n_experts, std::uint64_t n_slots)
      : n_experts_(n_experts), per_layer_(per_layer) {
    if (!per_layer) pools_.emplace_back(n_slots, std::size_t{n_layers} * n_experts);
    for (std::uint32_t layer = 0; per_layer && layer < n_layers; ++layer)
      pools_.emplace_back(slots_of_layer(layer, n_layers, n_slots), n_experts);
  }
  void run(const Fetch& fetch, std::span<bool> hit) override {
    SoonestUsed& pool = pools_[per_layer_ ? fetch.layer : 0];
    const std::size_t base = per_layer_ ? 0 : std::size_t{fetch.layer} * n_experts_;
    for (std::size_t i = 0; i < fetch.wants.size(); ++i) {
      hit[i] = pool.has(base + fetch.wants[i].expert);
      pool.offer(base + fetch.wants[i].expert, fetch.wants[i].next_use);
    }
    pool.shrink();
  }

 private:
  std::uint32_t n_experts_;
  bool per_layer_;
  std::vector<SoonestUsed> pools_;
};

/// One list of all units in the order of their last use.
class GlobalLru : public Cache {
 public:
  GlobalLru(std::uint32_t n_layers, std::uint32_t n_experts, std::uint64_t n_slots)
      : n_experts_(n_experts),
        n_slots_(n_slots),
        end_(std::size_t{n_layers} * n_experts),
        links_(end_ + 1, Link{k_absent, k_absent}) {
    links_[end_] = {end_, end_};
  }
  void run(const Fetch& fetch, std::span<bool> hit) override {
    const auto unit_of = [&](const Want& want) {
      return std::size_t{fetch.layer} * n_experts_ + want.expert;
    };
    for (std::size_t i = 0; i < fetch.wants.size(); ++i)
      hit[i] = links_[unit_of(fetch.wants[i])].next != k_absent;
    for (const Want& want : fetch.wants) {
      const std::size_t unit = unit_of(want);
      if (links_[unit].next != k_absent) unlink(unit);
      append(unit);
    }
    while (n_cached_ > n_slots_) unlink(links_[end_].next);
  }

 private:
  struct Link {
    std::size_t previous, next;
  };
  static constexpr std::size_t k_absent = ~std::size_t{0};

  void unlink(std::size_t unit) {
    links_[links_[unit].previous].next = links_[unit].next;
    links_[links_[unit].next].previous = links_[unit].previous;
    links_[unit] = {k_absent, k_absent};
    --n_cached_;
  }
  void append(std::size_t unit) {
    const std::size_t last = links_[end_].previous;
    links_[unit] = {last, end_};
    links_[last].next = unit;
    links_[end_].previous = unit;
    ++n_cached_;
  }

  std::uint32_t n_experts_;
  std::uint64_t n_slots_, n_cached_ = 0;
  std::size_t end_;          ///< Closes the ring: its next is the oldest unit.
  std::vector<Link> links_;  ///< Per unit.
};

/// One pool that evicts what is expected to be used last. In units of layers: until the unit's layer comes,
/// then one round of all layers per token that is expected to pass; 1/score is that number.
class CyclePool : public Cache {
 public:
  CyclePool(std::uint32_t n_layers, std::uint32_t n_experts, std::uint64_t n_slots) : n_slots_(n_slots) {
    for (std::uint32_t layer = 0; layer < n_layers; ++layer)
      layers_.push_back({LayerPolicy(CachePolicy::lfru, n_experts), {}, {}});
    is_cached_.assign(n_layers, std::vector<bool>(n_experts, false));
    is_leased_.assign(n_experts, false);
  }

  void run(const Fetch& fetch, std::span<bool> hit) override {
    Layer& layer = layers_[fetch.layer];
    std::vector<bool>& is_cached = is_cached_[fetch.layer];
    for (std::size_t i = 0; i < fetch.wants.size(); ++i) {
      const Want& want = fetch.wants[i];
      layer.policy.touch(want.expert, fetch.now, want.n_rows);
      hit[i] = is_cached[want.expert];
      is_leased_[want.expert] = hit[i];
    }
    layer.worst.now = 0;
    for (std::size_t i = 0; i < fetch.wants.size(); ++i) {
      if (!hit[i]) admit(fetch.layer, fetch.wants[i].expert, fetch.now);
    }
    for (const Want& want : fetch.wants) is_leased_[want.expert] = false;
    layer.worst.now = 0;
  }

 private:
  /// The unit of a layer that scores lowest, as found at time `now`; 0 is before all times.
  struct Worst {
    std::uint64_t now = 0;
    std::size_t place = 0;  ///< In `cached`; its size when all are leased.
    double score = 0;
  };
  struct Layer {
    LayerPolicy policy;
    std::vector<std::uint32_t> cached;
    Worst worst;
  };

  double layers_until(std::uint32_t layer, std::uint32_t current, double score) const {
    const auto n = static_cast<std::uint32_t>(layers_.size());
    const std::uint32_t distance = layer > current ? layer - current : n - current + layer;
    return distance + n / std::max(score, 1e-12);
  }

  const Worst& find_worst(std::uint32_t layer_idx, bool is_current, std::uint64_t now) {
    Layer& layer = layers_[layer_idx];
    if (layer.worst.now == now) return layer.worst;
    layer.worst = {now, layer.cached.size(), 0};
    for (std::size_t i = 0; i < layer.cached.size(); ++i) {
      if (is_current && is_leased_[layer.cached[i]]) continue;
      const double score = layer.policy.score(layer.cached[i], now);
      if (layer.worst.place == layer.cached.size() || score < layer.worst.score) {
        layer.worst.place = i;
        layer.worst.score = score;
      }
    }
    return layer.worst;
  }

  void admit(std::uint32_t current, std::uint32_t expert, std::uint64_t now) {
    if (n_cached_ == n_slots_) {
      std::uint32_t victim_layer = 0;
      double latest = -1;
      for (std::uint32_t layer = 0; layer < layers_.size(); ++layer) {
        const Worst& worst = find_worst(layer, layer == current, now);
        if (worst.place == layers_[layer].cached.size()) continue;
        const double until = layers_until(layer, current, worst.score);
        if (until <= latest) continue;
        latest = until;
        victim_layer = layer;
      }
      if (latest <= layers_until(current, current, layers_[current].policy.score(expert, now))) return;
      Layer& layer = layers_[victim_layer];
      is_cached_[victim_layer][layer.cached[layer.worst.place]] = false;
      layer.cached[layer.worst.place] = layer.cached.back();
      layer.cached.pop_back();
      layer.worst.now = 0;
      --n_cached_;
    }
    layers_[current].cached.push_back(expert);
    layers_[current].worst.now = 0;
    is_cached_[current][expert] = is_leased_[expert] = true;
    ++n_cached_;
  }

  std::uint64_t n_slots_, n_cached_ = 0;
  std::vector<Layer> layers_;
  std::vector<std::vector<bool>> is_cached_;
  std::vector<bool> is_leased_;  ///< Experts of the current layer.
};

}  // namespace

std::unique_ptr<Cache> make_cache(ReplayPolicy policy, std::uint32_t n_layers, std::uint32_t n_experts,
                                  std::uint64_t n_slots) {
  switch (policy) {
    case ReplayPolicy::lfru:
      return std::make_unique<PerLayer>(CachePolicy::lfru, n_layers, n_experts, n_slots);
    case ReplayPolicy::lru:
      return std::make_unique<PerLayer>(CachePolicy::lru, n_layers, n_experts, n_slots);
    case ReplayPolicy::global_lru:
      return std::make_unique<GlobalLru>(n_layers, n_experts, n_slots);
    case ReplayPolicy::cycle:
      return std::make_unique<CyclePool>(n_layers, n_experts, n_slots);
    case ReplayPolicy::belady:
      return std::make_unique<Belady>(true, n_layers, n_experts, n_slots);
    case ReplayPolicy::global_belady:
      return std::make_unique<Belady>(false, n_layers, n_experts, n_slots);
  }
  SLUICE_CHECK(false);
  return nullptr;
}

}  // namespace sluice::replay
