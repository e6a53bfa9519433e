#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/random.hpp"
#include "storage/backend.hpp"

namespace sluice::test {

/// Which reads fail.
struct ReadFaults {
  bool is_armed = false;
  std::uint64_t one_of = 1;  ///< While armed, one of so many, by chance.
  base::SplitMix64 random{7};
  std::size_t n_failed = 0;
};

/// Passes everything through, but turns the completions that are to fail into EIO.
class FailingBackend : public storage::Backend {
 public:
  /// `faults` may change between calls and must outlive the backend.
  FailingBackend(std::unique_ptr<storage::Backend> inner, ReadFaults& faults)
      : inner_(std::move(inner)), faults_(faults) {}
  const char* name() const noexcept override { return "failing"; }
  std::size_t submit(std::span<const storage::ReadOp> ops) override { return inner_->submit(ops); }
  std::size_t wait(std::span<storage::Completion> out, std::size_t min_count) override {
    const std::size_t n = inner_->wait(out, min_count);
    for (std::size_t i = 0; i < n; ++i) {
      if (!faults_.is_armed || faults_.random.below(faults_.one_of) != 0) continue;
      out[i].result = -EIO;
      ++faults_.n_failed;
    }
    return n;
  }
  std::size_t in_flight() const noexcept override { return inner_->in_flight(); }
  std::size_t capacity() const noexcept override { return inner_->capacity(); }

 private:
  std::unique_ptr<storage::Backend> inner_;
  ReadFaults& faults_;
};

}  // namespace sluice::test
