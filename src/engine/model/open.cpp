#include <fmt/core.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "cuda/loader.hpp"
#include "engine/model/memory_claim.hpp"
#include "engine/model/model_impl.hpp"
#include "engine/model/on_gpu.hpp"
#include "engine/model/open_models.hpp"
#include "engine/model/open_turn.hpp"
#include "engine/plan/machine_facts.hpp"
#include "engine/speculate/shared_vocabulary.hpp"

namespace sluice::engine {
namespace {

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
  info.architecture = prepared.spec().architecture;
  info.chat_template = prepared.chat_template;
  info.n_layers = prepared.spec().n_layers();
  info.n_embd = prepared.spec().n_embd;
  info.n_experts = prepared.spec().n_experts();
  info.n_experts_used = prepared.spec().n_experts_used();
  info.n_ctx_train = prepared.spec().n_ctx_train;
  info.n_vocab = prepared.spec().n_vocab;
  for (const residency::LayerUnits& layer : prepared.units.layers)
    info.expert_bytes.push_back(layer.weight_bytes);
  for (const gguf::ShardInfo& shard : file.shards) info.file_bytes += shard.file_bytes;
  std::vector<std::uint64_t> bytes_of_type(gguf::k_type_ids, 0);
  for (const gguf::TensorInfo& tensor : file.tensors) {
    info.n_parameters += tensor.n_elements();
    bytes_of_type[static_cast<std::size_t>(tensor.type)] += tensor.size_bytes;
  }
  const auto most = std::max_element(bytes_of_type.begin(), bytes_of_type.end()) - bytes_of_type.begin();
  if (!file.tensors.empty()) info.quantization = gguf::type_name(static_cast<gguf::TensorType>(most));
  return info;
}

void check_options(const OpenOptions& options) {
  if (options.max_sequences == 0 || options.max_sequences > k_max_sequences) {
    base::fail(ErrorCode::invalid_argument, "{} sequences were asked for; expected 1 to {}",
               options.max_sequences, k_max_sequences);
  }
  if (options.prefill_chunk > k_max_prefill_chunk) {
    base::fail(ErrorCode::invalid_argument, "a prefill chunk of {} was asked for; expected at most {}",
               options.prefill_chunk, k_max_prefill_chunk);
  }
}

/// What a plan promises to things that get their memory when they are used.
std::uint64_t later_bytes(const Plan& plan) {
  std::uint64_t bytes = 0;
  for (const PlanItem& item : plan.items) {
    if (item.what == "KV cache" || item.what == "recurrent state" || item.what == "scratch")
      bytes += item.bytes;
  }
  return bytes;
}

/// The weights that every token uses, by where they lie.
struct WeightLayout {
  std::vector<const gguf::TensorInfo*> pinned;        ///< In memory for the whole run.
  std::vector<residency::TensorBlock> pinned_blocks;  ///< In memory, and may give way.
  std::vector<residency::PlacedBlock> blocks;         ///< All that may move; none when nothing is streamed.
  std::vector<const gguf::TensorInfo*> movable;       ///< Tensors of `blocks`, in the order of use.
  std::vector<bool> streamed;  ///< Of each movable tensor: it is on the drive at first.
};

/// Opens one model, stage by stage, in the order of open(). What a stage makes is a field of the model, its
/// return value, or both; the comment of each stage names the fields it needs.
class Opener {
 public:
  /// Made before the header is read, so that its bytes and its time count.
  Opener(const OpenOptions& options, const Hooks& hooks)
      : options_(options),
        hooks_(hooks),
        claim_([this] { return limits_at_open(); }, hooks.limits_at_open ? 0 : MemoryClaim::k_wait_ns),
        must_take_([this](std::uint64_t bytes) {
          check_cancel();
          return claim_.must_take(bytes);
        }) {
    check_options(options);
  }
  std::unique_ptr<Model::Impl> open(Header header);

 private:
  using Queue = std::unique_ptr<storage::ReadQueue>;

  /// Makes the model with `prepared`.
  void read_header(Header header);
  /// Needs prepared. What can be said against the draft before minutes of loading.
  void check_draft() const;
  /// Needs nothing.
  void start_threads();
  /// Needs nothing.
  void watch_memory();
  /// Needs prepared. The queue of pinned weights and experts; describes how it reads.
  Queue make_first_queue();
  /// A queue for `what` beside the first: whoever waits for the one is not held up by the other, and ids do
  /// not mix.
  Queue make_own_queue(const char* what, const storage::ReadQueue::Options& queue_options = {});
  Queue make_queue(storage::ReadQueue::Options queue_options, std::string* description);
  /// Needs nothing, but what was allocated before counts as the process's own.
  residency::MachineFacts look_at_machine();
  /// Needs prepared.
  OpenTurn take_turn() const;
  /// The smallest budget, when that is at most half of all memory; else 0.
  std::uint64_t modest_bytes(const residency::ModelFacts& facts,
                             const residency::MachineFacts& machine) const;
  /// Needs prepared and ops.
  void make_plan(residency::MachineFacts machine);
  /// Needs what make_plan(), lay_out_weights() and load_weights() need. Plans again when others took the
  /// memory of a default budget meanwhile.
  WeightLayout plan_and_load();
  /// Needs prepared (takes its open files).
  void make_store(Queue queue);
  /// Needs prepared and placement.
  WeightLayout lay_out_weights() const;
  /// Needs prepared and plan. Calls the caller.
  void ask_before_loading() const;
  /// Needs store. Counts what was read so far, and starts the counters of later reads.
  void load_weights(const WeightLayout& layout);
  /// Needs placement and store with its weights.
  void make_streams(const WeightLayout& layout);
  /// Needs placement and store with its weights. For models with experts.
  void make_cache();
  bool has_gpu() const noexcept { return options_.gpu >= 0; }
  /// Needs cache. Takes the memory of its slots and, when it keeps all experts, reads them.
  void fill_cache();
  /// What the claim looks at; between waits, so here the caller can end them.
  platform::MemoryLimits limits_at_open() const;
  /// Bytes that loading will read, nearly.
  std::uint64_t bytes_to_load(const WeightLayout& layout) const;
  /// Tells how far reading is, and throws Error(cancelled).
  void note_load(OpenStage stage) const;
  void check_cancel() const;
  /// Needs cache, and store with its weights.
  void use_heat();
  /// Needs everything before it.
  void make_forward();
  /// Needs plan and forward.
  void reserve_rows();

  Prepared& parts() { return *impl_->prepared; }
  const Prepared& parts() const { return *impl_->prepared; }
  std::size_t routed_per_row() const { return parts().units.layers.size() * parts().spec().n_experts_used(); }

  const OpenOptions& options_;
  const Hooks& hooks_;
  platform::MemoryReader memory_;
  MemoryClaim claim_;
  std::function<bool(std::uint64_t)> must_take_;  ///< Of the claim.
  std::string first_description_;                 ///< How the first queue reads.
  std::unique_ptr<Model::Impl> impl_;
  std::uint64_t start_ns_ = base::now_ns();
  std::optional<std::uint64_t> kernel_bytes_before_ = platform::read_storage_bytes();
  std::uint64_t load_bytes_ = 0;  ///< What loading will read.
  std::vector<kernels::RoutedExperts> placed_experts_;
};

std::unique_ptr<Model::Impl> Opener::open(Header header) {
  if (hooks_.after_header) hooks_.after_header();
  if (options_.memory_bytes == 0) warn_of_unseen_limits();
  read_header(std::move(header));
  check_draft();
  check_cancel();
  start_threads();
  watch_memory();
  Queue queue = make_first_queue();
  const OpenTurn turn = take_turn();
  check_cancel();
  make_store(std::move(queue));
  const WeightLayout layout = plan_and_load();
  make_streams(layout);
  if (has_gpu()) {
    placed_experts_ = place_experts(parts(), *impl_->store, *impl_->ops);
  } else if (!parts().units.layers.empty()) {
    make_cache();
  }
  impl_->pressure->watch(impl_->cache.get(), impl_->tiers.get());
  if (impl_->cache != nullptr) {
    fill_cache();
    use_heat();
  }
  check_cancel();
  make_forward();
  impl_->pressure->give_way();
  reserve_rows();
  impl_->open_ns = base::now_ns() - start_ns_;
  return std::move(impl_);
}

void Opener::check_cancel() const {
  if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::cancelled, "opening the model was cancelled");
}

void Opener::read_header(Header header) {
  std::unique_ptr<Prepared> prepared = prepare(std::move(header), options_, false);
  check_weights(*prepared);
  auto tokenizer = std::make_shared<Tokenizer::Impl>();
  tokenizer->tokenizer = std::move(prepared->tokenizer);
  tokenizer->path = prepared->file.shards.front().path;
  impl_ = std::make_unique<Model::Impl>(Tokenizer(std::move(tokenizer)));
  impl_->options = options_;
  // These are looked at only while the model opens, and may be gone later.
  impl_->options.draft = nullptr;
  impl_->options.cancel = nullptr;
  impl_->options.on_progress = nullptr;
  impl_->options.before_loading = nullptr;
  impl_->kernel_bytes_before = kernel_bytes_before_;
  impl_->prepared = std::move(prepared);
  impl_->info = make_info(parts());
}

void Opener::check_draft() const {
  if (options_.draft == nullptr) return;
  const Model& draft = *options_.draft;
  n_shared_tokens(impl_->info, impl_->tokenizer, draft.info(), draft.tokenizer());
}

std::uint64_t Opener::modest_bytes(const residency::ModelFacts& facts,
                                   const residency::MachineFacts& machine) const {
  if (machine.total_bytes == 0) return 0;
  residency::MachineFacts any = machine;
  any.default_budget_bytes = UINT64_MAX / 4;
  OpenOptions least = options_;
  if (least.n_ctx == 0) {
    least.n_ctx = residency::k_min_auto_ctx;
    if (facts.n_ctx_train != 0) least.n_ctx = std::min(least.n_ctx, facts.n_ctx_train);
  }
  const std::uint64_t floor = residency::make_plan(facts, any, least).plan.floor_bytes;
  return floor <= machine.total_bytes / 2 ? floor : 0;
}

OpenTurn Opener::take_turn() const {
  if (hooks_.memory_limits) return {};
  const platform::MemoryLimits limits = platform::read_memory_limits();
  const auto facts = memory_facts(limits);
  // Who needs little beside what is free does not wait for one who loads much.
  constexpr std::uint64_t k_little = 16;
  if (!facts || impl_->info.file_bytes < facts->free_bytes / k_little) return {};
  return OpenTurn(OpenTurn::place(limits.cgroup_limit_bytes ? limits.cgroup_path : ""), OpenTurn::k_wait_ns,
                  options_.cancel);
}

WeightLayout Opener::plan_and_load() {
  constexpr int k_max_plans = 4;
  for (int n_plans = 1;; ++n_plans) {
    make_plan(look_at_machine());
    ask_before_loading();
    WeightLayout layout = lay_out_weights();
    try {
      load_weights(layout);
      return layout;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::budget || options_.memory_bytes != 0 || n_plans == k_max_plans) throw;
    }
  }
}

void Opener::watch_memory() {
  impl_->pressure =
      hooks_.memory_limits
          ? std::make_unique<Pressure>(hooks_.memory_limits, 0)
          : std::make_unique<Pressure>([reader = platform::MemoryReader()] { return reader.read(); });
}

void Opener::start_threads() {
  impl_->isa = platform::choose_isa();
  impl_->pool = std::make_unique<base::ThreadPool>(thread_count(options_));
  impl_->ops = has_gpu() ? cuda::make_ops(options_.gpu) : kernels::make_cpu_ops(*impl_->pool, impl_->isa);
}

Opener::Queue Opener::make_queue(storage::ReadQueue::Options queue_options, std::string* description) {
  queue_options.clock = hooks_.clock;
  storage::ChosenBackend chosen = storage::make_backend(options_.io);
  *description = std::move(chosen.description);
  if (hooks_.wrap_backend) chosen.backend = hooks_.wrap_backend(std::move(chosen.backend));
  return std::make_unique<storage::ReadQueue>(std::move(chosen.backend), queue_options);
}

Opener::Queue Opener::make_own_queue(const char* what, const storage::ReadQueue::Options& queue_options) {
  std::string description;
  Queue queue = make_queue(queue_options, &description);
  // A second ring may be refused although the first was not: a limit on descriptors or on locked memory.
  if (description != first_description_) impl_->io_description += fmt::format("; {}: {}", what, description);
  return queue;
}

Opener::Queue Opener::make_first_queue() {
  Queue queue = make_queue({}, &first_description_);
  impl_->io_description = first_description_ + ", " + describe_direct(parts().shards);
  if (!parts().copies.empty()) impl_->io_description += "; second copy: " + describe_direct(parts().copies);
  return queue;
}

residency::MachineFacts Opener::look_at_machine() {
  residency::MachineFacts machine = machine_facts();
  impl_->listed = OpenModel();  // A plan that is made again does not count the one before.
  // What other models have not touched yet is not resident, but promised to them.
  const ModelMemory others = open_models();
  const std::uint64_t rest = machine.process_bytes - std::min(machine.process_bytes, others.planned_bytes);
  machine.process_bytes = std::max(others.process_bytes, rest);
  machine.other_bytes = others.planned_bytes;
  if (options_.draft != nullptr) {
    machine.draft_bytes = ModelAccess::impl(*options_.draft).listed.planned_bytes();
    machine.other_bytes -= machine.draft_bytes;
  }
  if (hooks_.process_bytes) {
    machine.process_bytes = *hooks_.process_bytes;
    machine.other_bytes = 0;
  }
  machine.process_bytes += options_.program_bytes;
  return machine;
}

void Opener::make_plan(residency::MachineFacts machine) {
  residency::ModelFacts facts = model_facts(parts(), *impl_->ops);
  if (options_.on_routing) {
    facts.scratch_bytes = [inner = facts.scratch_bytes, per_row = routed_per_row()](std::uint32_t n_rows) {
      return inner(n_rows) + n_rows * per_row * sizeof(std::uint16_t);
    };
  }
  if (options_.memory_bytes == 0) {
    // Other models give way when this one asks for what it cannot do without.
    machine.default_budget_bytes = std::max(machine.default_budget_bytes, modest_bytes(facts, machine));
  }
  impl_->placement = residency::make_plan(facts, machine, options_);
  impl_->plan = impl_->placement.plan;
  const std::uint64_t shared_bytes = machine.process_bytes + machine.draft_bytes + machine.other_bytes;
  impl_->listed = OpenModel({impl_->plan.planned_bytes - shared_bytes, machine.process_bytes});
  claim_.set_later_bytes(later_bytes(impl_->plan));
  const Plan& plan = impl_->plan;
  if (!plan.budget_is_default && machine.free_bytes != 0 && plan.planned_bytes > machine.free_bytes) {
    base::warn(
        "--memory {}M plans {}, but only {} can be had now: experts and dense weights get what is "
        "there, and more of it when others give memory back",
        plan.budget_bytes / base::k_mib, base::format_bytes(plan.planned_bytes),
        base::format_bytes(machine.free_bytes));
  }
}

void Opener::make_store(Queue queue) {
  impl_->store = std::make_unique<residency::WeightStore>(std::move(parts().shards), std::move(queue),
                                                          std::move(parts().copies));
}

WeightLayout Opener::lay_out_weights() const {
  const residency::Placement& placement = impl_->placement;
  WeightLayout layout;
  if (has_gpu()) refuse_streaming(placement);
  // With a ring, blocks may move while the model runs; without one they are weights like any other.
  if (placement.n_ring_slots != 0 && !has_gpu()) {
    for (const model::BoundTensors::Block& block : parts().tensors.blocks) {
      const bool is_pinned = placement.block_is_pinned[layout.blocks.size()];
      layout.blocks.push_back({block.role, block.tensors, is_pinned});
      layout.movable.insert(layout.movable.end(), block.tensors.begin(), block.tensors.end());
      layout.streamed.insert(layout.streamed.end(), block.tensors.size(), !is_pinned);
      if (is_pinned) layout.pinned_blocks.push_back(block.tensors);
    }
  }
  layout.pinned = parts().tensors.pinned();
  if (has_gpu()) {
    const std::vector<const gguf::TensorInfo*> experts = expert_tensors(parts());
    layout.pinned.insert(layout.pinned.end(), experts.begin(), experts.end());
    std::sort(layout.pinned.begin(), layout.pinned.end());  // As they lie in the file.
  }
  std::erase_if(layout.pinned, [&](const gguf::TensorInfo* tensor) {
    return (placement.embedding_on_drive && tensor == parts().tensors.token_embd) ||
           std::find(layout.movable.begin(), layout.movable.end(), tensor) != layout.movable.end();
  });
  return layout;
}

void Opener::ask_before_loading() const {
  if (options_.before_loading) options_.before_loading(impl_->info, impl_->tokenizer, impl_->plan);
}

std::uint64_t Opener::bytes_to_load(const WeightLayout& layout) const {
  std::uint64_t bytes = 0;
  for (const gguf::TensorInfo* tensor : layout.pinned) bytes += tensor->size_bytes;
  for (const residency::TensorBlock& block : layout.pinned_blocks) {
    for (const gguf::TensorInfo* tensor : block) bytes += tensor->size_bytes;
  }
  if (impl_->plan.n_cached_units != impl_->plan.n_units) return bytes;  // They are read when they are wanted.
  for (const residency::LayerUnits& layer : parts().units.layers)
    bytes += layer.n_experts * layer.weight_bytes;
  return bytes;
}

platform::MemoryLimits Opener::limits_at_open() const {
  check_cancel();
  return hooks_.limits_at_open ? hooks_.limits_at_open() : memory_.read();
}

void Opener::note_load(OpenStage stage) const {
  check_cancel();
  if (!options_.on_progress) return;
  // Whole blocks are read, a little more than the weights.
  const std::uint64_t read_bytes = impl_->store->queue().statistics().read_bytes;
  options_.on_progress({stage, std::min(read_bytes, load_bytes_), load_bytes_});
}

void Opener::load_weights(const WeightLayout& layout) {
  residency::WeightStore& store = *impl_->store;
  load_bytes_ = bytes_to_load(layout);
  store.load_pinned(layout.pinned, layout.pinned_blocks, must_take_,
                    [this] { note_load(OpenStage::weights); });
  impl_->io_before = store.queue().statistics();
  impl_->drives_before = store.queue().drives();
  impl_->load_read_bytes = parts().read_bytes + impl_->io_before.read_bytes;
}

void Opener::make_streams(const WeightLayout& layout) {
  const residency::Placement& placement = impl_->placement;
  if (!layout.blocks.empty()) {
    storage::ReadQueue::Options queue_options;
    queue_options.max_requests = placement.n_ring_slots;
    impl_->blocks = std::make_unique<residency::DenseStream>(
        layout.movable, placement.n_ring_slots, *impl_->store,
        make_own_queue("streamed blocks", queue_options), layout.streamed);
    impl_->blocks->take_ring(must_take_);
    impl_->tiers = std::make_unique<residency::DenseTiers>(layout.blocks, *impl_->store, *impl_->blocks);
  }
  if (placement.embedding_on_drive) {
    impl_->embeddings = std::make_unique<residency::RowGather>(
        *parts().tensors.token_embd, *impl_->store, impl_->plan.prefill_chunk, make_own_queue("embeddings"));
  }
}

void Opener::make_cache() {
  impl_->cache =
      std::make_unique<residency::UnitCache>(parts().file, parts().units, impl_->placement, options_.policy,
                                             *impl_->store, hooks_.clock, impl_->ops.get());
  impl_->cache->take_transit(must_take_);
}

void Opener::fill_cache() {
  residency::UnitCache& cache = *impl_->cache;
  std::uint64_t taken_bytes = 0, all_bytes = 0;
  for (std::size_t i = 0; i < parts().units.layers.size(); ++i)
    all_bytes += impl_->placement.slots_per_layer[i] * parts().units.layers[i].slot_bytes;
  cache.fill_slots([&](std::uint64_t bytes) {
    check_cancel();
    if (options_.on_progress)
      options_.on_progress({OpenStage::memory, std::min(taken_bytes, all_bytes), all_bytes});
    taken_bytes += bytes;
    return claim_.may_take(bytes);
  });
  impl_->pressure->give_way();
  if (cache.is_streaming()) return;
  cache.load_all([this] {
    note_load(OpenStage::experts);
    impl_->pressure->give_way();
  });
}

void Opener::use_heat() {
  const auto bytes_of = [this](const gguf::TensorInfo& tensor, std::uint64_t offset, std::size_t) {
    const std::byte* data = impl_->store->find(tensor);
    return data == nullptr ? nullptr : data + offset;
  };
  impl_->heat = Heat(options_.heat, parts().file, parts().units, bytes_of);
  if (const auto counts = impl_->heat.load()) {
    impl_->heat.warm(*impl_->cache, *counts);
    impl_->heat_forecast = forecast(*counts, parts().units, impl_->placement);
  }
}

void Opener::make_forward() {
  Model::Impl* const owner = impl_.get();
  owner->kv = std::make_unique<KvPool>(*owner->ops, parts().kv.groups, owner->placement.kv_pages);
  owner->states = std::make_unique<StatePool>(*owner->ops, parts().graph->state(), owner->plan.max_sequences);
  owner->forward = std::make_unique<model::Forward>(
      *owner->prepared->graph, parts().tensors, parts().units, parts().kv, *owner->ops, *owner->store,
      model::Forward::Streams{owner->cache.get(), owner->blocks.get(), owner->embeddings.get(),
                              placed_experts_},
      model::Forward::Limits{owner->plan.prefill_chunk, owner->plan.n_ctx}, options_.look_ahead);
  owner->states->set_replay([owner](const kernels::StateSlots& slots, std::uint32_t n_rows) {
    owner->forward->replay(slots, n_rows);
  });
  owner->forward->set_layer_hook([owner](std::uint32_t layer_idx) {
    // With tiers it looks between products.
    if (owner->tiers == nullptr && owner->cache != nullptr) owner->pressure->govern(0);
    owner->report_progress(layer_idx);
  });
  if (owner->cache != nullptr) owner->forward->set_busy_hook([owner] { owner->pressure->give_way(); });
  if (owner->tiers != nullptr)
    owner->forward->set_block_hook(
        [owner](std::uint32_t next_tensor) { owner->pressure->govern(next_tensor); });
}

void Opener::reserve_rows() {
  impl_->sequences.reserve(impl_->plan.max_sequences);
  const std::uint32_t n_rows = impl_->plan.prefill_chunk;
  impl_->rows.reserve(n_rows, std::min(n_rows, impl_->plan.max_sequences));
  if (options_.on_routing && !parts().units.layers.empty()) {
    impl_->pass_routing.reserve(routed_per_row() * n_rows);
    impl_->forward->log_routing(&impl_->pass_routing);
  }
}

}  // namespace

Model open_model(const std::filesystem::path& path, const OpenOptions& options, const Hooks& hooks) {
  Opener opener(options, hooks);
  return ModelAccess::make(opener.open(parse_header(path)));
}

Model open_model(Header header, const OpenOptions& options) {
  const Hooks none;
  return ModelAccess::make(Opener(options, none).open(std::move(header)));
}

}  // namespace sluice::engine
