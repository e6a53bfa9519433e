#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "model/arena.hpp"
#include "model/block.hpp"
#include "model/kv_layout.hpp"
#include "model/live_rows.hpp"
#include "model/state_layout.hpp"
#include "model/weights.hpp"
#include "residency/unit_cache.hpp"
#include "residency/unit_map.hpp"

namespace sluice::model {

/// The gain of a norm and what is added to its result; either may be null.
struct Norm {
  const float *gain = nullptr, *bias = nullptr;
};
/// y = the normalised rows; y may be x.
void normalize(kernels::Ops& ops, kernels::Rows x, const Norm& norm, float eps, kernels::Rows y);

/// What blocks work with while a pass is computed.
struct Pass {
  kernels::Ops& ops;
  Weights& weights;
  Arena& arena;
  residency::UnitCache* cache;  ///< Null for dense models, and where all experts are placed.
  /// Of each layer of `units`: all experts, where the device has them; else empty.
  std::span<const kernels::RoutedExperts> placed_experts;
  const residency::UnitMap& units;
  const KvLayout& kv;
  const StateLayout& state;
  LiveRows& rows;
  const std::atomic<bool>* cancel;
  std::uint64_t now;  ///< The cache policy's clock, in tokens.
  /// Called between two parts of a layer that take long. May be empty.
  const std::function<void()>& busy_hook;
  std::vector<std::uint16_t>* routing_log;  ///< Null: nobody wants it.
  float norm_eps;
  bool looks_ahead;
  std::uint64_t& weight_bytes;  ///< Grows by those of the units that are needed.

  // Of the layer being computed.
  std::uint32_t layer_idx = 0;
  kernels::Rows x{};  ///< The residual stream.
  /// The next block that has units, if any is left; its layer and its norm.
  Block* next_units = nullptr;
  std::uint32_t next_units_layer = 0;
  Norm next_units_norm{};

  void let_others_work() const {
    if (busy_hook) busy_hook();
  }
  /// Throws Error(cancelled).
  void check_cancel() const;
  /// Lets the next block with units guess from the residual stream as it is now.
  void look_ahead();
};

}  // namespace sluice::model
