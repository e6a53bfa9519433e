#pragma once

#include <memory>

#include "kernels/ops.hpp"

namespace sluice::cuda {

/// The operation table on an NVIDIA GPU, by its number. It lies in a library of its own, libsluice_cuda.so,
/// which is looked for beside the program, in ../lib of there, and where the system looks, so that the
/// program runs on machines without a driver. Throws Error(unsupported) that says what is missing: the
/// library, the driver, a GPU.
std::unique_ptr<kernels::Ops> make_ops(int device);

}  // namespace sluice::cuda
