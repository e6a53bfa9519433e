#pragma once

#include <memory>

#include "base/thread_pool.hpp"
#include "kernels/ops.hpp"
#include "platform/cpu_features.hpp"

namespace sluice::kernels {

/// The operation table on the CPU. Borrows the pool, which must outlive it. Thread-compatible.
std::unique_ptr<Ops> make_cpu_ops(base::ThreadPool& pool, platform::Isa isa);

}  // namespace sluice::kernels
