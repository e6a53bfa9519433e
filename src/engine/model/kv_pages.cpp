#include "engine/model/kv_pages.hpp"

#include "base/check.hpp"

namespace sluice::engine {

KvPages::KvPages(std::uint32_t n_pages) : n_users_(n_pages, 0) {
  free_.reserve(n_pages);
  // Handed out from the back: low pages first, so that a short conversation touches little memory.
  for (std::uint32_t page = n_pages; page > 0; --page) free_.push_back(page - 1);
}

std::optional<std::uint32_t> KvPages::take() noexcept {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t page = free_.back();
  free_.pop_back();
  n_users_[page] = 1;
  return page;
}

void KvPages::share(std::uint32_t page) noexcept {
  SLUICE_CHECK(page < n_users_.size() && n_users_[page] != 0);
  ++n_users_[page];
}

void KvPages::give_back(std::uint32_t page) noexcept {
  SLUICE_CHECK(page < n_users_.size() && n_users_[page] != 0);
  if (--n_users_[page] == 0) free_.push_back(page);
}

}  // namespace sluice::engine
