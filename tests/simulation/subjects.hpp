#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "engine/model/model_impl.hpp"
#include "simulation/world.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace sluice::simulation {

/// A tiny model on disk, a copy of it, and the same model resident, which says what is right.
struct Subject {
  std::filesystem::path path, copy;
  std::shared_ptr<const std::vector<std::byte>> bytes;
  bool is_moe = false;
  bool is_recurrent = false;  ///< Going back may reach less than was asked for.
  std::unique_ptr<Model> reference;
  /// The smallest budget and the one that holds everything, for a context, sequences, chunk and threads.
  using Shape = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, int>;
  std::map<Shape, std::pair<std::uint64_t, std::uint64_t>> budgets;

  std::pair<std::uint64_t, std::uint64_t> budget_range(const OpenOptions& options);
};

/// The models that simulations run on, made when they are first asked for and then kept.
class Subjects {
 public:
  static constexpr std::uint32_t k_n = 24;
  static constexpr std::uint32_t k_max_ctx = 256, k_max_sequences = 4;

  /// `index` below k_n.
  Subject& get(std::uint32_t index);
  /// A fresh place for a heat file.
  std::filesystem::path heat_path();

 private:
  test::TempDir dir_;
  std::map<std::uint32_t, Subject> subjects_;
  std::uint64_t n_heat_ = 0;
};

}  // namespace sluice::simulation
