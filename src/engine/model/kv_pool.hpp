#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.hpp"

namespace sluice::engine {

/// All KV pages of a model: one allocation made at opening, handed out page by page, so that the budget holds
/// whatever the sequences do. Not thread-safe.
class KvPool {
 public:
  /// Throws Error(budget).
  KvPool(kernels::Ops& ops, const kernels::KvShape& shape, std::uint64_t n_pages);

  /// A page whose contents are undefined, or null when all are taken.
  std::byte* take() noexcept;
  void give_back(std::byte* page) noexcept;
  std::uint64_t n_free() const noexcept { return free_.size(); }
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
  std::vector<std::byte*> free_;
};

/// Pages for `n_tokens` positions.
constexpr std::uint64_t pages_for(std::uint64_t n_tokens) noexcept {
  return (n_tokens + kernels::KvShape::page_tokens - 1) / kernels::KvShape::page_tokens;
}

}  // namespace sluice::engine
