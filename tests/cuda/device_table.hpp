#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "cuda/loader.hpp"
#include "kernels/ops_test_support.hpp"
#include "platform/cpu_features.hpp"
#include "sluice/error.hpp"
#include "support/random_blocks.hpp"

namespace sluice::cuda::test {

using gguf::TensorType;
using kernels::Rows;
using kernels::Weight;
using kernels::test::Matrix;

/// Random blocks and what names them.
struct Blocks {
  std::vector<std::byte> bytes;
  Weight weight;
  Blocks(TensorType type, std::uint32_t n_in, std::uint32_t n_out, std::uint64_t seed)
      : bytes(sluice::test::random_rows(type, n_out, n_in, seed)),
        weight{bytes.data(), type, n_in, n_out, bytes.size() / n_out} {}
};

/// The table of the first GPU and that of the CPU. Where there is no GPU, tests skip themselves and say why.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = make_ops(0);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    host_ = std::make_unique<kernels::test::Table>(platform::choose_isa(), 2);
  }
  kernels::Ops& device() { return *device_; }
  kernels::Ops& host() { return *host_->ops; }
  void reserve(const kernels::ScratchSize& size) {
    device().reserve(size);
    host().reserve(size);
  }

  // On the device too. They live as long as the table, whose names for them are their addresses.
  const Weight& blocks(TensorType type, std::uint32_t n_in, std::uint32_t n_out, std::uint64_t seed) {
    const Weight& weight = blocks_.emplace_back(type, n_in, n_out, seed).weight;
    device().place(weight);
    return weight;
  }
  const float* floats(std::uint32_t n, std::uint64_t seed) {
    const std::vector<float>& list = floats_.emplace_back(sluice::test::random_floats(n, seed));
    device().place(
        {reinterpret_cast<const std::byte*>(list.data()), TensorType::f32, n, 1, std::uint64_t{n} * 4});
    return list.data();
  }

  /// Rows on the device, as those of `from`, margins too.
  Rows up(const Matrix& from) {
    Rows rows = from.rows();
    const std::size_t n = std::size_t{rows.n_rows} * rows.stride * sizeof(float);
    rows.data = reinterpret_cast<float*>(device().allocate(n + 4096));
    device().upload(from.at(0), reinterpret_cast<std::byte*>(rows.data), n);
    return rows;
  }
  Matrix down(Rows rows) {
    Matrix result(rows.n_rows, rows.n_cols, rows.stride - rows.n_cols);
    device().download(reinterpret_cast<const std::byte*>(rows.data), result.at(0),
                      std::size_t{rows.n_rows} * rows.stride * sizeof(float));
    return result;
  }

 private:
  std::deque<Blocks> blocks_;
  std::deque<std::vector<float>> floats_;
  std::unique_ptr<kernels::Ops> device_;
  std::unique_ptr<kernels::test::Table> host_;
};

/// The largest difference, relative to the largest number.
inline double distance(const Matrix& a, const Matrix& b) {
  double most = 0, largest = 1e-30;
  for (std::uint32_t row = 0; row < a.n_rows(); ++row) {
    for (std::uint32_t i = 0; i < a.n_cols(); ++i) {
      const double difference = std::abs(double{a.at(row)[i]} - b.at(row)[i]);
      if (!(difference <= most)) most = difference;  // NaN stays.
      largest = std::max(largest, std::abs(double{a.at(row)[i]}));
    }
  }
  return most / largest;
}

}  // namespace sluice::cuda::test
