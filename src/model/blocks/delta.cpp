#include "model/blocks/delta.hpp"

#include <algorithm>
#include <array>

namespace sluice::model {

using kernels::DeltaRun;
using kernels::Rows;

void DeltaBlock::visit(TensorVisitor& visitor) {
  const kernels::DeltaShape& shape = spec_.shape;
  visitor.begin_block(Role::attention);
  visitor.matrix(qkv_, "attn_qkv", n_embd_, shape.n_channels());
  visitor.matrix(z_, "attn_gate", n_embd_, shape.v_dim());
  if (spec_.joint_gates) {
    visitor.matrix(beta_, "ssm_ba", n_embd_, 2 * shape.n_v_heads);
  } else {
    visitor.matrix(beta_, "ssm_beta", n_embd_, shape.n_v_heads);
    visitor.matrix(alpha_, "ssm_alpha", n_embd_, shape.n_v_heads);
  }
  visitor.vectors(weights_.convolution, Role::attention, "ssm_conv1d.weight", shape.n_taps,
                  shape.n_channels());
  visitor.vector(weights_.dt_bias, Role::attention, "ssm_dt.bias", shape.n_v_heads);
  visitor.vector(weights_.a, Role::attention, "ssm_a", shape.n_v_heads);
  visitor.vector(norm_, Role::norm, "ssm_norm.weight", shape.head_dim);
  visitor.matrix(out_, "ssm_out", shape.v_dim(), n_embd_);
}

DeltaBlock::Buffers DeltaBlock::take(Arena& arena, std::uint32_t n_rows) const {
  const kernels::DeltaShape& shape = spec_.shape;
  return {arena.rows(n_rows, shape.n_columns()), arena.rows(n_rows, shape.n_columns()),
          arena.rows(n_rows, shape.v_dim()), arena.rows(n_rows, shape.v_dim()), arena.list<DeltaRun>(n_rows)};
}

void DeltaBlock::needs(Needs& needs, std::uint32_t n_rows) const {
  const ArenaScope scope(needs.arena);
  take(needs.arena, n_rows);
  needs.input(n_embd_);
  needs.input(spec_.shape.v_dim());
}

StateNeed DeltaBlock::state() const noexcept {
  return {spec_.shape.n_state_floats() * sizeof(float), spec_.shape.n_columns() * sizeof(float)};
}

void DeltaBlock::project(Pass& pass, Rows x, const Buffers& buffers) const {
  const std::uint32_t n_channels = spec_.shape.n_channels(), n_heads = spec_.shape.n_v_heads;
  const std::uint32_t n_beta = spec_.joint_gates ? 2 * n_heads : n_heads;
  const std::array<Weights::Target, 4> all = {{{qkv_, buffers.in.columns(0, n_channels)},
                                               {z_, buffers.z},
                                               {beta_, buffers.in.columns(n_channels, n_beta)},
                                               {alpha_, buffers.in.columns(n_channels + n_heads, n_heads)}}};
  pass.weights.multiply(x, std::span(all).first(spec_.joint_gates ? 3 : 4));
}

std::span<const DeltaRun> DeltaBlock::find_runs(const Pass& pass, const Buffers& buffers) const {
  const kernels::PassTables tables = pass.rows.tables();
  const StateView& view = pass.state.views[pass.layer_idx];
  std::size_t n = 0;
  for (std::uint32_t row = 0; row < pass.rows.n_rows(); ++row) {
    const std::uint32_t sequence = tables.sequence_of[row];
    if (row > 0 && sequence == tables.sequence_of[row - 1]) {
      ++buffers.runs[n - 1].n_rows;
      continue;
    }
    const kernels::StateSlots& slots = tables.sequences[sequence].state;
    DeltaRun& run = buffers.runs[n++] = {row, 1, nullptr, nullptr, nullptr};
    if (slots.from != nullptr) run.from = reinterpret_cast<const float*>(slots.from + view.slot_offset);
    run.to = reinterpret_cast<float*>(slots.to + view.slot_offset);
    if (slots.log != nullptr) {
      run.log = reinterpret_cast<float*>(slots.log + view.log_offset + slots.log_row * view.log_row_bytes);
    }
  }
  return buffers.runs.first(n);
}

void DeltaBlock::run(Pass& pass, Rows x, Rows sum, float scale) {
  const ArenaScope scope(pass.arena);
  const Buffers buffers = take(pass.arena, x.n_rows);
  project(pass, x, buffers);
  pass.let_others_work();
  pass.ops.delta_rule(buffers.in, spec_.shape, weights_, pass.norm_eps, find_runs(pass, buffers),
                      buffers.work, buffers.y);
  pass.ops.rms_norm_heads(buffers.y, spec_.shape.head_dim, norm_, pass.norm_eps);
  pass.ops.activate(buffers.z, buffers.y, kernels::Activation::silu, buffers.y);
  const std::array<Weights::Target, 1> out = {{{out_, x}}};
  pass.weights.multiply(buffers.y, out);
  pass.ops.add(x, scale, sum);
}

void DeltaBlock::replay(const Replay& replay) {
  const std::uint32_t n_columns = spec_.shape.n_columns();
  const ArenaScope scope(replay.arena);
  const Rows work = replay.arena.rows(std::min(replay.n_rows, replay.max_rows), n_columns);
  auto* const to = reinterpret_cast<float*>(replay.to);
  const auto* from = reinterpret_cast<const float*>(replay.from);
  // The operation only reads them.
  auto* const log = const_cast<float*>(reinterpret_cast<const float*>(replay.log));
  const Rows rows{log, replay.n_rows, n_columns, n_columns};
  for (std::uint32_t row = 0; row < replay.n_rows; row += work.n_rows) {
    const std::uint32_t n = std::min(work.n_rows, replay.n_rows - row);
    const std::array<DeltaRun, 1> run = {{{0, n, from, to, nullptr}}};
    replay.ops.delta_rule(rows.from(row).first(n), spec_.shape, weights_, replay.norm_eps, run, work.first(n),
                          {});
    from = to;
  }
}

}  // namespace sluice::model
