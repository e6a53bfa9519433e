#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "platform/memory.hpp"

namespace sluice::platform {
namespace {

constexpr std::size_t k_huge_page_bytes = 2 * base::k_mib;
constexpr std::size_t k_min_huge_region_bytes = 4 * base::k_mib;
constexpr int k_madv_populate_write = 23;  // Linux 5.14; missing from older C libraries.
constexpr int k_max_populate_attempts = 16;

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

[[noreturn]] void fail_to_map(std::size_t bytes, int error) {
  base::fail(
      ErrorCode::budget,
      "the system refuses {} of memory: {} (lower --memory, or raise the limit on address space or the "
      "overcommit setting)",
      base::format_bytes(bytes), std::strerror(error));
}

std::byte* map_pages(std::size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail_to_map(bytes, errno);
  // A direct read that is under way when the program forks might write to the child's copy of a page instead
  // of ours (open(2), O_DIRECT), and a child that copies weights on write would double them.
  madvise(data, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(data);
}

// Maps `bytes` at an address where huge pages start, and asks for them up to the last whole one. The rest is
// kept in normal pages: a huge page there would make the region larger than its size, and a budget counts
// every byte.
std::byte* map_huge(std::size_t bytes) {
  const auto wide = base::checked_add(bytes, k_huge_page_bytes);
  if (!wide) fail_to_map(bytes, ENOMEM);
  std::byte* const start = map_pages(*wide);
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t head = base::align_up(address, k_huge_page_bytes) - address;
  if (head != 0) munmap(start, head);
  std::byte* const data = start + head;
  munmap(data + bytes, k_huge_page_bytes - head);
  const std::size_t huge_bytes = base::align_down(bytes, k_huge_page_bytes);
  // Advice only: a kernel without huge pages refuses, which costs speed and nothing else.
  madvise(data, huge_bytes, MADV_HUGEPAGE);
  if (huge_bytes != bytes) madvise(data + huge_bytes, bytes - huge_bytes, MADV_NOHUGEPAGE);
  return data;
}

// Returns 0 or an errno.
int populate_part(std::byte* data, std::size_t bytes) {
  for (int attempt = 0; attempt < k_max_populate_attempts; ++attempt) {
    if (madvise(data, bytes, k_madv_populate_write) == 0) return 0;
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == ENOMEM) return ENOMEM;
    break;
  }
  // The first and the last page may hold somebody's bytes, and a read may be writing to them right now: one
  // atomic step that adds nothing can lose nobody's write. The compiler must not see the zero, or it may turn
  // the step into a plain read, which brings no page.
  volatile unsigned char nothing = 0;
  for (std::size_t at = 0; at < bytes; at += page_bytes())
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(data + at), nothing, __ATOMIC_RELAXED);
  return 0;
}

// Makes every page present and writable; what they hold stays. Returns 0 or an errno. In parts, because the
// kernel does not run signal handlers within one.
int populate(std::byte* data, std::size_t bytes) {
  constexpr std::size_t k_part_bytes = 64 * base::k_mib;
  std::size_t at = 0;
  while (at < bytes) {
    // Parts end where huge pages do.
    const auto address = reinterpret_cast<std::uintptr_t>(data + at);
    const std::size_t part =
        std::min(bytes - at, base::align_down(address + k_part_bytes, k_huge_page_bytes) - address);
    const int error = populate_part(data + at, part);
    if (error != 0) return error;
    at += part;
  }
  return 0;
}

}  // namespace

MappedRegion MappedRegion::allocate(std::size_t bytes, bool prefault) {
  MappedRegion region;
  if (bytes == 0) return region;
  const auto mapped = base::checked_align_up(bytes, page_bytes());
  if (!mapped) fail_to_map(bytes, ENOMEM);
  if (bytes >= k_min_huge_region_bytes) {
    region.data_ = map_huge(*mapped);
  } else {
    region.data_ = map_pages(*mapped);
    // The kernel merges neighbouring mappings and may be set to use huge pages everywhere.
    madvise(region.data_, *mapped, MADV_NOHUGEPAGE);
  }
  region.bytes_ = bytes;
  if (prefault) {
    const int error = populate(region.data_, *mapped);
    if (error != 0) fail_to_map(bytes, error);
  }
  return region;
}

MappedRegion::~MappedRegion() {
  if (data_ != nullptr) munmap(data_, base::align_up(bytes_, page_bytes()));
}

MappedRegion::MappedRegion(MappedRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedRegion& MappedRegion::operator=(MappedRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

bool MappedRegion::restore_pages(std::size_t offset, std::size_t bytes) noexcept {
  SLUICE_CHECK(offset <= bytes_ && bytes <= bytes_ - offset);
  if (bytes == 0) return true;
  const std::size_t first = base::align_down(offset, page_bytes());
  const std::size_t last = base::align_up(offset + bytes, page_bytes());
  // release_pages() asked for small pages around the hole.
  const std::size_t huge_first = base::align_up(first, k_huge_page_bytes);
  const std::size_t huge_last = base::align_down(last, k_huge_page_bytes);
  if (bytes_ >= k_min_huge_region_bytes && huge_first < huge_last)
    madvise(data_ + huge_first, huge_last - huge_first, MADV_HUGEPAGE);
  if (populate(data_ + first, last - first) == 0) return true;
  // Some of it may have come, which nobody would count.
  release_pages(offset, bytes);
  return false;
}

void MappedRegion::release_pages(std::size_t offset, std::size_t bytes) noexcept {
  SLUICE_CHECK(offset <= bytes_ && bytes <= bytes_ - offset);
  if (bytes == 0) return;
  const std::size_t end = offset + bytes;
  // The last page belongs to this region alone, so it may go as a whole.
  const std::size_t last =
      end == bytes_ ? base::align_up(end, page_bytes()) : base::align_down(end, page_bytes());
  const std::size_t first = base::align_up(offset, page_bytes());
  if (first >= last) {
    std::memset(data_ + offset, 0, bytes);
    return;
  }
  std::memset(data_ + offset, 0, first - offset);
  if (last < end) std::memset(data_ + last, 0, end - last);
  if (madvise(data_ + first, last - first, MADV_DONTNEED) != 0) {
    std::memset(data_ + first, 0, std::min(last, bytes_) - first);  // Locked pages stay, but read as zero.
    return;
  }
  // The kernel's collapse of half-empty huge pages would silently fill the hole again.
  const std::size_t mapped = base::align_up(bytes_, page_bytes());
  const std::size_t hole_begin = base::align_down(first, k_huge_page_bytes);
  const std::size_t hole_end = std::min<std::size_t>(base::align_up(last, k_huge_page_bytes), mapped);
  if (bytes_ >= k_min_huge_region_bytes) madvise(data_ + hole_begin, hole_end - hole_begin, MADV_NOHUGEPAGE);
}

}  // namespace sluice::platform
