#pragma once

#include "kernels/ops.hpp"

// Between the program and libsluice_cuda.so, which are built together.
namespace sluice::cuda {

/// Made with `new`. Throws as make_ops() (loader.hpp).
using MakeOps = kernels::Ops*(int device);

/// The name changes with the version, so that a library of another one is not found.
#define SLUICE_CUDA_MAKE_OPS sluice_cuda_make_ops_1
constexpr const char* k_make_ops = "sluice_cuda_make_ops_1";

}  // namespace sluice::cuda
