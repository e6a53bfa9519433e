#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sluice/speculate.hpp"

namespace sluice::engine {

/// Where guesses come from. Runs of different length are trusted differently, so each has its own statistics.
enum class GuessSource : std::uint8_t { lookup_2, lookup_3, lookup_4, draft };
constexpr std::size_t k_n_guess_sources = 4;

/// What a source could do in the next pass.
struct GuessOffer {
  GuessSource source = GuessSource::draft;
  std::uint32_t n_max = 0;  ///< Guesses at most.
  double setup_ns = 0;      ///< Time before the first guess beyond that of any other.
  double guess_ns = 0;      ///< Time of each guess.
};

/// Decides how many guesses a pass verifies: the number that promises most tokens per second, by the measured
/// time of passes with so many rows, the measured acceptance at each position and the time of guessing; none
/// when plain decoding is as good. Pure: it sees only the numbers it is told, in nanoseconds, and no clock.
///
/// What is not known is tried, and what did not pay is tried again after a while, within a budget: the time
/// lost against plain decoding, less recent gains, may be a share of all time spent and the time of a few
/// plain passes (one; with a draft four). A trial must fit it even when no guess is right, so a long run
/// loses less than 2 %.
class SpeculationGate {
 public:
  /// Requires 1 <= max_guesses <= k_max_guesses.
  explicit SpeculationGate(std::uint32_t max_guesses);

  /// Of the offer at `offer`, verify `n` guesses; n == 0: decode plainly.
  struct Choice {
    std::size_t offer = 0;
    std::uint32_t n = 0;
  };
  Choice choose(std::span<const GuessOffer> offers) const;

  /// What happened, once per pass. `ns` is the time of one pass of `n_rows` prompt rows.
  void note_prompt(std::uint32_t n_rows, double ns);
  void note_plain(double ns);
  /// A pass that verified n_guesses of which the first n_accepted were right. Requires n_accepted <=
  /// n_guesses <= max_guesses.
  void note_round(GuessSource source, std::uint32_t n_guesses, std::uint32_t n_accepted, double step_ns,
                  double guessing_ns);

  double plain_ns() const noexcept { return times_[1].median; }  ///< Of a pass of one row; 0: not measured.

 private:
  /// The last passes with a number of rows. The median: one that was interrupted says nothing of the next.
  struct StepTime {
    std::vector<double> samples;  ///< A ring; of plain passes, which all is compared with, it is longer.
    double median = 0;
    std::uint64_t n = 0;
    std::uint64_t pass = 0;  ///< When it was last measured.
  };
  /// Decaying counts of one position of one source.
  struct Acceptance {
    double n_accepted = 0, n_tried = 0;
    std::uint64_t pass = 0;
  };
  /// How an estimate treats what is not known.
  enum class View { likely, hopeful };

  void note_time(std::uint32_t n_rows, double ns);
  bool is_known(std::uint32_t n_rows) const;
  double bound_ns(std::uint32_t n_rows) const;
  double floor_ns(std::uint32_t n_rows) const;
  double likely_ns(std::uint32_t n_rows) const;
  double hopeful_ns(std::uint32_t n_rows) const;
  double acceptance(GuessSource source, std::uint32_t position, double parent, View view) const;
  Choice best(std::span<const GuessOffer> offers, View view, double max_loss_ns, double* speedup) const;
  double allowed_loss_ns(bool with_draft) const;

  std::uint32_t max_guesses_;
  std::array<StepTime, k_max_guesses + 2> times_{};  ///< By rows.
  std::array<std::array<Acceptance, k_max_guesses>, k_n_guess_sources> acceptance_{};
  std::uint32_t prompt_rows_ = 0;  ///< Of the last pass of a prompt.
  double prompt_ns_ = 0;
  std::uint64_t n_passes_ = 0;
  double spent_ns_ = 0;
  double lost_ns_ = 0;  ///< Against plain decoding; negative: gained.
};

}  // namespace sluice::engine
