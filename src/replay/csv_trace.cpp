#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "replay/trace_reader.hpp"

namespace sluice::replay {
namespace {

constexpr std::array<std::string_view, 6> k_columns = {"turn", "phase", "step", "layer", "slot", "expert"};
constexpr std::size_t k_max_columns = 64;
enum Column : std::size_t { turn, phase, step, layer, slot, expert };

std::optional<std::uint64_t> parse(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The part up to `separator`, which is taken off `rest`.
std::string_view take(std::string_view& rest, char separator) {
  const std::string_view part = rest.substr(0, rest.find(separator));
  rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  return part;
}

std::uint64_t limited(std::string_view key, std::string_view text, std::uint64_t max,
                      const LineSource& lines) {
  const auto value = parse(text);
  if (!value || *value > max)
    fail_line(lines, "{}={}, expected a number up to {}", key, text.substr(0, 32), max);
  return *value;
}

/// "# key=value key=value": facts of the model, or of one layer.
void read_comment(std::string_view text, RoutingTrace& trace, const LineSource& lines) {
  std::optional<std::uint64_t> layer_idx;
  text.remove_prefix(1);
  while (!text.empty()) {
    std::string_view value = take(text, ' ');
    const std::string_view key = take(value, '=');
    if (key == "model") trace.model = value.substr(0, k_max_name_bytes);
    if (key == "arch") trace.architecture = value.substr(0, k_max_name_bytes);
    if (key == "n_layer")
      trace.n_layers = static_cast<std::uint32_t>(limited(key, value, k_max_layers, lines));
    if (key == "n_expert")
      trace.n_experts = static_cast<std::uint32_t>(limited(key, value, k_max_experts, lines));
    if (key == "n_expert_used")
      trace.n_used = static_cast<std::uint32_t>(limited(key, value, k_max_used, lines));
    if (key == "layer") layer_idx = limited(key, value, k_max_layers - 1, lines);
    if (key == "expert_bytes" && layer_idx) {
      trace.expert_bytes.resize(std::max<std::size_t>(trace.expert_bytes.size(), *layer_idx + 1));
      trace.expert_bytes[*layer_idx] = limited(key, value, std::uint64_t{1} << 40, lines);
    }
  }
}

/// Where the columns we need stand in a row.
std::array<std::size_t, k_columns.size()> read_columns(std::string_view text, const LineSource& lines) {
  std::array<std::size_t, k_columns.size()> places;
  places.fill(k_max_columns);
  for (std::size_t place = 0; place < k_max_columns && !text.empty(); ++place) {
    const std::string_view name = take(text, ',');
    for (std::size_t i = 0; i < k_columns.size(); ++i) {
      if (name == k_columns[i]) places[i] = place;
    }
  }
  for (std::size_t i = 0; i < k_columns.size(); ++i) {
    if (places[i] == k_max_columns) fail_line(lines, "there is no column '{}'", k_columns[i]);
  }
  return places;
}

struct TokenKey {
  std::uint64_t turn, phase, step;
  bool operator==(const TokenKey&) const = default;
};
struct TokenHash {
  std::size_t operator()(const TokenKey& key) const noexcept {
    return ((key.turn * 0x9e3779b97f4a7c15u + key.phase) * 0x9e3779b97f4a7c15u + key.step) *
           0x9e3779b97f4a7c15u;
  }
};

void check_complete(const RoutingTrace& trace) {
  for (std::size_t row = 0; row < trace.experts.size(); row += trace.n_used) {
    std::uint32_t n = 0;
    for (std::uint32_t i = 0; i < trace.n_used; ++i)
      n += trace.experts[row + i] != RoutingTrace::k_not_recorded;
    if (n != 0 && n != trace.n_used) {
      const std::size_t layer_row = row / trace.n_used;
      base::fail(ErrorCode::invalid_file, "{}: token {} has {} experts in layer {}, expected {}", trace.path,
                 layer_row / trace.n_layers, n, layer_row % trace.n_layers, trace.n_used);
    }
  }
}

}  // namespace

void read_route_csv(LineSource& lines, RoutingTrace& trace) {
  trace.format = "route_trace v1";
  std::optional<std::array<std::size_t, k_columns.size()>> places;
  // A token's rows need not be neighbours: prompts are recorded layer by layer.
  std::unordered_map<TokenKey, std::uint32_t, TokenHash> tokens;
  TokenKey last{};
  std::uint32_t token = 0;
  while (const auto line = lines.next()) {
    std::string_view text = *line;
    if (text.empty()) continue;
    if (text.front() == '#') {
      if (places) continue;  // A shape that changes later would not fit what was read.
      read_comment(text, trace, lines);
      continue;
    }
    if (!places) {
      places = read_columns(text, lines);
      if (trace.n_layers == 0 || trace.n_experts == 0 || trace.n_used == 0 ||
          trace.n_used > trace.n_experts) {
        fail_line(lines, "the lines before claim {} layers of {} experts, {} used", trace.n_layers,
                  trace.n_experts, trace.n_used);
      }
      continue;
    }
    std::array<std::uint64_t, k_columns.size()> values;
    values.fill(~std::uint64_t{0});
    for (std::size_t place = 0; place < k_max_columns && !text.empty(); ++place) {
      const std::string_view cell = take(text, ',');
      for (std::size_t i = 0; i < k_columns.size(); ++i) {
        if ((*places)[i] == place) values[i] = parse(cell).value_or(~std::uint64_t{0});
      }
    }
    constexpr std::uint64_t k_max_step = std::uint64_t{1} << 32;
    const std::array<std::uint64_t, k_columns.size()> limits = {
        k_max_step, 1, k_max_step, trace.n_layers - 1, trace.n_used - 1, trace.n_experts - 1};
    for (std::size_t i = 0; i < k_columns.size(); ++i) {
      if (values[i] > limits[i]) fail_line(lines, "{} is not a number from 0 to {}", k_columns[i], limits[i]);
    }
    const TokenKey key{values[turn], values[phase], values[step]};
    if (tokens.empty() || key != last) {
      const auto [found, is_new] = tokens.try_emplace(key, trace.n_tokens());
      if (is_new) add_token(trace, values[phase] == 0, lines);
      token = found->second;
      last = key;
    }
    std::uint16_t* row =
        trace.experts.data() + (std::size_t{token} * trace.n_layers + values[layer]) * trace.n_used;
    if (row[values[slot]] != RoutingTrace::k_not_recorded)
      fail_line(lines, "slot {} of layer {} a second time for this token", values[slot], values[layer]);
    if (std::find(row, row + trace.n_used, values[expert]) != row + trace.n_used)
      fail_line(lines, "layer {} has expert {} twice", values[layer], values[expert]);
    row[values[slot]] = static_cast<std::uint16_t>(values[expert]);
  }
  if (!places) base::fail(ErrorCode::invalid_file, "{}: the trace has no line of column names", trace.path);
  if (!trace.expert_bytes.empty()) trace.expert_bytes.resize(trace.n_layers);
  check_complete(trace);
}

}  // namespace sluice::replay
