#include "model/tensors.hpp"

#include "base/check.hpp"

namespace sluice::model {

void TensorVisitor::begin_layer(std::uint32_t layer_idx) {
  layer_idx_ = layer_idx;
  prefix_ = "blk." + std::to_string(layer_idx) + ".";
}

void Declaring::begin_block(Role role) {
  result.blocks.push_back(role);
}

void Declaring::matrix(Matrix&, std::string_view name, std::uint32_t n_in, std::uint32_t n_out, Need need) {
  SLUICE_CHECK(!result.blocks.empty());
  result.tensors.push_back({full(name) + ".weight", TensorNeed::Kind::matrix, need, result.blocks.back(),
                            n_in, n_out, static_cast<int>(result.blocks.size()) - 1});
  const float* unused = nullptr;
  scales(unused, result.blocks.back(), std::string(name) + ".scale", 1);
}

void Declaring::scales(const float*&, Role role, std::string_view name, std::uint32_t n) {
  result.tensors.push_back({full(name), TensorNeed::Kind::scales, Need::optional, role, n, 1});
}

void Declaring::pinned(kernels::Weight&, Role role, std::string_view name, std::uint32_t n_in,
                       std::uint32_t n_out, Need need) {
  result.tensors.push_back({full(name), TensorNeed::Kind::pinned, need, role, n_in, n_out});
}

void Declaring::stacked(kernels::Weight&, Role role, std::string_view name, std::uint32_t n_in,
                        std::uint32_t n_out, std::uint32_t n_stacked) {
  result.tensors.push_back(
      {full(name), TensorNeed::Kind::pinned, Need::required, role, n_in, n_out, -1, n_stacked});
}

void Declaring::vector(const float*&, Role role, std::string_view name, std::uint32_t n, Need need) {
  result.tensors.push_back({full(name), TensorNeed::Kind::vector, need, role, n, 1});
}

void Declaring::vectors(const float*&, Role role, std::string_view name, std::uint32_t n,
                        std::uint32_t n_vectors) {
  result.tensors.push_back({full(name), TensorNeed::Kind::vector, Need::required, role, n, n_vectors});
}

void Declaring::units(std::uint32_t n_experts, std::vector<residency::UnitPartSpec> parts) {
  result.experts.push_back({layer_idx(), n_experts, std::move(parts)});
}

}  // namespace sluice::model
