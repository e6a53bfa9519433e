#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv.hpp"

namespace sluice::model {

/// What one layer keeps in the KV cache; without KV heads: nothing.
struct KvLayer {
  kernels::KvShape shape;
  std::uint32_t window = 0;    ///< It sees only so many of the last positions; 0: all.
  std::uint64_t products = 0;  ///< Multiply-accumulates of attention for a row and a position that it sees.
};

/// Layers that see the same positions share pages. Those of a window need only the last pages of a sequence.
struct KvGroup {
  std::uint64_t page_bytes = 0;
  std::uint32_t window = 0;  ///< 0: the group keeps all positions.
  std::uint32_t n_layers = 0;
  std::uint64_t products = 0;  ///< Of all its layers.
  std::uint64_t token_bytes() const noexcept { return page_bytes / kernels::KvShape::page_tokens; }
};

struct KvLayout {
  std::vector<KvGroup> groups;
  std::vector<kernels::KvView> views;  ///< Of each layer.
};

/// Divides the layers into groups, in the order in which their windows occur first; within a page, layers lie
/// in their own order. Pure. Throws Error(unsupported) for more than kernels::k_max_kv_groups windows, and
/// for a layer of q8_0 whose heads are not whole blocks.
KvLayout plan_kv(std::span<const KvLayer> layers);

}  // namespace sluice::model
