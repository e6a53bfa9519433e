#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json_reader.hpp"
#include "replay/trace_reader.hpp"

namespace sluice::replay {
namespace {

using base::JsonReader;

/// One line of a token.
struct Line {
  bool is_prompt = false;
  std::uint32_t n_layers = 0;
  std::uint32_t n_used = 0;        ///< Of the first layer that has any.
  std::vector<std::uint16_t> ids;  ///< Of all layers that have any, one after the other.
  std::vector<bool> recorded;      ///< Per layer.
};

/// Reads the header of our own traces; `version` is set when the object is one.
struct Header {
  bool is_header = false;
  std::uint64_t version = 0;
};

void read_ids(JsonReader& reader, const RoutingTrace& trace, Line& line, const LineSource& lines) {
  const std::size_t begin = line.ids.size();
  const std::uint64_t n_experts = trace.n_experts != 0 ? trace.n_experts : k_max_experts;
  reader.begin_array();
  while (reader.next_element()) {
    if (line.ids.size() - begin == k_max_used)
      fail_line(lines, "layer {} has more than {} experts", line.n_layers, k_max_used);
    const auto id = static_cast<std::uint16_t>(reader.number(n_experts - 1));
    if (std::find(line.ids.begin() + static_cast<std::ptrdiff_t>(begin), line.ids.end(), id) !=
        line.ids.end())
      fail_line(lines, "layer {} has expert {} twice", line.n_layers, id);
    line.ids.push_back(id);
  }
  const auto n = static_cast<std::uint32_t>(line.ids.size() - begin);
  line.recorded.push_back(n != 0);
  const std::uint32_t expected = trace.n_used != 0 ? trace.n_used : line.n_used;
  if (n == 0) return;
  if (expected != 0 && n != expected)
    fail_line(lines, "layer {} has {} experts, expected {} as before", line.n_layers, n, expected);
  line.n_used = n;
}

void read_layers(JsonReader& reader, const RoutingTrace& trace, Line& line, const LineSource& lines) {
  line.ids.clear();
  line.recorded.clear();
  line.n_layers = line.n_used = 0;
  reader.begin_array();
  while (reader.next_element()) {
    if (line.n_layers == k_max_layers) fail_line(lines, "more than {} layers", k_max_layers);
    read_ids(reader, trace, line, lines);
    ++line.n_layers;
  }
}

void add_line(const Line& line, RoutingTrace& trace, const LineSource& lines) {
  if (trace.n_layers == 0) trace.n_layers = line.n_layers;
  if (trace.n_used == 0) trace.n_used = line.n_used;
  if (line.n_layers != trace.n_layers || trace.n_layers == 0)
    fail_line(lines, "{} layers, expected {}", line.n_layers, std::max(trace.n_layers, 1u));
  if (trace.n_used == 0) fail_line(lines, "no layer has experts");
  const std::size_t begin = trace.experts.size();
  add_token(trace, line.is_prompt, lines);
  auto from = line.ids.begin();
  for (std::uint32_t layer = 0; layer < trace.n_layers; ++layer) {
    if (!line.recorded[layer]) continue;
    std::copy_n(
        from, trace.n_used,
        trace.experts.begin() + static_cast<std::ptrdiff_t>(begin + std::size_t{layer} * trace.n_used));
    from += trace.n_used;
  }
}

void read_sizes(JsonReader& reader, RoutingTrace& trace, const LineSource& lines) {
  constexpr std::uint64_t k_max_expert_bytes = std::uint64_t{1} << 40;
  trace.expert_bytes.clear();
  reader.begin_array();
  while (reader.next_element()) {
    if (trace.expert_bytes.size() == k_max_layers) fail_line(lines, "more than {} layers", k_max_layers);
    trace.expert_bytes.push_back(reader.number(k_max_expert_bytes));
  }
}

/// Reads one object: a header's members go to the trace, a token's to `line`; returns which it was.
Header read_object(std::string_view text, RoutingTrace& trace, Line& line, const LineSource& lines) {
  JsonReader reader(text);
  Header header;
  bool has_layers = false;
  std::string key;
  line.is_prompt = false;
  reader.begin_object();
  while (reader.next_key(key)) {
    if (key == "format") {
      if (reader.string(k_max_name_bytes) != "sluice-trace")
        fail_line(lines, "the format is not sluice-trace");
      header.is_header = true;
    } else if (header.is_header && key == "version") {
      header.version = reader.number(~std::uint64_t{0});
      if (header.version != 1) fail_line(lines, "version {} of sluice-trace, expected 1", header.version);
    } else if (header.is_header && key == "model") {
      trace.model = reader.string(k_max_name_bytes);
    } else if (header.is_header && key == "architecture") {
      trace.architecture = reader.string(k_max_name_bytes);
    } else if (header.is_header && key == "layers") {
      trace.n_layers = static_cast<std::uint32_t>(reader.number(k_max_layers));
    } else if (header.is_header && key == "experts") {
      trace.n_experts = static_cast<std::uint32_t>(reader.number(k_max_experts));
    } else if (header.is_header && key == "experts_used") {
      trace.n_used = static_cast<std::uint32_t>(reader.number(k_max_used));
    } else if (header.is_header && key == "prompt_chunk") {
      trace.prompt_chunk = static_cast<std::uint32_t>(reader.number(1u << 20));
    } else if (header.is_header && key == "expert_bytes") {
      read_sizes(reader, trace, lines);
    } else if (!header.is_header && key == "layers") {
      read_layers(reader, trace, line, lines);
      has_layers = true;
    } else if (!header.is_header && key == "phase") {
      const std::string phase = reader.string(16);
      if (phase != "prompt" && phase != "decode")
        fail_line(lines, "phase '{}', expected prompt or decode", phase);
      line.is_prompt = phase == "prompt";
    } else {
      reader.skip_value();
    }
  }
  reader.end();
  if (!header.is_header && !has_layers) fail_line(lines, "a token without \"layers\"");
  return header;
}

void check_header(const Header& header, const RoutingTrace& trace, const LineSource& lines) {
  if (header.version == 0) fail_line(lines, "the header has no version");
  if (trace.n_layers == 0 || trace.n_experts == 0 || trace.n_used == 0 || trace.prompt_chunk == 0 ||
      trace.n_used > trace.n_experts) {
    fail_line(lines, "the header claims {} layers of {} experts, {} used, in prompt passes of {} tokens",
              trace.n_layers, trace.n_experts, trace.n_used, trace.prompt_chunk);
  }
  if (!trace.expert_bytes.empty() && trace.expert_bytes.size() != trace.n_layers)
    fail_line(lines, "sizes of {} layers, expected {}", trace.expert_bytes.size(), trace.n_layers);
}

}  // namespace

void read_json_lines(std::string_view first, LineSource& lines, RoutingTrace& trace) {
  Line line;
  trace.format = "JSON lines";
  for (std::optional<std::string_view> text = first; text; text = lines.next()) {
    if (text->find_first_not_of(" \t") == std::string_view::npos) continue;
    try {
      const Header header = read_object(*text, trace, line, lines);
      if (!header.is_header) {
        add_line(line, trace, lines);
        continue;
      }
      if (lines.line() != 1) fail_line(lines, "a second header");
      check_header(header, trace, lines);
      trace.format = "sluice-trace 1";
    } catch (const base::JsonError& error) {
      fail_line(lines, "byte {}: {}", error.offset + 1, error.what());
    }
  }
}

}  // namespace sluice::replay
