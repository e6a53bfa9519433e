#include "kernels/router.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace sluice::kernels {
namespace {

constexpr float k_infinity = std::numeric_limits<float>::infinity();
/// The smallest normal f16: the floor that published routers put under the sum before they divide by it.
constexpr double k_smallest_sum = 6.103515625e-5;

/// x = softmax(x), with -infinity as a lawful entry.
void softmax(const VectorMath& math, float* x, std::uint32_t n) noexcept {
  float max = -k_infinity;
  for (std::uint32_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  if (std::isinf(max)) {
    // Nothing finite decides: the entries at +infinity share the weight, or there are none and all are 0.
    std::uint32_t n_infinite = 0;
    for (std::uint32_t i = 0; i < n; ++i) n_infinite += x[i] == k_infinity ? 1 : 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      x[i] = x[i] == k_infinity ? 1.0f / static_cast<float>(n_infinite) : 0.0f;
    }
    return;
  }
  math.exp_minus(x, max, n);
  double sum = 0;
  for (std::uint32_t i = 0; i < n; ++i) sum += x[i];
  for (std::uint32_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] / sum);
}

/// The ids of the n_used largest keys, largest first, equal keys by rising id.
void select_top(const float* keys, std::uint32_t n, std::uint32_t n_used, std::uint16_t* ids) noexcept {
  std::uint32_t n_found = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (n_found == n_used && !(keys[i] > keys[ids[n_used - 1]])) continue;
    std::uint32_t place = n_found < n_used ? n_found++ : n_used - 1;
    for (; place > 0 && keys[i] > keys[ids[place - 1]]; --place) ids[place] = ids[place - 1];
    ids[place] = static_cast<std::uint16_t>(i);
  }
}

/// Makes the keys of all groups but the best -infinity.
void keep_groups(float* keys, std::uint32_t n_experts, const RouterParams& params) noexcept {
  const std::uint32_t size = n_experts / params.n_groups;
  std::array<float, k_max_expert_groups> scores{};
  std::array<std::uint16_t, k_max_expert_groups> chosen{};
  for (std::uint32_t group = 0; group < params.n_groups; ++group) {
    const float* of_group = keys + std::size_t{group} * size;
    select_top(of_group, size, params.n_group_best, chosen.data());
    for (std::uint32_t i = 0; i < params.n_group_best; ++i) scores[group] += of_group[chosen[i]];
  }
  select_top(scores.data(), params.n_groups, params.n_groups_used, chosen.data());
  for (std::uint32_t group = 0; group < params.n_groups; ++group) {
    const auto end = chosen.begin() + params.n_groups_used;
    if (std::find(chosen.begin(), end, group) == end)
      std::fill_n(keys + std::size_t{group} * size, size, -k_infinity);
  }
}

}  // namespace

void route_row(const VectorMath& math, const float* logits, std::uint32_t n_experts,
               const RouterParams& params, float* probabilities, float* keys, std::uint16_t* ids,
               float* weights) noexcept {
  using Scoring = RouterParams::Scoring;
  for (std::uint32_t i = 0; i < n_experts; ++i) {
    probabilities[i] = std::isnan(logits[i]) ? -k_infinity : logits[i];
  }
  if (params.scoring == Scoring::softmax) {
    softmax(math, probabilities, n_experts);
  } else if (params.scoring == Scoring::sigmoid) {
    for (std::uint32_t i = 0; i < n_experts; ++i) probabilities[i] = -probabilities[i];
    math.exp_minus(probabilities, 0.0f, n_experts);
    // exp is held below infinity, so what counts as lowest would keep a trace of weight.
    for (std::uint32_t i = 0; i < n_experts; ++i) {
      probabilities[i] = std::isnan(logits[i]) ? 0.0f : 1.0f / (1.0f + probabilities[i]);
    }
  }
  for (std::uint32_t i = 0; i < n_experts; ++i) {
    const float bias = params.selection_bias != nullptr ? params.selection_bias[i] : 0.0f;
    const float key = probabilities[i] + bias;
    keys[i] = std::isnan(logits[i]) || std::isnan(key) ? -k_infinity : key;
  }
  if (params.n_groups_used < params.n_groups) keep_groups(keys, n_experts, params);
  select_top(keys, n_experts, params.n_used, ids);

  for (std::uint32_t i = 0; i < params.n_used; ++i) weights[i] = probabilities[ids[i]];
  if (params.scoring == Scoring::softmax_of_selected) {
    softmax(math, weights, params.n_used);
  } else if (params.normalize) {
    double sum = 0;
    for (std::uint32_t i = 0; i < params.n_used; ++i) sum += weights[i];
    sum = sum > k_smallest_sum ? sum : k_smallest_sum;
    for (std::uint32_t i = 0; i < params.n_used; ++i) weights[i] = static_cast<float>(weights[i] / sum);
  }
  for (std::uint32_t i = 0; i < params.n_used; ++i) weights[i] *= params.scale;
}

}  // namespace sluice::kernels
