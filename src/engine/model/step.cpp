#include "engine/model/model_impl.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"

namespace sluice {

Model::Impl::~Impl() {
  SLUICE_CHECK(!is_busy);  // A callback destroyed the model it was called by.
  for (Sequence::Impl* sequence : sequences) {
    sequence->owner = nullptr;
    sequence->kv.forget();
    sequence->state.forget();
  }
}

void Model::Impl::check_idle(const char* call) const {
  if (is_busy) {
    base::fail(ErrorCode::invalid_argument,
               "{} was called from a callback of the model; wait until the call that runs the callback has "
               "returned",
               call);
  }
}

Model::Impl::Busy::Busy(Impl& model, const char* call) : model_(model) {
  model.check_idle(call);
  model.is_busy = true;
}

Model::Impl::Busy::~Busy() {
  model_.is_busy = false;
  for (std::size_t i = model_.sequences.size(); i > 0; --i) {
    if (model_.sequences[i - 1]->is_destroyed) delete model_.sequences[i - 1];
  }
}

void Sequence::Deleter::operator()(Impl* impl) const noexcept {
  if (impl->owner != nullptr && impl->owner->is_busy) {
    impl->is_destroyed = true;  // The step under way may still use it.
  } else {
    delete impl;
  }
}

Sequence::Impl::Impl(Model::Impl& model)
    : owner(&model), n_ctx(model.plan.n_ctx), kv(*model.kv, model.plan.n_ctx), state(*model.states) {}

Sequence::Impl::~Impl() {
  if (owner == nullptr) return;
  rewind(0);
  std::erase(owner->sequences, this);
}

kernels::SequenceView Sequence::Impl::begin_pass(std::uint32_t n) {
  kv.reserve(n_tokens, n_tokens + n);
  kernels::SequenceView view = kv.view();
  view.state = state.begin_pass(n);
  return view;
}

void Sequence::Impl::commit(std::uint32_t n) noexcept {
  n_tokens += n;
  kv.leave_behind(n_tokens);
  state.commit();
}

std::uint32_t Sequence::Impl::rewind(std::uint32_t n) noexcept {
  n_tokens = kv.rewind(state.reachable(n));
  state.rewind(n_tokens);
  return n_tokens;
}

namespace {

/// Throws Error(invalid_argument or context_full) for item `i` of a step that makes no sense by itself.
void check_item(const StepItem& item, std::size_t i, const Sequence::Impl& sequence, std::uint32_t n_vocab) {
  for (const TokenId token : item.tokens) {
    if (token < 0 || static_cast<std::uint32_t>(token) >= n_vocab) {
      base::fail(ErrorCode::invalid_argument, "step item {} has token {}, expected 0 to {}", i, token,
                 n_vocab - 1);
    }
  }
  if (item.tokens.size() > sequence.n_ctx - sequence.n_tokens) {
    base::fail(ErrorCode::context_full,
               "{} more tokens do not fit the context of {} ({} are in use); give a larger --ctx or a "
               "shorter text",
               item.tokens.size(), sequence.n_ctx, sequence.n_tokens);
  }
  if (item.n_guesses >= item.tokens.size()) {
    base::fail(ErrorCode::invalid_argument, "step item {} has {} tokens, all of them guesses", i,
               item.tokens.size());
  }
}

}  // namespace

void Model::Impl::check_items(std::span<const StepItem> items) const {
  for (std::size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    const bool has_sequence = item.sequence != nullptr && item.sequence->impl_ != nullptr;
    if (!has_sequence || item.tokens.empty()) {
      base::fail(ErrorCode::invalid_argument, "step item {} has no {}", i,
                 has_sequence ? "tokens" : "sequence");
    }
    const Sequence::Impl& sequence = *item.sequence->impl_;
    if (sequence.owner != this) {
      base::fail(ErrorCode::invalid_argument, "step item {} holds a sequence of {}", i,
                 sequence.owner == nullptr ? "a model that is gone" : "another model");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (items[j].sequence == item.sequence)
        base::fail(ErrorCode::invalid_argument, "step items {} and {} hold the same sequence", j, i);
    }
    check_item(item, i, sequence, info.n_vocab);
  }
  check_pages(items);
}

void Model::Impl::check_pages(std::span<const StepItem> items) const {
  for (std::size_t group = 0; group < kv->n_groups(); ++group) {
    std::uint64_t n_wanted = 0;
    for (const StepItem& item : items) {
      const Sequence::Impl& sequence = *item.sequence->impl_;
      n_wanted += sequence.kv.n_wanted(group, sequence.n_tokens, item.tokens.size());
    }
    if (n_wanted <= kv->pages(group).n_free()) continue;
    base::fail(
        ErrorCode::kv_full,
        "the step needs {} more pages of {} tokens of the KV cache, but {} of {} are free; end or cut a "
        "sequence, or open the model with room for more than {} tokens",
        n_wanted, kernels::KvShape::page_tokens, kv->pages(group).n_free(), kv->pages(group).n_pages(),
        plan.kv_tokens);
  }
}

void Model::Impl::PassItems::clear() {
  tokens.clear();
  positions.clear();
  sequence_of.clear();
  kinds.clear();
  sequences.clear();
  cancels.clear();
  logits_rows.clear();
  origins.clear();
  parts.clear();
  is_decode = true;
}

void Model::Impl::PassItems::reserve(std::uint32_t n_rows, std::uint32_t n_sequences) {
  tokens.reserve(n_rows);
  positions.reserve(n_rows);
  sequence_of.reserve(n_rows);
  kinds.reserve(n_rows);
  logits_rows.reserve(n_rows);
  origins.reserve(n_rows);
  sequences.reserve(n_sequences);
  cancels.reserve(n_sequences);
  parts.reserve(n_sequences);
}

void Model::Impl::PassItems::add(const StepItem& item, Sequence::Impl& sequence, std::size_t item_idx,
                                 std::size_t first, std::size_t n, bool wants_logits) {
  const std::uint32_t start = sequence.n_tokens;
  const auto place = static_cast<std::uint32_t>(sequences.size());
  sequences.push_back(sequence.begin_pass(static_cast<std::uint32_t>(n)));
  cancels.push_back(item.cancel);
  const std::size_t n_left = item.tokens.size() - first - n;
  const std::size_t n_guesses = std::min(n, item.n_guesses - std::min<std::size_t>(item.n_guesses, n_left));
  parts.push_back(
      {item_idx, &sequence, static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n_guesses)});
  const bool decodes = item.tokens.size() == 1 + item.n_guesses;
  is_decode = is_decode && decodes;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t token_idx = first + i;
    const bool wanted = item.logits == LogitsWanted::all ||
                        (item.logits == LogitsWanted::last && token_idx + 1 == item.tokens.size());
    if (wanted && wants_logits) {
      logits_rows.push_back(static_cast<std::uint32_t>(tokens.size()));
      origins.push_back({item_idx, token_idx});
    }
    positions.push_back(start + static_cast<std::uint32_t>(i));
    sequence_of.push_back(place);
    kinds.push_back(decodes ? model::RowKind::decode : model::RowKind::prompt);
    tokens.push_back(item.tokens[token_idx]);
  }
}

void Model::Impl::begin_step(std::span<const StepItem> items) {
  check_items(items);
  n_step_tokens = n_step_done = 0;
  for (const StepItem& item : items) n_step_tokens += item.tokens.size();
}

std::vector<ItemFailure> Model::Impl::pass(std::span<const StepItem> items, const LogitsSink& sink) {
  const Busy busy(*this, "Model::pass()");
  if (items.empty()) return {};
  begin_step(items);
  if (n_step_tokens > plan.prefill_chunk) {
    base::fail(ErrorCode::invalid_argument, "a pass of {} tokens was asked for, at most {} are possible",
               n_step_tokens, plan.prefill_chunk);
  }
  rows.clear();
  for (std::size_t i = 0; i < items.size(); ++i)
    rows.add(items[i], *items[i].sequence->impl_, i, 0, items[i].tokens.size(), static_cast<bool>(sink));
  return run_pass(sink);
}

void Model::Impl::step(std::span<const StepItem> items, const LogitsSink& sink) {
  const Busy busy(*this, "Model::step()");
  if (items.empty()) return;
  begin_step(items);
  // A callback may move or destroy the caller's objects.
  std::vector<Sequence::Impl*> sequences_of(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) sequences_of[i] = items[i].sequence->impl_.get();

  // Fills passes with rows of the items in order. A sequence's pages are reserved pass by pass and its length
  // moves only when the pass is complete, so a failure leaves it as the last complete pass did.
  std::vector<ItemFailure> failures;
  std::size_t item_idx = 0, token_idx = 0;
  while (item_idx < items.size()) {
    rows.clear();
    while (item_idx < items.size() && rows.tokens.size() < plan.prefill_chunk) {
      const StepItem& item = items[item_idx];
      const std::size_t size = item.tokens.size();
      const std::size_t n = std::min<std::size_t>(size - token_idx, plan.prefill_chunk - rows.tokens.size());
      rows.add(item, *sequences_of[item_idx], item_idx, token_idx, n, static_cast<bool>(sink));
      token_idx += n;
      if (token_idx < size) break;
      ++item_idx;
      token_idx = 0;
    }
    for (ItemFailure& failure : run_pass(sink)) {
      if (failure.item == item_idx) {  // What is left of its tokens has nothing to follow.
        ++item_idx;
        token_idx = 0;
      }
      failures.push_back(std::move(failure));
    }
  }
  if (!failures.empty()) throw Error(failures.front().code, failures.front().message);
}

void Model::Impl::report_progress(std::uint32_t layer_idx) {
  if (!progress) return;
  const double layers = static_cast<double>(layer_idx) / prepared->spec().n_layers();
  progress(static_cast<double>(n_step_done) + layers * static_cast<double>(rows.tokens.size()),
           n_step_tokens);
}

namespace {

/// Undoes what a pass has begun for tokens which it did not compute, however it ends.
class Undo {
 public:
  explicit Undo(std::span<const Model::Impl::PassItems::Part> parts) : parts_(parts) {}
  ~Undo() {
    for (const auto& part : parts_) part.sequence->rewind(part.sequence->n_tokens);
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;

 private:
  std::span<const Model::Impl::PassItems::Part> parts_;
};

}  // namespace

std::vector<ItemFailure> Model::Impl::run_pass(const LogitsSink& sink) {
  const std::uint64_t start = base::now_ns();
  std::uint64_t sink_ns = 0;
  const auto receive = [&](std::size_t index, std::span<const float> logits) {
    const std::uint64_t before = base::now_ns();
    sink(rows.origins[index].item, rows.origins[index].token, logits);
    sink_ns += base::now_ns() - before;
  };
  // What a short turn of a chat uses is worth keeping, too.
  constexpr std::size_t k_few_rows = model::LiveRows::k_max_decode_rows;
  if (rows.tokens.size() <= k_few_rows)
    std::fill(rows.kinds.begin(), rows.kinds.end(), model::RowKind::decode);
  pass_routing.clear();
  const Undo undo(rows.parts);
  std::vector<model::SequenceFailure> failed =
      forward->run({rows.tokens,
                    {rows.positions, rows.sequence_of, rows.sequences, kv->regions()},
                    rows.logits_rows,
                    rows.kinds,
                    rows.cancels},
                   cancel, receive);
  const std::uint64_t elapsed_ns = base::now_ns() - start - sink_ns;
  std::vector<ItemFailure> failures;
  for (model::SequenceFailure& failure : failed) {
    failures.push_back({rows.parts[failure.sequence].item, failure.code, std::move(failure.message)});
    rows.parts[failure.sequence].n_rows = rows.parts[failure.sequence].n_guesses = 0;
  }
  for (const PassItems::Part& part : rows.parts) {
    if (part.n_rows != 0) part.sequence->commit(part.n_rows);
  }
  n_step_done += rows.tokens.size();
  count_pass(elapsed_ns);
  return failures;
}

void Model::Impl::count_pass(std::uint64_t elapsed_ns) {
  std::size_t n_rows = 0, n_guesses = 0;
  for (const PassItems::Part& part : rows.parts) {
    n_rows += part.n_rows;
    n_guesses += part.n_guesses;
  }
  if (n_rows == 0) return;
  (rows.is_decode ? n_decode_tokens : n_prefill_tokens) += n_rows - n_guesses;
  if (rows.is_decode) ++n_decode_passes;
  (rows.is_decode ? decode_ns : prefill_ns) += elapsed_ns;
  // Where rows were cut out, layers have logged different numbers of them.
  if (pass_routing.empty() || n_rows != rows.tokens.size()) return;
  options.on_routing({rows.is_decode && n_guesses == 0, static_cast<std::uint32_t>(rows.tokens.size()),
                      static_cast<std::uint32_t>(prepared->units.layers.size()),
                      prepared->spec().n_experts_used(), pass_routing});
}

}  // namespace sluice
