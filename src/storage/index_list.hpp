#pragma once

#include <cstdint>
#include <vector>

#include "base/check.hpp"

namespace sluice::storage {

constexpr std::uint32_t k_no_index = UINT32_MAX;

/// Neighbours of one pool entry in the list it is in.
struct Link {
  std::uint32_t next = k_no_index;
  std::uint32_t previous = k_no_index;
};

/// A doubly linked list of indexes into a pool. The links lie with the pool, so lists never allocate; an
/// entry is in at most one list of its pool at a time.
class IndexList {
 public:
  explicit IndexList(std::vector<Link>& links) : links_(&links) {}

  bool empty() const noexcept { return first_ == k_no_index; }
  std::size_t size() const noexcept { return size_; }
  std::uint32_t front() const noexcept { return first_; }
  std::uint32_t after(std::uint32_t index) const noexcept { return (*links_)[index].next; }

  void push_back(std::uint32_t index) noexcept { link(index, last_, k_no_index); }
  void push_front(std::uint32_t index) noexcept { link(index, k_no_index, first_); }

  void remove(std::uint32_t index) noexcept {
    const Link at = (*links_)[index];
    (at.previous == k_no_index ? first_ : (*links_)[at.previous].next) = at.next;
    (at.next == k_no_index ? last_ : (*links_)[at.next].previous) = at.previous;
    --size_;
  }
  std::uint32_t pop_front() noexcept {
    SLUICE_CHECK(!empty());
    const std::uint32_t index = first_;
    remove(index);
    return index;
  }

 private:
  void link(std::uint32_t index, std::uint32_t previous, std::uint32_t next) noexcept {
    (*links_)[index] = {next, previous};
    (previous == k_no_index ? first_ : (*links_)[previous].next) = index;
    (next == k_no_index ? last_ : (*links_)[next].previous) = index;
    ++size_;
  }

  std::vector<Link>* links_;
  std::uint32_t first_ = k_no_index;
  std::uint32_t last_ = k_no_index;
  std::size_t size_ = 0;
};

}  // namespace sluice::storage
