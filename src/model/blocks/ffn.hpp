#pragma once

#include "model/block.hpp"
#include "model/pass.hpp"
#include "model/spec.hpp"

namespace sluice::model {

/// A gated feed-forward part: down(silu(gate(x)) * up(x)). Its matrices are `ffn_gate`, `ffn_up` and
/// `ffn_down`, with a suffix.
class DenseFfn {
 public:
  DenseFfn(const FfnSpec& spec, std::uint32_t n_embd, const char* suffix)
      : spec_(spec), n_embd_(n_embd), suffix_(suffix) {}

  void visit(TensorVisitor& visitor);
  void needs(Needs& needs, std::uint32_t n_rows) const;
  /// x = f(x).
  void run(Pass& pass, kernels::Rows x) const;

 private:
  struct Buffers {
    kernels::Rows both;  ///< gate and up beside each other; empty when they are apart.
    kernels::Rows gate, up;
  };
  Buffers take(Arena& arena, std::uint32_t n_rows) const;

  FfnSpec spec_;
  std::uint32_t n_embd_;
  std::string suffix_;
  Matrix gate_, up_, down_;
};

/// A dense feed-forward block.
class FfnBlock final : public Block {
 public:
  FfnBlock(const FfnSpec& spec, std::uint32_t n_embd) : ffn_(spec, n_embd, "") {}
  void visit(TensorVisitor& visitor) override;
  void needs(Needs& needs, std::uint32_t n_rows) const override { ffn_.needs(needs, n_rows); }
  void run(Pass& pass, kernels::Rows x, kernels::Rows sum, float scale) override;

 private:
  DenseFfn ffn_;
};

}  // namespace sluice::model
