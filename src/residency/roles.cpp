#include "residency/roles.hpp"

#include <charconv>

namespace sluice {

const char* role_name(Role role) noexcept {
  switch (role) {
    case Role::token_embedding:
      return "token embedding";
    case Role::output_head:
      return "output head";
    case Role::norm:
      return "norms";
    case Role::attention:
      return "attention";
    case Role::router:
      return "routers";
    case Role::expert:
      return "experts";
    case Role::shared_expert:
      return "shared experts";
    case Role::dense_ffn:
      return "dense FFN";
    case Role::rope_table:
      return "rope table";
    case Role::other:
      return "other";
  }
  return "other";
}

}  // namespace sluice

namespace sluice::residency {
namespace {

/// Takes the text up to the next dot off the front.
std::string_view take_field(std::string_view& rest) noexcept {
  const std::size_t dot = rest.find('.');
  const std::string_view field = rest.substr(0, dot);
  rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
  return field;
}

int parse_index(std::string_view text) noexcept {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes) noexcept {
  for (std::string_view prefix : prefixes) {
    if (text.starts_with(prefix)) return true;
  }
  return false;
}

}  // namespace

TensorName parse_tensor_name(std::string_view name) noexcept {
  TensorName parsed;
  std::string_view rest = name;
  if (rest.starts_with("blk.")) {
    std::string_view after = rest.substr(4);
    const int layer = parse_index(take_field(after));
    if (layer >= 0) {
      parsed.layer = layer;
      rest = after;
    }
  }
  parsed.part = take_field(rest);
  if (!rest.empty()) {
    std::string_view after = rest;
    const int expert = parse_index(take_field(after));
    if (expert >= 0) {
      parsed.expert = expert;
      rest = after;
    }
  }
  parsed.suffix = rest;
  return parsed;
}

Role classify_tensor(std::string_view name) noexcept {
  const TensorName parsed = parse_tensor_name(name);
  const std::string_view part = parsed.part;
  if (parsed.layer < 0) {
    if (part == "token_embd") return Role::token_embedding;
    if (part == "output") return Role::output_head;
    if (part == "output_norm" || part == "token_embd_norm") return Role::norm;
    if (part == "rope_freqs") return Role::rope_table;
    return Role::other;
  }
  if (part.ends_with("_norm") || part.ends_with("_norm_2")) return Role::norm;
  if (part.starts_with("rope_")) return Role::rope_table;
  if (part.ends_with("_exps") || parsed.expert >= 0) return Role::expert;
  if (part.ends_with("_shexp")) return Role::shared_expert;
  if (part == "ffn_gate_inp" || part == "exp_probs_b") return Role::router;
  if (starts_with_any(part, {"ffn_gate", "ffn_up", "ffn_down"})) return Role::dense_ffn;
  if (starts_with_any(part, {"attn_", "ssm_"})) return Role::attention;
  return Role::other;
}

}  // namespace sluice::residency
