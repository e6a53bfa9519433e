#include <fmt/core.h>

#include "base/error.hpp"
#include "storage/backend.hpp"

namespace sluice::storage {

ChosenBackend make_backend(IoBackend kind) {
  if (kind == IoBackend::pread) return {make_pread_backend(k_queue_depth, k_pread_threads), "pread"};
  std::string reason;
  if (auto backend = make_uring_backend(k_queue_depth, &reason)) {
    std::string name = backend->name();
    return {std::move(backend), std::move(name)};
  }
  if (kind == IoBackend::uring) {
    base::fail(ErrorCode::unsupported,
               "io_uring was asked for but cannot be used: {}; use --io auto or --io pread", reason);
  }
  return {make_pread_backend(k_queue_depth, k_pread_threads), fmt::format("pread (io_uring: {})", reason)};
}

}  // namespace sluice::storage
