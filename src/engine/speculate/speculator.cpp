#include "engine/speculate/speculator.hpp"

#include <algorithm>
#include <limits>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/speculate/shared_vocabulary.hpp"
#include "model/architecture.hpp"

namespace sluice {
namespace {

using engine::GuessSource;

/// Rows of the draft's passes: it needs few, and its scratch comes off the model's budget.
constexpr std::uint32_t k_draft_chunk = 64;
/// Time a draft may take to catch up with the text, in plain passes of the model.
constexpr double k_catch_up_passes = 3.0;

std::uint32_t checked_guesses(const SpeculateOptions& options) {
  if (options.max_guesses == 0 || options.max_guesses > k_max_guesses) {
    base::fail(ErrorCode::invalid_argument, "{} guesses per pass were asked for; expected 1 to {}",
               options.max_guesses, k_max_guesses);
  }
  return options.max_guesses;
}

}  // namespace

Speculator::Impl::Impl(const Model& model, std::optional<Model> draft_model, const SpeculateOptions& given)
    : options_(given),
      vocabulary_(model.tokenizer()),
      index_(model.plan().n_ctx),
      gate_(checked_guesses(given)) {
  if (!draft_model) return;
  const std::uint32_t n_shared =
      engine::n_shared_tokens(model.info(), model.tokenizer(), draft_model->info(), draft_model->tokenizer());
  draft_.emplace(std::move(*draft_model), n_shared);
}

void Speculator::Impl::forget() {
  index_.truncate(0);
  n_unknown_ = 0;
  draft_lost_ = false;
  if (draft_) draft_->truncate(0);
}

void Speculator::Impl::begin(std::uint32_t n_before, std::span<const TokenId> prompt, Model::Impl& target) {
  // The vocabulary is shared by all handles of one open model, and by no other.
  if (&target.tokenizer.impl() != &vocabulary_.impl()) {
    base::fail(ErrorCode::invalid_argument,
               "the speculator was made for another model than {}; make one for each open model",
               target.info.path);
  }
  target_ = &target;
  if (draft_) draft_->model().set_cancel_flag(target.cancel);
  if (n_before < n_unknown_ || n_before == 0) {
    forget();
  } else {
    index_.truncate(n_before - n_unknown_);
    if (draft_) draft_->truncate(n_before - n_unknown_);
  }
  n_unknown_ = n_before - index_.tokens().size();
  for (const TokenId token : prompt) push(token);
}

void Speculator::Impl::prompt_done(std::size_t n_tokens, std::uint32_t chunk, std::uint64_t ns) {
  const std::size_t n_passes = (n_tokens + chunk - 1) / chunk;
  const auto n_rows = static_cast<std::uint32_t>((n_tokens + n_passes - 1) / n_passes);
  for (std::size_t i = 0; i < n_passes; ++i)
    gate_.note_prompt(n_rows, static_cast<double>(ns) / static_cast<double>(n_passes));
}

void Speculator::Impl::push(TokenId token) {
  index_.push(token);
  if (draft_ && static_cast<std::uint32_t>(token) >= draft_->model().info().n_vocab) draft_lost_ = true;
}

double Speculator::Impl::most_catch_up_ns() const {
  return options_.gate ? k_catch_up_passes * gate_.plain_ns() : std::numeric_limits<double>::max();
}

void Speculator::Impl::add_offers(std::uint32_t n_max) {
  offers_.clear();
  match_ = options_.lookup ? index_.find() : engine::LookupIndex::Match{};
  if (match_.run != 0) {
    const auto source = static_cast<GuessSource>(match_.run - engine::LookupIndex::k_min_run);
    offers_.push_back({source, n_max, 0, 0});
  }
  if (draft_ && !draft_lost_ && draft_->max_guesses() != 0) {
    const std::uint32_t rows = draft_->rows_behind(index_.tokens(), most_catch_up_ns());
    offers_.push_back({GuessSource::draft, std::min(n_max, draft_->max_guesses()),
                       (rows - 1) * draft_->row_ns(), draft_->guess_ns()});
  }
}

std::span<const TokenId> Speculator::Impl::propose(std::uint32_t n_max, bool past_end) {
  guesses_.clear();
  guessing_ns_ = 0;
  n_max = std::min(n_max, options_.max_guesses);
  if (n_max == 0) return guesses_;
  if (oracle) {
    guesses_ = oracle(index_.tokens(), n_max);
    return guesses_;
  }
  add_offers(n_max);
  engine::SpeculationGate::Choice choice = gate_.choose(offers_);
  if (!options_.gate && !offers_.empty()) choice = {0, offers_.front().n_max};
  if (choice.n == 0) return guesses_;
  source_ = offers_[choice.offer].source;
  if (source_ == GuessSource::draft) {
    const std::uint64_t start = base::now_ns();
    draft_->guess(index_.tokens(), choice.n, most_catch_up_ns(), past_end, guesses_);
    guessing_ns_ = base::now_ns() - start;
  } else {
    index_.copy(match_, choice.n, guesses_);
  }
  return guesses_;
}

void Speculator::Impl::note_accepted(std::uint32_t n_accepted, std::uint64_t step_ns) {
  Model::Impl::Speculation& counters = target_->speculation;
  counters.draft_ns += guessing_ns_;
  if (draft_) draft_->note_accepted(n_accepted);
  const auto ns = static_cast<double>(step_ns), guessing = static_cast<double>(guessing_ns_);
  if (guesses_.empty()) {
    gate_.note_plain(ns + guessing);
    return;
  }
  ++counters.n_passes;
  (source_ == GuessSource::draft ? counters.draft : counters.lookup).n_guessed += guesses_.size();
  if (gate_.plain_ns() > 0)
    gate_.note_round(source_, static_cast<std::uint32_t>(guesses_.size()), n_accepted, ns, guessing);
}

void Speculator::Impl::count(std::size_t n_kept) {
  Model::Impl::Speculation& counters = target_->speculation;
  (source_ == GuessSource::draft ? counters.draft : counters.lookup).n_accepted += n_kept;
}

Speculator::Speculator(const Model& model, const SpeculateOptions& options)
    : impl_(std::make_unique<Impl>(model, std::nullopt, options)) {}
Speculator::Speculator(const Model& model, Model draft, const SpeculateOptions& options)
    : impl_(std::make_unique<Impl>(model, std::move(draft), options)) {}
Speculator::Speculator(Speculator&&) noexcept = default;
Speculator& Speculator::operator=(Speculator&&) noexcept = default;
Speculator::~Speculator() = default;

void Speculator::forget() {
  impl_->forget();
}

Model open_draft(const std::filesystem::path& path, const OpenOptions& options) {
  OpenOptions own;
  own.memory_bytes = options.memory_bytes;
  own.n_threads = options.n_threads;
  own.io = options.io;
  own.cancel = options.cancel;
  own.on_progress = options.on_progress;
  own.prefill_chunk = k_draft_chunk;
  engine::Header header = engine::parse_header(path);
  if (options.n_ctx != 0) {
    const std::uint32_t trained = model::read_spec(header.file.metadata).n_ctx_train;
    own.n_ctx = trained == 0 ? options.n_ctx : std::min(options.n_ctx, trained);
  }
  own.before_loading = [&](const ModelInfo&, const Tokenizer&, const Plan& plan) {
    if (plan.fully_resident()) return;
    base::fail(
        ErrorCode::budget,
        "the draft {} does not fit the memory budget of {} as a whole ({} would be needed), and streaming it "
        "would cost more than it saves; give more memory, or no draft",
        path.string(), base::format_bytes(plan.budget_bytes), base::format_bytes(plan.resident_from_bytes));
  };
  return engine::open_model(std::move(header), own);
}

}  // namespace sluice
