#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sluice/machine.hpp"
#include "sluice/model.hpp"
#include "sluice/plan.hpp"
#include "sluice/stats.hpp"

// What several JSON outputs share. Only the files NAME_json.cpp include this: they alone see the JSON
// library.
namespace sluice::cli {

// Keys in the order written, so that people can read it too.
using Json = nlohmann::ordered_json;

/// The whole output, with a newline. It holds no control characters but newlines.
std::string print(const Json& json);
Json info_json(const ModelInfo& info);
Json plan_json(const Plan& plan);
Json stats_json(const Stats& stats);
Json machine_json(const MachineInfo& machine, const MachineRates& rates);

}  // namespace sluice::cli
