#include "engine/model/model_impl.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "residency/governor.hpp"

namespace sluice {
namespace engine {
namespace {

constexpr std::size_t k_queue_depth = 64;
constexpr int k_pread_threads = 4;

/// The storage backend the options ask for; describes what was chosen and why in *description.
std::unique_ptr<storage::Backend> make_backend(IoBackend kind, std::string* description) {
  if (kind != IoBackend::pread) {
    std::string reason;
    if (auto backend = storage::make_uring_backend(k_queue_depth, &reason)) {
      *description = backend->name();
      return backend;
    }
    if (kind == IoBackend::uring) {
      base::fail(ErrorCode::unsupported,
                 "io_uring was asked for but cannot be used: {}; use --io auto or --io pread", reason);
    }
    *description = fmt::format("pread (io_uring: {})", reason);
  } else {
    *description = "pread";
  }
  return storage::make_pread_backend(k_queue_depth, k_pread_threads);
}

std::string describe_direct(const std::vector<std::unique_ptr<storage::File>>& shards) {
  for (const auto& shard : shards) {
    if (!shard->is_direct()) return fmt::format("buffered ({})", shard->why_not_direct());
  }
  return "O_DIRECT";
}

ModelInfo make_info(const Prepared& prepared) {
  const gguf::ModelFile& file = prepared.file;
  ModelInfo info;
  info.path = file.shards.front().path;
  info.name = model_name(file);
  info.architecture = prepared.params.architecture;
  info.chat_template = prepared.chat_template;
  info.n_layers = prepared.params.n_layers;
  info.n_embd = prepared.params.n_embd;
  info.n_experts = prepared.params.n_experts;
  info.n_experts_used = prepared.params.n_experts_used;
  info.n_ctx_train = prepared.params.n_ctx_train;
  info.n_vocab = prepared.params.n_vocab;
  for (const residency::LayerUnits& layer : prepared.units.layers)
    info.expert_bytes.push_back(layer.weight_bytes);
  for (const gguf::ShardInfo& shard : file.shards) info.file_bytes += shard.file_bytes;
  std::vector<std::uint64_t> bytes_of_type(64, 0);
  for (const gguf::TensorInfo& tensor : file.tensors) {
    info.n_parameters += tensor.n_elements();
    bytes_of_type[static_cast<std::size_t>(tensor.type) % 64] += tensor.size_bytes;
  }
  const auto most = std::max_element(bytes_of_type.begin(), bytes_of_type.end()) - bytes_of_type.begin();
  if (const auto traits = gguf::find_type_traits(static_cast<std::uint32_t>(most)))
    info.quantization = traits->name;
  return info;
}

/// A neighbour that takes 300 MB/s takes 8 MB between two looks, and a look costs a tenth of a millisecond.
constexpr std::uint64_t k_govern_interval_ns = 25'000'000;

void check_options(const OpenOptions& options) {
  constexpr std::uint32_t k_max_sequences = 4096, k_max_chunk_rows = 16'384;
  if (options.max_sequences == 0 || options.max_sequences > k_max_sequences) {
    base::fail(ErrorCode::invalid_argument, "{} sequences were asked for; expected 1 to {}",
               options.max_sequences, k_max_sequences);
  }
  if (options.prefill_chunk > k_max_chunk_rows) {
    base::fail(ErrorCode::invalid_argument, "a prefill chunk of {} was asked for; expected at most {}",
               options.prefill_chunk, k_max_chunk_rows);
  }
}

}  // namespace

std::unique_ptr<Model::Impl> open_impl(const std::filesystem::path& path, const OpenOptions& options,
                                       const Hooks& hooks) {
  const std::uint64_t start = base::now_ns();
  check_options(options);
  const std::optional<std::uint64_t> kernel_bytes_before = platform::read_storage_bytes();
  std::uint64_t header_bytes = 0;
  std::unique_ptr<Prepared> prepared = prepare(parse_header(path, &header_bytes), options, false);
  auto tokenizer_impl = std::make_shared<Tokenizer::Impl>();
  tokenizer_impl->tokenizer = std::move(prepared->tokenizer);
  auto impl = std::make_unique<Model::Impl>(Tokenizer(std::move(tokenizer_impl)));
  impl->options = options;
  impl->kernel_bytes_before = kernel_bytes_before;
  impl->prepared = std::move(prepared);
  Prepared& parts = *impl->prepared;
  impl->info = make_info(parts);
  impl->isa = platform::choose_isa();
  impl->pool = std::make_unique<base::ThreadPool>(thread_count(options));
  impl->ops = kernels::make_cpu_ops(*impl->pool, impl->isa);

  std::unique_ptr<storage::Backend> backend = make_backend(options.io, &impl->io_description);
  impl->io_description += ", " + describe_direct(parts.shards);
  if (!parts.copies.empty()) impl->io_description += "; second copy: " + describe_direct(parts.copies);
  if (hooks.wrap_backend) backend = hooks.wrap_backend(std::move(backend));
  auto queue = std::make_unique<storage::ReadQueue>(std::move(backend), storage::ReadQueue::Options{});
  // Queues of their own: whoever waits for the one is not held up by the other, and ids do not mix.
  const auto make_queue = [&](const storage::ReadQueue::Options& queue_options) {
    std::string ignored;
    std::unique_ptr<storage::Backend> own = make_backend(options.io, &ignored);
    if (hooks.wrap_backend) own = hooks.wrap_backend(std::move(own));
    return std::make_unique<storage::ReadQueue>(std::move(own), queue_options);
  };

  residency::MachineFacts machine = machine_facts();
  impl->memory_limits =
      hooks.memory_limits ? hooks.memory_limits : [] { return platform::read_memory_limits(); };
  impl->govern_interval_ns = hooks.memory_limits ? 0 : k_govern_interval_ns;
  if (options.draft != nullptr) {
    // Pages of the draft's KV cache that were not touched yet are not resident, but promised to it.
    const Model::Impl& draft = ModelAccess::impl(*options.draft);
    machine.draft_bytes = draft.plan.planned_bytes - draft.process_bytes;
    const std::uint64_t rest = machine.process_bytes - std::min(machine.process_bytes, machine.draft_bytes);
    machine.process_bytes = std::max(draft.process_bytes, rest);
    impl->options.draft = nullptr;
  }
  if (hooks.process_bytes) machine.process_bytes = *hooks.process_bytes;
  impl->process_bytes = machine.process_bytes;
  residency::ModelFacts facts = model_facts(parts, *impl->ops);
  const std::size_t routed_per_row = parts.units.layers.size() * parts.params.n_experts_used;
  if (options.on_routing) {
    facts.scratch_bytes = [inner = facts.scratch_bytes, routed_per_row](std::uint32_t n_rows) {
      return inner(n_rows) + n_rows * routed_per_row * sizeof(std::uint16_t);
    };
  }
  impl->placement = residency::make_plan(facts, machine, options);
  impl->plan = impl->placement.plan;
  impl->store = std::make_unique<residency::WeightStore>(std::move(parts.shards), std::move(queue),
                                                         std::move(parts.copies));
  std::vector<const gguf::TensorInfo*> pinned = parts.tensors.pinned();
  // With a ring, blocks may move while the model runs; without one they are weights like any other.
  std::vector<residency::PlacedBlock> blocks;
  std::vector<residency::TensorBlock> pinned_blocks;
  std::vector<const gguf::TensorInfo*> movable;
  std::vector<bool> streamed;
  if (impl->placement.n_ring_slots != 0) {
    for (const model::ModelTensors::Block& block : parts.tensors.blocks()) {
      const bool is_pinned = impl->placement.block_is_pinned[blocks.size()];
      blocks.push_back({block.role, block.tensors, is_pinned});
      movable.insert(movable.end(), block.tensors.begin(), block.tensors.end());
      streamed.insert(streamed.end(), block.tensors.size(), !is_pinned);
      if (is_pinned) pinned_blocks.push_back(block.tensors);
    }
  }
  pinned.erase(
      std::remove_if(pinned.begin(), pinned.end(),
                     [&](const gguf::TensorInfo* tensor) {
                       return (impl->placement.embedding_on_drive && tensor == parts.tensors.token_embd) ||
                              std::find(movable.begin(), movable.end(), tensor) != movable.end();
                     }),
      pinned.end());
  impl->store->load_pinned(pinned, pinned_blocks);
  impl->load_read_bytes =
      header_bytes + parts.probe_read_bytes + impl->store->queue().statistics().read_bytes;
  impl->io_before = impl->store->queue().statistics();
  impl->drives_before = impl->store->queue().drives();

  if (!blocks.empty()) {
    storage::ReadQueue::Options queue_options;
    queue_options.max_requests = impl->placement.n_ring_slots;
    impl->blocks = std::make_unique<residency::DenseStream>(
        movable, impl->placement.n_ring_slots, *impl->store, make_queue(queue_options), streamed);
    impl->tiers = std::make_unique<residency::DenseTiers>(blocks, *impl->store, *impl->blocks);
  }
  if (impl->placement.embedding_on_drive) {
    impl->embeddings = std::make_unique<residency::RowGather>(*parts.tensors.token_embd, *impl->store,
                                                              impl->plan.prefill_chunk, make_queue({}));
  }
  if (parts.params.is_moe()) {
    impl->cache = std::make_unique<residency::UnitCache>(parts.file, parts.units, impl->placement,
                                                         options.policy, *impl->store);
    impl->cache->fill_slots([&](std::uint64_t bytes) {
      const auto now = impl->pressure();
      return !now || residency::leaves_mark_free(*now, bytes);
    });
    if (!impl->cache->is_streaming()) impl->cache->preload();
    impl->heat = Heat(options.heat, parts.file, parts.units,
                      [&](const gguf::TensorInfo& tensor, std::uint64_t offset, std::size_t) {
                        const std::byte* data = impl->store->find(tensor);
                        return data == nullptr ? nullptr : data + offset;
                      });
    if (const auto counts = impl->heat.load()) {
      impl->heat.warm(*impl->cache, *counts);
      impl->heat_forecast = forecast(*counts, parts.units, impl->placement);
    }
  }
  const std::uint64_t n_pages = pages_for(impl->plan.n_ctx) * impl->plan.max_sequences;
  impl->kv = std::make_unique<KvPool>(*impl->ops, parts.params.kv_shape(), n_pages);
  impl->forward = std::make_unique<model::Forward>(
      parts.params, parts.tensors, parts.units, *impl->ops, *impl->store,
      model::Forward::Streams{impl->cache.get(), impl->blocks.get(), impl->embeddings.get()},
      impl->plan.prefill_chunk, options.look_ahead);
  impl->forward->set_layer_hook(
      [owner = impl.get()](std::uint32_t layer_idx) { owner->before_layer(layer_idx); });
  if (impl->tiers != nullptr) {
    impl->forward->set_block_hook(
        [owner = impl.get()](std::uint32_t next_tensor) { owner->govern(next_tensor); });
  }
  impl->pass_tokens.reserve(impl->plan.prefill_chunk);
  impl->pass_positions.reserve(impl->plan.prefill_chunk);
  impl->pass_logits_rows.reserve(impl->plan.prefill_chunk);
  impl->pass_origins.reserve(impl->plan.prefill_chunk);
  if (options.on_routing && parts.params.is_moe()) {
    impl->pass_routing.reserve(routed_per_row * impl->plan.prefill_chunk);
    impl->forward->log_routing(&impl->pass_routing);
  }
  impl->open_ns = base::now_ns() - start;
  return impl;
}

}  // namespace engine

Sequence::Impl::~Impl() {
  truncate(0);
  --owner->n_sequences;
}

void Sequence::Impl::reserve_tokens(std::uint32_t n) {
  while (pages.size() < engine::pages_for(n)) {
    std::byte* page = owner->kv->take();
    SLUICE_CHECK(page != nullptr);
    pages.push_back(page);
  }
}

void Sequence::Impl::truncate(std::uint32_t n) noexcept {
  n_tokens = n;
  while (pages.size() > engine::pages_for(n)) {
    owner->kv->give_back(pages.back());
    pages.pop_back();
  }
}

void Model::Impl::step(std::span<const StepItem> items, const LogitsSink& sink) {
  if (items.empty()) return;
  bool is_decode = true;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    if (item.sequence == nullptr || item.tokens.empty()) {
      base::fail(ErrorCode::invalid_argument, "step item {} has no {}", i,
                 item.sequence == nullptr ? "sequence" : "tokens");
    }
    const Sequence::Impl& sequence = *item.sequence->impl_;
    if (sequence.owner != this)
      base::fail(ErrorCode::invalid_argument, "step item {} holds a sequence of another model", i);
    for (std::size_t j = 0; j < i; ++j) {
      if (items[j].sequence == item.sequence)
        base::fail(ErrorCode::invalid_argument, "step items {} and {} hold the same sequence", j, i);
    }
    for (const TokenId token : item.tokens) {
      if (token < 0 || static_cast<std::uint32_t>(token) >= info.n_vocab) {
        base::fail(ErrorCode::invalid_argument, "step item {} has token {}, expected 0 to {}", i, token,
                   info.n_vocab - 1);
      }
    }
    if (item.tokens.size() > sequence.n_ctx - sequence.n_tokens) {
      base::fail(ErrorCode::context_full,
                 "{} more tokens do not fit the context of {} ({} are in use); give a larger --ctx or a "
                 "shorter text",
                 item.tokens.size(), sequence.n_ctx, sequence.n_tokens);
    }
    if (item.n_guesses >= item.tokens.size())
      base::fail(ErrorCode::invalid_argument, "step item {} has {} tokens, all of them guesses", i,
                 item.tokens.size());
    is_decode = is_decode && item.tokens.size() == 1 + item.n_guesses;
  }

  // Fills passes with rows of the items in order. A sequence's pages are reserved pass by pass and its length
  // moves only when the pass is complete, so a failure leaves it as the last complete pass did.
  n_step_tokens = n_step_done = 0;
  for (const StepItem& item : items) n_step_tokens += item.tokens.size();
  std::vector<std::uint32_t> n_added(items.size(), 0);
  std::size_t item_idx = 0, token_idx = 0;
  while (item_idx < items.size()) {
    pass_tokens.clear();
    pass_positions.clear();
    pass_logits_rows.clear();
    pass_origins.clear();
    std::size_t n_guesses = 0;
    const std::size_t first_item = item_idx;
    while (item_idx < items.size() && pass_tokens.size() < plan.prefill_chunk) {
      const StepItem& item = items[item_idx];
      Sequence::Impl& sequence = *item.sequence->impl_;
      const std::size_t n =
          std::min<std::size_t>(item.tokens.size() - token_idx, plan.prefill_chunk - pass_tokens.size());
      const std::uint32_t start = sequence.n_tokens;
      sequence.reserve_tokens(start + static_cast<std::uint32_t>(n));
      for (std::size_t i = 0; i < n; ++i, ++token_idx) {
        const bool wanted = item.logits == LogitsWanted::all ||
                            (item.logits == LogitsWanted::last && token_idx + 1 == item.tokens.size());
        if (wanted && sink) {
          pass_logits_rows.push_back(static_cast<std::uint32_t>(pass_tokens.size()));
          pass_origins.push_back({item_idx, token_idx});
        }
        pass_positions.push_back({sequence.pages.data(), start + static_cast<std::uint32_t>(i)});
        pass_tokens.push_back(item.tokens[token_idx]);
        if (token_idx + item.n_guesses >= item.tokens.size()) ++n_guesses;
      }
      n_added[item_idx] = static_cast<std::uint32_t>(n);
      if (token_idx < item.tokens.size()) break;
      ++item_idx;
      token_idx = 0;
    }
    run_pass(sink, is_decode, n_guesses);
    n_step_done += pass_tokens.size();
    const std::size_t end_item = std::min(items.size(), token_idx == 0 ? item_idx : item_idx + 1);
    for (std::size_t i = first_item; i < end_item; ++i) items[i].sequence->impl_->n_tokens += n_added[i];
  }
}

std::optional<residency::PressureFacts> Model::Impl::pressure() const {
  const platform::MemoryLimits limits = memory_limits();
  residency::PressureFacts facts;
  if (cache != nullptr && cache->is_streaming()) {
    facts.slot_bytes = cache->own_slot_bytes();
    facts.planned_slot_bytes = cache->planned_own_slot_bytes();
  }
  if (tiers != nullptr) {
    facts.block_bytes = tiers->bytes();
    facts.planned_block_bytes = tiers->planned_bytes();
  }
  facts.limit_bytes = limits.total_bytes;
  facts.free_bytes = limits.available_bytes;
  if (limits.cgroup_limit_bytes) {
    const std::uint64_t limit = *limits.cgroup_limit_bytes;
    const std::uint64_t room = limit - std::min(limit, limits.cgroup_used_bytes);
    if (facts.limit_bytes == 0 || room < facts.free_bytes) {
      facts.limit_bytes = limit;
      facts.free_bytes = room;
    }
  }
  if (facts.limit_bytes == 0) return std::nullopt;  // Nothing is known.
  return facts;
}

void Model::Impl::before_layer(std::uint32_t layer_idx) {
  if (tiers == nullptr && cache != nullptr && cache->is_streaming()) govern(0);
  if (!progress) return;
  const double layers = static_cast<double>(layer_idx) / prepared->params.n_layers;
  progress(static_cast<double>(n_step_done) + layers * static_cast<double>(pass_tokens.size()),
           n_step_tokens);
}

void Model::Impl::govern(std::uint32_t next_tensor) {
  if (tiers != nullptr) tiers->settle(next_tensor);
  const std::uint64_t now = base::now_ns();
  if (now - governed_ns < govern_interval_ns) return;
  governed_ns = now;
  const auto facts = pressure();
  if (!facts) return;
  const residency::GovernedBytes wanted = residency::governed_bytes(*facts);
  // Giving way cannot wait, coming back can: each change of size waits for the reads under way.
  constexpr std::uint64_t k_patience = 8;
  if ((wanted.slot_bytes > facts->slot_bytes || wanted.block_bytes > facts->block_bytes) &&
      now - resized_ns < k_patience * govern_interval_ns)
    return;
  if (wanted.slot_bytes != facts->slot_bytes) {
    resized_ns = now;
    cache->resize(wanted.slot_bytes);
  }
  if (wanted.block_bytes != facts->block_bytes && tiers->resize(wanted.block_bytes, next_tensor))
    resized_ns = now;
}

void Model::Impl::run_pass(const LogitsSink& sink, bool is_decode, std::size_t n_guesses) {
  const std::uint64_t start = base::now_ns();
  std::uint64_t sink_ns = 0;
  const auto receive = [&](std::size_t index, std::span<const float> logits) {
    const std::uint64_t before = base::now_ns();
    sink(pass_origins[index].item, pass_origins[index].token, logits);
    sink_ns += base::now_ns() - before;
  };
  pass_routing.clear();
  forward->run({pass_tokens, pass_positions, pass_logits_rows}, cancel, receive);
  const std::uint64_t elapsed = base::now_ns() - start - sink_ns;
  (is_decode ? n_decode_tokens : n_prefill_tokens) += pass_tokens.size() - n_guesses;
  if (is_decode) ++n_decode_passes;
  (is_decode ? decode_ns : prefill_ns) += elapsed;
  if (!pass_routing.empty()) {
    options.on_routing({is_decode && n_guesses == 0, static_cast<std::uint32_t>(pass_tokens.size()),
                        static_cast<std::uint32_t>(prepared->units.layers.size()),
                        prepared->params.n_experts_used, pass_routing});
  }
}

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

Stats Model::Impl::stats() const {
  Stats stats;
  const platform::ProcessMemory memory = platform::read_process_memory();
  stats.budget_bytes = plan.budget_bytes;
  stats.rss_bytes = memory.rss_bytes;
  stats.peak_rss_bytes = memory.peak_rss_bytes;
  stats.pinned_bytes = store->pinned_bytes();
  stats.kv_bytes = kv->bytes();
  stats.scratch_bytes = model::Forward::scratch_bytes(prepared->params, *ops, plan.prefill_chunk);
  stats.active_weight_bytes_per_token = forward->weight_bytes_per_token();
  stats.weight_bytes = forward->weight_bytes();
  stats.n_units = plan.n_units;
  if (cache != nullptr) {
    const residency::CacheStatistics& counters = cache->statistics();
    stats.slot_bytes = cache->slot_bytes();
    stats.n_slots = cache->n_slots();
    stats.n_hits = counters.n_hits;
    stats.n_misses = counters.n_misses;
    stats.n_joins = counters.n_joins;
    stats.n_ahead = counters.n_ahead;
    stats.n_ahead_used = counters.n_ahead_used;
    stats.n_ahead_wasted = counters.n_ahead_wasted;
    stats.stall_ns = counters.stall_ns;
    stats.n_shrinks = counters.n_shrinks;
    for (std::size_t i = 0; i < prepared->units.layers.size(); ++i) {
      const residency::LayerStatistics& layer = cache->layer_statistics()[i];
      stats.layers.push_back({prepared->units.layers[i].layer_idx, placement.slots_per_layer[i], layer.n_hits,
                              layer.n_joins, layer.n_misses, layer.n_ahead_used});
    }
    stats.n_grows = counters.n_grows;
    stats.n_preloaded = counters.n_preloaded;
  }
  const storage::IoStatistics& io = store->queue().statistics();
  stats.io_backend = io_description;
  stats.unit_read_bytes = io.read_bytes - io_before.read_bytes;
  stats.load_read_bytes = load_read_bytes;
  stats.n_reads = io.n_reads;
  stats.n_read_retries = io.n_retries;
  stats.io_busy_ns = io.busy_ns - io_before.busy_ns;
  std::vector<storage::DriveStatistics> drives;
  add_drives(drives, store->queue().drives(), drives_before);
  const auto add_io = [&stats](const storage::IoStatistics& other) {
    stats.unit_read_bytes += other.read_bytes;
    stats.n_reads += other.n_reads;
    stats.n_read_retries += other.n_retries;
    stats.io_busy_ns += other.busy_ns;
  };
  if (blocks != nullptr) {
    blocks->settle();
    add_io(blocks->io_statistics());
    add_drives(drives, blocks->drive_statistics());
    stats.ring_bytes = blocks->ring_bytes();
    stats.stall_ns += blocks->statistics().stall_ns;
    stats.n_blocks_released = tiers->statistics().n_released;
    stats.n_blocks_returned = tiers->statistics().n_returned;
  }
  if (embeddings != nullptr) {
    add_io(embeddings->io_statistics());
    add_drives(drives, embeddings->drive_statistics());
  }
  for (const storage::DriveStatistics& drive : drives)
    stats.drives.push_back({drive.file->path(), drive.read_bytes, drive.busy_ns, drive.n_failed});
  if (const auto now = platform::read_storage_bytes(); now && kernel_bytes_before) {
    stats.kernel_read_known = true;
    stats.kernel_read_bytes = *now - *kernel_bytes_before;
  }
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
  stats.isa = platform::isa_name(isa);
  return stats;
}

}  // namespace sluice
