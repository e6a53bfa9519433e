#include "model/blocks/mla.hpp"

#include <algorithm>
#include <array>

namespace sluice::model {

using kernels::heads_of;
using kernels::Rows;

namespace {

constexpr std::uint32_t k_curve = 0;
// Enough that the matrices of the heads are read seldom, and others get a turn in between.
constexpr std::uint32_t k_slice_rows = 64;

}  // namespace

void MlaBlock::visit(TensorVisitor& visitor) {
  visitor.begin_block(Role::attention);
  if (spec_.q_rank != 0) {
    visitor.matrix(q_a_, "attn_q_a", n_embd_, spec_.q_rank);
  } else {
    visitor.matrix(q_b_, "attn_q", n_embd_, spec_.q_dim());
  }
  visitor.matrix(kv_a_, "attn_kv_a_mqa", n_embd_, spec_.kept_dim());
  if (spec_.q_rank != 0) {
    visitor.vector(q_norm_, Role::norm, "attn_q_a_norm.weight", spec_.q_rank);
    visitor.matrix(q_b_, "attn_q_b", spec_.q_rank, spec_.q_dim());
  }
  visitor.vector(kv_norm_, Role::norm, "attn_kv_a_norm.weight", spec_.kv_rank);
  const std::uint32_t rank = spec_.kv_rank, n_heads = spec_.n_heads;
  if (spec_.undivided) {
    visitor.pinned(kv_b_, Role::attention, "attn_kv_b.weight", rank,
                   n_heads * (spec_.n_plain + spec_.v_head_dim));
  } else {
    visitor.stacked(k_b_, Role::attention, "attn_k_b.weight", spec_.n_plain, rank, n_heads);
    visitor.stacked(v_b_, Role::attention, "attn_v_b.weight", rank, spec_.v_head_dim, n_heads);
  }
  visitor.matrix(out_, "attn_output", spec_.out_dim(), n_embd_);
}

MlaBlock::Buffers MlaBlock::take(Arena& arena, std::uint32_t n_rows) const {
  const std::uint32_t n_slice = std::min(n_rows, k_slice_rows);
  Buffers buffers;
  if (spec_.q_rank != 0) buffers.q_short = arena.rows(n_rows, spec_.q_rank);
  buffers.q = arena.rows(n_rows, spec_.q_dim());
  buffers.kept = arena.rows(n_rows, spec_.kept_dim());
  buffers.out = arena.rows(n_rows, spec_.out_dim());
  buffers.queries = arena.rows(n_slice, spec_.n_heads * spec_.kept_dim());
  buffers.sums = arena.rows(n_slice, spec_.n_heads * spec_.kv_rank);
  return buffers;
}

void MlaBlock::needs(Needs& needs, std::uint32_t n_rows) const {
  const ArenaScope scope(needs.arena);
  take(needs.arena, n_rows);
  needs.input(n_embd_);
  needs.input(spec_.q_rank);
  needs.input(spec_.out_dim());
  needs.heads(spec_.n_heads, std::max(spec_.n_plain, spec_.kv_rank));
}

void MlaBlock::project(Pass& pass, Rows x, const Buffers& buffers) const {
  const bool is_direct = spec_.q_rank == 0;
  const std::array<Weights::Target, 2> all = {
      {{is_direct ? q_b_ : q_a_, is_direct ? buffers.q : buffers.q_short}, {kv_a_, buffers.kept}}};
  pass.weights.multiply(x, all);
  if (!is_direct) {
    pass.ops.rms_norm(buffers.q_short, q_norm_, pass.norm_eps, buffers.q_short);
    const std::array<Weights::Target, 1> heads = {{{q_b_, buffers.q}}};
    pass.weights.multiply(buffers.q_short, heads);
  }
  const Rows latent = buffers.kept.columns(0, spec_.kv_rank);
  pass.ops.rms_norm(latent, kv_norm_, pass.norm_eps, latent);
  pass.ops.rope(buffers.kept.columns(spec_.kv_rank, spec_.n_rot), spec_.n_rot, k_curve, 0);
}

void MlaBlock::attend(Pass& pass, const Buffers& buffers, std::uint32_t first, std::uint32_t n) const {
  const Rows q = buffers.q.from(first).first(n), out = buffers.out.from(first).first(n);
  const Rows queries = buffers.queries.first(n), sums = buffers.sums.first(n);
  const std::uint32_t rank = spec_.kv_rank, q_head = spec_.q_head_dim(), kept = spec_.kept_dim();
  const kernels::HeadRows plain = heads_of(q, q_head, 0, spec_.n_plain);
  const std::uint32_t both = spec_.n_plain + spec_.v_head_dim;
  if (spec_.undivided) {
    pass.ops.matmul_heads_transposed(plain, {kv_b_, 0, both}, heads_of(queries, kept, 0, rank));
  } else {
    pass.ops.matmul_heads(plain, {k_b_, 0, rank}, heads_of(queries, kept, 0, rank));
  }
  pass.ops.rope_heads(heads_of(q, q_head, spec_.n_plain, spec_.n_rot), k_curve, first,
                      heads_of(queries, kept, rank, spec_.n_rot));
  if (spec_.temperature.scale != 0) pass.ops.scale_by_position(queries, spec_.temperature, first);
  kernels::AttentionParams params;
  params.n_heads = spec_.n_heads;
  params.scale = spec_.scale;
  pass.ops.attention(queries, pass.kv.views[pass.layer_idx], params, first, sums);
  const kernels::HeadWeight values = spec_.undivided ? kernels::HeadWeight{kv_b_, spec_.n_plain, both}
                                                     : kernels::HeadWeight{v_b_, 0, spec_.v_head_dim};
  pass.ops.matmul_heads(heads_of(sums, rank, 0, rank), values,
                        heads_of(out, spec_.v_head_dim, 0, spec_.v_head_dim));
}

void MlaBlock::run(Pass& pass, Rows x, Rows sum, float scale) {
  const ArenaScope scope(pass.arena);
  const Buffers buffers = take(pass.arena, x.n_rows);
  project(pass, x, buffers);
  pass.let_others_work();
  pass.ops.store_kv(buffers.kept, {}, pass.kv.views[pass.layer_idx], 0);
  for (std::uint32_t row = 0; row < x.n_rows; row += k_slice_rows) {
    attend(pass, buffers, row, std::min(k_slice_rows, x.n_rows - row));
    pass.let_others_work();
  }
  const std::array<Weights::Target, 1> out = {{{out_, x}}};
  pass.weights.multiply(buffers.out, out);
  pass.ops.add(x, scale, sum);
}

}  // namespace sluice::model
