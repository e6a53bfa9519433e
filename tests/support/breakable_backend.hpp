#pragma once

#include <cerrno>
#include <memory>
#include <span>
#include <utility>

#include "storage/backend.hpp"

namespace sluice::test {

/// Passes everything through, but turns every completion into EIO while armed.
class BreakableBackend : public storage::Backend {
 public:
  BreakableBackend(std::unique_ptr<storage::Backend> inner, const bool* armed)
      : inner_(std::move(inner)), armed_(armed) {}
  const char* name() const noexcept override { return "breakable"; }
  std::size_t submit(std::span<const storage::ReadOp> ops) override { return inner_->submit(ops); }
  std::size_t wait(std::span<storage::Completion> out, std::size_t min_count) override {
    const std::size_t n = inner_->wait(out, min_count);
    for (std::size_t i = 0; i < n && *armed_; ++i) out[i].result = -EIO;
    return n;
  }
  std::size_t in_flight() const noexcept override { return inner_->in_flight(); }
  std::size_t capacity() const noexcept override { return inner_->capacity(); }

 private:
  std::unique_ptr<storage::Backend> inner_;
  const bool* armed_;
};

}  // namespace sluice::test
