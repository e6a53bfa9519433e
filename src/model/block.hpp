#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked.hpp"
#include "kernels/ops.hpp"
#include "model/arena.hpp"
#include "model/tensors.hpp"

namespace sluice::model {

struct Pass;

/// What the buffers of a pass depend on beside the arena: the operation table has scratch of its own.
struct Needs {
  Arena& arena;                     ///< Counts.
  std::uint32_t widest_input = 0;   ///< Of a product.
  std::uint32_t widest_hidden = 0;  ///< Of an expert.
  std::uint32_t widest_heads = 0;   ///< See kernels::ScratchSize::head_columns.
  void input(std::uint32_t n_cols) noexcept { widest_input = std::max(widest_input, n_cols); }
  /// Of a product of heads.
  void heads(std::uint32_t n_heads, std::uint32_t n_cols) noexcept {
    const auto columns = static_cast<std::uint32_t>(base::align_up(n_cols, 256));
    widest_heads = std::max(widest_heads, n_heads * columns);
  }
  void hidden(std::uint32_t n_cols) noexcept { widest_hidden = std::max(widest_hidden, n_cols); }
};

/// What a block keeps of each sequence beside the KV cache.
struct StateNeed {
  std::uint64_t bytes = 0;          ///< Its state.
  std::uint64_t log_row_bytes = 0;  ///< What makes it from row to row.
};

/// A state to be computed again from the rows of a log.
struct Replay {
  kernels::Ops& ops;
  Arena& arena;
  const std::byte* from;  ///< The state before the first of them; null: all zero.
  std::byte* to;          ///< May be `from`.
  const std::byte* log;   ///< [n_rows, log_row_bytes]
  std::uint32_t n_rows;
  std::uint32_t max_rows;  ///< That the arena has room for at once.
  float norm_eps;
};

/// A mixer or a channel of a layer: what the residual loop, the binder and the plan know of it.
class Block {
 public:
  virtual ~Block() = default;
  /// Names its tensors in the order of their use; called to declare and to receive them.
  virtual void visit(TensorVisitor& visitor) = 0;
  /// Takes from the counting arena what run() and guess() take in a pass of `n_rows`.
  virtual void needs(Needs& needs, std::uint32_t n_rows) const = 0;
  /// sum += scale * f(x). `x` has undefined values afterwards.
  virtual void run(Pass& pass, kernels::Rows x, kernels::Rows sum, float scale) = 0;
  /// Look-ahead: asks for the units that the block would want if `x` were its input. Most blocks have none.
  virtual void guess(Pass& /*pass*/, kernels::Rows /*x*/) {}
  virtual bool has_units() const noexcept { return false; }
  virtual StateNeed state() const noexcept { return {}; }
  /// For blocks with state.
  virtual void replay(const Replay& /*replay*/) {}
};

}  // namespace sluice::model
