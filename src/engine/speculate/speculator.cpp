#include "engine/speculate/speculator.hpp"

#include <algorithm>
#include <limits>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
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

/// A guess is a token id, so an id must mean the same to both models. What a model does at its end tokens
/// does not matter: the draft only continues the text.
void check_vocabulary(const Model& model, const Model& draft) {
  const Tokenizer &own = model.tokenizer(), &other = draft.tokenizer();
  const auto refuse = [&](const std::string& what) {
    base::fail(
        ErrorCode::invalid_argument,
        "{} cannot be the draft of {}: their vocabularies differ ({}); a draft must be of the same family",
        draft.info().path, model.info().path, what);
  };
  if (own.vocab_size() != other.vocab_size())
    refuse(fmt::format("{} and {} tokens", other.vocab_size(), own.vocab_size()));
  if (own.vocab_size() == 0 && model.info().n_vocab != draft.info().n_vocab)
    refuse(fmt::format("{} and {} token ids", draft.info().n_vocab, model.info().n_vocab));
  for (std::size_t i = 0; i < own.vocab_size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    if (own.token_text(token) != other.token_text(token))
      refuse(fmt::format("token {} is '{}' and '{}'", i, other.token_text(token), own.token_text(token)));
  }
  if (own.bos() != other.bos())
    refuse(fmt::format("texts begin with token {} and {}", other.bos(), own.bos()));
}

}  // namespace

Speculator::Impl::Impl(const Model& model, std::optional<Model> draft_model, const SpeculateOptions& given)
    : options_(given),
      n_vocab_(model.info().n_vocab),
      index_(model.plan().n_ctx),
      gate_(checked_guesses(given)) {
  if (!draft_model) return;
  check_vocabulary(model, *draft_model);
  draft_.emplace(std::move(*draft_model));
}

void Speculator::Impl::forget() {
  index_.truncate(0);
  n_unknown_ = 0;
  draft_lost_ = false;
  if (draft_) draft_->truncate(0);
}

void Speculator::Impl::begin(std::uint32_t n_before, std::span<const TokenId> prompt, Model::Impl& target) {
  if (target.info.n_vocab != n_vocab_) {
    base::fail(ErrorCode::invalid_argument,
               "the speculator was made for a model of {} token ids, but {} has {}; make one for each model",
               n_vocab_, target.info.path, target.info.n_vocab);
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
  if (draft_ && !draft_lost_) {
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
  // Rows that only the draft has, beyond the vocabulary.
  const auto strange = std::find_if(guesses_.begin(), guesses_.end(), [this](TokenId token) {
    return static_cast<std::uint32_t>(token) >= n_vocab_;
  });
  guesses_.erase(strange, guesses_.end());
  return guesses_;
}

void Speculator::Impl::settle(std::uint32_t n_accepted, std::uint64_t step_ns) {
  Model::Impl::Speculation& counters = target_->speculation;
  counters.draft_ns += guessing_ns_;
  if (draft_) draft_->settle(n_accepted);
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
  own.prefill_chunk = k_draft_chunk;
  if (options.n_ctx != 0) {
    const gguf::ModelFile file = engine::parse_header(path, nullptr);
    const std::uint32_t trained = model::read_hyper_params(file.metadata).n_ctx_train;
    own.n_ctx = trained == 0 ? options.n_ctx : std::min(options.n_ctx, trained);
  }
  Model draft = Model::open(path, own);
  if (!draft.plan().fully_resident()) {
    base::fail(
        ErrorCode::budget,
        "the draft {} does not fit the memory budget of {} as a whole ({} would be needed), and streaming it "
        "would cost more than it saves; give more memory, or no draft",
        path.string(), base::format_bytes(draft.plan().budget_bytes),
        base::format_bytes(draft.plan().resident_bytes));
  }
  return draft;
}

}  // namespace sluice
