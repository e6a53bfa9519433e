#include "cuda/staging.hpp"

#include <cstring>

#include "base/check.hpp"

namespace sluice::cuda {
namespace {

constexpr std::size_t k_alignment = 64;

std::size_t align_up(std::size_t n) noexcept {
  return (n + k_alignment - 1) / k_alignment * k_alignment;
}

}  // namespace

Staging::Staging(std::size_t page_bytes, std::size_t list_bytes)
    : page_bytes_(align_up(page_bytes)),
      host_(page_bytes_ + align_up(list_bytes), Memory::Where::host),
      device_(host_.bytes(), Memory::Where::device) {
  check(cudaEventCreateWithFlags(&sent_event_, cudaEventDisableTiming), "making an event");
}

Staging::~Staging() {
  if (sent_event_ != nullptr) cudaEventDestroy(sent_event_);
}

void Staging::begin() {
  check(cudaEventSynchronize(sent_event_), "waiting for the GPU");
  used_ = sent_ = kept_ = 0;
  n_pages_ = n_pages_sent_ = 0;
}

bool Staging::has_room(std::size_t bytes) const noexcept {
  return page_bytes_ + used_ + align_up(bytes) <= host_.bytes();
}

bool Staging::has_room_for_pages(std::size_t n) const noexcept {
  return (n_pages_ + n) * sizeof(std::uint32_t) <= page_bytes_;
}

const void* Staging::put_bytes(const void* data, std::size_t bytes) {
  SLUICE_CHECK(has_room(bytes));
  const std::size_t at = page_bytes_ + used_;
  if (bytes > 0) std::memcpy(host_.data() + at, data, bytes);
  used_ += align_up(bytes);
  return device_.data() + at;
}

void Staging::put_pages(std::span<const std::uint32_t> pages) {
  SLUICE_CHECK(has_room_for_pages(pages.size()));
  if (!pages.empty())
    std::memcpy(host_.data() + n_pages_ * sizeof(std::uint32_t), pages.data(), pages.size_bytes());
  n_pages_ += static_cast<std::uint32_t>(pages.size());
}

void Staging::send(cudaStream_t stream) {
  const auto copy = [&](std::size_t begin, std::size_t end) {
    if (begin == end) return;
    check(cudaMemcpyAsync(device_.data() + begin, host_.data() + begin, end - begin, cudaMemcpyHostToDevice,
                          stream),
          "copying lists");
  };
  if (n_pages_ == n_pages_sent_ && used_ == sent_) return;
  copy(n_pages_sent_ * sizeof(std::uint32_t), n_pages_ * sizeof(std::uint32_t));
  copy(page_bytes_ + sent_, page_bytes_ + used_);
  n_pages_sent_ = n_pages_;
  sent_ = used_;
  check(cudaEventRecord(sent_event_, stream), "recording an event");
}

}  // namespace sluice::cuda
