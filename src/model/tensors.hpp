#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.hpp"
#include "residency/unit_map.hpp"
#include "sluice/plan.hpp"

namespace sluice::model {

/// A matrix that the plan may stream.
struct Matrix {
  kernels::Weight w;      ///< Without data when the plan streams it; not to be read while it is streamed.
  int stream_index = -1;  ///< In the stream's order; -1 when it is always in memory.
  explicit operator bool() const noexcept { return w.n_out != 0; }
};

enum class Need : std::uint8_t { required, optional };

/// How the parts of a graph name their tensors: each is asked twice with the same calls, once to say which
/// tensors there are, once to receive them. So there is one list of names and shapes, in the order of use,
/// from which everything else follows: what a file must hold, the order of the stream, the parts of units,
/// the roles of the plan, the work of a pass.
class TensorVisitor {
 public:
  virtual ~TensorVisitor() = default;

  /// Names of what follows begin with "blk.N.".
  void begin_layer(std::uint32_t layer_idx);
  /// What follows belongs to no layer.
  void end_layers() { prefix_.clear(); }

  /// The matrices that follow, up to the next begin, are kept or streamed together and are used one after the
  /// other.
  virtual void begin_block(Role role) = 0;
  /// `name`.weight [n_out, n_in] in the current block, with its second scale `name`.scale when the file has
  /// one (kernels::Weight::scale). An optional matrix that the file lacks stays empty.
  virtual void matrix(Matrix& to, std::string_view name, std::uint32_t n_in, std::uint32_t n_out,
                      Need need = Need::required) = 0;
  /// A matrix that always stays in memory. `name` is whole but for the prefix.
  virtual void pinned(kernels::Weight& to, Role role, std::string_view name, std::uint32_t n_in,
                      std::uint32_t n_out, Need need = Need::required) = 0;
  /// `n_stacked` matrices in one tensor [n_stacked, n_out, n_in] that always stays in memory: received as one
  /// of n_stacked * n_out rows. `name` is whole but for the prefix.
  virtual void stacked(kernels::Weight& to, Role role, std::string_view name, std::uint32_t n_in,
                       std::uint32_t n_out, std::uint32_t n_stacked) = 0;
  /// [n] floats, null when the file lacks an optional one. `name` is whole but for the prefix.
  virtual void vector(const float*& to, Role role, std::string_view name, std::uint32_t n,
                      Need need = Need::required) = 0;
  /// [n_vectors, n] floats, which every file must have.
  virtual void vectors(const float*& to, Role role, std::string_view name, std::uint32_t n,
                       std::uint32_t n_vectors) = 0;
  /// Second scales of matrices, [n] floats; null when the file has none.
  virtual void scales(const float*& to, Role role, std::string_view name, std::uint32_t n) = 0;
  /// The experts of a layer: their parts in the order of use.
  virtual void units(std::uint32_t n_experts, std::vector<residency::UnitPartSpec> parts) = 0;

 protected:
  std::uint32_t layer_idx() const noexcept { return layer_idx_; }
  std::string full(std::string_view name) const { return prefix_ + std::string(name); }

 private:
  std::uint32_t layer_idx_ = 0;
  std::string prefix_;
};

/// One tensor that a graph uses.
struct TensorNeed {
  enum class Kind : std::uint8_t { matrix, pinned, vector, scales };
  std::string name;
  Kind kind = Kind::matrix;
  Need need = Need::required;
  Role role = Role::other;
  std::uint32_t n_in = 0, n_out = 1;
  int block = -1;  ///< Of a matrix: its index in Declaration::blocks.
  std::uint32_t n_stacked = 1;
  /// A vector or scales: used as floats.
  bool is_floats() const noexcept { return kind == Kind::vector || kind == Kind::scales; }
};

/// What a graph needs of a file.
struct Declaration {
  std::vector<TensorNeed> tensors;                ///< In the order of their use, experts apart.
  std::vector<Role> blocks;                       ///< Role of each block of matrices, in the order of use.
  std::vector<residency::UnitLayerSpec> experts;  ///< Of the layers that have some.
  /// Layers of the file from here on, so many, are not run: their tensors may be there.
  std::uint32_t n_layers = 0, n_prediction_layers = 0;
};

/// The visitor that collects a declaration.
class Declaring final : public TensorVisitor {
 public:
  void begin_block(Role role) override;
  void matrix(Matrix& to, std::string_view name, std::uint32_t n_in, std::uint32_t n_out, Need need) override;
  void pinned(kernels::Weight& to, Role role, std::string_view name, std::uint32_t n_in, std::uint32_t n_out,
              Need need) override;
  void stacked(kernels::Weight& to, Role role, std::string_view name, std::uint32_t n_in, std::uint32_t n_out,
               std::uint32_t n_stacked) override;
  void vector(const float*& to, Role role, std::string_view name, std::uint32_t n, Need need) override;
  void vectors(const float*& to, Role role, std::string_view name, std::uint32_t n,
               std::uint32_t n_vectors) override;
  void scales(const float*& to, Role role, std::string_view name, std::uint32_t n) override;
  void units(std::uint32_t n_experts, std::vector<residency::UnitPartSpec> parts) override;

  Declaration result;
};

}  // namespace sluice::model
