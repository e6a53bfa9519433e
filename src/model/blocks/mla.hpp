#pragma once

#include "model/block.hpp"
#include "model/pass.hpp"
#include "model/spec.hpp"

namespace sluice::model {

/// Latent attention, see MlaSpec. With W_k and W_v the matrices of a head, c the short vector and q the part
/// of its query that does not rotate: q . (W_k c) = (W_k^T q) . c, and a sum of weighted W_v c is W_v times
/// the weighted sum of c. So attention runs over the short vectors themselves, with one key for all heads.
class MlaBlock final : public Block {
 public:
  MlaBlock(const MlaSpec& spec, std::uint32_t n_embd) : spec_(spec), n_embd_(n_embd) {}
  void visit(TensorVisitor& visitor) override;
  void needs(Needs& needs, std::uint32_t n_rows) const override;
  void run(Pass& pass, kernels::Rows x, kernels::Rows sum, float scale) override;

 private:
  struct Buffers {
    kernels::Rows q_short;  ///< What queries are made from; empty when that is the input.
    kernels::Rows q;        ///< [n_rows, n_heads * q_head_dim]
    kernels::Rows kept;     ///< [n_rows, kv_rank + n_rot]
    kernels::Rows out;      ///< [n_rows, n_heads * v_head_dim]
    // Of a slice of the rows, because they are wide.
    kernels::Rows queries;  ///< [n, n_heads * (kv_rank + n_rot)]
    kernels::Rows sums;     ///< [n, n_heads * kv_rank]
  };
  Buffers take(Arena& arena, std::uint32_t n_rows) const;
  void project(Pass& pass, kernels::Rows x, const Buffers& buffers) const;
  /// Rows [first, first + n), n at most a slice.
  void attend(Pass& pass, const Buffers& buffers, std::uint32_t first, std::uint32_t n) const;

  MlaSpec spec_;
  std::uint32_t n_embd_;
  Matrix q_a_, q_b_, kv_a_, out_;
  kernels::Weight k_b_,
      v_b_;               ///< W_k^T [n_heads * kv_rank, n_plain] and W_v [n_heads * v_head_dim, kv_rank].
  kernels::Weight kv_b_;  ///< Instead: W_k and W_v of each head [n_heads * (n_plain + v_head_dim), kv_rank].
  const float *q_norm_ = nullptr, *kv_norm_ = nullptr;
};

}  // namespace sluice::model
