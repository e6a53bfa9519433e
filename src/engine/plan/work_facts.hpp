#pragma once

#include "engine/model/prepare.hpp"
#include "sluice/predict.hpp"

namespace sluice::engine {

/// What computing a prepared model takes.
WorkFacts work_facts(const Prepared& prepared);

}  // namespace sluice::engine
