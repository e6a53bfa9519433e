#include "engine/speculate/speculation_gate.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace sluice::engine {
namespace {

/// Share of all time that may be lost. Below the 2 % that are promised, because times are estimates.
constexpr double k_loss_share = 0.012;
/// Plain passes that may be lost before anything was spent, so that short answers can profit.
constexpr double k_lookup_grace = 1.0, k_draft_grace = 4.0;
/// Gains that are remembered against later losses, in plain passes.
constexpr double k_most_banked = 16.0;
/// Less gain than this is within the noise.
constexpr double k_least_speedup = 1.03;
/// A trial of an unknown depth must promise this much over the best known one.
constexpr double k_least_promise = 1.1;
/// Plain passes before the first trial: the first may be colder than the others.
constexpr std::uint32_t k_least_plain = 2;
/// Passes after which the time of another number of rows is unknown again.
constexpr std::uint64_t k_time_life = 512;
/// While speculation pays, the time of a plain pass is measured again after this many passes, and sooner
/// while few were measured.
constexpr std::uint64_t k_plain_life = 128, k_plain_life_per_sample = 8;
/// Passes whose median counts. With few plain ones, speculation would be chosen whenever they look slow.
constexpr std::size_t k_plain_samples = 31, k_samples = 7;
/// Of a pass that takes more than this times what is expected the rest is not the fault of speculation.
constexpr double k_outlier = 3.0;
/// Counts of a position keep this share with every new one, and half in so many passes.
constexpr double k_count_decay = 0.96, k_count_half_life = 256.0;
/// Weight of what is assumed before there are counts, and of the hope that decides on trials.
constexpr double k_prior_weight = 2.0, k_hope_weight = 1.5;
constexpr std::array<double, k_n_guess_sources> k_prior = {0.3, 0.5, 0.6, 0.5};
/// A draft that lags behind catches up once for several passes that follow.
constexpr double k_setup_passes = 8.0;
/// The prompt's pass computed the logits of its last row only.
constexpr double k_prompt_margin = 1.25;

}  // namespace

SpeculationGate::SpeculationGate(std::uint32_t max_guesses) : max_guesses_(max_guesses) {
  SLUICE_CHECK(max_guesses >= 1 && max_guesses <= k_max_guesses);
}

bool SpeculationGate::is_known(std::uint32_t n_rows) const {
  const StepTime& time = times_[n_rows];
  return time.n != 0 && (n_rows == 1 || n_passes_ - time.pass < k_time_life);
}

/// More than a pass of n rows can take: a larger pass takes longer, and a smaller one can be repeated.
double SpeculationGate::bound_ns(std::uint32_t n_rows) const {
  double bound = n_rows * times_[1].median;
  for (std::uint32_t i = 2; i < times_.size(); ++i) {
    if (!is_known(i)) continue;
    const double repeats = i >= n_rows ? 1.0 : static_cast<double>(n_rows) / i;
    bound = std::min(bound, repeats * times_[i].median);
  }
  if (prompt_rows_ >= n_rows) bound = std::min(bound, k_prompt_margin * prompt_ns_);
  return bound;
}

/// Less than a pass of n rows can take, by the same rule, going by what was measured later than it.
double SpeculationGate::floor_ns(std::uint32_t n_rows) const {
  double floor = 0;
  for (std::uint32_t i = 1; i < times_.size(); ++i) {
    if (!is_known(i) || times_[i].pass <= times_[n_rows].pass) continue;
    floor = std::max(floor, (i <= n_rows ? 1.0 : static_cast<double>(n_rows) / i) * times_[i].median);
  }
  return floor;
}

/// Measured, or on the line between the measured neighbours; beyond them the bound.
double SpeculationGate::likely_ns(std::uint32_t n_rows) const {
  if (is_known(n_rows)) return std::max(times_[n_rows].median, floor_ns(n_rows));
  std::uint32_t below = n_rows - 1, above = n_rows + 1;
  while (!is_known(below)) --below;  // One row is always known.
  while (above < times_.size() && !is_known(above)) ++above;
  if (above == times_.size()) return std::max(bound_ns(n_rows), floor_ns(n_rows));
  const double share = static_cast<double>(n_rows - below) / (above - below);
  return std::max(times_[below].median + share * (times_[above].median - times_[below].median),
                  floor_ns(n_rows));
}

/// As if rows beyond what was measured were free.
double SpeculationGate::hopeful_ns(std::uint32_t n_rows) const {
  std::uint32_t below = n_rows;
  while (!is_known(below)) --below;
  return std::max(times_[below].median, floor_ns(n_rows));
}

double SpeculationGate::acceptance(GuessSource source, std::uint32_t position, double parent,
                                   View view) const {
  const Acceptance& counts = acceptance_[static_cast<std::size_t>(source)][position];
  const double age = static_cast<double>(n_passes_ - counts.pass);
  const double kept = std::exp2(-age / k_count_half_life);
  const double hope = view == View::hopeful ? k_hope_weight : 0.0;
  return (kept * counts.n_accepted + k_prior_weight * parent + hope) /
         (kept * counts.n_tried + k_prior_weight + hope);
}

SpeculationGate::Choice SpeculationGate::best(std::span<const GuessOffer> offers, View view,
                                              double max_loss_ns, double* speedup) const {
  Choice choice;
  const double plain = times_[1].median;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    const GuessOffer& offer = offers[i];
    const std::uint32_t n_max = std::min(offer.n_max, max_guesses_);
    double right = 1.0, tokens = 1.0;
    double parent = k_prior[static_cast<std::size_t>(offer.source)];
    for (std::uint32_t n = 1; n <= n_max; ++n) {
      parent = acceptance(offer.source, n - 1, parent, view);
      right *= parent;
      tokens += right;
      const double guessing = n * offer.guess_ns;
      const double step = view == View::likely ? likely_ns(n + 1) : hopeful_ns(n + 1);
      const double value = tokens * plain / (step + guessing + offer.setup_ns / k_setup_passes);
      if (value <= *speedup) continue;
      if (bound_ns(n + 1) + guessing + offer.setup_ns - plain > max_loss_ns) continue;
      *speedup = value;
      choice = {i, n};
    }
  }
  return choice;
}

double SpeculationGate::allowed_loss_ns(bool with_draft) const {
  return k_loss_share * spent_ns_ + (with_draft ? k_draft_grace : k_lookup_grace) * times_[1].median;
}

SpeculationGate::Choice SpeculationGate::choose(std::span<const GuessOffer> offers) const {
  const StepTime& plain = times_[1];
  if (offers.empty() || plain.n < k_least_plain) return {};
  const bool with_draft = std::any_of(offers.begin(), offers.end(), [](const GuessOffer& offer) {
    return offer.source == GuessSource::draft;
  });
  const double room = allowed_loss_ns(with_draft) - lost_ns_;
  if (room <= 0) return {};
  if (n_passes_ - plain.pass >= std::min(k_plain_life, k_plain_life_per_sample * plain.n)) return {};
  double speedup = k_least_speedup;
  // What is expected to gain may lose once; what is tried must fit the budget even if nothing is accepted.
  const Choice known = best(offers, View::likely, HUGE_VAL, &speedup);
  double promised = known.n == 0 ? speedup : speedup * k_least_promise;
  const Choice trial = best(offers, View::hopeful, room, &promised);
  // A depth whose time is known has nothing to teach while another one pays.
  if (trial.n != 0 && (known.n == 0 || !is_known(trial.n + 1))) return trial;
  return known;
}

void SpeculationGate::note_time(std::uint32_t n_rows, double ns) {
  StepTime& time = times_[n_rows];
  if (!is_known(n_rows)) time = {};
  const std::size_t n_kept = n_rows == 1 ? k_plain_samples : k_samples;
  if (time.samples.size() < n_kept) time.samples.push_back(ns);
  time.samples[time.n++ % n_kept] = ns;
  std::vector<double> sorted = time.samples;
  // The lower one of two, so that a cold first pass does not make others look cheap.
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  time.median = *middle;
  time.pass = n_passes_;
}

void SpeculationGate::note_prompt(std::uint32_t n_rows, double ns) {
  spent_ns_ += ns;
  if (n_rows == 1) return;
  prompt_rows_ = n_rows;
  prompt_ns_ = ns;
}

void SpeculationGate::note_plain(double ns) {
  ++n_passes_;
  note_time(1, ns);
  spent_ns_ += ns;
}

void SpeculationGate::note_round(GuessSource source, std::uint32_t n_guesses, std::uint32_t n_accepted,
                                 double step_ns, double guessing_ns) {
  SLUICE_CHECK(n_accepted <= n_guesses && n_guesses <= max_guesses_);
  ++n_passes_;
  const double plain = times_[1].median;
  const double counted_ns = std::min(step_ns, k_outlier * likely_ns(n_guesses + 1)) + guessing_ns;
  note_time(n_guesses + 1, step_ns);
  spent_ns_ += counted_ns;
  lost_ns_ = std::max(lost_ns_ + counted_ns - (n_accepted + 1) * plain, -k_most_banked * plain);
  auto& counts = acceptance_[static_cast<std::size_t>(source)];
  for (std::uint32_t i = 0; i < n_guesses && i <= n_accepted; ++i) {
    Acceptance& count = counts[i];
    const double kept =
        k_count_decay * std::exp2(-static_cast<double>(n_passes_ - count.pass) / k_count_half_life);
    count.n_tried = kept * count.n_tried + 1;
    count.n_accepted = kept * count.n_accepted + (i < n_accepted ? 1 : 0);
    count.pass = n_passes_;
  }
}

}  // namespace sluice::engine
