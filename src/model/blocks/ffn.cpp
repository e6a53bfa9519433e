#include "model/blocks/ffn.hpp"

#include <array>

namespace sluice::model {

using kernels::Rows;

void DenseFfn::visit(TensorVisitor& visitor) {
  if (spec_.form == FfnSpec::Form::fused) {
    visitor.matrix(up_, "ffn_up" + suffix_, n_embd_, 2 * spec_.width);
  } else {
    visitor.matrix(gate_, "ffn_gate" + suffix_, n_embd_, spec_.width);
    visitor.matrix(up_, "ffn_up" + suffix_, n_embd_, spec_.width);
  }
  visitor.matrix(down_, "ffn_down" + suffix_, spec_.width, n_embd_);
}

DenseFfn::Buffers DenseFfn::take(Arena& arena, std::uint32_t n_rows) const {
  Buffers buffers;
  if (spec_.form == FfnSpec::Form::fused) {
    buffers.both = arena.rows(n_rows, 2 * spec_.width);
    buffers.gate = buffers.both.columns(0, spec_.width);
    buffers.up = buffers.both.columns(spec_.width, spec_.width);
  } else {
    buffers.gate = arena.rows(n_rows, spec_.width);
    buffers.up = arena.rows(n_rows, spec_.width);
  }
  return buffers;
}

void DenseFfn::needs(Needs& needs, std::uint32_t n_rows) const {
  const ArenaScope scope(needs.arena);
  take(needs.arena, n_rows);
  needs.input(n_embd_);
  needs.input(spec_.width);
}

void DenseFfn::run(Pass& pass, Rows x) const {
  const ArenaScope scope(pass.arena);
  const Buffers buffers = take(pass.arena, x.n_rows);
  if (spec_.form == FfnSpec::Form::fused) {
    const std::array<Weights::Target, 1> in = {{{up_, buffers.both}}};
    pass.weights.multiply(x, in);
  } else {
    const std::array<Weights::Target, 2> in = {{{gate_, buffers.gate}, {up_, buffers.up}}};
    pass.weights.multiply(x, in);
  }
  pass.ops.activate(buffers.gate, buffers.up, spec_.activation, buffers.gate);
  const std::array<Weights::Target, 1> out = {{{down_, x}}};
  pass.weights.multiply(buffers.gate, out);
}

void FfnBlock::visit(TensorVisitor& visitor) {
  visitor.begin_block(Role::dense_ffn);
  ffn_.visit(visitor);
}

void FfnBlock::run(Pass& pass, Rows x, Rows sum, float scale) {
  ffn_.run(pass, x);
  pass.ops.add(x, scale, sum);
}

}  // namespace sluice::model
