#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// What one layer's experts were, as in Stats.
struct LayerStats {
  std::uint32_t layer_idx = 0;
  std::uint32_t n_slots = 0;  ///< Of its own, as planned.
  std::uint64_t n_hits = 0, n_joins = 0, n_misses = 0, n_ahead_used = 0;
  std::uint64_t n_wanted() const noexcept { return n_hits + n_joins + n_misses + n_ahead_used; }
};

/// Guesses of one source, as in Stats.
struct GuessStats {
  std::uint64_t n_guessed = 0;   ///< Verified by the model.
  std::uint64_t n_accepted = 0;  ///< Were right and stayed in the text.
};

/// What was read from one of the drives that hold the model; the second copy counts apart.
struct DriveStats {
  std::string file;                       ///< The first of the model's files there.
  std::uint64_t streamed_read_bytes = 0;  ///< As in Stats.
  std::uint64_t busy_ns = 0;              ///< Time with a unit read of this drive in flight.
  std::uint64_t n_failed_reads = 0;       ///< Which were done from the second copy instead.
  /// The best rate of random reads that an earlier profile found, and when (seconds since 1970); 0: not
  /// known. See add_profiled_rates() in sluice/profile.hpp.
  double profiled_bytes_per_second = 0;
  std::int64_t profiled_at = 0;
  double read_rate() const noexcept {
    return busy_ns == 0 ? 0.0 : static_cast<double>(streamed_read_bytes) * 1e9 / static_cast<double>(busy_ns);
  }
};

/// Counters of one open model since it was opened. Bytes, nanoseconds, tokens.
struct Stats {
  // Memory, as the kernel counts it and as planned.
  std::uint64_t budget_bytes = 0;
  std::uint64_t rss_bytes = 0;
  std::uint64_t peak_rss_bytes = 0;
  std::uint64_t swapped_bytes =
      0;                           ///< Of the process, on the swap drive now; weights there come back slowly.
  std::uint64_t pinned_bytes = 0;  ///< Now; less than planned while others need the memory.
  std::uint64_t kv_bytes = 0;
  std::uint64_t state_bytes = 0;  ///< Of recurrent layers.
  std::uint64_t scratch_bytes = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t ring_bytes = 0;  ///< Of always-used weights that are streamed.
  /// Pinned attention and feed-forward parts of layers that gave their memory to others and were streamed
  /// from then on, and those that took it again.
  std::uint64_t n_blocks_released = 0, n_blocks_returned = 0;
  // Weights that computing reads from memory, as they lie in the file, without the KV cache.
  /// What one decoded token needs: every weight of the graph once, of the embedding one row, of each layer's
  /// experts those that are used.
  std::uint64_t active_weight_bytes_per_token = 0;
  /// What all passes needed so far: per pass the always-used weights once, one embedding row per token, each
  /// expert that any row used once, and the output matrix when logits were wanted.
  std::uint64_t weight_bytes = 0;
  // Units: one expert of one layer.
  std::uint64_t n_units = 0;
  std::uint64_t n_slots = 0;                 ///< Now; fewer than planned while others need the memory.
  std::uint64_t n_shrinks = 0, n_grows = 0;  ///< Times that slots gave memory back, and took it again.
  std::uint64_t n_hits = 0;
  std::uint64_t n_misses = 0;
  std::uint64_t n_joins = 0;  ///< Wanted while already being read.
  /// Look-ahead: units it began to read before they were wanted, those of them that were wanted next (neither
  /// hits, joins nor misses), and those that left unused.
  std::uint64_t n_ahead = 0, n_ahead_used = 0, n_ahead_wasted = 0;
  std::uint64_t n_wanted() const noexcept { return n_hits + n_joins + n_misses + n_ahead_used; }
  std::uint64_t n_preloaded = 0;  ///< Read before anything wanted them, because an earlier run used them.
  double hit_rate() const noexcept {
    return n_wanted() == 0 ? 1.0 : static_cast<double>(n_hits) / static_cast<double>(n_wanted());
  }
  std::vector<LayerStats> layers;  ///< Those that have experts.
  // The drive.
  std::string io_backend;  ///< "io_uring, O_DIRECT" and the like, with the reason for a fallback.
  std::uint64_t streamed_read_bytes =
      0;  ///< Read for passes: units, streamed blocks, embeddings (aligned windows).
  std::uint64_t load_read_bytes = 0;  ///< Read once to open the model: header and pinned weights.
  std::uint64_t read_bytes() const noexcept { return streamed_read_bytes + load_read_bytes; }
  bool kernel_read_known = false;
  std::uint64_t kernel_read_bytes =
      0;  ///< What the kernel fetched from storage for this process since just before opening.
  std::uint64_t n_reads = 0;
  std::uint64_t n_read_retries = 0;
  /// Time with such a read in flight; counted for experts and for streamed blocks on their own.
  std::uint64_t io_busy_ns = 0;
  std::uint64_t stall_ns = 0;          ///< Time the computation waited for a unit.
  std::vector<DriveStats> drives;      ///< Those that were read from while or after loading.
  double read_rate() const noexcept {  ///< Bytes per second while busy.
    return io_busy_ns == 0 ? 0.0
                           : static_cast<double>(streamed_read_bytes) * 1e9 / static_cast<double>(io_busy_ns);
  }
  // Work. A pass of one token of each sequence, and guesses of what follows, is decode; anything larger is
  // prefill. Of guesses only those that stayed in the text are decoded tokens. The time of the draft is
  // included.
  std::uint64_t open_ns = 0;
  std::uint64_t n_prefill_tokens = 0, prefill_ns = 0;
  std::uint64_t n_decode_tokens = 0, decode_ns = 0;
  std::uint64_t n_decode_passes = 0;
  double tokens_per_pass() const noexcept {
    return n_decode_passes == 0 ? 0.0
                                : static_cast<double>(n_decode_tokens) / static_cast<double>(n_decode_passes);
  }
  // Speculation: passes that verified guesses, and the time that a draft took for them.
  std::uint64_t n_speculative_passes = 0;
  GuessStats lookup, draft;
  std::uint64_t draft_ns = 0;
  double prefill_rate() const noexcept {
    return prefill_ns == 0 ? 0.0
                           : static_cast<double>(n_prefill_tokens) * 1e9 / static_cast<double>(prefill_ns);
  }
  double decode_rate() const noexcept {
    return decode_ns == 0 ? 0.0 : static_cast<double>(n_decode_tokens) * 1e9 / static_cast<double>(decode_ns);
  }
  int n_threads = 0;
  std::string isa;
};

}  // namespace sluice
