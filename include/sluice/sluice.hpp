#pragma once

// The whole public interface of Sluice.
#include "sluice/error.hpp"
#include "sluice/generate.hpp"
#include "sluice/inspect.hpp"
#include "sluice/machine.hpp"
#include "sluice/model.hpp"
#include "sluice/options.hpp"
#include "sluice/perplexity.hpp"
#include "sluice/plan.hpp"
#include "sluice/profile.hpp"
#include "sluice/replay.hpp"
#include "sluice/routing.hpp"
#include "sluice/sampler.hpp"
#include "sluice/stats.hpp"
#include "sluice/synth.hpp"
#include "sluice/tokenizer.hpp"
#include "sluice/version.hpp"
