#pragma once

#include <cstddef>
#include <vector>

namespace sluice::test {

/// The gated delta rule in double precision, row by row as it is written in papers; shares nothing with the
/// kernels. Rows are of one sequence from its beginning.
struct ReferenceDelta {
  using Vector = std::vector<double>;
  std::size_t n_k_heads = 0, n_v_heads = 0, head_dim = 0;
  bool is_grouped = false;          ///< Value heads of one key head lie side by side, not n_k_heads apart.
  std::vector<Vector> convolution;  ///< [channels][taps], the latest row last.
  Vector dt_bias, a;
  double least_length = 1e-6;

  struct Row {
    Vector qkv;          ///< As projected.
    Vector beta, alpha;  ///< [n_v_heads], before their functions.
  };
  /// [n_v_heads * head_dim] of each row.
  std::vector<Vector> run(const std::vector<Row>& rows) const;

 private:
  Vector convolved(const std::vector<Row>& rows, std::size_t row) const;
  Vector unit(const Vector& x, std::size_t head) const;
};

}  // namespace sluice::test
