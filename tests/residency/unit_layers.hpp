#pragma once

#include <vector>

#include "residency/unit_map.hpp"
#include "support/tiny_model.hpp"

namespace sluice::residency {

/// What a tiny model's graph would declare.
inline std::vector<UnitLayerSpec> unit_layers(const test::TinyModel& model) {
  std::vector<UnitLayerSpec> layers;
  for (std::uint32_t layer_idx = 0; model.n_experts != 0 && layer_idx < model.n_layers; ++layer_idx) {
    layers.push_back({layer_idx,
                      model.n_experts,
                      {{"ffn_gate", model.n_embd, model.n_ff},
                       {"ffn_up", model.n_embd, model.n_ff},
                       {"ffn_down", model.n_ff, model.n_embd}}});
  }
  return layers;
}

}  // namespace sluice::residency
