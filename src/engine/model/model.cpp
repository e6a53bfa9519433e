#include "sluice/model.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "engine/model/model_impl.hpp"
#include "engine/plan/work_facts.hpp"

namespace sluice {

Sequence::Sequence(Impl* impl) noexcept : impl_(impl) {}
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;
std::uint32_t Sequence::n_tokens() const noexcept {
  SLUICE_CHECK(impl_ != nullptr);  // Nothing may be asked of one that was moved from.
  return impl_->n_tokens;
}
std::uint32_t Sequence::n_free() const noexcept {
  SLUICE_CHECK(impl_ != nullptr);
  return impl_->n_ctx - impl_->n_tokens;
}

std::uint32_t Sequence::rewind(std::uint32_t n) {
  check_usable("Sequence::rewind()");
  if (n > impl_->n_tokens) {
    base::fail(ErrorCode::invalid_argument, "a sequence of {} tokens cannot go back to {}", impl_->n_tokens,
               n);
  }
  return impl_->rewind(n);
}

std::uint32_t Sequence::share_prefix(const Sequence& from, std::uint32_t n) {
  check_usable("Sequence::share_prefix()");
  from.check_usable("Sequence::share_prefix()");
  if (impl_->owner != from.impl_->owner) {
    base::fail(ErrorCode::invalid_argument, "a sequence can only share tokens of its own model");
  }
  if (impl_->n_tokens != 0) {
    base::fail(ErrorCode::invalid_argument,
               "a sequence must be empty to begin with another's tokens; this one has {}", impl_->n_tokens);
  }
  if (n > from.impl_->n_tokens) {
    base::fail(ErrorCode::invalid_argument, "{} tokens of a sequence that has {} cannot be shared", n,
               from.impl_->n_tokens);
  }
  impl_->rewind(0);  // Pages that a failed step left.
  impl_->n_tokens = impl_->kv.share(from.impl_->kv, from.impl_->state.reachable(n));
  impl_->state.share(from.impl_->state, impl_->n_tokens);
  return impl_->n_tokens;
}

void Sequence::check_usable(const char* call) const {
  SLUICE_CHECK(impl_ != nullptr);
  if (impl_->owner == nullptr)
    base::fail(ErrorCode::invalid_argument, "the model of this sequence is gone; make a new sequence");
  impl_->owner->check_idle(call);
}

Model::Model(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::open(const std::filesystem::path& path, const OpenOptions& options) {
  return engine::open_model(path, options, {});
}

const ModelInfo& Model::info() const noexcept {
  return impl_->info;
}
WorkFacts Model::work() const {
  return engine::work_facts(*impl_->prepared);
}
std::optional<HeatForecast> Model::heat_forecast() const noexcept {
  return impl_->heat_forecast;
}
const Plan& Model::plan() const noexcept {
  return impl_->plan;
}
const Tokenizer& Model::tokenizer() const noexcept {
  return impl_->tokenizer;
}

Sequence Model::new_sequence() {
  impl_->check_idle("Model::new_sequence()");
  if (impl_->sequences.size() == impl_->plan.max_sequences) {
    base::fail(ErrorCode::budget,
               "all {} sequences the memory plan has room for are in use; open the model with more",
               impl_->plan.max_sequences);
  }
  auto sequence = std::make_unique<Sequence::Impl>(*impl_);
  impl_->sequences.push_back(sequence.get());
  return Sequence(sequence.release());
}

void Model::step(std::span<const StepItem> items, const LogitsSink& sink) {
  impl_->step(items, sink);
}

std::vector<ItemFailure> Model::pass(std::span<const StepItem> items, const LogitsSink& sink) {
  return impl_->pass(items, sink);
}
void Model::set_cancel_flag(const std::atomic<bool>* flag) noexcept {
  impl_->cancel = flag;
}
void Model::set_progress(StepProgress progress) {
  impl_->check_idle("Model::set_progress()");
  impl_->progress = std::move(progress);
}
void Model::preload_while(const std::function<bool()>& may_go_on) {
  const Model::Impl::Busy busy(*impl_, "Model::preload_while()");
  if (impl_->cache == nullptr) return;
  impl_->cache->preload_while([&] {
    impl_->pressure->relieve();
    return may_go_on();
  });
}
void Model::relieve() {
  impl_->check_idle("Model::relieve()");
  impl_->pressure->relieve();
}
void Model::save_heat() {
  impl_->check_idle("Model::save_heat()");
  if (impl_->cache != nullptr)
    impl_->heat.save(*impl_->cache,
                     impl_->n_prefill_tokens + impl_->n_decode_tokens + impl_->speculation.n_guessed());
}
Stats Model::stats() const {
  return impl_->stats();
}

}  // namespace sluice
