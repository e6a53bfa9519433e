#include "engine/plan/planner.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "engine/model/heat.hpp"
#include "engine/plan/machine_facts.hpp"
#include "engine/plan/work_facts.hpp"
#include "kernels/cpu_ops.hpp"
#include "platform/cpu_features.hpp"
#include "platform/memory.hpp"
#include "sluice/planning.hpp"
#include "synth/header.hpp"

namespace sluice::engine {

Planner::Planner(const Prepared& prepared, const OpenOptions& options)
    : pool_(thread_count(options), /*start_thread=*/nullptr),
      ops_(kernels::make_cpu_ops(pool_, platform::choose_isa())),
      facts_(model_facts(prepared, *ops_)) {}

residency::Placement Planner::place(const residency::MachineFacts& machine,
                                    const OpenOptions& options) const {
  return residency::make_plan(facts_, machine, options);
}

}  // namespace sluice::engine

namespace sluice {
namespace {

using base::format_bytes;

/// Direct reads of a file that is not there: what nearly every drive asks for.
constexpr std::uint32_t k_assumed_alignment_bytes = 4096;
/// A budget that no model exceeds, small enough for sums.
constexpr std::uint64_t k_any_budget_bytes = std::uint64_t{1} << 60;

std::uint64_t whole_bytes(const gguf::ModelFile& file, std::uint32_t shard_idx) {
  std::uint64_t end = file.shards[shard_idx].data_offset_bytes;
  for (const gguf::TensorInfo& tensor : file.tensors) {
    if (tensor.shard_idx == shard_idx) end = std::max(end, tensor.offset_bytes + tensor.size_bytes);
  }
  return end;
}

void describe(const gguf::ModelFile& file, PlanReport& report) {
  report.name = std::string(file.metadata.get_string("general.name").value_or(""));
  report.architecture = std::string(file.metadata.get_string("general.architecture").value_or(""));
  for (std::uint32_t i = 0; i < file.shards.size(); ++i) {
    const std::uint64_t there = file.shards[i].file_bytes, whole = std::max(there, whole_bytes(file, i));
    report.file_bytes += whole;
    report.missing_bytes += whole - there;
  }
  for (const gguf::TensorInfo& tensor : file.tensors) report.n_parameters += tensor.n_elements();
}

residency::MachineFacts facts_of_machine(const PlanRequest& request) {
  residency::MachineFacts facts = engine::machine_facts();
  if (request.sim_ram_bytes != 0) {
    platform::MemoryLimits limits;
    limits.total_bytes = limits.available_bytes = request.sim_ram_bytes;
    facts.default_budget_bytes = platform::default_budget_bytes(limits, 0);
    facts.total_bytes = facts.free_bytes = 0;  // A budget beyond the simulated machine is refused by name.
    facts.default_budget_source = fmt::format("simulated {}", format_bytes(request.sim_ram_bytes));
  }
  return facts;
}

/// The use counts that earlier runs of a complete model left. Reads a block of each router. What is wrong is
/// a warning.
std::optional<residency::HeatCounts> counts_of(const engine::Prepared& prepared,
                                               const std::filesystem::path& where) {
  std::error_code error_code;
  if (!std::filesystem::exists(where, error_code)) return std::nullopt;  // Nor would any read be of use.
  std::vector<std::byte> block;
  const auto read = [&](const gguf::TensorInfo& tensor, std::uint64_t offset, std::size_t bytes) {
    block.resize(bytes);
    prepared.shards[tensor.shard_idx]->read(tensor.offset_bytes + offset, block.data(), bytes);
    return block.data();
  };
  try {
    return engine::Heat(where, prepared.file, prepared.units, read).load();
  } catch (const Error& error) {
    base::warn("what earlier runs used is not known: {}", error.what());
    return std::nullopt;
  }
}

/// The smallest budget that any plan with these options needs.
std::uint64_t needed_bytes(const engine::Planner& planner, residency::MachineFacts machine,
                           std::uint32_t n_ctx_train, OpenOptions options) {
  options.memory_bytes = k_any_budget_bytes;
  machine.total_bytes = 0;
  // A context that nobody asked for is made as small as it may be before a budget is refused.
  if (options.n_ctx == 0) {
    options.n_ctx = residency::k_min_auto_ctx;
    if (n_ctx_train != 0) options.n_ctx = std::min(options.n_ctx, n_ctx_train);
  }
  return planner.plan(machine, options).floor_bytes;
}

}  // namespace

PlanReport make_plans(const PlanRequest& request) {
  PlanReport report;
  const bool is_shape = !request.shape.empty();
  engine::Header header;
  if (is_shape) {
    header.file = synth::parse_shape(request.shape, request.type);
  } else {
    header = engine::parse_header(request.path, /*allow_missing_data=*/true);
  }
  report.source = is_shape ? "shape " + request.shape : request.path.string();
  report.is_shape = is_shape;
  describe(header.file, report);
  const auto prepared =
      engine::prepare(std::move(header), request.options, false, is_shape ? k_assumed_alignment_bytes : 1);
  report.work = engine::work_facts(*prepared);
  const engine::Planner planner(*prepared, request.options);
  const residency::MachineFacts machine = facts_of_machine(request);
  std::optional<residency::HeatCounts> counts;
  if (!is_shape && report.missing_bytes == 0) counts = counts_of(*prepared, request.options.heat);
  std::vector<std::uint64_t> budgets = request.budgets;
  if (budgets.empty()) budgets.push_back(request.options.memory_bytes);
  for (const std::uint64_t budget : budgets) {
    PlanChoice& choice = report.choices.emplace_back();
    choice.memory_bytes = budget;
    if (request.sim_ram_bytes != 0 && budget > request.sim_ram_bytes) {
      choice.refusal = fmt::format("a budget of {} is more than the simulated machine has ({}); ask for less",
                                   format_bytes(budget), format_bytes(request.sim_ram_bytes));
      continue;
    }
    OpenOptions options = request.options;
    options.memory_bytes = budget;
    try {
      const residency::Placement placement = planner.place(machine, options);
      choice.plan = placement.plan;
      if (counts) choice.heat = engine::forecast(*counts, prepared->units, placement);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::budget) throw;
      choice.refusal = error.what();
      // A budget may be more than the machine has, too.
      const std::uint64_t needed =
          needed_bytes(planner, machine, prepared->spec().n_ctx_train, request.options);
      if (budget == 0 || budget < needed) choice.needed_bytes = needed;
    }
  }
  return report;
}

}  // namespace sluice
