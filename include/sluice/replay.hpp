#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice {

/// Which experts each token used in each layer, as recorded from a run.
struct RoutingTrace {
  static constexpr std::uint16_t k_not_recorded = 0xffff;

  std::string path;
  std::string format;        ///< "sluice-trace 1", "JSON lines", "route_trace v1".
  std::string model;         ///< As the trace says; may be empty.
  std::string architecture;  ///< Likewise.
  std::uint32_t n_layers = 0;
  std::uint32_t n_experts = 0;     ///< Per layer. In a trace that does not say, the largest id and one.
  std::uint32_t n_used = 0;        ///< Per token and layer.
  std::uint32_t prompt_chunk = 0;  ///< Prompt tokens that were computed in one pass.
  std::vector<std::uint64_t> expert_bytes;  ///< Per layer, of one expert; empty when the trace does not say.
  std::vector<bool> is_prompt;              ///< Per token.
  /// [tokens, n_layers, n_used]; all of a layer are k_not_recorded when its router was not recorded.
  std::vector<std::uint16_t> experts;

  std::uint32_t n_tokens() const noexcept { return static_cast<std::uint32_t>(is_prompt.size()); }
};

/// Reads a trace in one of three formats: what TraceWriter writes; JSON lines of {"tok": n, "layers":
/// [[ids], ...]} without a header, all of which count as decode; "# route_trace v1" CSV. `n_experts`
/// overrides the number of experts that a trace without a header shows. Throws Error(io), or
/// Error(invalid_file) naming path and line: bad JSON, layers or experts in another number than in the first
/// line, ids out of range or twice in a layer, more than the limits of the reader (2^27 ids, 4096 layers,
/// 1024 experts used, lines of 4 MiB), no token at all.
RoutingTrace read_trace(const std::filesystem::path& path, std::uint32_t n_experts = 0);

/// Cache policies a trace can be replayed against. `lfru` and `lru` are what the engine does, decided by the
/// same code; the others show what they leave on the table.
enum class ReplayPolicy {
  lfru,        ///< Per layer, frequency over age: the engine's default.
  lru,         ///< Per layer, least recently used.
  global_lru,  ///< One pool for all layers, least recently used.
  /// One pool for all layers; leaves what is expected to be used last: layers until its own comes round
  /// again, plus one round per 1/score by LFRU. A miss displaces only what is expected later than itself.
  cycle,
  belady,  ///< Per layer, with knowledge of the future: keeps what is used soonest. No policy does better.
  global_belady,  ///< The same for one pool of all layers.
};
inline constexpr std::array k_replay_policies = {ReplayPolicy::lru,    ReplayPolicy::lfru,
                                                 ReplayPolicy::cycle,  ReplayPolicy::global_lru,
                                                 ReplayPolicy::belady, ReplayPolicy::global_belady};
const char* replay_policy_name(ReplayPolicy policy) noexcept;  ///< "lfru", "global-lru", ...

struct ReplayCell {
  std::uint64_t n_hits = 0, n_wanted = 0;
  std::uint64_t missed_bytes = 0;  ///< 0 when the trace has no sizes.
  double hit_rate() const noexcept {
    return n_wanted == 0 ? 0.0 : static_cast<double>(n_hits) / static_cast<double>(n_wanted);
  }
};

/// What is counted of a trace when nothing else is asked for: tokens after the prompt at its start and after
/// the first third of all tokens.
std::uint32_t default_warm_up(const RoutingTrace& trace) noexcept;

/// Slots of all layers together for a share of all experts, from 0 to 1, rounded to the nearest.
std::uint64_t slots_for_share(const RoutingTrace& trace, double share);

/// Replays the trace against one policy with `n_slots` slots, spread evenly over the layers (what is left
/// goes to the first) where the policy works per layer. Prompt tokens are taken in passes of prompt_chunk
/// tokens that want each expert once, and admit only what scores higher than what it displaces; decoded
/// tokens one by one. Counts the uses of decoded tokens from number `n_warm_up` on. A pass holds all its
/// experts at once, so what it uses is never displaced by its own misses. Caches start empty. Throws
/// Error(invalid_argument) when nothing is left to count.
ReplayCell replay_trace(const RoutingTrace& trace, ReplayPolicy policy, std::uint64_t n_slots,
                        std::uint32_t n_warm_up);

}  // namespace sluice
