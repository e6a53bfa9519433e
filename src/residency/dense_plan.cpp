#include "residency/dense_plan.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace sluice::residency {
namespace {

/// Kinds of blocks in the order in which they give way.
constexpr std::array k_release_roles = {Role::dense_ffn, Role::shared_expert, Role::attention};

/// Pins as many blocks of `role` as fit, evenly spaced; returns what is left of `bytes`.
std::uint64_t pin_spaced(std::span<const DenseBlockFacts> blocks, Role role, std::uint64_t bytes,
                         std::vector<bool>& pinned) {
  std::vector<std::size_t> of_role;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].role == role) of_role.push_back(i);
  }
  const std::size_t n = of_role.size();
  for (std::size_t n_kept = n; n_kept > 0; --n_kept) {
    // The i-th is kept when the line from 0 to n_kept passes a whole number there.
    const auto keeps = [&](std::size_t i) { return (i + 1) * n_kept / n > i * n_kept / n; };
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < n; ++i) total += keeps(i) ? blocks[of_role[i]].bytes : 0;
    if (total > bytes) continue;
    for (std::size_t i = 0; i < n; ++i) {
      if (keeps(i)) pinned[of_role[i]] = true;
    }
    return bytes - total;
  }
  return bytes;
}

}  // namespace

std::vector<bool> choose_pinned_blocks(std::span<const DenseBlockFacts> blocks, std::uint64_t bytes) {
  std::vector<bool> pinned(blocks.size(), false);
  std::uint64_t left = bytes;
  for (auto role = k_release_roles.rbegin(); role != k_release_roles.rend(); ++role)
    left = pin_spaced(blocks, *role, left, pinned);
  // Blocks differ in size: what the even choice left over may still hold a smaller one.
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (pinned[i] || blocks[i].bytes > left) continue;
    pinned[i] = true;
    left -= blocks[i].bytes;
  }
  return pinned;
}

std::vector<std::uint32_t> release_order(std::span<const DenseBlockFacts> blocks) {
  std::vector<std::uint32_t> order;
  for (const Role role : k_release_roles) {
    // Halving again and again is counting with the bits of each number turned around.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> turned;
    std::uint32_t n_seen = 0;
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].role != role) continue;
      std::uint32_t key = 0;
      for (int bit = 0; bit < 32; ++bit) key |= (n_seen >> bit & 1u) << (31 - bit);
      turned.emplace_back(key, i);
      ++n_seen;
    }
    std::sort(turned.begin(), turned.end());
    for (const auto& [key, idx] : turned) order.push_back(idx);
  }
  return order;
}

std::size_t count_released(std::span<const DenseBlockFacts> blocks, std::span<const std::uint32_t> order,
                           std::uint64_t bytes) {
  std::uint64_t held = 0;
  for (const std::uint32_t idx : order) held += blocks[idx].bytes;
  std::size_t n = 0;
  for (; n < order.size() && held > bytes; ++n) held -= blocks[order[n]].bytes;
  return n;
}

}  // namespace sluice::residency
