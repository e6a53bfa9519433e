#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops.hpp"

namespace sluice::engine {

/// The pages of one KV group: one allocation made at opening, handed out page by page, so that the budget
/// holds whatever the sequences do. Not thread-safe.
class KvPool {
 public:
  /// Throws Error(budget).
  KvPool(kernels::Ops& ops, std::uint64_t page_bytes, std::uint32_t n_pages);

  /// A page whose contents are undefined, or nothing when all are taken.
  std::optional<std::uint32_t> take() noexcept;
  void give_back(std::uint32_t page) noexcept;
  std::uint64_t n_free() const noexcept { return free_.size(); }
  std::uint64_t bytes() const noexcept { return bytes_; }
  kernels::KvRegion region() const noexcept { return region_; }

 private:
  kernels::KvRegion region_;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint32_t> free_;
};

/// Pages for `n_tokens` positions.
constexpr std::uint64_t pages_for(std::uint64_t n_tokens) noexcept {
  return (n_tokens + kernels::KvShape::page_tokens - 1) / kernels::KvShape::page_tokens;
}

}  // namespace sluice::engine
