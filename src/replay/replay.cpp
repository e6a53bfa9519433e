#include "sluice/replay.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "replay/caches.hpp"

namespace sluice {
namespace {

using replay::Fetch;
using residency::Admission;

struct Pass {
  std::uint32_t first_token = 0, n_tokens = 0;
  bool is_prompt = false;
};

std::vector<Pass> split_passes(const RoutingTrace& trace) {
  std::vector<Pass> passes;
  for (std::uint32_t token = 0; token < trace.n_tokens(); ++token) {
    const bool is_prompt = trace.is_prompt[token];
    if (is_prompt && !passes.empty() && passes.back().is_prompt &&
        passes.back().n_tokens < trace.prompt_chunk) {
      ++passes.back().n_tokens;
    } else {
      passes.push_back({token, 1, is_prompt});
    }
  }
  return passes;
}

/// Gives the fetches of a trace one after the other, each want with its next use.
class Fetches {
 public:
  explicit Fetches(const RoutingTrace& trace)
      : trace_(trace), passes_(split_passes(trace)), n_rows_(trace.n_experts, 0) {}

  std::span<const Pass> passes() const noexcept { return passes_; }

  /// The wants of a layer in a pass, in the engine's order: a decoded token's by rank, a prompt's by id.
  void collect(const Pass& pass, std::uint32_t layer, std::vector<Fetch::Want>& wants) {
    wants.clear();
    for (std::uint32_t token = pass.first_token; token < pass.first_token + pass.n_tokens; ++token) {
      const std::uint16_t* ids =
          trace_.experts.data() + (std::size_t{token} * trace_.n_layers + layer) * trace_.n_used;
      for (std::uint32_t i = 0; i < trace_.n_used && ids[i] != RoutingTrace::k_not_recorded; ++i) {
        if (n_rows_[ids[i]]++ == 0) wants.push_back({ids[i], 0, Fetch::k_never});
      }
    }
    for (Fetch::Want& want : wants) want.n_rows = std::exchange(n_rows_[want.expert], 0);
    if (pass.n_tokens > 1) {
      std::sort(wants.begin(), wants.end(),
                [](const Fetch::Want& a, const Fetch::Want& b) { return a.expert < b.expert; });
    }
  }

 private:
  const RoutingTrace& trace_;
  std::vector<Pass> passes_;
  std::vector<std::uint32_t> n_rows_;
};

/// For every want of every fetch in order, the position (pass * layers + layer) of its next use.
std::vector<std::uint64_t> next_uses(const RoutingTrace& trace, Fetches& fetches) {
  std::vector<std::uint64_t> uses;
  std::vector<std::size_t> last_place(std::size_t{trace.n_layers} * trace.n_experts, ~std::size_t{0});
  std::vector<Fetch::Want> wants;
  std::uint64_t position = 0;
  for (const Pass& pass : fetches.passes()) {
    for (std::uint32_t layer = 0; layer < trace.n_layers; ++layer, ++position) {
      fetches.collect(pass, layer, wants);
      for (const Fetch::Want& want : wants) {
        std::size_t& last = last_place[std::size_t{layer} * trace.n_experts + want.expert];
        if (last != ~std::size_t{0}) uses[last] = position;
        last = uses.size();
        uses.push_back(Fetch::k_never);
      }
    }
  }
  return uses;
}

}  // namespace

const char* replay_policy_name(ReplayPolicy policy) noexcept {
  switch (policy) {
    case ReplayPolicy::lfru:
      return "lfru";
    case ReplayPolicy::lru:
      return "lru";
    case ReplayPolicy::global_lru:
      return "global-lru";
    case ReplayPolicy::cycle:
      return "cycle";
    case ReplayPolicy::belady:
      return "belady";
    case ReplayPolicy::global_belady:
      return "global-belady";
  }
  return "unknown";
}

std::uint32_t default_warm_up(const RoutingTrace& trace) noexcept {
  const auto prompt_end = std::find(trace.is_prompt.begin(), trace.is_prompt.end(), false);
  return std::max(static_cast<std::uint32_t>(prompt_end - trace.is_prompt.begin()),
                  (trace.n_tokens() + 2) / 3);
}

std::uint64_t slots_for_share(const RoutingTrace& trace, double share) {
  if (!(share >= 0 && share <= 1))
    base::fail(ErrorCode::invalid_argument, "a share of {} of the experts; expected 0 to 1", share);
  return static_cast<std::uint64_t>(
      std::llround(share * static_cast<double>(trace.n_layers) * static_cast<double>(trace.n_experts)));
}

ReplayCell replay_trace(const RoutingTrace& trace, ReplayPolicy policy, std::uint64_t n_slots,
                        std::uint32_t n_warm_up) {
  const auto n_units = std::uint64_t{trace.n_layers} * trace.n_experts;
  const auto cache = replay::make_cache(policy, trace.n_layers, trace.n_experts, std::min(n_slots, n_units));
  Fetches fetches(trace);
  std::vector<std::uint64_t> uses;
  if (policy == ReplayPolicy::belady || policy == ReplayPolicy::global_belady)
    uses = next_uses(trace, fetches);
  ReplayCell cell;
  std::vector<Fetch::Want> wants;
  const auto hit_storage = std::make_unique<bool[]>(trace.n_experts);
  std::size_t use = 0;
  for (const Pass& pass : fetches.passes()) {
    const bool is_counted = !pass.is_prompt && pass.first_token >= n_warm_up;
    for (std::uint32_t layer = 0; layer < trace.n_layers; ++layer) {
      fetches.collect(pass, layer, wants);
      for (std::size_t i = 0; i < wants.size() && !uses.empty(); ++i) wants[i].next_use = uses[use++];
      const std::span<bool> hit(hit_storage.get(), wants.size());
      cache->run({layer, wants, pass.n_tokens == 1 ? Admission::always : Admission::if_better,
                  std::uint64_t{pass.first_token} + pass.n_tokens},
                 hit);
      if (!is_counted) continue;
      const auto n_hits = static_cast<std::uint64_t>(std::count(hit.begin(), hit.end(), true));
      cell.n_hits += n_hits;
      cell.n_wanted += wants.size();
      if (!trace.expert_bytes.empty())
        cell.missed_bytes += (wants.size() - n_hits) * trace.expert_bytes[layer];
    }
  }
  if (cell.n_wanted == 0) {
    base::fail(ErrorCode::invalid_argument,
               "{}: no decoded token is left after a warm-up of {} of {} tokens; give a smaller --warmup",
               trace.path, n_warm_up, trace.n_tokens());
  }
  return cell;
}

}  // namespace sluice
