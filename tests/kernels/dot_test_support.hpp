#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/gemm.hpp"
#include "kernels/ops_test_support.hpp"

namespace sluice::kernels::test {

/// The row as the kernel sees it: quantized in its activation format and decoded again.
inline std::vector<double> seen_by(TensorType type, platform::Isa isa, const float* x, std::size_t n) {
  const ActivationFormat format = find_gemm(type, isa).activation;
  std::vector<double> result(x, x + n);
  if (format == ActivationFormat::f32) return result;
  const ActivationLayout layout = activation_layout(format, n);
  std::vector<std::byte> bytes(layout.row_bytes + 64);
  void* start = bytes.data();
  std::size_t space = bytes.size();
  auto* out = static_cast<std::byte*>(std::align(64, layout.row_bytes, start, space));
  quantize_activation(format, x, n, out);
  const std::size_t block = format == ActivationFormat::q8_32 ? 32 : 256;
  const auto* q = reinterpret_cast<const std::int8_t*>(out);
  const auto* d = reinterpret_cast<const float*>(out + layout.scale_offset);
  for (std::size_t i = 0; i < n; ++i) result[i] = double{d[i / block]} * q[i];
  return result;
}

struct Dot {
  double value = 0, magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};
inline Dot dot(const std::vector<float>& w, const std::vector<double>& x) {
  Dot result;
  for (std::size_t i = 0; i < w.size(); ++i) result.add(w[i] * x[i]);
  return result;
}
// Each of n terms takes part in at most n roundings; decoding a K-quant subtracts its minimum in a sum of its
// own, whose terms may be larger than the result's by the ratio of both parts (below 16 for the weights made
// here).
inline double dot_tolerance(const Dot& d, std::size_t n) {
  return d.magnitude * (static_cast<double>(n) + 16) * k_half_ulp * 16;
}

/// A layer of experts and a routing of all rows to some of them.
struct Experts {
  static constexpr std::uint32_t n_embd = 256, n_ff = 512;
  static constexpr std::uint32_t n_used = 3;
  Experts(std::uint32_t n_experts, std::uint32_t n_rows) : in(n_experts), out(n_experts) {
    for (std::uint32_t e = 0; e < n_experts; ++e) {
      // Kinds: one format for all, mixed formats, plain floats.
      const TensorType gate_type = e % 3 == 2 ? TensorType::f16 : TensorType::q4_k;
      const TensorType up_type = e % 3 == 0 ? TensorType::q4_k : TensorType::q8_0;
      const TensorType down_type = e % 2 == 0   ? TensorType::q6_k
                                   : e % 3 == 2 ? TensorType::f32
                                                : TensorType::q8_0;
      gate.emplace_back(gate_type, n_embd, n_ff, e * 3);
      up.emplace_back(up_type, n_embd, n_ff, e * 3 + 1);
      down.emplace_back(down_type, n_ff, n_embd, e * 3 + 2);
    }
    std::mt19937 generator(7);
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      std::vector<std::uint32_t> order(n_experts);
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), generator);
      for (std::uint32_t rank = 0; rank < std::min(n_used, n_experts); ++rank) {
        in[order[rank]].push_back(row);
        out[order[rank]].push_back(row * n_used + rank);
      }
    }
  }
  ExpertCall call(std::uint32_t e) const {
    // Every second expert has biases.
    if (e % 2 == 0) return {gate[e], up[e], down[e], in[e], out[e]};
    return {gate[e], up[e], down[e], in[e], out[e], bias.at(0), bias.at(1), bias.at(2)};
  }
  std::vector<ExpertCall> calls() const {
    std::vector<ExpertCall> result;
    for (std::uint32_t e = 0; e < gate.size(); ++e) result.push_back(call(e));
    return result;
  }
  std::vector<RandomWeight> gate, up, down;
  Matrix bias = Matrix::random(3, n_ff, 99);
  std::vector<std::vector<std::uint32_t>> in, out;
};

}  // namespace sluice::kernels::test
