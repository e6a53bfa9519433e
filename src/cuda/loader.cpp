#include "cuda/loader.hpp"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/error.hpp"
#include "cuda/library.hpp"

namespace sluice::cuda {
namespace {

constexpr const char* k_library = "libsluice_cuda.so";

/// Stays open: kernels that were launched refer to it. Null, and why, when there is none.
void* open_library(std::string& why) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::array<std::string, 3> names = {(folder / k_library).string(),
                                            (folder.parent_path() / "lib" / k_library).string(), k_library};
  for (const std::string& name : names) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    // One that is there and cannot be opened says more than one that is not there.
    const char* message = dlerror();
    if (why.empty() || std::filesystem::exists(name, error)) why = message == nullptr ? "unknown" : message;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<kernels::Ops> make_ops(int device) {
  std::string why;
  void* library = open_library(why);
  if (library == nullptr) {
    base::fail(
        ErrorCode::unsupported,
        "the GPU cannot be used: {} was not opened ({}); install it beside the program, build with CUDA "
        "(SLUICE_CUDA=ON), or run on the CPU",
        k_library, why);
  }
  const auto make = reinterpret_cast<MakeOps*>(dlsym(library, k_make_ops));
  if (make == nullptr) {
    base::fail(ErrorCode::unsupported,
               "the GPU cannot be used: {} is of another version of the program; install the "
               "one it was built with, or run on the CPU",
               k_library);
  }
  return std::unique_ptr<kernels::Ops>(make(device));
}

}  // namespace sluice::cuda
