#include "engine/model/kv_pool.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "residency/kv_plan.hpp"

namespace sluice::engine {
namespace {

constexpr std::uint32_t k_page_tokens = kernels::KvShape::page_tokens;

}  // namespace

KvPool::KvPool(kernels::Ops& ops, std::span<const model::KvGroup> groups,
               std::span<const std::uint32_t> n_pages)
    : ops_(ops) {
  SLUICE_CHECK(groups.size() == n_pages.size() && groups.size() <= kernels::k_max_kv_groups);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::uint64_t bytes = n_pages[i] * groups[i].page_bytes;
    windows_.push_back(groups[i].window);
    pages_.emplace_back(n_pages[i]);
    regions_.push_back({ops.allocate(bytes), groups[i].page_bytes});
    bytes_ += bytes;
  }
}

std::uint32_t KvPool::make_private(std::size_t group, std::uint32_t page) {
  KvPages& pages = pages_[group];
  if (!pages.is_shared(page)) return page;
  const auto copy = pages.take();
  SLUICE_CHECK(copy.has_value());
  const kernels::KvRegion& region = regions_[group];
  ops_.copy(region.base + *copy * region.page_bytes, region.base + page * region.page_bytes,
            region.page_bytes);
  pages.give_back(page);
  return *copy;
}

KvSequence::KvSequence(KvPool& pool, std::uint32_t n_ctx) : pool_(&pool) {
  for (std::size_t group = 0; group < pool.n_groups(); ++group)
    tables_[group].pages.reserve(pages_for(n_ctx));
}

std::uint64_t KvSequence::n_wanted(std::size_t group, std::uint32_t n_tokens,
                                   std::size_t n_more) const noexcept {
  if (pool_->window(group) != 0) return 0;
  const std::vector<std::uint32_t>& pages = tables_[group].pages;
  const std::uint64_t n_all = std::max<std::uint64_t>(pages_for(n_tokens + n_more), pages.size());
  const bool copies = n_tokens % k_page_tokens != 0 && n_more != 0 &&
                      pool_->pages(group).is_shared(pages[n_tokens / k_page_tokens]);
  return n_all - pages.size() + (copies ? 1 : 0);
}

void KvSequence::reserve(std::uint32_t n_tokens, std::uint32_t end) {
  for (std::size_t group = 0; group < pool_->n_groups(); ++group) {
    std::vector<std::uint32_t>& pages = tables_[group].pages;
    if (n_tokens % k_page_tokens != 0 && end > n_tokens) {
      std::uint32_t& last = pages[n_tokens / k_page_tokens];
      last = pool_->make_private(group, last);
    }
    while (pages.size() < pages_for(end)) {
      const auto page = pool_->pages(group).take();
      SLUICE_CHECK(page.has_value());
      pages.push_back(*page);
    }
  }
}

void KvSequence::leave_behind(std::uint32_t n_tokens) noexcept {
  for (std::size_t group = 0; group < pool_->n_groups(); ++group) {
    if (pool_->window(group) == 0) continue;
    const std::uint64_t kept = residency::kept_positions(pool_->window(group));
    if (n_tokens <= kept) continue;
    Table& table = tables_[group];
    for (const std::size_t end = (n_tokens - kept) / k_page_tokens; table.first < end; ++table.first) {
      pool_->pages(group).give_back(table.pages[table.first]);
      table.pages[table.first] = kernels::k_no_page;
    }
  }
}

std::uint32_t KvSequence::reachable(std::uint32_t n) const noexcept {
  for (std::size_t group = 0; group < pool_->n_groups(); ++group) {
    // The position after n - 1 sees as many positions as the window has, itself included.
    const std::uint64_t first = tables_[group].first * k_page_tokens;
    if (first != 0 && std::uint64_t{n} + 1 < first + pool_->window(group)) return 0;
  }
  return n;
}

std::uint32_t KvSequence::rewind(std::uint32_t n) noexcept {
  n = reachable(n);
  for (std::size_t group = 0; group < pool_->n_groups(); ++group) {
    Table& table = tables_[group];
    while (table.pages.size() > std::max<std::size_t>(pages_for(n), table.first)) {
      pool_->pages(group).give_back(table.pages.back());
      table.pages.pop_back();
    }
    if (n == 0) {
      table.pages.clear();  // What is left are places of pages that went earlier.
      table.first = 0;
    }
  }
  return n;
}

std::uint32_t KvSequence::share(const KvSequence& from, std::uint32_t n) noexcept {
  n = from.reachable(n);
  if (n == 0) return 0;
  for (std::size_t group = 0; group < pool_->n_groups(); ++group) {
    const Table& its = from.tables_[group];
    Table& table = tables_[group];
    table.first = its.first;
    table.pages.assign(its.pages.begin(), its.pages.begin() + static_cast<std::ptrdiff_t>(pages_for(n)));
    for (std::size_t i = table.first; i < table.pages.size(); ++i) pool_->pages(group).share(table.pages[i]);
  }
  return n;
}

void KvSequence::forget() noexcept {
  for (Table& table : tables_) table = {};
}

kernels::SequenceView KvSequence::view() const noexcept {
  kernels::SequenceView view;
  for (std::size_t group = 0; group < pool_->n_groups(); ++group) view.pages[group] = tables_[group].pages;
  return view;
}

}  // namespace sluice::engine
