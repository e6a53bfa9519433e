#pragma once

#include "model/block.hpp"
#include "model/pass.hpp"
#include "model/spec.hpp"

namespace sluice::model {

/// Grouped-query attention with rotated positions (Su et al. 2021, Ainslie et al. 2023).
class AttentionBlock final : public Block {
 public:
  AttentionBlock(const AttentionSpec& spec, std::uint32_t n_embd) : spec_(spec), n_embd_(n_embd) {}
  void visit(TensorVisitor& visitor) override;
  void needs(Needs& needs, std::uint32_t n_rows) const override;
  void run(Pass& pass, kernels::Rows x, kernels::Rows sum, float scale) override;

 private:
  struct Buffers {
    kernels::Rows qkv;               ///< All three beside each other; empty when they are apart.
    kernels::Rows q_and_gate, gate;  ///< Of each head side by side, and the gates; only with out_gate.
    kernels::Rows q, k, v, out;
  };
  bool is_fused() const noexcept { return spec_.projection == AttentionSpec::Projection::fused; }
  Buffers take(Arena& arena, std::uint32_t n_rows) const;
  void project(Pass& pass, kernels::Rows x, const Buffers& buffers) const;
  void normalize(Pass& pass, const Buffers& buffers) const;
  void attend(Pass& pass, const Buffers& buffers) const;

  AttentionSpec spec_;
  std::uint32_t n_embd_;
  Matrix q_, k_, v_, qkv_, out_;
  const float *q_bias_ = nullptr, *k_bias_ = nullptr, *v_bias_ = nullptr, *qkv_bias_ = nullptr;
  const float *q_norm_ = nullptr, *k_norm_ = nullptr, *out_bias_ = nullptr, *sinks_ = nullptr;
};

}  // namespace sluice::model
