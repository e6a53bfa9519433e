#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "model/binding.hpp"
#include "model/tensors.hpp"
#include "residency/dense_stream.hpp"
#include "residency/weight_store.hpp"

namespace sluice::model {

/// The weights that every pass uses: where they are, and products with them. Those in memory are used whole,
/// those on the drive in parts as they pass through the stream; that makes no difference to a single bit.
class Weights {
 public:
  /// Borrows all. `stream` is null when all matrices are pinned for good.
  Weights(const BoundTensors& tensors, kernels::Ops& ops, const residency::WeightStore& store,
          residency::DenseStream* stream)
      : tensors_(tensors), ops_(ops), store_(store), stream_(stream) {}

  struct Target {
    const Matrix& matrix;
    kernels::Rows y;
    const float* bias = nullptr;  ///< [y.n_cols] or null.
  };
  /// y = x * w^T (+ bias) for each target, all pinned or all streamed, in the stream's order; at most 16.
  /// Those of one block that share their input should come together. Throws Error(io).
  void multiply(kernels::Rows x, std::span<const Target> targets);

  /// Called before the products of each matrix of the stream, when neither a pinned matrix nor an expert is
  /// in use, so that weights may move: `next_tensor` is the first that the pass will use. Must not throw.
  void set_block_hook(std::function<void(std::uint32_t next_tensor)> hook) { block_hook_ = std::move(hook); }
  /// Whether the drive waits for room in the ring while something is computed.
  bool is_beside_stream() const noexcept { return stream_ != nullptr && stream_->is_streaming(); }
  residency::DenseStream* stream() const noexcept { return stream_; }

  /// The visitor that hands out the tensors in the order in which they were declared.
  class Receiving final : public TensorVisitor {
   public:
    explicit Receiving(Weights& weights) : weights_(weights) {}
    void begin_block(Role) override {}
    void matrix(Matrix& to, std::string_view name, std::uint32_t n_in, std::uint32_t n_out,
                Need need) override;
    void pinned(kernels::Weight& to, Role role, std::string_view name, std::uint32_t n_in,
                std::uint32_t n_out, Need need) override;
    void stacked(kernels::Weight& to, Role role, std::string_view name, std::uint32_t n_in,
                 std::uint32_t n_out, std::uint32_t n_stacked) override;
    void vector(const float*& to, Role role, std::string_view name, std::uint32_t n, Need need) override;
    void vectors(const float*& to, Role role, std::string_view name, std::uint32_t n,
                 std::uint32_t n_vectors) override;
    void scales(const float*& to, Role role, std::string_view name, std::uint32_t n) override;
    void units(std::uint32_t, std::vector<residency::UnitPartSpec>) override {}

   private:
    const gguf::TensorInfo* next(const std::string& name);
    Weights& weights_;
    std::size_t next_ = 0;
  };

 private:
  const BoundTensors& tensors_;
  kernels::Ops& ops_;
  const residency::WeightStore& store_;
  residency::DenseStream* stream_;
  std::deque<std::vector<float>> converted_;  ///< Vectors that are not F32 in the file.
  std::function<void(std::uint32_t)> block_hook_;
};

}  // namespace sluice::model
