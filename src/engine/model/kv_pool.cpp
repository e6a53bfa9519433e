#include "engine/model/kv_pool.hpp"

namespace sluice::engine {

KvPool::KvPool(kernels::Ops& ops, const kernels::KvShape& shape, std::uint64_t n_pages)
    : bytes_(n_pages * shape.page_bytes()) {
  std::byte* data = ops.allocate(bytes_);
  free_.reserve(n_pages);
  // Handed out from the back: low addresses first, so that a short conversation touches little memory.
  for (std::uint64_t page = n_pages; page > 0; --page)
    free_.push_back(data + (page - 1) * shape.page_bytes());
}

std::byte* KvPool::take() noexcept {
  if (free_.empty()) return nullptr;
  std::byte* page = free_.back();
  free_.pop_back();
  return page;
}

void KvPool::give_back(std::byte* page) noexcept {
  free_.push_back(page);
}

}  // namespace sluice::engine
