#pragma once

#include "model/block.hpp"
#include "model/pass.hpp"
#include "model/spec.hpp"

namespace sluice::model {

/// A gated delta net (Yang et al. 2024): the delta rule between projections, then a norm of each head that is
/// gated by silu.
class DeltaBlock final : public Block {
 public:
  DeltaBlock(const DeltaSpec& spec, std::uint32_t n_embd) : spec_(spec), n_embd_(n_embd) {}
  void visit(TensorVisitor& visitor) override;
  void needs(Needs& needs, std::uint32_t n_rows) const override;
  void run(Pass& pass, kernels::Rows x, kernels::Rows sum, float scale) override;
  StateNeed state() const noexcept override;
  void replay(const Replay& replay) override;

 private:
  struct Buffers {
    kernels::Rows in, work;  ///< Projected rows, and what the rule makes of them.
    kernels::Rows z, y;
    std::span<kernels::DeltaRun> runs;  ///< One for each sequence at most.
  };
  Buffers take(Arena& arena, std::uint32_t n_rows) const;
  void project(Pass& pass, kernels::Rows x, const Buffers& buffers) const;
  /// Fills the list; returns those that there are.
  std::span<const kernels::DeltaRun> find_runs(const Pass& pass, const Buffers& buffers) const;

  DeltaSpec spec_;
  std::uint32_t n_embd_;
  Matrix qkv_, z_, beta_, alpha_, out_;  ///< With joint gates beta_ makes both.
  kernels::DeltaWeights weights_;
  const float* norm_ = nullptr;
};

}  // namespace sluice::model
