#include "cli/speculation.hpp"

#include "cli/models.hpp"
#include "cli/opening.hpp"

namespace sluice::cli {

void check_speculation(const SpeculationChoice& choice, bool with_trace) {
  using Mode = SpeculationChoice::Mode;
  const bool has_draft = !choice.draft.empty();
  if (choice.mode == Mode::draft && !has_draft)
    throw UsageError("--speculate draft needs a draft: name it with --draft");
  if (has_draft && (choice.mode == Mode::off || choice.mode == Mode::lookup))
    throw UsageError("--draft contradicts --speculate off and lookup; leave one of them out");
  const bool asked = has_draft || choice.mode == Mode::lookup;
  if (asked && with_trace)
    throw UsageError("--trace records plain decoding; leave out --draft and --speculate");
}

std::optional<Model> open_draft_for(const SpeculationChoice& choice, const OpenOptions& open) {
  if (choice.draft.empty()) return std::nullopt;
  const std::filesystem::path path = find_model(choice.draft);
  return open_with_progress(open, [&](const OpenOptions& options) { return open_draft(path, options); });
}

std::optional<Speculator> make_speculator(const SpeculationChoice& choice, const Model& model,
                                          std::optional<Model> draft) {
  using Mode = SpeculationChoice::Mode;
  SpeculateOptions options;
  options.max_guesses = choice.max_guesses;
  options.lookup = choice.mode == Mode::lookup ||
                   (choice.mode == Mode::automatic && model.plan().dense_streamed_bytes != 0);
  if (draft) return Speculator(model, std::move(*draft), options);
  if (options.lookup) return Speculator(model, options);
  return std::nullopt;
}

}  // namespace sluice::cli
