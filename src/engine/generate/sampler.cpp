#include "sluice/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"

namespace sluice {
namespace {

/// exp(x) for x <= 0, from additions, multiplications and ldexp only, which IEEE 754 fixes to the last bit;
/// the C library's exp differs between machines and could turn the choice of a token. Relative error below
/// 1e-14.
double portable_exp(double x) noexcept {
  if (x < -700.0) return 0.0;
  constexpr double k_log2_e = 1.4426950408889634;
  constexpr double k_ln2_high = 0x1.62e42feep-1;  // 32 bits, so that its multiples below are exact
  constexpr double k_ln2_low = 1.9082149292705877e-10;
  const double n = std::floor(x * k_log2_e + 0.5);
  const double r = (x - n * k_ln2_high) - n * k_ln2_low;
  // Taylor series; |r| <= 0.35, so the first term left out is below 0.35^14 / 14! < 5e-18.
  double sum = 1.0;
  for (int term = 13; term >= 1; --term) sum = 1.0 + sum * r / term;
  return std::ldexp(sum, static_cast<int>(n));
}

struct Candidate {
  float logit;
  TokenId id;
};

/// A total order, so that sorting and selecting give one result whatever the library's algorithm.
bool before(const Candidate& a, const Candidate& b) noexcept {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

std::uint64_t random_seed() {
  std::random_device device;
  // 32 bits, never 0: short enough to be typed again, and exact in JSON readers that use doubles.
  const std::uint64_t seed = device() & 0xffff'ffffu;
  return seed == 0 ? 1 : seed;
}

void check_options(const SamplerOptions& options) {
  const auto refuse = [](const char* name, auto value, const char* range) {
    base::fail(ErrorCode::invalid_argument, "sampler: {} is {}, expected {}", name, value, range);
  };
  // Written so that NaN fails each of them.
  if (!(options.temperature >= 0.0f && options.temperature <= std::numeric_limits<float>::max())) {
    refuse("temperature", options.temperature, "a finite number of at least 0");
  }
  if (!(options.top_p >= 0.0f && options.top_p <= 1.0f)) refuse("top_p", options.top_p, "0 to 1");
  if (!(options.min_p >= 0.0f && options.min_p <= 1.0f)) refuse("min_p", options.min_p, "0 to 1");
  if (!(options.repeat_penalty > 0.0f && options.repeat_penalty <= std::numeric_limits<float>::max())) {
    refuse("repeat_penalty", options.repeat_penalty, "a finite number above 0");
  }
  if (options.repeat_window > k_max_repeat_window) {
    refuse("repeat_window", options.repeat_window, "at most 1048576");
  }
}

/// The distinct tokens among the last `size` accepted ones, in order of their ids.
class RepeatWindow {
 public:
  struct Entry {
    TokenId id;
    std::uint32_t count;
  };

  explicit RepeatWindow(std::uint32_t size) : size_(size) {}

  void push(TokenId id) {
    if (size_ == 0) return;
    if (ring_.size() < size_) {
      ring_.push_back(id);
    } else {
      remove(ring_[oldest_]);
      ring_[oldest_] = id;
      oldest_ = (oldest_ + 1) % ring_.size();
    }
    const auto place = find(id);
    if (place != entries_.end() && place->id == id) {
      ++place->count;
    } else {
      entries_.insert(place, {id, 1});
    }
  }

  void clear() noexcept {
    ring_.clear();
    entries_.clear();
    oldest_ = 0;
  }

  const std::vector<Entry>& entries() const noexcept { return entries_; }

 private:
  std::vector<Entry>::iterator find(TokenId id) {
    return std::lower_bound(entries_.begin(), entries_.end(), id,
                            [](const Entry& entry, TokenId wanted) { return entry.id < wanted; });
  }

  void remove(TokenId id) {
    const auto place = find(id);
    if (--place->count == 0) entries_.erase(place);
  }

  std::size_t size_;
  std::size_t oldest_ = 0;
  std::vector<TokenId> ring_;
  std::vector<Entry> entries_;
};

/// Calls visit(id, logit) for each token in order of ids, with the penalty applied. Refuses NaN and
/// +infinity, which only a fault in the computation produces; -infinity is a masked token and is passed over.
template <typename Visit>
void for_each_logit(std::span<const float> logits, const std::vector<RepeatWindow::Entry>& repeated,
                    float penalty, Visit&& visit) {
  auto next = repeated.begin();
  while (next != repeated.end() && next->id < 0) ++next;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    float logit = logits[i];
    if (!(logit < std::numeric_limits<float>::infinity())) {
      base::fail(ErrorCode::internal,
                 "sampler: the logit of token {} is {}; the model's weights or its computation are damaged",
                 i, logit);
    }
    if (next != repeated.end() && static_cast<std::size_t>(next->id) == i) {
      logit = logit > 0.0f ? logit / penalty : logit * penalty;
      // An extreme penalty must not turn a finite logit into one that is refused above.
      logit = std::min(logit, std::numeric_limits<float>::max());
      ++next;
    }
    if (logit > -std::numeric_limits<float>::infinity()) visit(static_cast<TokenId>(i), logit);
  }
}

}  // namespace

struct Sampler::Impl {
  explicit Impl(const SamplerOptions& given)
      : options(given),
        seed(given.seed != 0 ? given.seed : random_seed()),
        random(seed),
        window(given.repeat_penalty == 1.0f ? 0 : given.repeat_window) {}

  TokenId greedy(std::span<const float> logits) const {
    Candidate best{-std::numeric_limits<float>::infinity(), -1};
    for_each_logit(logits, window.entries(), options.repeat_penalty, [&best](TokenId id, float logit) {
      if (best.id < 0 || logit > best.logit) best = {logit, id};
    });
    if (best.id < 0) no_candidate(logits.size());
    return best.id;
  }

  TokenId draw(std::span<const float> logits) {
    const bool sorted = gather(logits);
    if (candidates.empty()) no_candidate(logits.size());
    max_logit = sorted ? candidates.front().logit
                       : std::min_element(candidates.begin(), candidates.end(), before)->logit;
    cut(sorted);
    return pick();
  }

 private:
  [[noreturn]] static void no_candidate(std::size_t n_logits) {
    base::fail(ErrorCode::internal, "sampler: none of {} logits is finite, so there is no token to choose",
               n_logits);
  }

  /// Fills `candidates` with the top-k tokens, sorted, and returns true; or with all tokens in order of ids
  /// and returns false. The buffer holds at most twice top-k entries: each time it is full its better half is
  /// selected, and from then on only logits above the worst of that half can enter, so the scan is linear for
  /// any k.
  bool gather(std::span<const float> logits) {
    const std::size_t n = logits.size();
    const bool select = options.top_k != 0 && options.top_k < n;
    const std::size_t k = select ? options.top_k : n;
    const std::size_t capacity = select ? std::min(n, 2 * k) : n;
    candidates.clear();
    candidates.reserve(capacity);
    float floor = -std::numeric_limits<float>::infinity();
    const auto keep_top_k = [this, k] {
      std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k) - 1,
                       candidates.end(), before);
      candidates.resize(k);
    };
    for_each_logit(logits, window.entries(), options.repeat_penalty, [&](TokenId id, float logit) {
      // A tie with the worst kept token loses to it: that one has the lower id.
      if (logit <= floor) return;
      if (candidates.size() == capacity) {
        keep_top_k();
        floor = candidates.back().logit;
        if (logit <= floor) return;
      }
      candidates.push_back({logit, id});
    });
    if (candidates.size() > k) keep_top_k();
    if (select) std::sort(candidates.begin(), candidates.end(), before);
    return select;
  }

  double weight(const Candidate& candidate, double temperature) const noexcept {
    return portable_exp((static_cast<double>(candidate.logit) - static_cast<double>(max_logit)) /
                        temperature);
  }

  /// Applies top-p and min-p. Both keep a prefix of the sorted candidates, so the order in which they are
  /// applied does not matter as long as top-p's total is taken first; min-p goes first here because it leaves
  /// less to sort.
  void cut(bool sorted) {
    const bool by_sum = options.top_p < 1.0f;
    double total = 0.0;
    if (by_sum) {
      for (const Candidate& candidate : candidates) total += weight(candidate, 1.0);
    }
    if (options.min_p > 0.0f) {
      std::erase_if(candidates, [this](const Candidate& candidate) {
        return candidate.logit < max_logit && weight(candidate, 1.0) < static_cast<double>(options.min_p);
      });
    }
    if (!by_sum) return;
    const double enough = static_cast<double>(options.top_p) * total;
    double sum = 0.0;
    std::size_t n_sorted = sorted ? candidates.size() : 0;
    std::size_t block = 128;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (i == n_sorted) {
        n_sorted = sort_block(n_sorted, block);
        block *= 4;
      }
      sum += weight(candidates[i], 1.0);
      if (sum >= enough) {
        candidates.resize(i + 1);
        return;
      }
    }
  }

  /// Sorts the next `block` candidates behind the first `n_sorted`; top-p usually ends within a few hundred
  /// of them.
  std::size_t sort_block(std::size_t n_sorted, std::size_t block) {
    const auto first = candidates.begin() + static_cast<std::ptrdiff_t>(n_sorted);
    const std::size_t end = std::min(candidates.size(), n_sorted + block);
    const auto last = candidates.begin() + static_cast<std::ptrdiff_t>(end);
    if (last != candidates.end()) std::nth_element(first, last, candidates.end(), before);
    std::sort(first, last, before);
    return end;
  }

  TokenId pick() {
    const double temperature = static_cast<double>(options.temperature);
    double total = 0.0;
    for (const Candidate& candidate : candidates) total += weight(candidate, temperature);
    const double target = random.uniform() * total;
    double sum = 0.0;
    for (const Candidate& candidate : candidates) {
      sum += weight(candidate, temperature);
      if (sum > target) return candidate.id;
    }
    // Only if rounding made target equal to total.
    return candidates.back().id;
  }

 public:
  SamplerOptions options;
  std::uint64_t seed;
  base::SplitMix64 random;
  RepeatWindow window;

 private:
  std::vector<Candidate> candidates;
  float max_logit = 0.0f;
};

Sampler::Sampler(const SamplerOptions& options) {
  check_options(options);
  impl_ = std::make_unique<Impl>(options);
}

Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

TokenId Sampler::sample(std::span<const float> logits) {
  return impl_->options.temperature == 0.0f ? impl_->greedy(logits) : impl_->draw(logits);
}

void Sampler::accept(TokenId token) {
  impl_->window.push(token);
}

void Sampler::forget() {
  impl_->window.clear();
}

std::uint64_t Sampler::seed() const noexcept {
  return impl_->seed;
}

}  // namespace sluice
