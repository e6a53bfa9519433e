#include "engine/model/model_impl.hpp"

#include <algorithm>

namespace sluice {
namespace {

/// Adds what one queue read since `before`, its drives at an earlier moment, to the drives of all queues.
void add_drives(std::vector<storage::DriveStatistics>& all,
                const std::vector<storage::DriveStatistics>& drives,
                const std::vector<storage::DriveStatistics>& before = {}) {
  for (std::size_t i = 0; i < drives.size(); ++i) {
    storage::DriveStatistics counted = drives[i];
    if (i < before.size()) {
      counted.read_bytes -= before[i].read_bytes;
      counted.busy_ns -= before[i].busy_ns;
    }
    const auto same = std::find_if(all.begin(), all.end(), [&](const storage::DriveStatistics& other) {
      return other.is_copy == counted.is_copy && other.file->device() == counted.file->device();
    });
    if (same == all.end()) {
      all.push_back(counted);
      continue;
    }
    same->read_bytes += counted.read_bytes;
    same->busy_ns += counted.busy_ns;
    same->n_failed += counted.n_failed;
  }
}

}  // namespace

void Model::Impl::add_cache_stats(Stats& stats) const {
  const residency::CacheStatistics& counters = cache->statistics();
  stats.slot_bytes = cache->slot_bytes();
  stats.n_slots = cache->n_slots();
  stats.n_hits = counters.n_hits;
  stats.n_misses = counters.n_misses;
  stats.n_joins = counters.n_joins;
  stats.n_ahead = counters.n_ahead;
  stats.n_ahead_used = counters.n_ahead_used;
  stats.n_ahead_wasted = counters.n_ahead_wasted;
  stats.stall_ns += counters.stall_ns;
  stats.n_shrinks = counters.n_shrinks;
  stats.n_grows = counters.n_grows;
  stats.n_preloaded = counters.n_preloaded;
  for (std::size_t i = 0; i < prepared->units.layers.size(); ++i) {
    const residency::LayerStatistics& layer = cache->layer_statistics()[i];
    stats.layers.push_back({prepared->units.layers[i].layer_idx, placement.slots_per_layer[i], layer.n_hits,
                            layer.n_joins, layer.n_misses, layer.n_ahead_used});
  }
}

void Model::Impl::add_io_stats(Stats& stats) const {
  const storage::IoStatistics& io = store->queue().statistics();
  stats.io_backend = io_description;
  stats.streamed_read_bytes = io.read_bytes - io_before.read_bytes;
  stats.load_read_bytes = load_read_bytes;
  stats.n_reads = io.n_reads;
  stats.n_read_retries = io.n_retries;
  stats.io_busy_ns = io.busy_ns - io_before.busy_ns;
  std::vector<storage::DriveStatistics> drives;
  add_drives(drives, store->queue().drives(), drives_before);
  const auto add_queue = [&](const storage::IoStatistics& other,
                             const std::vector<storage::DriveStatistics>& other_drives) {
    stats.streamed_read_bytes += other.read_bytes;
    stats.n_reads += other.n_reads;
    stats.n_read_retries += other.n_retries;
    stats.io_busy_ns += other.busy_ns;
    add_drives(drives, other_drives);
  };
  if (blocks != nullptr) {
    blocks->wait_for_reads();
    add_queue(blocks->io_statistics(), blocks->drive_statistics());
    stats.ring_bytes = blocks->is_streaming() ? blocks->ring_bytes() : 0;
    stats.stall_ns += blocks->statistics().stall_ns;
    stats.n_blocks_released = tiers->statistics().n_released;
    stats.n_blocks_returned = tiers->statistics().n_returned;
  }
  if (embeddings != nullptr) add_queue(embeddings->io_statistics(), embeddings->drive_statistics());
  for (const storage::DriveStatistics& drive : drives)
    stats.drives.push_back({drive.file->path(), drive.read_bytes, drive.busy_ns, drive.n_failed});
  if (const auto now = platform::read_storage_bytes(); now && kernel_bytes_before) {
    stats.kernel_read_known = true;
    stats.kernel_read_bytes = *now - *kernel_bytes_before;
  }
}

Stats Model::Impl::stats() const {
  Stats stats;
  const platform::ProcessMemory memory = platform::read_process_memory();
  stats.budget_bytes = plan.budget_bytes;
  stats.rss_bytes = memory.rss_bytes;
  stats.peak_rss_bytes = memory.peak_rss_bytes;
  stats.swapped_bytes = memory.swapped_bytes;
  stats.pinned_bytes = store->pinned_bytes();
  stats.kv_bytes = kv->bytes();
  stats.state_bytes = states->bytes();
  stats.scratch_bytes = model::Forward::scratch_bytes(*prepared->graph, *ops, plan.prefill_chunk);
  stats.active_weight_bytes_per_token = forward->weight_bytes_per_token();
  stats.weight_bytes = forward->weight_bytes();
  stats.n_units = plan.n_units;
  if (cache != nullptr) add_cache_stats(stats);
  add_io_stats(stats);
  stats.open_ns = open_ns;
  stats.n_prefill_tokens = n_prefill_tokens;
  stats.prefill_ns = prefill_ns;
  stats.n_decode_tokens = n_decode_tokens + speculation.n_accepted();
  stats.decode_ns = decode_ns + speculation.draft_ns;
  stats.n_decode_passes = n_decode_passes;
  stats.n_speculative_passes = speculation.n_passes;
  stats.lookup = speculation.lookup;
  stats.draft = speculation.draft;
  stats.draft_ns = speculation.draft_ns;
  stats.n_threads = pool->n_threads();
  stats.isa = options.gpu >= 0 ? ops->name() : platform::isa_name(isa);
  return stats;
}

}  // namespace sluice
