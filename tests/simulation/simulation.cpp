#include "simulation/simulation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <optional>
#include <stdexcept>

#include "sluice/error.hpp"

namespace sluice::simulation {
namespace {

/// What a simulation found; ends it.
struct Finding : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Args>
void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Finding(fmt::format(format, std::forward<Args>(args)...));
}

/// Thrown by a caller's own function; the engine must let it through.
struct SinkError {};

/// A sequence, and the resident model's sequence of the same tokens.
struct Pair {
  Sequence sequence, reference;
};

struct Row {
  std::size_t item = 0, token = 0;
  std::vector<float> logits;
};

/// Which queue an error is from, by the tensor that it names: embeddings, experts, or blocks.
std::size_t queue_of(const std::string& what) {
  if (what.find("tensor token_embd.") != std::string::npos) return 0;
  const std::size_t end = what.find(".weight");
  const bool is_expert =
      what.find("_exps.") != std::string::npos ||
      (end != std::string::npos && end != 0 && what[end - 1] >= '0' && what[end - 1] <= '9');
  return is_expert ? 1 : 2;
}

/// One model from its opening to its end.
class Session {
 public:
  Session(World& world, Subject& subject, Tally& tally, bool verbose)
      : world_(world), subject_(subject), tally_(tally), verbose_(verbose) {}
  ~Session() { world_.calm(); }

  /// False when the drive failed while the model was opened.
  bool open(const std::filesystem::path& heat);
  void run(int n_operations);
  /// The last look: all that was planned is back when nothing presses, and all pages when no sequence is
  /// left.
  void finish();

 private:
  struct Asked {
    std::vector<Pair*> pairs;
    std::vector<std::vector<TokenId>> tokens;
    std::vector<StepItem> items;
    std::optional<std::size_t> sink_throws_at;
  };
  struct Outcome {
    std::optional<ErrorCode> error;
    std::string what;
    bool sink_threw = false;
    std::vector<Row> rows;
    std::vector<std::uint32_t> kept;
  };

  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    if (verbose_) fmt::print("  {}\n", fmt::format(format, std::forward<Args>(args)...));
  }
  Model::Impl& impl() { return ModelAccess::impl(*model_); }
  OpenOptions draw_options(const std::filesystem::path& heat);
  void operate();
  void step();
  Asked draw_step();
  Outcome do_step(const Asked& asked);
  void check_error(const Asked& asked, const Outcome& outcome);
  void check_rows(const Asked& asked, const Outcome& outcome);
  void add_pair();
  void rewind(Pair& pair);
  /// Both to `n`, or to the most below it that both can reach.
  void go_back(Pair& pair, std::uint32_t n);
  void share();
  void wrong_request();
  void disturb();
  void undisturb();
  void check_idle();
  void check_pages();
  Pair& any_pair();

  World& world_;
  Subject& subject_;
  Tally& tally_;
  bool verbose_;
  OpenOptions options_;
  std::optional<Model> model_;
  std::list<Pair> pairs_;
  std::uint64_t routed_units_ = 0;  ///< Of passes that were complete: experts that a layer wanted, each once.
  std::uint64_t n_counted_tokens_ = 0;
  bool has_shared_ = false;  ///< Sequences may hold the same pages.
  /// Reads that had failed when an error of each queue was last reported. The queues read ahead for
  /// themselves, so each may still have one to report.
  std::array<std::uint64_t, 3> failed_reads_told_{};
  std::uint64_t unit_bytes_at_open_ = 0, served_at_open_ = 0, reads_before_ = 0;
};

OpenOptions Session::draw_options(const std::filesystem::path& heat) {
  constexpr std::array<std::uint32_t, 3> k_contexts = {70, 150, Subjects::k_max_ctx};
  constexpr std::array<std::uint32_t, 6> k_chunks = {0, 1, 3, 8, 20, 40};
  base::SplitMix64& random = world_.random;
  OpenOptions options;
  options.n_ctx = k_contexts[random.below(k_contexts.size())];
  options.max_sequences = static_cast<std::uint32_t>(world_.between(1, Subjects::k_max_sequences));
  options.prefill_chunk = k_chunks[random.below(k_chunks.size())];
  options.n_threads = world_.happens(0.1) ? 2 : 1;
  options.policy = world_.happens(0.3) ? CachePolicy::lru : CachePolicy::lfru;
  options.look_ahead = world_.happens(0.8);
  if (world_.happens(0.7)) options.heat = heat;
  if (world_.happens(0.2)) options.second_copy = subject_.copy;
  if (subject_.is_moe && world_.happens(0.7)) {
    options.on_routing = [this](const RoutedPass& pass) {
      for (std::uint32_t layer = 0; layer < pass.n_layers; ++layer) {
        const std::size_t n = std::size_t{pass.n_tokens} * pass.n_used;
        std::vector<std::uint16_t> ids(pass.experts.begin() + static_cast<std::ptrdiff_t>(layer * n),
                                       pass.experts.begin() + static_cast<std::ptrdiff_t>((layer + 1) * n));
        std::sort(ids.begin(), ids.end());
        routed_units_ += static_cast<std::uint64_t>(std::unique(ids.begin(), ids.end()) - ids.begin());
      }
    };
  }
  const auto [floor, resident] = subject_.budget_range(options);
  constexpr std::array<std::uint64_t, 6> k_percents = {2, 10, 30, 60, 90, 120};
  const std::uint64_t span = resident - std::min(floor, resident);
  options.memory_bytes = floor + 64 * 1024 + span * k_percents[random.below(k_percents.size())] / 100;
  return options;
}

bool Session::open(const std::filesystem::path& heat) {
  options_ = draw_options(heat);
  engine::Hooks hooks;
  hooks.process_bytes = 0;
  hooks.wrap_backend = [this](std::unique_ptr<storage::Backend>) { return world_.make_backend(); };
  hooks.memory_limits = [this] {
    if (model_) {
      const auto& own = impl();
      expect(own.cache == nullptr || own.cache->own_slot_bytes() <= own.cache->planned_own_slot_bytes(),
             "slots hold more than planned");
      expect(own.tiers == nullptr || own.tiers->bytes() <= own.tiers->planned_bytes(),
             "blocks hold more than planned");
    }
    return world_.memory_limits();
  };
  hooks.limits_at_open = [] {
    platform::MemoryLimits limits;
    limits.total_bytes = limits.available_bytes = std::uint64_t{1} << 30;
    return limits;
  };
  hooks.clock = World::now_ns;
  world_.set_weather(static_cast<World::Weather>(world_.random.below(3)));
  const bool fails = world_.happens(0.05);
  if (fails) world_.set_failing(subject_.path, 0.3);
  reads_before_ = world_.n_reads();
  const std::uint64_t served_before = world_.served_bytes(), failed_before = world_.n_failed_reads();
  say("open: context {}, {} sequences, chunk {}, budget {}, heat {}, copy {}, look-ahead {}", options_.n_ctx,
      options_.max_sequences, options_.prefill_chunk, options_.memory_bytes, !options_.heat.empty(),
      !options_.second_copy.empty(), options_.look_ahead);
  ++tally_.n_opens;
  try {
    model_.emplace(engine::open_model(subject_.path, options_, hooks));
  } catch (const Error& error) {
    expect(error.code() == ErrorCode::io && world_.n_failed_reads() != failed_before &&
               options_.second_copy.empty(),
           "opening failed: {}", error.what());
    ++tally_.n_failed_opens;
  }
  world_.set_failing(subject_.path, 0);
  if (!model_) return false;
  const Stats stats = model_->stats();
  unit_bytes_at_open_ = stats.streamed_read_bytes;
  served_at_open_ = world_.served_bytes();
  failed_reads_told_.fill(world_.n_failed_reads());
  expect(stats.n_reads == world_.n_reads() - reads_before_, "opening counts {} reads, the drive took {}",
         stats.n_reads, world_.n_reads() - reads_before_);
  expect(stats.read_bytes() >= served_at_open_ - served_before, "opening counts {} bytes, {} were served",
         stats.read_bytes(), served_at_open_ - served_before);
  model_->set_cancel_flag(&world_.cancel);
  model_->set_progress([this](double, std::size_t) {
    world_.count_event();
    // Computing takes time, too: the drive may be idle meanwhile, which is what look-ahead waits for.
    world_.pass_time(world_.between(0, 2'000'000));
  });
  check_idle();
  return true;
}

void Session::run(int n_operations) {
  add_pair();
  for (int i = 0; i < n_operations; ++i) {
    operate();
    check_idle();
  }
}

void Session::operate() {
  const std::uint64_t dice = world_.random.below(100);
  if (dice < 58) {
    step();
  } else if (dice < 66) {
    world_.happens(0.6) ? rewind(any_pair()) : share();
  } else if (dice < 76) {
    add_pair();
  } else if (dice < 80) {
    say("a sequence ends");
    if (pairs_.size() > 1)
      pairs_.erase(
          std::next(pairs_.begin(), static_cast<std::ptrdiff_t>(world_.random.below(pairs_.size()))));
  } else if (dice < 85) {
    std::uint64_t n_looks = world_.between(0, 6);
    say("preload for {} looks", n_looks);
    model_->preload_while([&] { return n_looks-- != 0; });
  } else if (dice < 87) {
    say("relieve");
    model_->relieve();
  } else if (dice < 89) {
    say("save heat");
    model_->save_heat();
  } else if (dice < 95) {
    world_.set_weather(static_cast<World::Weather>(world_.random.below(3)));
    say("the weather changes");
  } else {
    wrong_request();
  }
}

Pair& Session::any_pair() {
  return *std::next(pairs_.begin(), static_cast<std::ptrdiff_t>(world_.random.below(pairs_.size())));
}

void Session::add_pair() {
  say("new sequence beside {}", pairs_.size());
  try {
    Sequence sequence = model_->new_sequence();
    expect(pairs_.size() < options_.max_sequences, "more sequences than planned");
    pairs_.push_back({std::move(sequence), subject_.reference->new_sequence()});
  } catch (const Error& error) {
    expect(error.code() == ErrorCode::budget && pairs_.size() == options_.max_sequences,
           "no new sequence beside {}: {}", pairs_.size(), error.what());
  }
}

void Session::rewind(Pair& pair) {
  const auto n = static_cast<std::uint32_t>(world_.between(0, pair.sequence.n_tokens()));
  say("back from {} to {}", pair.sequence.n_tokens(), n);
  go_back(pair, n);
  expect(subject_.is_recurrent || pair.sequence.n_tokens() == n, "only {} of {} tokens were reached",
         pair.sequence.n_tokens(), n);
}

void Session::go_back(Pair& pair, std::uint32_t n) {
  // What each keeps of its states depends on its passes.
  while (pair.sequence.n_tokens() != n || pair.reference.n_tokens() != n)
    n = pair.reference.rewind(pair.sequence.rewind(std::min(n, pair.reference.n_tokens())));
}

void Session::share() {
  Pair &from = any_pair(), &to = any_pair();
  if (&from == &to) return;
  const auto n = static_cast<std::uint32_t>(world_.between(0, from.sequence.n_tokens()));
  say("a sequence of {} begins anew with {} of {}", to.sequence.n_tokens(), n, from.sequence.n_tokens());
  to.sequence.rewind(0);
  to.reference.rewind(0);
  const std::uint32_t n_shared = to.sequence.share_prefix(from.sequence, n);
  const std::uint32_t n_expected = to.reference.share_prefix(from.reference, n);
  expect(subject_.is_recurrent || (n_shared == n && n_expected == n), "not all tokens were shared");
  go_back(to, std::min(n_shared, n_expected));
  has_shared_ = true;
}

void Session::wrong_request() {
  Pair& pair = any_pair();
  std::vector<TokenId> tokens(pair.sequence.n_free() + 1, 1);
  ErrorCode expected = ErrorCode::context_full;
  if (pair.sequence.n_free() != 0 && world_.happens(0.6)) {
    tokens.assign(1, static_cast<TokenId>(model_->info().n_vocab));
    expected = ErrorCode::invalid_argument;
  }
  say("a wrong request");
  const std::uint32_t before = pair.sequence.n_tokens();
  const StepItem item{&pair.sequence, tokens, LogitsWanted::last};
  try {
    model_->step({&item, 1}, [](std::size_t, std::size_t, std::span<const float>) {});
    throw Finding("a wrong request was computed");
  } catch (const Error& error) {
    expect(error.code() == expected, "a wrong request ends with: {}", error.what());
  }
  expect(pair.sequence.n_tokens() == before, "a wrong request changed its sequence");
}

Session::Asked Session::draw_step() {
  Asked asked;
  const bool is_decode = world_.happens(0.6);
  for (Pair& pair : pairs_) {
    const std::uint32_t n_free = pair.sequence.n_free();
    if (n_free == 0 || (!asked.pairs.empty() && world_.happens(0.4))) continue;
    std::uint64_t n = is_decode ? 1 : world_.between(1, world_.happens(0.2) ? 120 : 24);
    std::uint32_t n_guesses = 0;
    if (is_decode && world_.happens(0.2)) {
      n += world_.between(1, 5);
      n_guesses = static_cast<std::uint32_t>(n - 1);
    }
    n = std::min<std::uint64_t>(n, n_free);
    n_guesses = std::min(n_guesses, static_cast<std::uint32_t>(n - 1));
    std::vector<TokenId> tokens(n);
    for (TokenId& token : tokens) token = static_cast<TokenId>(world_.random.below(model_->info().n_vocab));
    asked.pairs.push_back(&pair);
    asked.tokens.push_back(std::move(tokens));
    asked.items.push_back({&pair.sequence, {}, static_cast<LogitsWanted>(world_.random.below(3)), n_guesses});
  }
  for (std::size_t i = 0; i < asked.items.size(); ++i) asked.items[i].tokens = asked.tokens[i];
  if (world_.happens(0.04)) asked.sink_throws_at = world_.random.below(4);
  return asked;
}

void Session::disturb() {
  if (world_.happens(0.15)) world_.cancel_after(world_.between(1, world_.happens(0.5) ? 8 : 80));
  if (world_.happens(0.15)) world_.set_failing(subject_.path, world_.happens(0.3) ? 1.0 : 0.1);
  if (!options_.second_copy.empty() && world_.happens(0.05)) world_.set_failing(subject_.copy, 0.3);
}

void Session::undisturb() {
  world_.calm();
  world_.set_failing(subject_.path, 0);
  if (!options_.second_copy.empty()) world_.set_failing(subject_.copy, 0);
}

void Session::step() {
  const Asked asked = draw_step();
  if (asked.items.empty()) return;
  disturb();
  const Stats before = model_->stats();
  const std::uint64_t routed_before = routed_units_;
  const Outcome outcome = do_step(asked);
  undisturb();
  std::size_t n_asked = 0, n_kept = 0;
  for (std::size_t i = 0; i < asked.items.size(); ++i) {
    const std::size_t n = asked.tokens[i].size(), kept = outcome.kept[i];
    expect(kept <= n, "{} of {} tokens were kept", kept, n);
    n_asked += n;
    n_kept += kept;
    n_counted_tokens_ += std::min<std::size_t>(kept, n - asked.items[i].n_guesses);
  }
  say("step: {} items, {} tokens, {} kept{}{}", asked.items.size(), n_asked, n_kept,
      outcome.error ? ": " : "", outcome.what);
  ++tally_.n_steps;
  tally_.n_tokens += n_kept;
  const bool is_whole = !outcome.error && !outcome.sink_threw;
  if (is_whole) {
    expect(n_kept == n_asked, "a step without error kept {} of {} tokens", n_kept, n_asked);
    if (options_.on_routing && subject_.is_moe) {
      expect(model_->stats().n_wanted() - before.n_wanted() == routed_units_ - routed_before,
             "hits and misses add up to {}, {} experts were wanted",
             model_->stats().n_wanted() - before.n_wanted(), routed_units_ - routed_before);
    }
  } else {
    // Of several items one may have failed by itself, and then they fill the passes in other ways.
    expect(asked.items.size() > 1 || n_kept % model_->plan().prefill_chunk == 0,
           "{} tokens are no whole passes of {}", n_kept, model_->plan().prefill_chunk);
  }
  check_error(asked, outcome);
  check_rows(asked, outcome);
}

Session::Outcome Session::do_step(const Asked& asked) {
  Outcome outcome;
  std::vector<std::uint32_t> before;
  for (const Pair* pair : asked.pairs) before.push_back(pair->sequence.n_tokens());
  try {
    model_->step(asked.items, [&](std::size_t item, std::size_t token, std::span<const float> logits) {
      if (asked.sink_throws_at == outcome.rows.size()) throw SinkError();
      outcome.rows.push_back({item, token, {logits.begin(), logits.end()}});
    });
  } catch (const Error& error) {
    outcome.error = error.code();
    outcome.what = error.what();
  } catch (const SinkError&) {
    outcome.sink_threw = true;
  }
  for (std::size_t i = 0; i < asked.pairs.size(); ++i)
    outcome.kept.push_back(asked.pairs[i]->sequence.n_tokens() - before[i]);
  return outcome;
}

void Session::check_error(const Asked& asked, const Outcome& outcome) {
  if (outcome.sink_threw) {
    ++tally_.n_sink_errors;
    expect(asked.sink_throws_at.has_value(), "an exception that nobody threw");
    return;
  }
  if (!outcome.error) return;
  if (*outcome.error == ErrorCode::cancelled) {
    ++tally_.n_cancelled;
    return;
  }
  expect(*outcome.error == ErrorCode::io, "a step ends with: {}", outcome.what);
  ++tally_.n_io_errors;
  std::uint64_t& told = failed_reads_told_[queue_of(outcome.what)];
  expect(world_.n_failed_reads() > told, "no read has failed, but: {}", outcome.what);
  expect(outcome.what.find(subject_.path.string()) != std::string::npos ||
             outcome.what.find(subject_.copy.string()) != std::string::npos,
         "the file is not named: {}", outcome.what);
  told = world_.n_failed_reads();
}

void Session::check_rows(const Asked& asked, const Outcome& outcome) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < asked.items.size(); ++i) {
    const std::size_t n = asked.tokens[i].size(), kept = outcome.kept[i];
    if (kept == 0) continue;
    const StepItem reference{&asked.pairs[i]->reference, asked.items[i].tokens.first(kept),
                             LogitsWanted::all};
    subject_.reference->step(
        {&reference, 1}, [&](std::size_t, std::size_t token, std::span<const float> logits) {
          const LogitsWanted wanted = asked.items[i].logits;
          if (wanted == LogitsWanted::none || (wanted == LogitsWanted::last && token + 1 != n)) return;
          expect(next < outcome.rows.size(), "the logits of item {}, token {} are missing", i, token);
          const Row& row = outcome.rows[next++];
          expect(row.item == i && row.token == token, "logits of item {}, token {} came as those of {}, {}",
                 i, token, row.item, row.token);
          expect(row.logits.size() == logits.size() &&
                     std::memcmp(row.logits.data(), logits.data(), logits.size_bytes()) == 0,
                 "the logits of item {}, token {} of {} differ", i, token, n);
        });
  }
  expect(next == outcome.rows.size() || outcome.sink_threw, "{} rows of logits too many",
         outcome.rows.size() - next);
}

void Session::check_idle() {
  const Stats stats = model_->stats();
  expect(stats.streamed_read_bytes - unit_bytes_at_open_ == world_.served_bytes() - served_at_open_,
         "{} bytes are counted as read, {} were served", stats.streamed_read_bytes - unit_bytes_at_open_,
         world_.served_bytes() - served_at_open_);
  expect(stats.n_reads == world_.n_reads() - reads_before_, "{} reads are counted, the drive took {}",
         stats.n_reads, world_.n_reads() - reads_before_);
  expect(stats.n_prefill_tokens + stats.n_decode_tokens == n_counted_tokens_,
         "{} tokens are counted, {} were computed", stats.n_prefill_tokens + stats.n_decode_tokens,
         n_counted_tokens_);
  expect(stats.n_ahead_used + stats.n_ahead_wasted <= stats.n_ahead,
         "more units came from look-ahead than went");
  if (impl().cache != nullptr) {
    expect(impl().cache->n_leased() == 0, "{} slots are leased between steps", impl().cache->n_leased());
    expect(stats.slot_bytes <= model_->plan().budget_bytes &&
               stats.n_slots <= model_->plan().n_cached_units + model_->plan().n_transit_units,
           "more slots than planned");
  }
  check_pages();
}

void Session::check_pages() {
  const engine::KvPages& pool = impl().kv->pages(0);
  const std::uint64_t n_all = engine::pages_for(options_.n_ctx) * options_.max_sequences;
  std::uint64_t n_least = 0, n_most = 0;
  for (const Pair& pair : pairs_) {
    const std::uint64_t n_pages = engine::pages_for(pair.sequence.n_tokens());
    n_least = has_shared_ ? std::max(n_least, n_pages) : n_least + n_pages;
    n_most += n_pages;
  }
  const std::uint64_t n_owned = n_all - pool.n_free();
  expect(n_owned >= n_least && n_owned <= n_most, "{} of {} pages are taken, {} to {} are in use", n_owned,
         n_all, n_least, n_most);
}

void Session::finish() {
  world_.set_weather(World::Weather::plenty);
  Pair& pair = pairs_.front();
  // One pass to hear that there is room, one in which blocks pass through the ring, one to end that.
  for (int i = 0; i < 3; ++i) {
    if (pair.sequence.n_free() == 0) {
      pair.sequence.rewind(0);
      pair.reference.rewind(0);
    }
    const Asked asked{{&pair}, {{5}}, {}, {}};
    Asked with_items = asked;
    with_items.items = {{&pair.sequence, with_items.tokens[0], LogitsWanted::last, 0}};
    Outcome outcome = do_step(with_items);
    if (outcome.error) {
      // What was read ahead while the drive failed.
      check_error(with_items, outcome);
      outcome = do_step(with_items);
      expect(!outcome.error, "a model does not go on: {}", outcome.what);
    }
    ++n_counted_tokens_;
    check_rows(with_items, outcome);
  }
  const auto& own = impl();
  expect(own.cache == nullptr || own.cache->own_slot_bytes() == own.cache->planned_own_slot_bytes(),
         "slots did not come back");
  expect(own.tiers == nullptr || own.tiers->bytes() == own.tiers->planned_bytes(),
         "blocks did not come back");
  const Stats stats = model_->stats();
  tally_.n_misses += stats.n_misses;
  tally_.n_ahead += stats.n_ahead;
  tally_.n_shrinks += stats.n_shrinks;
  tally_.n_blocks_released += stats.n_blocks_released;
  tally_.n_preloaded += stats.n_preloaded;
  model_->save_heat();
  pairs_.clear();
  check_idle();
  expect(impl().kv->pages(0).n_free() == engine::pages_for(options_.n_ctx) * options_.max_sequences,
         "pages are missing at the end");
}

}  // namespace

std::string simulate(std::uint64_t seed, Subjects& subjects, Tally& tally, bool verbose) {
  World world(seed);
  Subject& subject = subjects.get(static_cast<std::uint32_t>(world.random.below(Subjects::k_n)));
  world.add_file(subject.path, subject.bytes);
  world.add_file(subject.copy, subject.bytes);
  const std::filesystem::path heat = subjects.heat_path();
  try {
    for (std::uint64_t n = world.between(1, 3); n > 0; --n) {
      Session session(world, subject, tally, verbose);
      if (!session.open(heat)) continue;
      session.run(static_cast<int>(world.between(5, 30)));
      // Sometimes it ends in the middle of things, with reads under way.
      if (world.happens(0.8)) session.finish();
    }
  } catch (const Finding& finding) {
    return finding.what();
  } catch (const std::exception& error) {
    return fmt::format("an unexpected exception: {}", error.what());
  }
  tally.n_failed_reads += world.n_failed_reads();
  std::filesystem::remove(heat);
  return {};
}

}  // namespace sluice::simulation
