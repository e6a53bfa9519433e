// Goal: products on the GPU give the CPU's bits for all quantized types, and within rounding those of plain
// numbers.
#include "cuda/device_table.hpp"

namespace sluice::cuda::test {
namespace {

using kernels::Product;

constexpr TensorType k_quantized[] = {TensorType::q4_k, TensorType::q5_k, TensorType::q6_k, TensorType::q8_0,
                                      TensorType::q4_0, TensorType::q5_0, TensorType::mxfp4};
constexpr TensorType k_plain[] = {TensorType::f32, TensorType::f16, TensorType::bf16};

class CudaProducts : public DeviceTest {
 protected:
  /// Both results of one product with bias and scale.
  std::pair<Matrix, Matrix> multiply(TensorType type, std::uint32_t n_in, std::uint32_t n_out,
                                     std::uint32_t n_rows) {
    Weight w = blocks(type, n_in, n_out, n_in + n_out);
    w.scale = 0.75f;
    const float* bias = floats(n_out, 3);
    const Matrix x = Matrix::random(n_rows, n_in, n_rows, 1.0f, 4);
    Matrix want(n_rows, n_out, 3);
    const Rows x_device = up(x), y_device = up(want);
    const Product on_host[] = {{w, want, bias}};
    const Product on_device[] = {{w, y_device, bias}};
    host().matmul(x, on_host);
    device().matmul(x_device, on_device);
    Matrix got = down(y_device);
    EXPECT_TRUE(got.margins_untouched());
    return {std::move(want), std::move(got)};
  }
};

TEST_F(CudaProducts, QuantizedTypesGiveTheBitsOfTheCpu) {
  if (platform::choose_isa() == platform::Isa::scalar)
    GTEST_SKIP() << "the scalar kernels round in another order";
  reserve({64, 14336, 0});
  for (const TensorType type : k_quantized) {
    const std::uint32_t block = gguf::type_traits(type).block_elements;
    for (const std::uint32_t n_in : {block, 3 * block, 2048u, 4096u + block, 14336u}) {
      for (const std::uint32_t n_rows : {1u, 2u, 3u, 4u, 5u, 8u, 9u, 33u}) {
        for (const std::uint32_t n_out : {1u, 37u}) {
          const auto [want, got] = multiply(type, n_in, n_out, n_rows);
          ASSERT_TRUE(want.same_bits(got)) << gguf::type_name(type) << " " << n_in << " " << n_out << " "
                                           << n_rows << " distance " << distance(want, got);
        }
      }
    }
  }
}

TEST_F(CudaProducts, PlainNumbersDifferByRoundingOnly) {
  reserve({64, 4104, 0});
  for (const TensorType type : k_plain) {
    for (const std::uint32_t n_in : {1u, 7u, 64u, 250u, 4096u, 4104u}) {
      for (const std::uint32_t n_rows : {1u, 2u, 8u, 33u}) {
        const auto [want, got] = multiply(type, n_in, 37, n_rows);
        // Sums of n terms in two orders: each rounds by at most n / 2 units of the sum of magnitudes.
        ASSERT_LE(distance(want, got), n_in * 0x1p-22)
            << gguf::type_name(type) << " " << n_in << " " << n_rows;
      }
    }
  }
}

TEST_F(CudaProducts, RowsDoNotDependOnOneAnother) {
  reserve({64, 4096, 0});
  for (const TensorType type : {TensorType::q4_k, TensorType::mxfp4, TensorType::f16}) {
    const Weight& w = blocks(type, 4096, 45, 6);
    const Matrix x = Matrix::random(19, 4096, 8);
    const Rows x_device = up(x), all = up(Matrix(19, 45)), single = up(Matrix(19, 45));
    const Product together[] = {{w, all, nullptr}};
    device().matmul(x_device, together);
    for (std::uint32_t row = 0; row < 19; ++row) {
      const Product one[] = {{w, single.from(row).first(1), nullptr}};
      device().matmul(x_device.from(row).first(1), one);
    }
    EXPECT_TRUE(down(all).same_bits(down(single))) << gguf::type_name(type);
  }
}

/// What the table joins into fewer kernels must be as if it did not: a norm and a quantization, gate and up
/// and a quantization, a product and an addition; mixed types of one input; parts of a matrix.
TEST_F(CudaProducts, JoinedOperationsGiveWhatSingleOnesGive) {
  const std::uint32_t n = 2048, n_rows = 3;
  reserve({64, n, 0});
  const Weight gate = blocks(TensorType::q4_k, n, n, 1), up_w = blocks(TensorType::q6_k, n, n, 2);
  const Weight down_w = blocks(TensorType::q8_0, n, 64, 3);
  const Matrix x = Matrix::random(n_rows, n, 5), sum = Matrix::random(n_rows, 64, 7);
  const Rows x_d = up(x), h_d = up(Matrix(n_rows, n)), gate_d = up(Matrix(n_rows, n)),
             up_d = up(Matrix(n_rows, n));
  const Rows y_d = up(Matrix(n_rows, 64)), sum_d = up(sum);
  const auto half = [](Weight w, std::uint32_t first) {
    w.data += first * w.row_bytes;
    w.n_out -= first;
    return w;
  };
  const auto run = [&](bool is_joined) {
    const auto apart = [&] {
      if (!is_joined) device().wait(device().mark());
    };
    device().upload(sum.at(0), reinterpret_cast<std::byte*>(sum_d.data), sizeof(float) * 64 * n_rows);
    device().rms_norm(x_d, nullptr, 1e-5f, h_d);
    apart();
    const Product both[] = {
        {half(gate, 5), gate_d.columns(5, n - 5), nullptr}, {up_w, up_d, nullptr}, {gate, gate_d, nullptr}};
    device().matmul(h_d, both);
    apart();
    device().activate(gate_d, up_d, kernels::Activation::silu, gate_d);
    apart();
    const Product last[] = {{down_w, y_d, nullptr}};
    device().matmul(gate_d, last);
    apart();
    device().add(y_d, 1.0f, sum_d);
    return std::pair(down(sum_d), down(gate_d));
  };
  const auto [sum_apart, gate_apart] = run(false);
  for (int time = 0; time < 4; ++time) {  // From the third on the graph runs.
    const auto [sum_joined, gate_joined] = run(true);
    EXPECT_TRUE(sum_joined.same_bits(sum_apart));
    EXPECT_TRUE(gate_joined.same_bits(gate_apart));
  }
  EXPECT_GT(distance(sum_apart, sum), 0.0);
}

TEST_F(CudaProducts, EmbeddingsAreDecodedExactly) {
  reserve({64, 2048, 0});
  device().begin_pass({});
  const std::vector<std::int32_t> ids = {4, 0, 10, 4};
  std::vector<TensorType> types(std::begin(k_quantized), std::end(k_quantized));
  types.insert(types.end(), std::begin(k_plain), std::end(k_plain));
  for (const TensorType type : types) {
    const Weight& table = blocks(type, 768, 11, 5);
    Matrix want(4, 768);
    const Rows got = up(want);
    host().embed(table, ids, want);
    device().embed(table, ids, got);
    EXPECT_TRUE(want.same_bits(down(got))) << gguf::type_name(type);
  }
}

struct ExpertCase {
  TensorType up, down;
};

class CudaExperts : public DeviceTest {};

TEST_F(CudaExperts, GiveTheBitsOfTheCpuHoweverTheyAreChosen) {
  if (platform::choose_isa() == platform::Isa::scalar)
    GTEST_SKIP() << "the scalar kernels round in another order";
  const std::uint32_t n_embd = 512, n_ff = 768, n_experts = 12, n_used = 3;
  reserve({64, n_ff, n_ff});
  for (const ExpertCase types :
       {ExpertCase{TensorType::q4_k, TensorType::q6_k}, ExpertCase{TensorType::mxfp4, TensorType::mxfp4},
        ExpertCase{TensorType::q8_0, TensorType::q5_k}}) {
    const Weight gate = blocks(types.up, n_embd, n_ff * n_experts, 1);
    const Weight up_w = blocks(types.up, n_embd, n_ff * n_experts, 2);
    const Weight down_w = blocks(types.down, n_ff, n_embd * n_experts, 3);
    for (const std::uint32_t n_rows : {1u, 2u, 40u}) {
      const Matrix x = Matrix::random(n_rows, n_embd, n_rows), logits = Matrix::random(n_rows, n_experts, 9);
      kernels::RouterParams params;
      params.n_used = n_used;
      std::vector<std::uint16_t> ids(n_rows * n_used), ids_d(ids.size());
      std::vector<float> weights(ids.size()), weights_d(ids.size());
      const kernels::Route route{ids, weights}, route_d{ids_d, weights_d};
      host().route(logits, params, route);
      const Rows x_d = up(x), logits_d = up(logits);
      device().route(logits_d, params, route_d);
      device().routed(route_d);
      EXPECT_EQ(ids, ids_d);

      // One call for each choice, and one for each expert.
      std::vector<std::vector<std::uint32_t>> in(n_experts), out(n_experts);
      for (std::uint32_t i = 0; i < ids.size(); ++i) {
        in[ids[i]].push_back(i / n_used);
        out[ids[i]].push_back(i);
      }
      const auto part = [](const Weight& all, std::uint32_t expert, std::uint32_t n_out) {
        Weight w = all;
        w.data += expert * n_out * w.row_bytes;
        w.n_out = n_out;
        return w;
      };
      std::vector<kernels::ExpertCall> calls;
      for (std::uint32_t e = 0; e < n_experts; ++e) {
        if (in[e].empty()) continue;
        calls.push_back({part(gate, e, n_ff), part(up_w, e, n_ff), part(down_w, e, n_embd), in[e], out[e]});
      }
      Matrix want(n_rows * n_used, n_embd);
      const Rows by_call = up(want), by_route = up(want);
      host().begin_experts(x, kernels::Activation::silu);
      host().run_experts(calls, want);
      device().begin_experts(x_d, kernels::Activation::silu);
      device().run_experts(calls, by_call);
      EXPECT_TRUE(want.same_bits(down(by_call))) << distance(want, down(by_call));
      kernels::RoutedExperts experts;
      experts.gate = part(gate, 0, n_ff);
      experts.up = part(up_w, 0, n_ff);
      experts.down = part(down_w, 0, n_embd);
      experts.n_used = n_used;
      device().begin_experts(x_d, kernels::Activation::silu);
      device().run_routed(route_d, experts, by_route);
      EXPECT_TRUE(want.same_bits(down(by_route))) << distance(want, down(by_route));

      Matrix sum = Matrix::random(n_rows, n_embd, 4);
      const Rows sum_d = up(sum);
      host().combine_experts(want, weights.data(), n_used, sum);
      device().combine_experts(by_route, weights_d.data(), n_used, sum_d);
      EXPECT_LE(distance(sum, down(sum_d)), 8 * 0x1p-24);
    }
  }
}

}  // namespace
}  // namespace sluice::cuda::test
