#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <stdexcept>

namespace sluice::test {

/// Lowers one of this process's own limits while it lives; needs no privilege.
class ResourceLimit {
 public:
  ResourceLimit(decltype(RLIMIT_NOFILE) resource, rlim_t soft) : resource_(resource) {
    if (getrlimit(resource_, &before_) != 0) throw std::runtime_error("cannot read a resource limit");
    rlimit low = before_;
    low.rlim_cur = soft;
    if (setrlimit(resource_, &low) != 0) throw std::runtime_error("cannot lower a resource limit");
  }
  ~ResourceLimit() { setrlimit(resource_, &before_); }
  ResourceLimit(const ResourceLimit&) = delete;
  ResourceLimit& operator=(const ResourceLimit&) = delete;

  /// A limit on descriptors that leaves `n_free` of them.
  static rlim_t descriptors(int n_free) {
    const int lowest = dup(STDERR_FILENO);
    if (lowest < 0) throw std::runtime_error("no descriptor is free");
    close(lowest);
    return static_cast<rlim_t>(lowest + n_free);
  }

 private:
  decltype(RLIMIT_NOFILE) resource_;
  rlimit before_{};
};

}  // namespace sluice::test
