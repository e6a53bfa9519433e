#include "model/pass.hpp"

#include "base/error.hpp"

namespace sluice::model {

void normalize(kernels::Ops& ops, kernels::Rows x, const Norm& norm, float eps, kernels::Rows y) {
  ops.rms_norm(x, norm.gain, eps, y);
  if (norm.bias != nullptr) ops.add_bias(y, norm.bias);
}

void Pass::check_cancel() const {
  if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::cancelled, "the computation was cancelled");
}

void Pass::look_ahead() {
  const auto decoding = rows.decode_rows();
  if (next_units == nullptr || !looks_ahead || decoding.empty() || !cache->is_streaming()) return;
  const ArenaScope scope(arena);
  const kernels::Rows normed = arena.rows(static_cast<std::uint32_t>(decoding.size()), x.n_cols);
  if (decoding.size() == x.n_rows) {
    normalize(ops, x, next_units_norm, norm_eps, normed);
  } else {
    for (std::uint32_t i = 0; i < normed.n_rows; ++i)
      normalize(ops, x.from(decoding[i]).first(1), next_units_norm, norm_eps, normed.from(i).first(1));
  }
  next_units->guess(*this, normed);
}

}  // namespace sluice::model
