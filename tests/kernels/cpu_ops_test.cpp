// Goal: the operations of the CPU table compute what they say, with the same bits for a row whatever the
// batch, the threads and the grouping, and without allocating once reserved.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <numeric>

#include "kernels/dot_test_support.hpp"
#include "kernels/gemm.hpp"
#include "sluice/error.hpp"

namespace {
std::atomic<std::uint64_t> n_allocations{0};
}

// Counts every allocation of this program, so that the promise not to allocate can be tested. Not
// inlined: the compiler would take free() of a pointer from `new` for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  n_allocations.fetch_add(1);
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace sluice::kernels {
namespace {

using test::dot;
using test::Dot;
using test::dot_tolerance;
using test::Experts;
using test::k_half_ulp;
using test::Matrix;
using test::RandomWeight;
using test::seen_by;
using test::Table;

const TensorType k_types[] = {TensorType::f32, TensorType::f16, TensorType::q8_0, TensorType::q4_k,
                              TensorType::q6_k};

TEST(CpuOps, MatmulMatchesDoubleOnEveryIsaAndType) {
  for (const platform::Isa isa : platform::supported_isas()) {
    for (const TensorType type : k_types) {
      const std::uint32_t n_in = 512, n_out = 70;
      const RandomWeight w(type, n_in, n_out, 1);
      const Table table(isa);
      table->reserve({16, n_in, 0});
      const Matrix x = Matrix::random(5, n_in, 2);
      const Matrix y(5, n_out, 10);
      const Product product{w, y, nullptr};
      table->matmul(x, {&product, 1});
      EXPECT_TRUE(y.margins_untouched());
      for (std::uint32_t row = 0; row < 5; ++row) {
        const auto seen = seen_by(type, isa, x.at(row), n_in);
        for (std::uint32_t i = 0; i < n_out; ++i) {
          const Dot expected = dot(w.row(i), seen);
          ASSERT_NEAR(y.at(row)[i], expected.value, dot_tolerance(expected, n_in))
              << platform::isa_name(isa) << " " << gguf::type_name(type) << " row " << row << " output " << i;
        }
      }
    }
  }
}

TEST(CpuOps, MatmulGroupsOfMixedTypesEqualSingleProducts) {
  const std::uint32_t n_in = 256;
  for (const std::uint32_t margin : {0u, 3u}) {  // A stride of 259 floats cannot be used in place.
    const Table table(platform::choose_isa(), 2);
    table->reserve({700, n_in, 0});
    const Matrix x = Matrix::random(700, n_in, 3, 1.0f, margin);
    const Matrix bias = Matrix::random(1, 40, 4);
    std::vector<RandomWeight> weights;
    std::vector<Matrix> grouped, single;
    std::vector<Product> products;
    for (std::uint32_t i = 0; i < 20; ++i) {  // More products than one loop takes.
      weights.emplace_back(k_types[i % 5], n_in, i % 7 == 6 ? 0 : 33 + i % 3, i);
      grouped.emplace_back(700, weights.back().weight().n_out);
      single.emplace_back(700, weights.back().weight().n_out);
    }
    for (std::uint32_t i = 0; i < 20; ++i) {
      products.push_back({weights[i], grouped[i], i % 2 == 0 ? bias.at(0) : nullptr});
    }
    table->matmul(x, products);
    for (std::uint32_t i = 0; i < 20; ++i) {
      const Product product{weights[i], single[i], nullptr};
      table->matmul(x, {&product, 1});
      if (i % 2 == 0) {
        for (std::uint32_t row = 0; row < 700; ++row) {
          for (std::uint32_t c = 0; c < single[i].n_cols(); ++c) single[i].at(row)[c] += bias.at(0)[c];
        }
      }
      EXPECT_TRUE(grouped[i].same_bits(single[i])) << "product " << i << " margin " << margin;
    }
  }
}

TEST(CpuOps, MatmulTakesAnyWidthOfFloats) {
  const Table table(platform::choose_isa());
  for (const std::uint32_t n_in : {1u, 7u, 33u, 100u}) {
    table->reserve({3, n_in, 0});
    const RandomWeight w(TensorType::f32, n_in, 5, 1);
    const Matrix x = Matrix::random(3, n_in, 2), y(3, 5);
    const Product product{w, y, nullptr};
    table->matmul(x, {&product, 1});
    for (std::uint32_t row = 0; row < 3; ++row) {
      for (std::uint32_t i = 0; i < 5; ++i) {
        const Dot expected = dot(w.row(i), {x.at(row), x.at(row) + n_in});
        EXPECT_NEAR(y.at(row)[i], expected.value, dot_tolerance(expected, n_in));
      }
    }
  }
}

TEST(CpuOps, MatmulRefusesIntegerWeights) {
  const Table table(platform::choose_isa());
  table->reserve({1, 64, 0});
  std::int32_t numbers[64] = {};
  const Matrix x(1, 64), y(1, 1);
  const Product product{
      {reinterpret_cast<const std::byte*>(numbers), TensorType::i32, 64, 1, 256}, y, nullptr};
  try {
    table->matmul(x, {&product, 1});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("I32"), std::string::npos) << error.what();
  }
}

TEST(CpuOps, NormsMatchDouble) {
  for (const platform::Isa isa : platform::supported_isas()) {
    const Table table(isa);
    const std::uint32_t n = 300, heads = 3, dim = 100;
    const Matrix x = Matrix::random(4, n, 1, 3.0f, 5), gain = Matrix::random(1, n, 2);
    const Matrix y(4, n), per_head = x.copy(), in_place = x.copy();
    const float eps = 1e-5f;
    table->rms_norm(x, gain.at(0), eps, y);
    table->rms_norm(in_place, gain.at(0), eps, in_place);
    table->rms_norm_heads(per_head, dim, gain.at(0), eps);
    EXPECT_TRUE(y.same_bits(in_place));
    EXPECT_TRUE(per_head.margins_untouched());
    // Sum of squares (n + 8 roundings), division, eps, square root, reciprocal, two products.
    const auto check = [&](const float* in, const float* out, std::uint32_t size) {
      double sum = 0;
      for (std::uint32_t i = 0; i < size; ++i) sum += double{in[i]} * in[i];
      const double factor = 1 / std::sqrt(sum / size + eps);
      for (std::uint32_t i = 0; i < size; ++i) {
        const double expected = in[i] * factor * gain.at(0)[i];
        ASSERT_NEAR(out[i], expected, std::abs(expected) * (size + 16.0) * k_half_ulp);
      }
    };
    for (std::uint32_t row = 0; row < 4; ++row) {
      check(x.at(row), y.at(row), n);
      for (std::uint32_t head = 0; head < heads; ++head) {
        check(x.at(row) + head * dim, per_head.at(row) + head * dim, dim);
      }
    }
    const Matrix plain(4, n), ones(1, n), with_ones(4, n);
    std::fill_n(ones.at(0), n, 1.0f);
    table->rms_norm(x, nullptr, eps, plain);
    table->rms_norm(x, ones.at(0), eps, with_ones);
    EXPECT_TRUE(plain.same_bits(with_ones));
  }
}

TEST(CpuOps, AddBiasAddsToEveryRow) {
  for (const platform::Isa isa : platform::supported_isas()) {
    const Table table(isa);
    const std::uint32_t n = 301;
    const Matrix x = Matrix::random(4, n, 1, 1.0f, 5), bias = Matrix::random(1, n, 2), y = x.copy();
    table->add_bias(y, bias.at(0));
    EXPECT_TRUE(y.margins_untouched());
    for (std::uint32_t row = 0; row < 4; ++row) {
      for (std::uint32_t i = 0; i < n; ++i) ASSERT_EQ(y.at(row)[i], x.at(row)[i] + bias.at(0)[i]);
    }
  }
}

TEST(CpuOps, EmbedDecodesTheRowsAskedFor) {
  const Table table(platform::choose_isa(), 2);
  const RandomWeight w(TensorType::q4_k, 256, 30, 9);
  const std::vector<std::int32_t> ids = {29, 0, 7, 7};
  const Matrix y(4, 256, 4);
  table->embed(w, ids, y);
  EXPECT_TRUE(y.margins_untouched());
  for (std::uint32_t row = 0; row < 4; ++row) {
    const auto expected = w.row(static_cast<std::uint32_t>(ids[row]));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), y.at(row)));
  }
}

TEST(CpuOps, AddAndSwigluWorkByRows) {
  const Table table(platform::choose_isa());
  const Matrix x = Matrix::random(3, 37, 1, 1.0f, 2), y = Matrix::random(3, 37, 2, 1.0f, 7),
               before = y.copy();
  table->add(x, 1.0f, y);
  for (std::uint32_t row = 0; row < 3; ++row) {
    for (std::uint32_t i = 0; i < 37; ++i) EXPECT_EQ(y.at(row)[i], before.at(row)[i] + x.at(row)[i]);
  }
  const Matrix gate = Matrix::random(3, 37, 3, 1.0f, 1), out(3, 37), in_place = gate.copy();
  table->activate(gate, x, Activation::silu, out);
  table->activate(in_place, x, Activation::silu, in_place);
  EXPECT_TRUE(out.same_bits(in_place));
  EXPECT_TRUE(y.margins_untouched() && in_place.margins_untouched());
  for (std::uint32_t i = 0; i < 37; ++i) {
    const double g = gate.at(2)[i], expected = g / (1 + std::exp(-g)) * x.at(2)[i];
    EXPECT_NEAR(out.at(2)[i], expected, std::abs(expected) * (3e-7 + 4 * k_half_ulp));
  }
}

TEST(CpuOps, AddsAndScalesWithFactors) {
  const Table table(platform::choose_isa());
  const Matrix x = Matrix::random(3, 37, 1, 1.0f, 2), sum = Matrix::random(3, 37, 2, 1.0f, 7),
               gate = Matrix::random(3, 1, 5, 2.0f), gated = sum.copy(), plain = sum.copy(),
               scaled = x.copy();
  table->add(x, 0.5f, plain);
  table->add_gated(x, gate, 0.5f, gated);
  table->scale(scaled, 3.0f);
  const Matrix by_row(3, 37);
  const float factors[3] = {0.5f, -2.0f, 3.0f};
  table->scale_rows(x, factors, by_row);
  for (std::uint32_t row = 0; row < 3; ++row) {
    const double open = 1 / (1 + std::exp(-double{gate.at(row)[0]}));
    for (std::uint32_t i = 0; i < 37; ++i) {
      const double before = sum.at(row)[i], added = 0.5 * x.at(row)[i];
      const double allowed = 4 * k_half_ulp * (std::abs(before) + std::abs(added));
      EXPECT_NEAR(plain.at(row)[i], before + added, allowed);
      EXPECT_NEAR(gated.at(row)[i], before + open * added, allowed);
      EXPECT_EQ(scaled.at(row)[i], 3.0f * x.at(row)[i]);
      EXPECT_EQ(by_row.at(row)[i], factors[row] * x.at(row)[i]);
    }
  }
  EXPECT_TRUE(plain.margins_untouched() && gated.margins_untouched() && scaled.margins_untouched());
}

TEST(CpuOps, ScalesRowsByTheirPositions) {
  const Table table(platform::choose_isa());
  table->reserve({5, 64, 0});
  const std::uint32_t positions[5] = {0, 5, 6, 14, 400}, sequence_of[5] = {};
  table->begin_pass({positions, sequence_of, {}, {}});
  const Matrix x = Matrix::random(4, 37, 1, 1.0f, 3), before = x.copy();
  table->scale_by_position(x, {0.25f, 7, 1}, 1);
  const double logarithms[4] = {0, std::log(2.0), std::log(3.0), std::log(58.0)};
  for (std::uint32_t row = 0; row < 4; ++row) {
    for (std::uint32_t i = 0; i < 37; ++i) {
      const double expected = before.at(row)[i] * (1 + 0.25 * logarithms[row]);
      EXPECT_NEAR(x.at(row)[i], expected, std::abs(expected) * 4 * k_half_ulp) << row;
    }
  }
  EXPECT_TRUE(x.margins_untouched());
}

TEST(CpuOps, CombineSumsByRank) {
  const Table table(platform::choose_isa());
  const Matrix outputs = Matrix::random(6, 50, 1), y = Matrix::random(2, 50, 2), before = y.copy();
  const float weights[6] = {0.5f, 0.25f, 0.125f, 1.0f, 2.0f, 3.0f};
  table->combine_experts(outputs, weights, 3, y);
  for (std::uint32_t row = 0; row < 2; ++row) {
    for (std::uint32_t i = 0; i < 50; ++i) {
      double sum = 0, magnitude = std::abs(before.at(row)[i]);
      for (std::uint32_t k = 0; k < 3; ++k) {
        const double term = double{weights[row * 3 + k]} * outputs.at(row * 3 + k)[i];
        sum += term;
        magnitude += std::abs(term);
      }
      EXPECT_NEAR(y.at(row)[i], before.at(row)[i] + sum, magnitude * 7 * k_half_ulp);
    }
  }
}

/// Runs every row operation on `n_rows` rows and returns the concatenated results.
Matrix run_all(Ops& ops, const Matrix& input, const RandomWeight& w, const RandomWeight& f,
               std::uint32_t first, std::uint32_t n_rows) {
  const std::uint32_t n = input.n_cols();
  Matrix result(n_rows, 4 * n);
  const Rows x = input.rows().from(first).first(n_rows);
  const auto part = [&](std::uint32_t i, std::uint32_t n_cols) {
    return Rows{result.at(0) + i * n, n_rows, n_cols, 4 * n};
  };
  ops.rms_norm(x, nullptr, 1e-6f, part(0, n));
  ops.activate(x, part(0, n), Activation::silu, part(1, n));
  ops.rms_norm_heads(part(1, n), 64, input.at(0), 1e-6f);
  const Product products[2] = {{w, part(2, w.weight().n_out), input.at(1)},
                               {f, part(3, f.weight().n_out), nullptr}};
  ops.matmul(part(1, n), products);
  ops.add(part(2, n), 1.0f, part(0, n));
  const float weights[3] = {0.5f, 0.3f, 0.2f};
  for (std::uint32_t row = 0; row < n_rows; ++row) {
    ops.combine_experts(input.rows().first(3), weights, 3, part(3, n).from(row).first(1));
  }
  return result;
}

TEST(CpuOps, BitsDoNotDependOnBatchOrThreads) {
  const std::uint32_t n = 512, n_rows = 64;
  for (const platform::Isa isa : platform::supported_isas()) {
    for (const TensorType type : {TensorType::q4_k, TensorType::q8_0, TensorType::f16}) {
      const Matrix input = Matrix::random(n_rows, n, 3);
      const RandomWeight w(type, n, n, 1), f(TensorType::f32, n, 100, 2);
      const Table one(isa);
      one->reserve({n_rows, n, 0});
      const Matrix expected = run_all(*one.ops, input, w, f, 0, n_rows);
      for (const int n_threads : {1, 2, 4}) {
        const Table table(isa, n_threads);
        table->reserve({n_rows, n, 0});
        EXPECT_TRUE(run_all(*table.ops, input, w, f, 0, n_rows).same_bits(expected)) << n_threads;
        for (const std::uint32_t row : {0u, 1u, 31u, 63u}) {
          const Matrix alone = run_all(*table.ops, input, w, f, row, 1);
          EXPECT_EQ(std::memcmp(alone.at(0), expected.at(row), 4 * n * sizeof(float)), 0)
              << platform::isa_name(isa) << " " << gguf::type_name(type) << " row " << row;
        }
      }
    }
  }
}

TEST(CpuOps, AllocatesAlignedZeroedMemory) {
  const Table table(platform::choose_isa());
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{5} << 20}) {
    std::byte* memory = table->allocate(bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0u);
    for (std::size_t i = 0; i < bytes; i += 61) ASSERT_EQ(memory[i], std::byte{0});
    if (bytes == 0) continue;
    std::vector<std::byte> data(bytes, std::byte{7}), back(bytes);
    table->upload(data.data(), memory, bytes);
    table->download(memory, back.data(), bytes);
    EXPECT_EQ(data, back);
  }
}

TEST(CpuOps, RefusesWhatTheSystemCannotGive) {
  const Table table(platform::choose_isa());
  for (const auto& attempt : {+[](Ops& ops) { ops.allocate(std::size_t{1} << 62); },
                              +[](Ops& ops) {
                                ops.reserve({0xffff'ffff, 0xffff'ff00, 1});
                              }}) {
    try {
      attempt(*table.ops);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::budget);
    }
  }
}

TEST(CpuOps, ReserveTakesWhatScratchBytesTold) {
  for (const int n_threads : {1, 3}) {
    const Table table(platform::choose_isa(), n_threads);
    for (const std::uint32_t rows : {1u, 17u, 512u, 2000u}) {
      for (const std::uint32_t hidden : {0u, 768u}) {
        const std::size_t told = table->scratch_bytes({rows, 2048, hidden});
        EXPECT_EQ(table->reserve({rows, 2048, hidden}), told);
        EXPECT_EQ(told % 4096, 0u);
      }
    }
  }
}

TEST(CpuOps, NothingAllocatesAfterReserve) {
  const std::uint32_t n = 512, n_rows = 20;
  const Table table(platform::choose_isa(), 2);
  table->reserve({n_rows, n, Experts::n_ff, 64});
  const Experts experts(5, n_rows);
  const auto calls = experts.calls();
  const RandomWeight w(TensorType::q4_k, n, n, 1), embedding(TensorType::q8_0, n, 10, 2);
  const Matrix x = Matrix::random(n_rows, n, 1), y(n_rows, n), logits = Matrix::random(n_rows, 64, 2);
  const Matrix expert_x = Matrix::random(n_rows, Experts::n_embd, 3);
  const Matrix out(n_rows * Experts::n_used, Experts::n_embd), sum(n_rows, Experts::n_embd);
  const KvView view{{2, 64, 64}, 0, 0};
  std::vector<std::byte> page(view.shape.layer_bytes());
  const KvRegion region{page.data(), page.size()};
  const std::uint32_t pages[1] = {0};
  const SequenceView sequence{{pages}, {}};
  std::vector<std::uint32_t> positions, sequence_of(n_rows, 0);
  std::vector<std::int32_t> ids(n_rows, 3);
  for (std::uint32_t row = 0; row < n_rows; ++row) positions.push_back(row);
  std::vector<std::uint16_t> chosen(n_rows * Experts::n_used);
  std::vector<float> weights(n_rows * Experts::n_used);
  RopeParams rope;
  rope.n_rot = 64;
  table->set_curves({&rope, 1});
  const Matrix other(n_rows, n);
  const Product products[2] = {{w, y, nullptr}, {w, other, nullptr}};
  const Rows k{x.at(0), n_rows, 128, n}, v{y.at(0), n_rows, 128, n};

  const std::uint64_t before = n_allocations.load();
  table->embed(embedding, ids, y);
  table->rms_norm(x, nullptr, 1e-5f, y);
  table->rms_norm_heads(y, 64, nullptr, 1e-5f);
  table->matmul(x, products);
  table->begin_pass({positions, sequence_of, {&sequence, 1}, {&region, 1}});
  table->rope(x, 64, 0, 0);
  table->store_kv(k, v, view, 0);
  table->attention(x, view, {8, 0.125f, 0, 0}, 0, y);
  table->activate(x, y, Activation::silu, y);
  table->add(x, 1.0f, y);
  table->route(logits, {Experts::n_used}, {chosen, weights});
  table->begin_experts(expert_x, Activation::silu);
  table->run_experts(calls, out);
  table->combine_experts(out, weights.data(), Experts::n_used, sum);
  EXPECT_EQ(n_allocations.load(), before);
}

TEST(CpuOps, EmptyStepsDoNothing) {
  const Table table(platform::choose_isa(), 2);
  table->reserve({4, 256, 256});
  const Matrix x(0, 256), y(0, 256);
  const RandomWeight w(TensorType::q4_k, 256, 256, 1);
  const Product product{w, y, nullptr};
  table->embed(w, {}, y);
  table->rms_norm(x, nullptr, 1e-5f, y);
  table->matmul(x, {&product, 1});
  table->matmul(x, {});
  table->begin_pass({});
  table->attention(x, {{4, 64, 64}, 0, 0}, {4, 0.125f, 0, 0}, 0, y);
  table->begin_experts(x, Activation::silu);
  table->run_experts({}, y);
  const ExpertCall call{w, w, w, {}, {}};
  table->run_experts({&call, 1}, y);
}

}  // namespace
}  // namespace sluice::kernels
