#include "support/reference_delta.hpp"

#include <algorithm>
#include <cmath>

namespace sluice::test {

using Vector = ReferenceDelta::Vector;

Vector ReferenceDelta::convolved(const std::vector<Row>& rows, std::size_t row) const {
  Vector x(convolution.size(), 0.0);
  for (std::size_t channel = 0; channel < x.size(); ++channel) {
    const std::size_t n_taps = convolution[channel].size();
    for (std::size_t tap = 0; tap < n_taps; ++tap) {
      if (row + tap + 1 >= n_taps)
        x[channel] += convolution[channel][tap] * rows[row + tap + 1 - n_taps].qkv[channel];
    }
    x[channel] /= 1 + std::exp(-x[channel]);
  }
  return x;
}

Vector ReferenceDelta::unit(const Vector& x, std::size_t head) const {
  const auto first = x.begin() + static_cast<std::ptrdiff_t>(head * head_dim);
  Vector y(first, first + static_cast<std::ptrdiff_t>(head_dim));
  double sum = 0;
  for (const double value : y) sum += value * value;
  for (double& value : y) value /= std::max(std::sqrt(sum), least_length);
  return y;
}

std::vector<Vector> ReferenceDelta::run(const std::vector<Row>& rows) const {
  const std::size_t n = head_dim;
  std::vector<Vector> states(n_v_heads, Vector(n * n, 0.0));
  std::vector<Vector> result;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const Vector x = convolved(rows, row);
    Vector& y = result.emplace_back(n_v_heads * n, 0.0);
    for (std::size_t head = 0; head < n_v_heads; ++head) {
      const std::size_t k_head = is_grouped ? head / (n_v_heads / n_k_heads) : head % n_k_heads;
      const Vector q = unit(x, k_head), k = unit(x, n_k_heads + k_head);
      const double* v = x.data() + (2 * n_k_heads + head) * n;
      const double beta = 1 / (1 + std::exp(-rows[row].beta[head]));
      const double softplus = std::log(1 + std::exp(rows[row].alpha[head] + dt_bias[head]));
      Vector& s = states[head];
      for (double& value : s) value *= std::exp(a[head] * softplus);
      for (std::size_t j = 0; j < n; ++j) {
        double recalled = 0;
        for (std::size_t i = 0; i < n; ++i) recalled += s[i * n + j] * k[i];
        const double change = beta * (v[j] - recalled);
        for (std::size_t i = 0; i < n; ++i) {
          s[i * n + j] += k[i] * change;
          y[head * n + j] += s[i * n + j] * q[i] / std::sqrt(static_cast<double>(n));
        }
      }
    }
  }
  return result;
}

}  // namespace sluice::test
