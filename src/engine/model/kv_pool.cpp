#include "engine/model/kv_pool.hpp"

namespace sluice::engine {

KvPool::KvPool(kernels::Ops& ops, std::uint64_t page_bytes, std::uint32_t n_pages)
    : bytes_(n_pages * page_bytes) {
  region_ = {ops.allocate(bytes_), page_bytes};
  free_.reserve(n_pages);
  // Handed out from the back: low pages first, so that a short conversation touches little memory.
  for (std::uint32_t page = n_pages; page > 0; --page) free_.push_back(page - 1);
}

std::optional<std::uint32_t> KvPool::take() noexcept {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t page = free_.back();
  free_.pop_back();
  return page;
}

void KvPool::give_back(std::uint32_t page) noexcept {
  free_.push_back(page);
}

}  // namespace sluice::engine
