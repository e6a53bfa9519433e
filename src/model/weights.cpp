#include "model/weights.hpp"

#include <array>

#include "base/check.hpp"
#include "kernels/quant.hpp"

namespace sluice::model {

using kernels::Product;
using kernels::Rows;
using kernels::Weight;

namespace {

/// A weight without its data.
Weight shape_of(const gguf::TensorInfo& tensor) {
  return {nullptr, tensor.type, static_cast<std::uint32_t>(tensor.dims[0]),
          static_cast<std::uint32_t>(tensor.dims[1] * tensor.dims[2]),
          gguf::row_bytes(tensor.type, tensor.dims[0])};
}

}  // namespace

const gguf::TensorInfo* Weights::Receiving::next(const std::string& name) {
  SLUICE_CHECK(next_ < weights_.tensors_.all.size());
  const BoundTensor& bound = weights_.tensors_.all[next_++];
  SLUICE_CHECK(bound.need.name == name);
  return bound.info;
}

void Weights::Receiving::matrix(Matrix& to, std::string_view name, std::uint32_t, std::uint32_t, Need) {
  const gguf::TensorInfo* const tensor = next(full(name) + ".weight");
  const float* scale = nullptr;
  scales(scale, Role::other, std::string(name) + ".scale", 1);
  to = {};
  if (tensor == nullptr) return;
  to.w = shape_of(*tensor);
  to.w.data = weights_.store_.find(*tensor);
  if (scale != nullptr) to.w.scale = *scale;
  to.stream_index = weights_.stream_ == nullptr ? -1 : weights_.stream_->find(tensor);
  SLUICE_CHECK(to.w.data != nullptr || to.stream_index >= 0);
  if (to.w.data != nullptr) weights_.ops_.place(to.w);
}

void Weights::Receiving::scales(const float*& to, Role role, std::string_view name, std::uint32_t n) {
  vector(to, role, name, n, Need::optional);
}

void Weights::Receiving::pinned(Weight& to, Role, std::string_view name, std::uint32_t, std::uint32_t, Need) {
  const gguf::TensorInfo* const tensor = next(full(name));
  to = {};
  if (tensor == nullptr) return;
  to = shape_of(*tensor);
  to.data = weights_.store_.find(*tensor);  // Embeddings may be left on the drive.
  if (to.data != nullptr) weights_.ops_.place(to);
}

void Weights::Receiving::stacked(Weight& to, Role role, std::string_view name, std::uint32_t n_in,
                                 std::uint32_t n_out, std::uint32_t) {
  pinned(to, role, name, n_in, n_out, Need::required);
}

void Weights::Receiving::vectors(const float*& to, Role role, std::string_view name, std::uint32_t n,
                                 std::uint32_t) {
  vector(to, role, name, n, Need::required);
}

void Weights::Receiving::vector(const float*& to, Role, std::string_view name, std::uint32_t, Need) {
  const gguf::TensorInfo* const tensor = next(full(name));
  to = nullptr;
  if (tensor == nullptr) return;
  const std::byte* const data = weights_.store_.find(*tensor);
  SLUICE_CHECK(data != nullptr);
  if (converted_vector_bytes(*tensor) == 0) {
    to = reinterpret_cast<const float*>(data);
  } else {
    std::vector<float>& floats = weights_.converted_.emplace_back(tensor->n_elements());
    SLUICE_CHECK(kernels::dequantize_row(tensor->type, data, floats.data(), floats.size()));
    to = floats.data();
  }
  const auto n = static_cast<std::uint32_t>(tensor->n_elements());
  weights_.ops_.place(
      {reinterpret_cast<const std::byte*>(to), gguf::TensorType::f32, n, 1, n * sizeof(float)});
}

void Weights::multiply(Rows x, std::span<const Target> targets) {
  constexpr std::size_t k_max_parts = 16;
  std::array<Product, k_max_parts> products;
  SLUICE_CHECK(!targets.empty() && targets.size() <= k_max_parts);
  const int index = targets.front().matrix.stream_index;
  const auto first = static_cast<std::uint32_t>(index);
  if (index >= 0 && block_hook_) block_hook_(first);
  if (index < 0 || !stream_->is_streamed(first)) {
    for (std::size_t i = 0; i < targets.size(); ++i)
      products[i] = {targets[i].matrix.w, targets[i].y, targets[i].bias};
    // Beside a stream one by one, since the drive gets its next reads in between.
    const std::size_t step = is_beside_stream() ? 1 : targets.size();
    for (std::size_t i = 0; i < targets.size(); i += step) {
      ops_.matmul(x, std::span(products).subspan(i, step));
      if (is_beside_stream()) stream_->pump();
    }
    return;
  }
  // Rows of a product do not depend on one another, so parts give the same bits as the whole.
  std::array<residency::DenseStream::Part, k_max_parts> parts;
  while (const std::size_t n = stream_->next(first + static_cast<std::uint32_t>(targets.size()), parts)) {
    for (std::size_t i = 0; i < n; ++i) {
      const residency::DenseStream::Part& part = parts[i];
      const Target& target = targets[part.tensor - first];
      Weight w = target.matrix.w;
      w.data = part.data;
      w.n_out = part.n_rows;
      products[i] = {w,
                     {target.y.data + part.first_row, target.y.n_rows, part.n_rows, target.y.stride},
                     target.bias == nullptr ? nullptr : target.bias + part.first_row};
    }
    ops_.matmul(x, std::span(products).first(n));
    stream_->release();
  }
}

}  // namespace sluice::model
