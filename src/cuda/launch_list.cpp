#include "cuda/launch_list.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace sluice::cuda {
namespace {

constexpr std::size_t k_max_known = 32;
/// A graph is worth its making from here on.
constexpr std::size_t k_min_launches = 4;
constexpr std::size_t k_alignment = 16;

}  // namespace

void LaunchList::add_bytes(const Kernel& kernel, Grid grid, const void* args, std::size_t n) {
  SLUICE_CHECK(kernel.function != nullptr && kernel.block > 0);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const std::size_t at = bytes_.size();
  bytes_.resize(at + (n + k_alignment - 1) / k_alignment * k_alignment);
  std::memcpy(bytes_.data() + at, args, n);
  launches_.push_back({kernel.function, grid, kernel.block, static_cast<std::uint32_t>(at)});
}

bool LaunchList::is_same(const Known& known) const noexcept {
  return known.launches.size() == launches_.size() && known.bytes.size() == bytes_.size() &&
         std::memcmp(known.bytes.data(), bytes_.data(), bytes_.size()) == 0 &&
         std::equal(launches_.begin(), launches_.end(), known.launches.begin(),
                    [](const Launch& a, const Launch& b) {
                      return a.function == b.function && a.block == b.block && a.grid.x == b.grid.x &&
                             a.grid.y == b.grid.y && a.grid.z == b.grid.z;
                    });
}

void LaunchList::launch_all(cudaStream_t stream) {
  for (const Launch& launch : launches_) {
    void* args[] = {bytes_.data() + launch.args};
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(launch.grid.x, launch.grid.y, launch.grid.z);
    config.blockDim = dim3(launch.block);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlaps_ ? 1 : 0;
    check(cudaLaunchKernelExC(&config, launch.function, args), "launching a kernel");
  }
}

void LaunchList::make_graph(Known& known, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a graph");
  launch_all(stream);
  check(cudaStreamEndCapture(stream, &graph), "ending a graph");
  const cudaError_t result = cudaGraphInstantiate(&known.graph, graph, 0);
  cudaGraphDestroy(graph);
  check(result, "making a graph");
}

void LaunchList::run(cudaStream_t stream) {
  if (launches_.empty()) return;
  ++n_runs_;
  if (launches_.size() < k_min_launches) {
    launch_all(stream);
  } else {
    auto found =
        std::find_if(known_.begin(), known_.end(), [this](const Known& known) { return is_same(known); });
    if (found == known_.end()) {
      launch_all(stream);
      if (known_.size() == k_max_known) {
        const auto oldest =
            std::min_element(known_.begin(), known_.end(),
                             [](const Known& a, const Known& b) { return a.last_use < b.last_use; });
        if (oldest->graph != nullptr) cudaGraphExecDestroy(oldest->graph);
        known_.erase(oldest);
      }
      known_.push_back({launches_, bytes_, nullptr, n_runs_});
    } else {
      if (found->graph == nullptr) make_graph(*found, stream);
      found->last_use = n_runs_;
      check(cudaGraphLaunch(found->graph, stream), "launching a graph");
    }
  }
  launches_.clear();
  bytes_.clear();
}

void LaunchList::forget() noexcept {
  for (const Known& known : known_) {
    if (known.graph != nullptr) cudaGraphExecDestroy(known.graph);
  }
  known_.clear();
}

}  // namespace sluice::cuda
