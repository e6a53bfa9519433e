#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/thread_pool.hpp"
#include "engine/model/heat.hpp"
#include "engine/model/kv_pool.hpp"
#include "engine/model/open_models.hpp"
#include "engine/model/prepare.hpp"
#include "engine/model/pressure.hpp"
#include "engine/model/state_pool.hpp"
#include "engine/model/tokenizer_impl.hpp"
#include "kernels/cpu_ops.hpp"
#include "model/forward.hpp"
#include "platform/cpu_features.hpp"
#include "platform/memory.hpp"
#include "residency/dense_stream.hpp"
#include "residency/dense_tiers.hpp"
#include "residency/row_gather.hpp"
#include "residency/unit_cache.hpp"
#include "residency/weight_store.hpp"
#include "sluice/model.hpp"

namespace sluice {

namespace engine {

/// Hooks for tests: what a user cannot set.
struct Hooks {
  /// Called between the parsing of the header and everything else.
  std::function<void()> after_header;
  /// Wraps the storage backend, to inject faults.
  std::function<std::unique_ptr<storage::Backend>(std::unique_ptr<storage::Backend>)> wrap_backend;
  /// What the planner takes as the process's own share instead of measuring it, so that a test's plan does
  /// not depend on how much the test program has allocated before. Other open models then count as nothing.
  std::optional<std::uint64_t> process_bytes;
  /// Stands in for what the system says of memory while the model runs.
  std::function<platform::MemoryLimits()> memory_limits;
  /// The same while the model takes its memory; nobody then waits for others to give way.
  std::function<platform::MemoryLimits()> limits_at_open;
  /// The clock of what decides by time: the read queues and the look-ahead.
  std::uint64_t (*clock)() noexcept = base::now_ns;
};

/// Model::open with hooks.
Model open_model(const std::filesystem::path& path, const OpenOptions& options, const Hooks& hooks);
/// Model::open with a header that was read already.
Model open_model(Header header, const OpenOptions& options);

}  // namespace engine

struct Model::Impl {
  OpenOptions options;
  ModelInfo info;
  Plan plan;
  residency::Placement placement;
  Tokenizer tokenizer;
  std::uint64_t open_ns = 0;
  std::uint64_t load_read_bytes = 0;  ///< Header and pinned weights.
  std::uint64_t unit_read_start = 0;  ///< The queue's byte count when units began.
  std::optional<std::uint64_t> kernel_bytes_before;
  std::string io_description;
  storage::IoStatistics io_before;  ///< The queue's statistics after loading.
  std::vector<storage::DriveStatistics> drives_before;
  const std::atomic<bool>* cancel = nullptr;
  StepProgress progress;
  std::size_t n_step_tokens = 0, n_step_done = 0;  ///< Of the step under way, before its current pass.
  std::vector<Sequence::Impl*> sequences;          ///< Those alive, and those that a callback has destroyed.
  bool is_busy = false;  ///< A call is under way in which callbacks of the user may run.
  std::uint64_t n_prefill_tokens = 0, prefill_ns = 0, n_decode_tokens = 0, decode_ns = 0;
  std::uint64_t n_decode_passes = 0;
  /// What generate() did with guesses; here, as the other counters.
  struct Speculation {
    std::uint64_t n_passes = 0, draft_ns = 0;
    GuessStats lookup, draft;
    std::uint64_t n_guessed() const { return lookup.n_guessed + draft.n_guessed; }
    std::uint64_t n_accepted() const { return lookup.n_accepted + draft.n_accepted; }
  } speculation;

  // From here on destruction order matters: what is declared later uses what is declared earlier.
  engine::OpenModel listed;  ///< In the list until all the rest has given its memory back.
  std::unique_ptr<engine::Prepared> prepared;
  platform::Isa isa = platform::Isa::scalar;
  std::unique_ptr<base::ThreadPool> pool;
  std::unique_ptr<kernels::Ops> ops;
  std::unique_ptr<residency::WeightStore> store;
  std::unique_ptr<residency::UnitCache> cache;
  std::unique_ptr<residency::DenseStream> blocks;    ///< Null when no always-used weight can be streamed.
  std::unique_ptr<residency::DenseTiers> tiers;      ///< The same.
  std::unique_ptr<residency::RowGather> embeddings;  ///< Null when they are pinned.
  std::unique_ptr<engine::Pressure> pressure;
  std::unique_ptr<engine::KvPool> kv;
  std::unique_ptr<engine::StatePool> states;
  std::unique_ptr<model::Forward> forward;

  /// The rows of the pass being assembled.
  struct PassItems {
    std::vector<TokenId> tokens;
    std::vector<std::uint32_t> positions;
    std::vector<std::uint32_t> sequence_of;  ///< Of each row: which of the next.
    std::vector<model::RowKind> kinds;
    std::vector<kernels::SequenceView> sequences;
    std::vector<const std::atomic<bool>*> cancels;  ///< Of each sequence.
    std::vector<std::uint32_t> logits_rows;
    struct Origin {
      std::size_t item, token;
    };
    std::vector<Origin> origins;  ///< Of each row in logits_rows.
    struct Part {
      std::size_t item;
      Sequence::Impl* sequence;
      std::uint32_t n_rows, n_guesses;
    };
    std::vector<Part> parts;  ///< Of each sequence.
    bool is_decode = true;    ///< All items decode.

    void clear();
    /// So that nothing grows while passes are computed.
    void reserve(std::uint32_t n_rows, std::uint32_t n_sequences);
    /// Adds tokens [first, first + n) of an item.
    void add(const StepItem& item, Sequence::Impl& sequence, std::size_t item_idx, std::size_t first,
             std::size_t n, bool wants_logits);
  };
  PassItems rows;
  std::vector<std::uint16_t> pass_routing;  ///< What Forward logs when somebody observes the routing.
  engine::Heat heat;
  std::optional<HeatForecast> heat_forecast;  ///< From what the file said when the model was opened.

  explicit Impl(Tokenizer handle) : tokenizer(std::move(handle)) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Throws Error(invalid_argument) that names `call` when it comes from a callback.
  void check_idle(const char* call) const;
  /// While it lives, callbacks may run. Throws as check_idle().
  class Busy {
   public:
    Busy(Impl& model, const char* call);
    ~Busy();
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    Impl& model_;
  };

  void step(std::span<const StepItem> items, const LogitsSink& sink);
  /// Throws Error(invalid_argument, context_full or kv_full) when the items make no step.
  void check_items(std::span<const StepItem> items) const;
  /// Throws Error(kv_full) when the tokens of all items do not fit the pages that are free.
  void check_pages(std::span<const StepItem> items) const;
  /// Checks the items and counts their tokens.
  void begin_step(std::span<const StepItem> items);
  std::vector<ItemFailure> pass(std::span<const StepItem> items, const LogitsSink& sink);
  /// Computes `rows`; the sequences of items that did not fail grow.
  std::vector<ItemFailure> run_pass(const LogitsSink& sink);
  /// Statistics, and what observers of the routing are told.
  void count_pass(std::uint64_t elapsed_ns);
  /// A pass is about to begin this layer.
  void report_progress(std::uint32_t layer_idx);
  Stats stats() const;

 private:
  void add_cache_stats(Stats& stats) const;
  void add_io_stats(Stats& stats) const;
};

/// Lets the engine make a Model, and see behind one, without opening that door to users.
struct ModelAccess {
  static Model make(std::unique_ptr<Model::Impl> impl) { return Model(std::move(impl)); }
  static Model::Impl& impl(Model& model) { return *model.impl_; }
  static const Model::Impl& impl(const Model& model) { return *model.impl_; }
};

struct Sequence::Impl {
  Model::Impl* owner = nullptr;  ///< Null when the model is gone.
  bool is_destroyed = false;     ///< By a callback; deleted when the call of that callback ends.
  std::uint32_t n_ctx = 0;
  std::uint32_t n_tokens = 0;
  engine::KvSequence kv;
  engine::StateSequence state;

  explicit Impl(Model::Impl& model);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// Memory for `n` more tokens, for the next pass.
  kernels::SequenceView begin_pass(std::uint32_t n);
  /// The pass that began has computed `n` tokens.
  void commit(std::uint32_t n) noexcept;
  /// See Sequence::rewind(); a pass that has begun is undone.
  std::uint32_t rewind(std::uint32_t n) noexcept;
};

}  // namespace sluice
