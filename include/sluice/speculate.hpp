#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "sluice/model.hpp"

namespace sluice {

/// Limit of SpeculateOptions::max_guesses: guesses of one pass.
inline constexpr std::uint32_t k_max_guesses = 64;

struct SpeculateOptions {
  /// Guesses what followed the same few tokens earlier in the prompt or the answer.
  bool lookup = true;
  /// Guesses that one pass verifies at most, 1 to k_max_guesses; also less than the plan's prefill_chunk.
  std::uint32_t max_guesses = 16;
  /// Verifies as many guesses as pay, by measured time and acceptance; false: as many as there are, for tests
  /// and measurements.
  bool gate = true;
};

/// Guesses tokens ahead, so that one pass over the weights may give several: what pays when a pass costs
/// about the same for several tokens as for one, above all when dense weights are streamed.
///
/// Given to generate() in GenerateOptions::speculator it changes speed, never tokens: each token is drawn
/// from the model's own logits as without it, and guesses only decide for which positions they are computed
/// beforehand.
///
/// Meant for one sequence at a time, over all turns of a conversation. It knows the tokens that generate()
/// saw; those that came into a sequence otherwise only make its guesses worse, as does another sequence. Not
/// thread-safe. Holds at most 4 bytes per token of the context and 0.8 MB beside the draft.
class Speculator {
 public:
  /// Prompt lookup alone. Throws Error(invalid_argument) for options out of range.
  explicit Speculator(const Model& model, const SpeculateOptions& options = {});
  /// With a draft: a small model of the same family, from open_draft(). The vocabularies may have different
  /// sizes, as padded ones have: tokens that only one of them has are never guessed. Throws
  /// Error(invalid_argument) that names the first token that both have and that is not the same.
  Speculator(const Model& model, Model draft, const SpeculateOptions& options = {});
  Speculator(Speculator&&) noexcept;
  Speculator& operator=(Speculator&&) noexcept;
  ~Speculator();

  /// Forgets all tokens; what was measured stays.
  void forget();

  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Opens a draft for a model that is to be opened with `options` next: under the same budget, context and
/// threads. Set OpenOptions::draft to it for that model, so that the budget covers both. Throws as
/// Model::open does, and Error(budget) when the draft itself would have to be streamed.
Model open_draft(const std::filesystem::path& path, const OpenOptions& options);

}  // namespace sluice
