#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "kernels/ops.hpp"

namespace sluice::model {

/// The memory of a pass: rows of floats on the device and small lists of the host, taken one behind the other
/// and given back together by going back to a mark. Without memory it counts, so that the same code says what
/// a pass will take and takes it.
class Arena {
 public:
  struct Mark {
    std::uint64_t device = 0, host = 0;
  };
  /// Counts only: what it hands out must not be touched.
  Arena() = default;
  /// Both 64-byte aligned and as large as a count said, in bytes; taking more is a programmer error.
  Arena(std::byte* device, std::byte* host, Mark size) : device_(device), host_(host), size_(size) {}

  /// [n_rows, n_cols] floats with undefined values.
  kernels::Rows rows(std::uint32_t n_rows, std::uint32_t n_cols) {
    auto* data = reinterpret_cast<float*>(take(device_, size_.device, at_.device, peak_.device,
                                               std::uint64_t{n_rows} * n_cols * sizeof(float)));
    return {data, n_rows, n_cols, n_cols};
  }
  /// A list of `n` plain values of the host, undefined.
  template <typename T>
  std::span<T> list(std::size_t n) {
    auto* data = reinterpret_cast<T*>(take(host_, size_.host, at_.host, peak_.host, n * sizeof(T)));
    return {data, data == nullptr ? 0 : n};
  }

  Mark mark() const noexcept { return at_; }
  void back_to(Mark mark) noexcept { at_ = mark; }
  /// The most that was taken at once, in bytes.
  Mark peak() const noexcept { return peak_; }

 private:
  static std::byte* take(std::byte* base, std::uint64_t size, std::uint64_t& at, std::uint64_t& peak,
                         std::uint64_t bytes) {
    constexpr std::uint64_t k_alignment = 64;
    std::byte* const data = base == nullptr ? nullptr : base + at;
    at += base::align_up(bytes, k_alignment);
    SLUICE_CHECK(base == nullptr || at <= size);
    peak = std::max(peak, at);
    return data;
  }

  std::byte* device_ = nullptr;
  std::byte* host_ = nullptr;
  Mark size_, at_, peak_;
};

/// Gives back what is taken while it lives.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.back_to(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace sluice::model
