#include "sluice/verify.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "engine/measure/reference_file.hpp"
#include "storage/file.hpp"

namespace sluice {

struct Reference::Impl {
  engine::ReferenceFile file;
};

Reference::Reference(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Reference::Reference(Reference&&) noexcept = default;
Reference& Reference::operator=(Reference&&) noexcept = default;
Reference::~Reference() = default;

Reference Reference::open(const std::filesystem::path& path) {
  auto source = storage::make_byte_source(storage::File::open(path.string(), /*want_direct=*/false));
  return Reference(std::make_unique<Impl>(Impl{engine::ReferenceFile(std::move(source))}));
}

std::uint32_t Reference::n_ctx() const noexcept {
  return impl_->file.n_ctx();
}
std::uint32_t Reference::n_vocab() const noexcept {
  return impl_->file.n_vocab();
}
std::uint32_t Reference::n_chunks() const noexcept {
  return impl_->file.n_chunks();
}
std::uint64_t Reference::memory_bytes() const noexcept {
  const std::uint64_t n_rows = std::uint64_t{n_chunks()} * impl_->file.n_scored();
  // A row of log-probabilities, and every divergence twice while the median is searched.
  return impl_->file.memory_bytes() + n_vocab() * sizeof(double) + 2 * n_rows * sizeof(float);
}

namespace {

double mean_of(double sum, std::uint64_t n) noexcept {
  return n == 0 ? 0.0 : sum / static_cast<double>(n);
}

/// Row after row of both.
class Comparison {
 public:
  explicit Comparison(std::uint32_t n_vocab) : reference_row_(n_vocab) {}

  std::span<double> reference_row() noexcept { return reference_row_; }

  /// Compares reference_row() with the model's logits; `next` is the token that follows in the text. Of what
  /// is at or below `cut` the reference says no more.
  void add(VerifyPlace place, std::span<const float> logits, double cut, TokenId next) {
    const double log_sum = log_sum_of(logits);
    const auto top = std::max_element(logits.begin(), logits.end()) - logits.begin();
    const auto reference_top =
        std::max_element(reference_row_.begin(), reference_row_.end()) - reference_row_.begin();
    place.token = static_cast<TokenId>(top);
    place.reference_token = static_cast<TokenId>(reference_top);
    place.kl = divergence(logits, log_sum);
    const auto at = static_cast<std::size_t>(reference_top);
    place.reference_probability = std::exp(reference_row_[at]);
    place.probability = std::exp(double{logits[at]} - log_sum);
    if (!std::isfinite(place.kl)) {
      base::fail(ErrorCode::internal,
                 "verify: the divergence behind token {} of window {} is {}; the model's weights or its "
                 "computation are damaged",
                 place.position, place.chunk, place.kl);
    }
    // Two tokens that lie on the same step of the reference are equally likely by it.
    if (reference_row_[static_cast<std::size_t>(top)] == reference_row_[at]) {
      ++result_.n_same_top;
    } else if (!result_.first_parting) {
      result_.first_parting = place;
    }
    if (result_.n_scored == 0 || place.kl > result_.worst.kl) result_.worst = place;
    ++result_.n_scored;
    kl_sum_ += place.kl;
    kl_squares_ += place.kl * place.kl;
    divergences_.push_back(static_cast<float>(place.kl));
    if (reference_row_[static_cast<std::size_t>(next)] <= cut) return;
    ++result_.n_rated;
    nll_ += log_sum - double{logits[static_cast<std::size_t>(next)]};
    reference_nll_ -= reference_row_[static_cast<std::size_t>(next)];
  }

  const VerifyResult& result(std::uint32_t n_chunks) {
    result_.n_chunks = n_chunks;
    const std::uint64_t n = result_.n_scored;
    result_.mean_kl = mean_of(kl_sum_, n);
    const double variance = std::max(mean_of(kl_squares_, n) - result_.mean_kl * result_.mean_kl, 0.0);
    result_.mean_kl_error = n < 2 ? 0.0 : std::sqrt(variance / static_cast<double>(n - 1));
    result_.max_kl = result_.worst.kl;
    std::vector<float> sorted = divergences_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    result_.median_kl = sorted.empty() ? 0.0 : double{*middle};
    result_.perplexity = std::exp(mean_of(nll_, result_.n_rated));
    result_.reference_perplexity = std::exp(mean_of(reference_nll_, result_.n_rated));
    return result_;
  }

 private:
  static double log_sum_of(std::span<const float> logits) noexcept {
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit} - top);
    return top + std::log(sum);
  }

  double divergence(std::span<const float> logits, double log_sum) const noexcept {
    double kl = 0;
    for (std::size_t i = 0; i < reference_row_.size(); ++i) {
      if (reference_row_[i] <= engine::ReferenceFile::k_lowest) continue;
      kl += std::exp(reference_row_[i]) * (reference_row_[i] - (double{logits[i]} - log_sum));
    }
    return kl;
  }

  std::vector<double> reference_row_;
  std::vector<float> divergences_;
  double kl_sum_ = 0, kl_squares_ = 0, nll_ = 0, reference_nll_ = 0;
  VerifyResult result_;
};

}  // namespace

void check_verify(const Reference& reference, const ModelInfo& info, const Plan& plan) {
  const std::string& name = reference.impl().file.name();
  if (reference.n_vocab() != info.n_vocab) {
    base::fail(ErrorCode::invalid_argument,
               "{}: the reference is of a vocabulary of {} tokens, the model {} has {}; take a reference of "
               "the same model",
               name, reference.n_vocab(), info.path, info.n_vocab);
  }
  if (reference.n_ctx() > plan.n_ctx) {
    base::fail(ErrorCode::invalid_argument,
               "{}: the windows of the reference have {} tokens, the model was opened for {}; open it with a "
               "larger context, or write the reference with a smaller one (-c)",
               name, reference.n_ctx(), plan.n_ctx);
  }
}

VerifyResult verify(Model& model, Reference& reference, const VerifyOptions& options,
                    const std::function<void(const VerifyResult&)>& on_chunk) {
  check_verify(reference, model.info(), model.plan());
  engine::ReferenceFile& file = reference.impl().file;
  const std::uint32_t n_chunks =
      options.max_chunks == 0 ? file.n_chunks() : std::min(file.n_chunks(), options.max_chunks);
  const bool replace_first = model.tokenizer().adds_bos() && model.tokenizer().bos() >= 0;

  Comparison comparison(file.n_vocab());
  Sequence sequence = model.new_sequence();
  std::vector<TokenId> window;
  for (std::uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
    const std::span<const TokenId> source = file.tokens(chunk);
    // The last token is predicted but predicts nothing.
    window.assign(source.begin(), source.end() - 1);
    if (replace_first) window.front() = model.tokenizer().bos();
    sequence.rewind(0);
    const StepItem item{&sequence, window, LogitsWanted::all};
    model.step({&item, 1}, [&](std::size_t, std::size_t token, std::span<const float> logits) {
      if (token < file.first_scored()) return;
      const auto position = static_cast<std::uint32_t>(token);
      const double cut = file.read_row(chunk, position, comparison.reference_row());
      comparison.add({.chunk = chunk, .position = position}, logits, cut, source[token + 1]);
    });
    if (on_chunk) on_chunk(comparison.result(chunk + 1));
  }
  return comparison.result(n_chunks);
}

}  // namespace sluice
