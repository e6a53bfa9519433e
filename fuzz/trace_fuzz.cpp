// Feeds arbitrary bytes to the readers of routing traces, then replays what they accept. Any outcome but a
// trace that keeps its own promises or Error(invalid_file) is a bug.
#include <algorithm>
#include <span>

#include "input.hpp"
#include "replay/trace_support.hpp"

namespace {

using namespace sluice;
using fuzz::require;

void check_layer(std::span<const std::uint16_t> ids, std::uint32_t n_experts) {
  const auto n_missing = std::count(ids.begin(), ids.end(), RoutingTrace::k_not_recorded);
  require(n_missing == 0 || static_cast<std::size_t>(n_missing) == ids.size(), "a layer is half recorded");
  if (n_missing != 0) return;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    require(ids[i] < n_experts, "an id is out of range");
    require(std::count(ids.begin(), ids.end(), ids[i]) == 1, "a layer has an expert twice");
  }
}

void check_trace(const RoutingTrace& trace) {
  require(trace.n_tokens() > 0 && trace.n_layers > 0 && trace.n_used > 0 && trace.prompt_chunk > 0,
          "an empty trace was accepted");
  require(trace.n_used <= trace.n_experts, "more experts are used than there are");
  require(trace.experts.size() == std::size_t{trace.n_tokens()} * trace.n_layers * trace.n_used,
          "the ids do not fill the trace");
  require(trace.expert_bytes.empty() || trace.expert_bytes.size() == trace.n_layers,
          "sizes of some layers only");
  for (std::size_t at = 0; at < trace.experts.size(); at += trace.n_used)
    check_layer(std::span(trace.experts).subspan(at, trace.n_used), trace.n_experts);
}

void replay_all(const RoutingTrace& trace) {
  // Larger ones are replayed by the same code and only take longer.
  if (trace.experts.size() > 4096 || std::uint64_t{trace.n_layers} * trace.n_experts > 65536) return;
  for (const double share : {0.0, 0.3, 1.0}) {
    for (const ReplayPolicy policy : k_replay_policies) {
      try {
        const ReplayCell cell = replay_trace(trace, policy, slots_for_share(trace, share), 0);
        require(cell.n_hits <= cell.n_wanted, "more hits than uses");
      } catch (const Error& error) {
        require(error.code() == ErrorCode::invalid_argument, "replay ends with a wrong error");
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::uint32_t n_experts = input.byte() % 4 == 3 ? 16 : 0;
  try {
    const RoutingTrace trace = test::read_text_trace(std::string(input.rest()), n_experts);
    check_trace(trace);
    replay_all(trace);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::invalid_file && *error.what() != '\0', "a wrong error");
  }
  return 0;
}
