// Every SIMD kernel against exact arithmetic and the scalar reference, on every instruction set this machine
// has.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gguf/types.hpp"
#include "kernels/gemm.hpp"
#include "kernels/quant.hpp"
#include "kernels/scalar/gemm_scalar.hpp"
#include "platform/cpu_features.hpp"
#include "support/random_blocks.hpp"

namespace sluice::kernels {
namespace {

/// A weight type and where its blocks keep their float scales: [scale_begin, scale_end) may not be arbitrary.
struct Format {
  TensorType type;
  std::size_t scale_begin, scale_end;
  int min_offset = -1;      ///< Byte offset of the f16 minimum, or -1.
  double min_factor = 0.0;  ///< Largest multiple of it in an element.
};

const std::vector<Format>& int8_formats() {
  using enum TensorType;
  static const std::vector<Format> formats = {
      {q4_0, 0, 2},           {q4_1, 0, 4, 2, 1},  {q5_0, 0, 2},        {q5_1, 0, 4, 2, 1}, {q8_0, 0, 2},
      {iq4_nl, 0, 2},         {mxfp4, 0, 1},       {q3_k, 108, 110},    {q6_k, 208, 210},   {iq4_xs, 0, 2},
      {q2_k, 80, 84, 82, 15}, {q4_k, 0, 4, 2, 63}, {q5_k, 0, 4, 2, 63}, {iq2_xxs, 0, 2},    {iq2_xs, 0, 2},
      {iq2_s, 0, 2},          {iq3_xxs, 0, 2},     {iq3_s, 0, 2},       {iq1_s, 0, 2},      {iq1_m, 48, 56},
      {tq1_0, 52, 54},        {tq2_0, 64, 66},     {q1_0, 0, 2},        {q2_0, 0, 2},       {q2_0_g128, 0, 2},
      {nvfp4, 0, 4},
  };
  return formats;
}

const std::vector<Format>& all_formats() {
  static const std::vector<Format> formats = [] {
    using enum TensorType;
    std::vector<Format> result = int8_formats();
    for (const TensorType type : {f32, f16, bf16, q8_1, q8_k}) {
      result.push_back({type, 0, 0});
    }
    return result;
  }();
  return formats;
}

std::vector<Isa> simd_isas() {
  std::vector<Isa> isas = platform::supported_isas();
  std::erase(isas, Isa::scalar);
  return isas;
}

/// Column counts that reach every path of a type: one block, a part of a 256-element step, several steps.
std::vector<std::size_t> column_counts(TensorType type) {
  const std::size_t block = gguf::type_traits(type).block_elements;
  if (block == 1) return {1, 7, 16, 33, 100, 544};
  if (block == 256) return {256, 1280};
  return {block, 3 * block, 256, 256 + block, 1024 + 3 * block};
}

/// Bytes without any alignment, with nothing readable behind them that the sanitizers would miss.
class UnalignedBytes {
 public:
  UnalignedBytes(const std::vector<std::byte>& bytes, std::size_t offset)
      : storage_(bytes.size() + offset), offset_(offset) {
    std::memcpy(storage_.data() + offset, bytes.data(), bytes.size());
  }
  const std::byte* data() const { return storage_.data() + offset_; }

 private:
  std::vector<std::byte> storage_;
  std::size_t offset_;
};

/// Quantized activation rows, 64-byte aligned.
class Activations {
 public:
  Activations(ActivationFormat format, const std::vector<float>& x, std::size_t n_cols,
              std::size_t extra_bytes = 0)
      : row_bytes_(activation_layout(format, n_cols).row_bytes + extra_bytes),
        storage_(x.size() / n_cols * row_bytes_ + 64) {
    const std::size_t n_rows = x.size() / n_cols;
    base_ = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(storage_.data()) + 63) / 64 * 64);
    for (std::size_t j = 0; j < n_rows; ++j) {
      quantize_activation(format, x.data() + j * n_cols, n_cols, base_ + j * row_bytes_);
    }
  }
  const std::byte* row(std::size_t j) const { return base_ + j * row_bytes_; }
  std::size_t row_bytes() const { return row_bytes_; }

 private:
  std::size_t row_bytes_;
  std::vector<std::byte> storage_;
  std::byte* base_;
};

/// The activation values that a row stands for.
std::vector<double> decode_activation(ActivationFormat format, const std::byte* row, std::size_t n_cols) {
  std::vector<double> values(n_cols);
  if (format == ActivationFormat::f32) {
    const auto* x = reinterpret_cast<const float*>(row);
    std::copy(x, x + n_cols, values.begin());
    return values;
  }
  const std::size_t block = format == ActivationFormat::q8_32 ? 32 : 256;
  const auto* q = reinterpret_cast<const std::int8_t*>(row);
  const auto* d = reinterpret_cast<const float*>(row + activation_layout(format, n_cols).scale_offset);
  for (std::size_t k = 0; k < n_cols; ++k) values[k] = static_cast<double>(d[k / block]) * q[k];
  return values;
}

/// Bound on the rounding error of one output: `roundings` of 2^-24 of the sum of the magnitudes of all terms.
/// An 8-bit kernel rounds the integer, the product of the scales and one or two sums per block; decoding a
/// weight rounds at most four times; a float kernel adds one product per lane and vector (NEON has 4 lanes,
/// the others at least 8), then lanes.
double roundings(const Format& format, const GemmKernel& kernel, std::size_t n_cols) {
  const std::size_t of_type = gguf::type_traits(format.type).block_elements;
  // Of the elements of one integer.
  const std::size_t block = format.type == TensorType::nvfp4 ? 16 : of_type == 256 ? 256 : 32;
  if (kernel.activation != ActivationFormat::f32) return 2.0 * static_cast<double>(n_cols / block) + 8.0;
  return static_cast<double>(n_cols) / (kernel.isa == Isa::neon ? 4.0 : 8.0) + 12.0;
}

/// Largest |minimum| that an element of each block subtracts or adds: terms may cancel, so it counts in the
/// bound.
std::vector<double> block_minimums(const Format& format, const std::byte* row, std::size_t n_cols) {
  const auto traits = gguf::type_traits(format.type);
  std::vector<double> result(n_cols / traits.block_elements, 0.0);
  if (format.min_offset < 0) return result;
  for (std::size_t b = 0; b < result.size(); ++b) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, row + b * traits.block_bytes + format.min_offset, sizeof bits);
    result[b] = std::abs(static_cast<double>(f16_to_f32(bits))) * format.min_factor;
  }
  return result;
}

/// Checks one kernel's outputs against exact (double) arithmetic on the decoded weights and activations.
void expect_exact_within_rounding(const Format& format, const GemmKernel& kernel, const std::byte* w,
                                  std::size_t n_rows, const Activations& x, std::size_t n_x,
                                  std::size_t n_cols) {
  const std::size_t row_bytes = gguf::row_bytes(format.type, n_cols);
  std::vector<float> y(n_rows * n_x);
  kernel.gemm(w, row_bytes, n_rows, x.row(0), x.row_bytes(), n_x, n_cols, y.data(), n_rows);
  std::vector<float> by_scalar(n_rows * n_x);
  const GemmKernel scalar = scalar::find_scalar_gemm(format.type);
  scalar.gemm(w, row_bytes, n_rows, x.row(0), x.row_bytes(), n_x, n_cols, by_scalar.data(), n_rows);

  const std::size_t block = gguf::type_traits(format.type).block_elements;
  for (std::size_t i = 0; i < n_rows; ++i) {
    std::vector<float> weights(n_cols);
    ASSERT_TRUE(dequantize_row(format.type, w + i * row_bytes, weights.data(), n_cols));
    const std::vector<double> minimums = block_minimums(format, w + i * row_bytes, n_cols);
    for (std::size_t j = 0; j < n_x; ++j) {
      const std::vector<double> values = decode_activation(kernel.activation, x.row(j), n_cols);
      double exact = 0.0, magnitude = 0.0;
      for (std::size_t k = 0; k < n_cols; ++k) {
        exact += weights[k] * values[k];
        magnitude += (std::abs(weights[k]) + 2.0 * minimums[k / block]) * std::abs(values[k]);
      }
      const double tolerance = roundings(format, kernel, n_cols) * 0x1p-24 * magnitude;
      ASSERT_NEAR(y[j * n_rows + i], exact, tolerance)
          << gguf::type_name(format.type) << " on " << platform::isa_name(kernel.isa) << ", row " << i
          << ", activation " << j << ", columns " << n_cols;
      ASSERT_NEAR(y[j * n_rows + i], by_scalar[j * n_rows + i], 2 * tolerance)
          << gguf::type_name(format.type) << " on " << platform::isa_name(kernel.isa);
    }
  }
}

TEST(GemmSimd, AgreesWithExactArithmeticForEveryTypeAndInstructionSet) {
  for (const Isa isa : simd_isas()) {
    for (const Format& format : all_formats()) {
      const GemmKernel kernel = find_gemm(format.type, isa);
      ASSERT_NE(kernel.gemm, nullptr);
      for (const std::size_t n_cols : column_counts(format.type)) {
        constexpr std::size_t n_rows = 19, n_x = 11;
        const UnalignedBytes w(test::random_rows(format.type, n_rows, n_cols, n_cols), 1);
        const Activations x(kernel.activation, test::random_floats(n_x * n_cols, 7), n_cols);
        expect_exact_within_rounding(format, kernel, w.data(), n_rows, x, n_x, n_cols);
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Random data almost never reaches the largest sums; constant extremes do, and show saturation or overflow.
TEST(GemmSimd, DoesNotSaturateOnExtremeBlocks) {
  for (const Isa isa : simd_isas()) {
    for (const Format& format : int8_formats()) {
      const GemmKernel kernel = find_gemm(format.type, isa);
      const auto traits = gguf::type_traits(format.type);
      constexpr std::size_t n_rows = 17, n_cols = 512;
      for (const int fill : {0x00, 0x7F, 0x80, 0x81, 0xFF, 0x88, 0x77, 0xF0, 0x0F}) {
        std::vector<std::byte> bytes = test::random_rows(format.type, n_rows, n_cols, 3);
        for (std::size_t at = 0; at < bytes.size(); ++at) {
          const std::size_t in_block = at % traits.block_bytes;
          if (in_block < format.scale_begin || in_block >= format.scale_end)
            bytes[at] = static_cast<std::byte>(fill);
        }
        std::vector<float> values(4 * n_cols, 1.0f);
        for (std::size_t k = 0; k < n_cols; ++k) {
          values[n_cols + k] = -1.0f;
          values[2 * n_cols + k] = k % 2 == 0 ? 1.0f : -1.0f;
          values[3 * n_cols + k] = k % 32 < 16 ? 1.0f : -1.0f;
        }
        const Activations x(kernel.activation, values, n_cols);
        expect_exact_within_rounding(format, kernel, bytes.data(), n_rows, x, 4, n_cols);
        if (HasFatalFailure()) {
          ADD_FAILURE() << "with every byte " << fill;
          return;
        }
      }
    }
  }
}

/// y(i, j) of any sub-problem has the bits it has in the whole: any number of weight rows, of activation
/// rows, any place among them, any stride, any alignment of the weights.
TEST(GemmSimd, BitsDoNotDependOnTheBatch) {
  constexpr std::size_t whole_rows = 52, whole_x = 137;
  std::vector<std::size_t> x_counts(17);
  std::iota(x_counts.begin(), x_counts.end(), std::size_t{1});
  x_counts.insert(x_counts.end(), {33, 64, 129});
  for (const Isa isa : platform::supported_isas()) {
    for (const Format& format : all_formats()) {
      const GemmKernel kernel = find_gemm(format.type, isa);
      const std::size_t block = gguf::type_traits(format.type).block_elements;
      const std::size_t n_cols = block == 1 ? 45 : block == 256 ? 512 : 256 + 3 * block;
      const std::size_t row_bytes = gguf::row_bytes(format.type, n_cols);
      const std::vector<std::byte> bytes = test::random_rows(format.type, whole_rows, n_cols, 11);
      const Activations x(kernel.activation, test::random_floats(whole_x * n_cols, 12), n_cols, 64);
      std::vector<float> whole(whole_rows * whole_x);
      kernel.gemm(bytes.data(), row_bytes, whole_rows, x.row(0), x.row_bytes(), whole_x, n_cols, whole.data(),
                  whole_rows);
      for (const std::size_t n_rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33}) {
        for (const std::size_t n_x : x_counts) {
          if (isa == Isa::scalar && (n_x > 9 || n_rows > 9)) continue;
          const std::size_t i0 = (n_rows * 5 + n_x) % (whole_rows - n_rows);
          const std::size_t j0 = (n_rows + n_x * 3) % (whole_x - n_x);
          // Rows with a gap between them, at an odd address; outputs with a gap, which must stay untouched.
          const std::size_t gap = n_x % 3;
          std::vector<std::byte> part(1 + n_rows * (row_bytes + gap));
          for (std::size_t i = 0; i < n_rows; ++i) {
            std::memcpy(part.data() + 1 + i * (row_bytes + gap), bytes.data() + (i0 + i) * row_bytes,
                        row_bytes);
          }
          const std::size_t y_stride = n_rows + 3;
          constexpr float untouched = -12345.0f;
          std::vector<float> y(n_x * y_stride, untouched);
          kernel.gemm(part.data() + 1, row_bytes + gap, n_rows, x.row(j0), x.row_bytes(), n_x, n_cols,
                      y.data(), y_stride);
          for (std::size_t j = 0; j < n_x; ++j) {
            ASSERT_EQ(
                std::memcmp(&y[j * y_stride], &whole[(j0 + j) * whole_rows + i0], n_rows * sizeof(float)), 0)
                << gguf::type_name(format.type) << " on " << platform::isa_name(kernel.isa) << ", rows "
                << n_rows << ", activations " << n_x << ", activation " << j;
            for (std::size_t i = n_rows; i < y_stride; ++i) ASSERT_EQ(y[j * y_stride + i], untouched);
          }
        }
      }
    }
  }
}

/// The 8-bit kernels are exact up to one chain of float operations per element, the same on all sets of a
/// machine.
TEST(GemmSimd, EightBitKernelsGiveTheSameBitsOnEverySimdInstructionSet) {
  const std::vector<Isa> isas = simd_isas();
  if (isas.size() < 2) GTEST_SKIP() << "this machine has fewer than two SIMD instruction sets";
  constexpr std::size_t n_rows = 35, n_x = 13, n_cols = 1024;
  for (const Format& format : int8_formats()) {
    const std::vector<std::byte> w = test::random_rows(format.type, n_rows, n_cols, 21);
    std::vector<float> first;
    for (const Isa isa : isas) {
      const GemmKernel kernel = find_gemm(format.type, isa);
      const Activations x(kernel.activation, test::random_floats(n_x * n_cols, 22), n_cols);
      std::vector<float> y(n_rows * n_x);
      kernel.gemm(w.data(), gguf::row_bytes(format.type, n_cols), n_rows, x.row(0), x.row_bytes(), n_x,
                  n_cols, y.data(), n_rows);
      if (first.empty()) first = y;
      ASSERT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)), 0)
          << gguf::type_name(format.type);
    }
  }
}

/// FNV-1a over the bits of the outputs.
std::uint64_t hash_of(const std::vector<float>& values) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const float value : values) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (bits >> shift & 0xFF)) * 0x100000001b3u;
  }
  return hash;
}

/// That chain is the same on x86 and Arm, too: the hashes were taken on x86. They change only when the
/// arithmetic of a format changes, which is a change of every model's output.
TEST(GemmSimd, EightBitKernelsGiveTheSameBitsOnEveryMachine) {
  using enum TensorType;
  const std::vector<std::pair<TensorType, std::uint64_t>> hashes = {
      {q4_0, 0xc50ff69715c5b213u},      {q4_1, 0x28c09bd4424c1ecfu},    {q5_0, 0x6c97adcbe5505e7bu},
      {q5_1, 0xe8eb7bb55f9048b1u},      {q8_0, 0x3b37ca7a7a2053fbu},    {iq4_nl, 0xf31e52a98cd60ff8u},
      {mxfp4, 0xf4b509a33d6290b1u},     {q3_k, 0xddecccd10349783bu},    {q6_k, 0x3fe92c329ce59e98u},
      {iq4_xs, 0x959ee8ef1c9685ceu},    {q2_k, 0xa7768ca5daa4c917u},    {q4_k, 0x85b57d4c85b397dbu},
      {q5_k, 0x877ffebb4687b2c5u},      {iq2_xxs, 0x60f7ef6ed5230523u}, {iq2_xs, 0x6a6f09d61dc9f157u},
      {iq2_s, 0x04cebceea29e0c82u},     {iq3_xxs, 0xabcbe61da771f355u}, {iq3_s, 0xdf59bbac5fc90429u},
      {iq1_s, 0x96ffc4239bd62c9bu},     {iq1_m, 0xd96bbc0ee10b31fdu},   {tq1_0, 0x2d894cd0eb5499a8u},
      {tq2_0, 0xbeaf985033c8ddb9u},     {q1_0, 0x73a8f0e76c62c3f0u},    {q2_0, 0xf35b870fecbee605u},
      {q2_0_g128, 0x826c982b8ce1e118u}, {nvfp4, 0x6504caa1708a63e1u},
  };
  constexpr std::size_t n_rows = 35, n_x = 13;
  for (const auto& [type, hash] : hashes) {
    const std::size_t n_cols = gguf::type_traits(type).block_elements > 32 ? 1280 : 1120;
    const std::vector<std::byte> w = test::random_rows(type, n_rows, n_cols, 31);
    for (const Isa isa : simd_isas()) {
      const GemmKernel kernel = find_gemm(type, isa);
      const Activations x(kernel.activation, test::random_floats(n_x * n_cols, 32), n_cols);
      std::vector<float> y(n_rows * n_x);
      kernel.gemm(w.data(), gguf::row_bytes(type, n_cols), n_rows, x.row(0), x.row_bytes(), n_x, n_cols,
                  y.data(), n_rows);
      EXPECT_EQ(hash_of(y), hash) << gguf::type_name(type) << " on " << platform::isa_name(isa) << std::hex
                                  << " has " << hash_of(y);
    }
  }
}

TEST(GemmSimd, NoWorkTouchesNothing) {
  for (const Isa isa : simd_isas()) {
    for (const Format& format : all_formats()) {
      const GemmKernel kernel = find_gemm(format.type, isa);
      float y = 5.0f;
      kernel.gemm(nullptr, 0, 0, nullptr, 0, 3, 256, &y, 1);
      kernel.gemm(nullptr, 0, 3, nullptr, 0, 0, 256, &y, 1);
      EXPECT_EQ(y, 5.0f);
    }
  }
}

/// Rows that meet every rule of the quantizer: ties, zeros, subnormals, huge values, infinities, NaNs.
std::vector<std::vector<float>> quantizer_rows(std::size_t n) {
  std::vector<std::vector<float>> rows;
  for (std::uint64_t seed = 0; seed < 20; ++seed) rows.push_back(test::random_floats(n, seed));
  const auto scaled = [&](float factor) {
    std::vector<float> row = test::random_floats(n, 99);
    for (float& value : row) value *= factor;
    rows.push_back(row);
  };
  for (const float factor : {0.0f, -0.0f, 1e-38f, 1e-42f, 1e-44f, 3e37f, 1e-20f, 1e20f}) scaled(factor);
  std::vector<float> ties(n);
  for (std::size_t k = 0; k < n; ++k) ties[k] = (static_cast<float>(k % 254) - 126.5f);
  ties[0] = 127.0f;
  rows.push_back(ties);
  using Limits = std::numeric_limits<float>;
  for (const float odd :
       {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), Limits::max(), Limits::denorm_min()}) {
    std::vector<float> row = test::random_floats(n, 100);
    row[n / 2 + 3] = odd;
    rows.push_back(row);
  }
  return rows;
}

TEST(GemmSimd, QuantizesActivationsToTheSameBitsAsTheScalarReference) {
  for (const Isa isa : simd_isas()) {
    for (const TensorType type : {TensorType::f32, TensorType::q8_0, TensorType::q4_k}) {
      const GemmKernel kernel = find_gemm(type, isa);
      for (const std::size_t n : {std::size_t{256}, std::size_t{1792}}) {
        const std::size_t used = activation_layout(kernel.activation, n).row_bytes;
        for (const std::vector<float>& row : quantizer_rows(n)) {
          std::vector<std::byte> expected(used, std::byte{0xEE}), actual(used, std::byte{0xEE});
          quantize_activation(kernel.activation, row.data(), n, expected.data());
          kernel.quantize(row.data(), n, actual.data());
          ASSERT_EQ(std::memcmp(expected.data(), actual.data(), used), 0)
              << gguf::type_name(type) << " on " << platform::isa_name(isa) << ", n " << n;
        }
      }
    }
  }
}

TEST(GemmSimd, AnInfiniteActivationGivesNanInsteadOfAWrongNumber) {
  for (const Isa isa : simd_isas()) {
    for (const Format& format : int8_formats()) {
      const GemmKernel kernel = find_gemm(format.type, isa);
      constexpr std::size_t n_cols = 512;
      std::vector<float> values = test::random_floats(n_cols, 5);
      values[300] = std::numeric_limits<float>::infinity();
      const Activations x(kernel.activation, values, n_cols);
      const std::vector<std::byte> w = test::random_rows(format.type, 1, n_cols, 6);
      float y = 0.0f;
      kernel.gemm(w.data(), w.size(), 1, x.row(0), x.row_bytes(), 1, n_cols, &y, 1);
      EXPECT_TRUE(std::isnan(y)) << gguf::type_name(format.type);
    }
  }
}

TEST(FindGemm, AgreesWithTheScalarKernelAboutActivations) {
  for (const gguf::TypeTraits& type_traits : gguf::all_types()) {
    const gguf::TypeTraits* traits = &type_traits;
    const GemmKernel scalar = find_gemm(traits->type, Isa::scalar);
    for (const Isa isa : platform::supported_isas()) {
      const GemmKernel kernel = find_gemm(traits->type, isa);
      EXPECT_EQ(kernel.gemm == nullptr, scalar.gemm == nullptr) << traits->name;
      EXPECT_EQ(kernel.activation, scalar.activation) << traits->name;
      EXPECT_LE(kernel.isa, isa) << traits->name;
      // A set that is offered has kernels of its own: its name in the statistics is what runs.
      if (kernel.gemm != nullptr && (traits->type == TensorType::q4_k || traits->type == TensorType::f16)) {
        EXPECT_EQ(kernel.isa, isa) << traits->name;
      }
    }
  }
}

TEST(FindGemm, HasNoKernelForIntegers) {
  for (const TensorType type : {TensorType::i8, TensorType::i16, TensorType::i32, TensorType::i64}) {
    for (const Isa isa : platform::all_isas()) {
      EXPECT_EQ(find_gemm(type, isa).gemm, nullptr);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
