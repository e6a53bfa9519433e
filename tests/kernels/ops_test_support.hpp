#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/thread_pool.hpp"
#include "gguf/types.hpp"
#include "kernels/cpu_ops.hpp"
#include "kernels/quant.hpp"
#include "platform/cpu_features.hpp"

namespace sluice::kernels::test {

/// Half a unit in the last place of f32, relative: the error of one rounding.
constexpr double k_half_ulp = 0x1p-24;

/// A table with its own pool.
struct Table {
  explicit Table(platform::Isa isa, int n_threads = 1)
      : pool(std::make_unique<base::ThreadPool>(n_threads)), ops(make_cpu_ops(*pool, isa)) {}
  std::unique_ptr<base::ThreadPool> pool;
  std::unique_ptr<Ops> ops;
  Ops* operator->() const { return ops.get(); }
};

/// Rows that own their floats, 64-byte aligned, with a margin behind each row that must stay as it is.
class Matrix {
 public:
  Matrix(std::uint32_t n_rows, std::uint32_t n_cols, std::uint32_t margin = 0)
      : n_rows_(n_rows), n_cols_(n_cols), stride_(n_cols + margin) {
    const std::size_t n = std::size_t{n_rows} * stride_ + 16;
    storage_.assign(n, k_margin);
    void* start = storage_.data();
    std::size_t space = n * sizeof(float);
    data_ = static_cast<float*>(std::align(64, std::size_t{n_rows} * stride_ * sizeof(float), start, space));
    for (std::uint32_t row = 0; row < n_rows; ++row) std::fill_n(at(row), n_cols, 0.0f);
  }
  Matrix(Matrix&&) = default;
  Matrix(const Matrix&) = delete;

  static Matrix random(std::uint32_t n_rows, std::uint32_t n_cols, std::uint32_t seed, float scale = 1.0f,
                       std::uint32_t margin = 0) {
    Matrix result(n_rows, n_cols, margin);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      for (std::uint32_t col = 0; col < n_cols; ++col) result.at(row)[col] = normal(generator);
    }
    return result;
  }
  Matrix copy() const {
    Matrix result(n_rows_, n_cols_, stride_ - n_cols_);
    std::memcpy(result.data_, data_, std::size_t{n_rows_} * stride_ * sizeof(float));
    return result;
  }

  float* at(std::uint32_t row) const { return data_ + std::size_t{row} * stride_; }
  std::uint32_t n_rows() const { return n_rows_; }
  std::uint32_t n_cols() const { return n_cols_; }
  Rows rows() const { return {data_, n_rows_, n_cols_, stride_}; }
  operator Rows() const { return rows(); }

  /// True when the first `n_rows` rows of both hold the same bits.
  bool same_bits(const Matrix& other, std::uint32_t n_rows) const {
    if (n_cols_ != other.n_cols_) return false;
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      if (std::memcmp(at(row), other.at(row), n_cols_ * sizeof(float)) != 0) return false;
    }
    return true;
  }
  bool same_bits(const Matrix& other) const { return n_rows_ == other.n_rows_ && same_bits(other, n_rows_); }
  bool margins_untouched() const {
    for (std::uint32_t row = 0; row < n_rows_; ++row) {
      for (std::uint32_t col = n_cols_; col < stride_; ++col) {
        if (at(row)[col] != k_margin) return false;
      }
    }
    return true;
  }

 private:
  static constexpr float k_margin = 12345.0f;
  std::uint32_t n_rows_, n_cols_, stride_;
  std::vector<float> storage_;
  float* data_ = nullptr;
};

/// A random weight matrix of any block type that holds its scales as f16 at known places.
class RandomWeight {
 public:
  RandomWeight(TensorType type, std::uint32_t n_in, std::uint32_t n_out, std::uint32_t seed) {
    const gguf::TypeTraits& traits = gguf::type_traits(type);
    const std::uint64_t row_bytes = gguf::row_bytes(type, n_in);
    bytes_.resize(row_bytes * n_out);
    std::mt19937 generator(seed);
    for (auto& byte : bytes_) byte = static_cast<std::byte>(generator() & 0xff);
    std::uniform_real_distribution<float> uniform(-0.05f, 0.05f);
    if (type == TensorType::f32 || type == TensorType::f16) {
      for (std::size_t i = 0; i < bytes_.size() / traits.block_bytes; ++i)
        put(i * traits.block_bytes, type, uniform(generator));
    } else {
      for (std::size_t block = 0; block < bytes_.size(); block += traits.block_bytes) {
        const float scale = uniform(generator) / 16;
        if (type == TensorType::q6_k) {
          put(block + traits.block_bytes - 2, TensorType::f16, scale / 16);
        } else {
          put(block, TensorType::f16, scale);
          if (type == TensorType::q4_k || type == TensorType::q5_k || type == TensorType::q4_1) {
            put(block + 2, TensorType::f16, uniform(generator) / 16);
          }
        }
      }
    }
    weight_ = {bytes_.data(), type, n_in, n_out, row_bytes};
  }
  operator Weight() const { return weight_; }
  const Weight& weight() const { return weight_; }
  std::vector<float> row(std::uint32_t index) const {
    std::vector<float> values(weight_.n_in);
    dequantize_row(weight_.type, weight_.data + index * weight_.row_bytes, values.data(), values.size());
    return values;
  }

 private:
  void put(std::size_t offset, TensorType type, float value) {
    const std::uint16_t half = f32_to_f16(value);
    if (type == TensorType::f32) {
      std::memcpy(bytes_.data() + offset, &value, sizeof value);
    } else {
      std::memcpy(bytes_.data() + offset, &half, sizeof half);
    }
  }
  std::vector<std::byte> bytes_;
  Weight weight_;
};

}  // namespace sluice::kernels::test
