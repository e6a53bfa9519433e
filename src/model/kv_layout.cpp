#include "model/kv_layout.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice::model {

namespace {

void check_blocks(const kernels::KvShape& shape, std::size_t layer_idx) {
  if (shape.type == kernels::KvType::f16 ||
      (shape.k_head_dim % kernels::k_kv_block == 0 && shape.v_head_dim % kernels::k_kv_block == 0))
    return;
  base::fail(
      ErrorCode::unsupported,
      "a KV cache of q8_0 holds blocks of {} elements, but the keys and values of a head in layer {} have "
      "{} and {}; use --kv-type f16",
      kernels::k_kv_block, layer_idx, shape.k_head_dim, shape.v_head_dim);
}

}  // namespace

KvLayout plan_kv(std::span<const KvLayer> layers) {
  KvLayout layout;
  for (const KvLayer& layer : layers) {
    if (layer.shape.n_kv_heads == 0) {
      layout.views.push_back({layer.shape, 0, 0});
      continue;
    }
    check_blocks(layer.shape, layout.views.size());
    auto group = std::find_if(layout.groups.begin(), layout.groups.end(),
                              [&](const KvGroup& known) { return known.window == layer.window; });
    if (group == layout.groups.end()) {
      if (layout.groups.size() == kernels::k_max_kv_groups) {
        base::fail(ErrorCode::unsupported,
                   "layer {} has an attention window of {} tokens, the {}th size in this model; at most {} "
                   "different sizes are supported",
                   layout.views.size(), layer.window, layout.groups.size() + 1, kernels::k_max_kv_groups);
      }
      group = layout.groups.insert(layout.groups.end(), {0, layer.window, 0, 0});
    }
    layout.views.push_back(
        {layer.shape, static_cast<std::uint32_t>(group - layout.groups.begin()), group->page_bytes});
    group->page_bytes += layer.shape.layer_bytes();
    ++group->n_layers;
    group->products += layer.products;
  }
  return layout;
}

}  // namespace sluice::model
