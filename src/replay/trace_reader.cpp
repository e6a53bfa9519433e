#include "replay/trace_reader.hpp"

#include <algorithm>

namespace sluice {
namespace replay {

void add_token(RoutingTrace& trace, bool is_prompt, const LineSource& lines) {
  const std::uint64_t token_ids = std::uint64_t{trace.n_layers} * trace.n_used;
  if (trace.experts.size() + token_ids > k_max_ids) {
    fail_line(lines, "token {} of {} layers x {} experts is beyond the limit of {} ids", trace.n_tokens() + 1,
              trace.n_layers, trace.n_used, k_max_ids);
  }
  if (trace.n_tokens() == k_max_tokens) fail_line(lines, "more than {} tokens", k_max_tokens);
  trace.is_prompt.push_back(is_prompt);
  trace.experts.resize(trace.experts.size() + token_ids, RoutingTrace::k_not_recorded);
}

namespace {

/// Checks what the readers leave to the end, and the ids of each layer against one another.
void finish(RoutingTrace& trace, std::uint32_t n_experts) {
  if (trace.n_tokens() == 0)
    base::fail(ErrorCode::invalid_file, "{}: the trace has no tokens, so there is nothing to replay",
               trace.path);
  std::uint32_t largest = 0;
  for (const std::uint16_t id : trace.experts) {
    if (id != RoutingTrace::k_not_recorded) largest = std::max<std::uint32_t>(largest, id);
  }
  if (trace.n_experts == 0) trace.n_experts = n_experts != 0 ? n_experts : largest + 1;
  if (largest >= trace.n_experts || trace.n_used > trace.n_experts) {
    base::fail(
        ErrorCode::invalid_file,
        "{}: the trace uses {} experts of up to number {}, but {} experts were given; give their number "
        "per layer",
        trace.path, trace.n_used, largest, trace.n_experts);
  }
}

}  // namespace
}  // namespace replay

RoutingTrace read_trace(const std::filesystem::path& path, std::uint32_t n_experts) {
  replay::LineSource lines(path.string());
  RoutingTrace trace;
  trace.path = path.string();
  trace.prompt_chunk = replay::k_default_prompt_chunk;
  const auto first = lines.next();
  if (!first)
    base::fail(ErrorCode::invalid_file, "{}: the file is empty; expected a routing trace", trace.path);
  if (first->starts_with("# route_trace")) {
    if (*first != "# route_trace v1") replay::fail_line(lines, "expected version v1 of route_trace");
    replay::read_route_csv(lines, trace);
  } else if (first->starts_with('{')) {
    replay::read_json_lines(*first, lines, trace);
  } else {
    replay::fail_line(lines, "expected a JSON object or \"# route_trace v1\"; this is no routing trace");
  }
  replay::finish(trace, n_experts);
  return trace;
}

}  // namespace sluice
