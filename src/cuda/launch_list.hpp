#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/kernels/args.hpp"

namespace sluice::cuda {

/// Kernels that were asked for and not launched yet. A list that came before is launched as one graph: passes
/// that decode repeat, since what varies lies in memory. Lists are compared whole, so a replay does exactly
/// what single launches would do.
class LaunchList {
 public:
  /// `overlaps`: a kernel may start before the one before it is over, since all wait for it themselves.
  explicit LaunchList(bool overlaps) : overlaps_(overlaps) {}
  ~LaunchList() { forget(); }
  LaunchList(const LaunchList&) = delete;
  LaunchList& operator=(const LaunchList&) = delete;

  struct Grid {
    std::uint32_t x = 1, y = 1, z = 1;
  };
  /// `args` is copied, padding too: make it with zeroed<Args>().
  template <typename Args>
  void add(const Kernel& kernel, Grid grid, const Args& args) {
    add_bytes(kernel, grid, &args, sizeof args);
  }
  bool empty() const noexcept { return launches_.empty(); }
  std::size_t size() const noexcept { return launches_.size(); }
  /// The arguments of the last launch, to be changed, when it is of this kernel; else null.
  template <typename Args>
  Args* last(const Kernel& kernel) noexcept {
    if (launches_.empty() || launches_.back().function != kernel.function) return nullptr;
    return reinterpret_cast<Args*>(bytes_.data() + launches_.back().args);
  }
  void drop_last() noexcept {
    bytes_.resize(launches_.back().args);
    launches_.pop_back();
  }
  /// Launches all and empties the list.
  void run(cudaStream_t stream);
  /// Forgets all graphs: addresses have changed.
  void forget() noexcept;

 private:
  struct Launch {
    const void* function;
    Grid grid;
    std::uint32_t block;
    std::uint32_t args;  ///< Where they begin in the bytes.
  };
  struct Known {
    std::vector<Launch> launches;
    std::vector<std::byte> bytes;
    cudaGraphExec_t graph = nullptr;  ///< Null: it was seen once.
    std::uint64_t last_use = 0;
  };
  void add_bytes(const Kernel& kernel, Grid grid, const void* args, std::size_t n);
  void launch_all(cudaStream_t stream);
  bool is_same(const Known& known) const noexcept;
  void make_graph(Known& known, cudaStream_t stream);

  std::vector<Launch> launches_;
  std::vector<std::byte> bytes_;
  std::vector<Known> known_;
  std::uint64_t n_runs_ = 0;
  bool overlaps_;
};

/// Arguments without a stray bit, so that they can be compared.
template <typename Args>
Args zeroed() noexcept {
  Args args;
  std::memset(static_cast<void*>(&args), 0, sizeof args);
  return args;
}

}  // namespace sluice::cuda
