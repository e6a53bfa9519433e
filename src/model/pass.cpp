#include "model/pass.hpp"

#include "base/error.hpp"

namespace sluice::model {

void Pass::check_cancel() const {
  if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::cancelled, "the computation was cancelled");
}

void Pass::look_ahead() {
  if (next_units == nullptr || !looks_ahead || !is_decoding() || !cache->is_streaming()) return;
  const ArenaScope scope(arena);
  const kernels::Rows normed = arena.rows(n_rows(), x.n_cols);
  ops.rms_norm(x, next_units_norm, norm_eps, normed);
  next_units->guess(*this, normed);
}

}  // namespace sluice::model
