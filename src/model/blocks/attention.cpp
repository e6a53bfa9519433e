#include "model/blocks/attention.hpp"

#include <algorithm>
#include <array>

namespace sluice::model {

using kernels::Rows;
using QkNorm = AttentionSpec::QkNorm;

void AttentionBlock::visit(TensorVisitor& visitor) {
  const std::uint32_t q_dim = spec_.q_dim(), k_dim = spec_.k_dim(), v_dim = spec_.v_dim();
  const Need bias = spec_.needs_qkv_bias ? Need::required : Need::optional;
  visitor.begin_block(Role::attention);
  if (is_fused()) {
    visitor.matrix(qkv_, "attn_qkv", n_embd_, q_dim + k_dim + v_dim);
    visitor.vector(qkv_bias_, Role::attention, "attn_qkv.bias", q_dim + k_dim + v_dim, bias);
  } else {
    visitor.matrix(q_, "attn_q", n_embd_, spec_.out_gate ? 2 * q_dim : q_dim);
    visitor.matrix(k_, "attn_k", n_embd_, k_dim);
    visitor.matrix(v_, "attn_v", n_embd_, v_dim);
    visitor.vector(q_bias_, Role::attention, "attn_q.bias", spec_.out_gate ? 2 * q_dim : q_dim, bias);
    visitor.vector(k_bias_, Role::attention, "attn_k.bias", k_dim, bias);
    visitor.vector(v_bias_, Role::attention, "attn_v.bias", v_dim, bias);
  }
  if (spec_.qk_norm == QkNorm::per_head || spec_.qk_norm == QkNorm::whole_row) {
    const bool is_whole = spec_.qk_norm == QkNorm::whole_row;
    const Need need = spec_.needs_qk_norm ? Need::required : Need::optional;
    visitor.vector(q_norm_, Role::norm, "attn_q_norm.weight", is_whole ? q_dim : spec_.k_head_dim, need);
    visitor.vector(k_norm_, Role::norm, "attn_k_norm.weight", is_whole ? k_dim : spec_.k_head_dim, need);
  }
  if (spec_.sinks) visitor.vector(sinks_, Role::attention, "attn_sinks.weight", spec_.n_heads);
  visitor.matrix(out_, "attn_output", spec_.out_dim(), n_embd_);
  visitor.vector(out_bias_, Role::attention, "attn_output.bias", n_embd_, Need::optional);
}

AttentionBlock::Buffers AttentionBlock::take(Arena& arena, std::uint32_t n_rows) const {
  const std::uint32_t q_dim = spec_.q_dim(), k_dim = spec_.k_dim(), v_dim = spec_.v_dim();
  Buffers buffers;
  if (is_fused()) {
    buffers.qkv = arena.rows(n_rows, q_dim + k_dim + v_dim);
    buffers.q = buffers.qkv.columns(0, q_dim);
    buffers.k = buffers.qkv.columns(q_dim, k_dim);
    buffers.v = buffers.qkv.columns(q_dim + k_dim, v_dim);
  } else {
    if (spec_.out_gate) {
      buffers.q_and_gate = arena.rows(n_rows, 2 * q_dim);
      buffers.gate = arena.rows(n_rows, q_dim);
    }
    buffers.q = arena.rows(n_rows, q_dim);
    buffers.k = arena.rows(n_rows, k_dim);
    buffers.v = arena.rows(n_rows, v_dim);
  }
  buffers.out = arena.rows(n_rows, spec_.out_dim());
  return buffers;
}

void AttentionBlock::needs(Needs& needs, std::uint32_t n_rows) const {
  const ArenaScope scope(needs.arena);
  take(needs.arena, n_rows);
  needs.input(n_embd_);
  needs.input(spec_.out_dim());
}

void AttentionBlock::project(Pass& pass, Rows x, const Buffers& buffers) const {
  if (is_fused()) {
    const std::array<Weights::Target, 1> all = {{{qkv_, buffers.qkv, qkv_bias_}}};
    pass.weights.multiply(x, all);
    return;
  }
  const std::array<Weights::Target, 3> all = {{{q_, spec_.out_gate ? buffers.q_and_gate : buffers.q, q_bias_},
                                               {k_, buffers.k, k_bias_},
                                               {v_, buffers.v, v_bias_}}};
  pass.weights.multiply(x, all);
  if (spec_.out_gate) pass.ops.split_heads(buffers.q_and_gate, spec_.k_head_dim, buffers.q, buffers.gate);
}

void AttentionBlock::normalize(Pass& pass, const Buffers& buffers) const {
  const auto apply = [&](Rows x, const float* gain) {
    if (spec_.qk_norm == QkNorm::gainless || (spec_.qk_norm == QkNorm::per_head && gain != nullptr))
      pass.ops.rms_norm_heads(x, spec_.k_head_dim, gain, pass.norm_eps);
    if (spec_.qk_norm == QkNorm::whole_row && gain != nullptr) pass.ops.rms_norm(x, gain, pass.norm_eps, x);
  };
  apply(buffers.q, q_norm_);
  apply(buffers.k, k_norm_);
}

void AttentionBlock::attend(Pass& pass, const Buffers& buffers) const {
  kernels::AttentionParams params;
  params.n_heads = spec_.n_heads;
  params.scale = spec_.scale;
  params.window = spec_.window;
  params.chunk = spec_.chunk;
  params.softcap = spec_.softcap;
  params.sinks = sinks_;
  // Rows do not depend on one another. In slices, others get a turn in between: far into a long prompt one
  // call for all would take seconds.
  constexpr std::uint32_t k_slice_rows = 128;
  const std::uint32_t n_rows = buffers.q.n_rows;
  for (std::uint32_t row = 0; row < n_rows; row += k_slice_rows) {
    const std::uint32_t n = std::min(k_slice_rows, n_rows - row);
    pass.ops.attention(buffers.q.from(row).first(n), pass.kv.views[pass.layer_idx], params, row,
                       buffers.out.from(row).first(n));
    pass.let_others_work();
  }
}

void AttentionBlock::run(Pass& pass, Rows x, Rows sum, float scale) {
  const ArenaScope scope(pass.arena);
  const Buffers buffers = take(pass.arena, x.n_rows);
  project(pass, x, buffers);
  pass.let_others_work();
  if (!spec_.norms_rotated) normalize(pass, buffers);
  if (spec_.rotates) {
    pass.ops.rope(buffers.q, spec_.k_head_dim, spec_.curve, 0);
    pass.ops.rope(buffers.k, spec_.k_head_dim, spec_.curve, 0);
  }
  if (spec_.norms_rotated) normalize(pass, buffers);
  if (spec_.temperature.scale != 0) pass.ops.scale_by_position(buffers.q, spec_.temperature, 0);
  pass.ops.store_kv(buffers.k, buffers.v, pass.kv.views[pass.layer_idx], 0);
  attend(pass, buffers);
  if (spec_.out_gate) pass.ops.gate(buffers.out, buffers.gate);
  const std::array<Weights::Target, 1> out = {{{out_, x, out_bias_}}};
  pass.weights.multiply(buffers.out, out);
  pass.ops.add(x, scale, sum);
}

}  // namespace sluice::model
