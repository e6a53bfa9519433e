// Goal: norms, rotation, the KV cache, attention and routing on the GPU agree with the CPU's to a few
// roundings.
#include <limits>

#include "cuda/device_table.hpp"

namespace sluice::cuda::test {
namespace {

class CudaOpsTest : public DeviceTest {};

TEST_F(CudaOpsTest, NormsAgree) {
  reserve({8, 8192, 0});
  for (const std::uint32_t n : {1u, 31u, 768u, 4096u, 8192u}) {
    const Matrix x = Matrix::random(3, n, n, 2.0f, 5);
    for (const float* g : {static_cast<const float*>(nullptr), floats(n, 2)}) {
      Matrix want(3, n, 2);
      const Rows x_d = up(x), y_d = up(want);
      host().rms_norm(x, g, 1e-5f, want);
      device().rms_norm(x_d, g, 1e-5f, y_d);
      device().rms_norm(x_d, g, 1e-5f, x_d);
      EXPECT_LE(distance(want, down(y_d)), 1e-6) << n;
      EXPECT_LE(distance(want, down(x_d)), 1e-6) << n;
      EXPECT_TRUE(down(y_d).margins_untouched());
    }
  }
  for (const std::uint32_t dim : {16u, 80u, 128u, 256u}) {
    Matrix x = Matrix::random(5, 6 * dim, dim);
    const float* gain = floats(dim, 2);
    const Rows x_d = up(x);
    host().rms_norm_heads(x, dim, gain, 1e-6f);
    device().rms_norm_heads(x_d, dim, gain, 1e-6f);
    EXPECT_LE(distance(x, down(x_d)), 1e-6) << dim;
  }
}

TEST_F(CudaOpsTest, ElementsAgree) {
  reserve({8, 512, 0});
  const std::uint32_t n = 501;
  const Matrix a = Matrix::random(7, n, 1, 4.0f), b = Matrix::random(7, n, 2), gate = Matrix::random(7, 1, 3);
  Matrix want(7, n), sum = Matrix::random(7, n, 5), gated = Matrix::random(7, n, 6);
  const Rows a_d = up(a), b_d = up(b), gate_d = up(gate), got = up(want), sum_d = up(sum),
             gated_d = up(gated);
  host().activate(a, b, kernels::Activation::silu, want);
  device().activate(a_d, b_d, kernels::Activation::silu, got);
  EXPECT_TRUE(want.same_bits(down(got)));
  host().add(a, 1.0f, sum);
  device().add(a_d, 1.0f, sum_d);
  EXPECT_TRUE(sum.same_bits(down(sum_d)));
  host().add(a, 0.3f, sum);
  device().add(a_d, 0.3f, sum_d);
  EXPECT_LE(distance(sum, down(sum_d)), 4 * 0x1p-24);
  host().add_gated(a, gate, 1.5f, gated);
  device().add_gated(a_d, gate_d, 1.5f, gated_d);
  EXPECT_LE(distance(gated, down(gated_d)), 1e-6);
  host().scale(sum, 0.7f);
  device().scale(sum_d, 0.7f);
  EXPECT_LE(distance(sum, down(sum_d)), 8 * 0x1p-24);
  const std::vector<std::uint32_t> kept = {1, 2, 5};
  device().begin_pass({});
  host().keep_rows(gated, kept);
  device().keep_rows(gated_d, kept);
  EXPECT_LE(distance(gated, down(gated_d)), 1e-6);
}

TEST_F(CudaOpsTest, RotationAgrees) {
  for (const bool is_neox : {false, true}) {
    kernels::RopeParams params;
    params.n_rot = 64;
    params.neox = is_neox;
    params.base = 500000.0f;
    reserve({8, 512, 0, 64});
    device().set_curves({&params, 1});
    host().set_curves({&params, 1});
    const std::vector<std::uint32_t> positions = {0, 1, 77, 4095, 131071}, owners = {0, 0, 0, 0, 0};
    const kernels::SequenceView sequence;
    const kernels::PassTables tables{positions, owners, {&sequence, 1}, {}};
    device().begin_pass(tables);
    host().begin_pass(tables);
    Matrix x = Matrix::random(4, 3 * 96, 5);
    const Rows x_d = up(x);
    host().rope(x, 96, 0, 1);
    device().rope(x_d, 96, 0, 1);
    EXPECT_LE(distance(x, down(x_d)), 4 * 0x1p-24);
    host().scale_by_position(x, {0.1f, 64, 5}, 1);
    device().scale_by_position(x_d, {0.1f, 64, 5}, 1);
    EXPECT_LE(distance(x, down(x_d)), 1e-6);
  }
}

struct AttentionCase {
  std::uint32_t n_heads, n_kv_heads, dim, window;
  float softcap;
  kernels::KvType type;
  std::uint32_t chunk = 0;
  bool v_in_k = false;
};

/// Two sequences whose keys were stored in passes of some rows, on pages in no order.
class CudaAttention : public DeviceTest {
 protected:
  void agree(const AttentionCase& c) {
    const std::uint32_t n_before[2] = {600, 70}, n_rows = 9;
    reserve({700, c.n_heads * c.dim, 0});
    kernels::KvView view;
    const std::uint32_t v_dim = c.v_in_k ? c.dim - 64 : c.dim;
    view.shape = {c.n_kv_heads, c.dim, v_dim, c.type, c.v_in_k};
    view.offset_bytes = 128;
    const std::uint64_t page_bytes = view.shape.layer_bytes() + 256, n_pages = 16;
    std::vector<std::uint32_t> pages(n_pages);
    for (std::uint32_t i = 0; i < n_pages; ++i) pages[i] = (i * 7 + 3) % n_pages;
    std::vector<kernels::SequenceView> sequences(2);
    sequences[0].pages[0] = std::span(pages).first(12);
    sequences[1].pages[0] = std::span(pages).subspan(12);
    const kernels::KvRegion on_host{host().allocate(n_pages * page_bytes), page_bytes};
    const kernels::KvRegion on_device{device().allocate(n_pages * page_bytes), page_bytes};
    for (std::uint32_t s = 0; s < 2; ++s) store(view, sequences, on_host, on_device, s, 0, n_before[s]);

    std::vector<std::uint32_t> positions, owners;
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      owners.push_back(row < 5 ? 0 : 1);
      positions.push_back(row < 5 ? n_before[0] - 5 + row : n_before[1] - 9 + row);
    }
    begin(positions, owners, sequences, on_host, on_device);
    const Matrix q = Matrix::random(n_rows, c.n_heads * c.dim, 11);
    Matrix want(n_rows, c.n_heads * v_dim);
    const Rows got = up(want);
    const kernels::AttentionParams params{c.n_heads, 1.0f / std::sqrt(static_cast<float>(c.dim)), c.softcap,
                                          c.window, c.chunk};
    host().attention(q, view, params, 0, want);
    device().attention(up(q), view, params, 0, got);
    EXPECT_LE(distance(want, down(got)), 1e-5) << c.n_heads << " " << c.n_kv_heads << " " << c.dim;
    // A row by itself.
    const Rows again = up(want);
    device().attention(up(q).from(3).first(1), view, params, 3, again.from(3).first(1));
    const Matrix all = down(got), one = down(again);
    EXPECT_EQ(std::memcmp(all.at(3), one.at(3), sizeof(float) * all.n_cols()), 0);
  }

 private:
  void begin(std::span<const std::uint32_t> positions, std::span<const std::uint32_t> owners,
             std::span<const kernels::SequenceView> sequences, const kernels::KvRegion& on_host,
             const kernels::KvRegion& on_device) {
    host().begin_pass({positions, owners, sequences, {&on_host, 1}});
    device().begin_pass({positions, owners, sequences, {&on_device, 1}});
    device_region_ = on_device;
  }
  void store(const kernels::KvView& view, std::span<const kernels::SequenceView> sequences,
             const kernels::KvRegion& on_host, const kernels::KvRegion& on_device, std::uint32_t sequence,
             std::uint32_t first, std::uint32_t n) {
    std::vector<std::uint32_t> positions(n), owners(n, sequence);
    for (std::uint32_t i = 0; i < n; ++i) positions[i] = first + i;
    begin(positions, owners, sequences, on_host, on_device);
    const std::uint32_t n_cols = view.shape.n_kv_heads * view.shape.k_head_dim;
    const Matrix k = Matrix::random(n, n_cols, sequence + 1), v = Matrix::random(n, n_cols, sequence + 5);
    const std::uint32_t n_values = view.shape.v_in_k ? 0 : n;
    host().store_kv(k, v.rows().first(n_values), view, 0);
    device().store_kv(up(k), up(v).first(n_values), view, 0);
  }
  kernels::KvRegion device_region_;
};

TEST_F(CudaAttention, AgreesForEveryGroupAndWindow) {
  using kernels::KvType;
  constexpr KvType f16 = KvType::f16, q8 = KvType::q8_0;
  const AttentionCase cases[] = {{8, 8, 64, 0, 0, f16},
                                 {8, 2, 128, 0, 0, f16},
                                 {10, 2, 96, 0, 0, f16},
                                 {32, 2, 128, 0, 0, f16},
                                 {4, 4, 20, 0, 0, f16},
                                 {4, 1, 256, 0, 0, f16},
                                 {8, 2, 128, 300, 0, f16},
                                 {8, 4, 64, 33, 20.0f, f16},
                                 {8, 2, 128, 0, 0, q8},
                                 {14, 2, 64, 128, 0, q8},
                                 {8, 2, 64, 0, 0, f16, 200},
                                 {8, 2, 64, 90, 0, f16, 128},
                                 {16, 1, 576, 0, 0, f16, 0, true},
                                 {6, 1, 96, 0, 0, q8, 0, true}};
  for (const AttentionCase& c : cases) agree(c);
}

TEST_F(CudaOpsTest, RoutesAgree) {
  using Scoring = kernels::RouterParams::Scoring;
  reserve({64, 512, 256});
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::uint32_t n_experts : {4u, 60u, 128u, 512u}) {
    Matrix logits = Matrix::random(20, n_experts, n_experts, 2.0f);
    logits.at(3)[2] = logits.at(3)[1];
    logits.at(4)[0] = std::nanf("");
    logits.at(5)[1] = infinity;
    logits.at(6)[3] = -infinity;
    const float* bias = floats(n_experts, 3);
    for (const Scoring scoring : {Scoring::softmax, Scoring::sigmoid, Scoring::softmax_of_selected}) {
      for (const bool has_bias : {false, true}) {
        kernels::RouterParams params;
        params.n_groups = has_bias ? 4 : 1;
        params.n_groups_used = has_bias ? 3 : 1;
        params.n_group_best = has_bias && n_experts > 4 ? 2 : 1;
        params.n_used = std::min(8u, n_experts - 1);
        params.scoring = scoring;
        params.normalize = has_bias;
        params.scale = 1.5f;
        params.selection_bias = has_bias ? bias : nullptr;
        const std::size_t n = 20 * params.n_used;
        std::vector<std::uint16_t> ids(n), ids_d(n);
        std::vector<float> weights(n), weights_d(n);
        host().route(logits, params, {ids, weights});
        const kernels::Route route{ids_d, weights_d};
        device().route(up(logits), params, route);
        device().routed(route);
        EXPECT_EQ(ids, ids_d) << n_experts << " " << static_cast<int>(scoring);
        for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(weights[i], weights_d[i], 2e-6) << i;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::cuda::test
