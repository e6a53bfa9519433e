#pragma once

#include <optional>

#include "cli/options.hpp"
#include "sluice/model.hpp"
#include "sluice/speculate.hpp"

namespace sluice::cli {

/// Throws UsageError for options that contradict each other; `with_trace`: the routing is recorded.
void check_speculation(const SpeculationChoice& choice, bool with_trace);

/// Opens the draft, if there is one, for a model that is to be opened with `open` next. The caller sets
/// open.draft.
std::optional<Model> open_draft_for(const SpeculationChoice& choice, const OpenOptions& open);

/// What guesses tokens for `model`: what was asked for, and by default a draft that was given, and prompt
/// lookup where every pass reads weights from the drive. Nothing when that is nothing.
std::optional<Speculator> make_speculator(const SpeculationChoice& choice, const Model& model,
                                          std::optional<Model> draft);

}  // namespace sluice::cli
