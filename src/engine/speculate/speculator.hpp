#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/model_impl.hpp"
#include "engine/speculate/drafter.hpp"
#include "engine/speculate/lookup_index.hpp"
#include "engine/speculate/speculation_gate.hpp"
#include "sluice/speculate.hpp"

namespace sluice {

/// What generate() asks, in this order: begin(), prompt_done(), then per pass propose(), note_accepted() and
/// push() for each token that is drawn.
struct Speculator::Impl {
  Impl(const Model& model, std::optional<Model> draft_model, const SpeculateOptions& given);

  /// `prompt` is appended to a sequence of n_before tokens.
  void begin(std::uint32_t n_before, std::span<const TokenId> prompt, Model::Impl& target);
  /// The prompt took `ns`, in passes of `chunk` rows.
  void prompt_done(std::size_t n_tokens, std::uint32_t chunk, std::uint64_t ns);
  /// Guesses of what follows the last token, at most n_max and none when plain decoding is as good; valid
  /// until the next call. `past_end`: an end token is a token like others.
  std::span<const TokenId> propose(std::uint32_t n_max, bool past_end);
  /// The first n_accepted of the proposed guesses are what the model drew; the pass took `step_ns`.
  void note_accepted(std::uint32_t n_accepted, std::uint64_t step_ns);
  void push(TokenId token);
  /// Of the accepted guesses n_kept stay in the text: the answer may end inside them.
  void count(std::size_t n_kept);
  void forget();

  /// Hook for tests: guesses instead of all sources, ungated. Gets the text and the most guesses wanted.
  std::function<std::vector<TokenId>(std::span<const TokenId> text, std::uint32_t n_max)> oracle;

  const engine::LookupIndex& index() const noexcept { return index_; }

 private:
  void add_offers(std::uint32_t n_max);
  double most_catch_up_ns() const;

  SpeculateOptions options_;
  Tokenizer vocabulary_;       ///< Of the model it was made for.
  engine::LookupIndex index_;  ///< Also the text for the draft.
  std::size_t n_unknown_ = 0;  ///< Tokens of the sequence that came before those in the index.
  std::optional<engine::Drafter> draft_;
  bool draft_lost_ = false;  ///< The text has a token that the draft has no row for.
  engine::SpeculationGate gate_;
  Model::Impl* target_ = nullptr;
  std::vector<TokenId> guesses_;
  engine::LookupIndex::Match match_;
  std::vector<engine::GuessOffer> offers_;
  engine::GuessSource source_ = engine::GuessSource::draft;  ///< Of guesses_.
  std::uint64_t guessing_ns_ = 0;
};

}  // namespace sluice
