#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sluice::engine {

/// Who uses which pages of a KV group: pages have numbers and counts of users. Pure bookkeeping, not
/// thread-safe. A page that somebody uses must be named; anything else is a programmer error.
class KvPages {
 public:
  explicit KvPages(std::uint32_t n_pages);

  /// A page with one user, whose contents are undefined, or nothing when all are used.
  std::optional<std::uint32_t> take() noexcept;
  /// One user more.
  void share(std::uint32_t page) noexcept;
  /// One user less; the page is free when it was the last.
  void give_back(std::uint32_t page) noexcept;

  bool is_shared(std::uint32_t page) const noexcept { return n_users_[page] > 1; }
  std::uint32_t n_users(std::uint32_t page) const noexcept { return n_users_[page]; }
  std::uint32_t n_free() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t n_pages() const noexcept { return static_cast<std::uint32_t>(n_users_.size()); }

 private:
  std::vector<std::uint32_t> n_users_;  ///< By page.
  std::vector<std::uint32_t> free_;
};

}  // namespace sluice::engine
