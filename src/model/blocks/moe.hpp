#pragma once

#include <array>
#include <optional>
#include <span>

#include "model/block.hpp"
#include "model/blocks/ffn.hpp"
#include "model/pass.hpp"
#include "model/spec.hpp"

namespace sluice::model {

/// A mixture of experts: a router chooses some for each row; they come leased from the unit cache.
class MoeBlock final : public Block {
 public:
  MoeBlock(const MoeSpec& spec, std::uint32_t n_embd);
  void visit(TensorVisitor& visitor) override;
  void needs(Needs& needs, std::uint32_t n_rows) const override;
  void run(Pass& pass, kernels::Rows x, kernels::Rows sum, float scale) override;
  void guess(Pass& pass, kernels::Rows x) override;
  bool has_units() const noexcept override { return true; }

 private:
  /// What the router chose. Lists are [n_rows, n_used].
  struct Routing {
    kernels::Rows logits;
    std::span<std::uint16_t> ids;
    std::span<float> weights;
    kernels::Route route() const noexcept { return {ids, weights}; }
  };
  /// The chosen rows of each expert: those of expert e are [begin[e], begin[e + 1]) of the two lists.
  struct Groups {
    std::span<std::uint32_t> begin;              ///< [n_experts + 1]
    std::span<std::uint32_t> in_rows, out_rows;  ///< Row of the input, and row of the experts' results.
    std::span<residency::UnitCache::Want> wants;
  };
  struct Buffers {
    Routing routing;
    Groups groups;
    kernels::Rows out;  ///< [n_rows * n_used, n_embd]
    kernels::Rows in;   ///< Input times weights; empty when they scale the results.
    kernels::Rows shared_gate;
  };
  /// The share of one expert, whose gate, up and down lie at `parts`.
  kernels::ExpertCall expert_call(std::uint32_t expert, const std::array<kernels::Weight, 3>& parts,
                                  const Groups& groups) const;
  Routing take_routing(Arena& arena, std::uint32_t n_rows) const;
  Buffers take(Arena& arena, std::uint32_t n_rows) const;
  /// Weights are multiplied by `scale`. The host may read them after Ops::routed().
  void route(Pass& pass, kernels::Rows x, const Routing& routing, float scale) const;
  void group(const Buffers& buffers, std::uint32_t n_rows) const;
  /// Which experts are wanted, in the order in which they should be read.
  std::span<const residency::UnitCache::Want> list_wants(const LiveRows& rows, const Buffers& buffers) const;
  /// Gives up the sequences whose rows want an expert that could not be read.
  void fail_rows(Pass& pass, const Buffers& buffers) const;
  void run_experts(Pass& pass, kernels::Rows x, const Buffers& buffers) const;
  /// With experts that were placed.
  void run_placed(Pass& pass, kernels::Rows x, const Buffers& buffers) const;
  void log_routing(Pass& pass, const Routing& routing) const;
  void run_shared(Pass& pass, kernels::Rows x, const Buffers& buffers, kernels::Rows sum, float scale) const;

  MoeSpec spec_;
  std::uint32_t n_embd_;
  kernels::Weight router_, shared_gate_;
  const float* router_bias_ = nullptr;
  std::array<const float*, 3> part_biases_{};  ///< [n_experts, outputs of the part] each, or null.
  std::array<const float*, 3> part_scales_{};  ///< [n_experts] each, or null.
  std::optional<DenseFfn> shared_;
};

}  // namespace sluice::model
