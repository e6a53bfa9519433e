#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/device.hpp"

namespace sluice::cuda {

/// What the host tells kernels of a pass: written to memory of the host, copied to the same place on the
/// device before the next launches. Two areas: lists of pages, which grow while a sequence does, and behind
/// them all else, so that equal passes find equal addresses.
class Staging {
 public:
  Staging(std::size_t page_bytes, std::size_t list_bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Begins a new pass. Waits until the copies of the last are done.
  void begin();
  /// What was put so far stays for the whole pass; what is put from now on, until the next rewind().
  void keep() noexcept { kept_ = used_; }
  /// Forgets what was put after keep(). Only when the device is idle.
  void rewind() noexcept { used_ = sent_ = kept_; }
  /// Copies the list; returns where it will be on the device. Fails the check when there is no room
  /// (has_room).
  template <typename T>
  const T* put(std::span<const T> list) {
    return static_cast<const T*>(put_bytes(list.data(), list.size_bytes()));
  }
  /// The same for the next pages of the pass, of which the first got number 0.
  void put_pages(std::span<const std::uint32_t> pages);
  const std::uint32_t* pages() const noexcept {
    return reinterpret_cast<const std::uint32_t*>(device_.data());
  }
  std::uint32_t n_pages() const noexcept { return n_pages_; }
  bool has_room(std::size_t bytes) const noexcept;
  bool has_room_for_pages(std::size_t n) const noexcept;
  /// Copies what was put since the last call.
  void send(cudaStream_t stream);

 private:
  const void* put_bytes(const void* data, std::size_t bytes);

  std::size_t page_bytes_;
  Memory host_, device_;
  cudaEvent_t sent_event_ = nullptr;
  std::size_t used_ = 0, sent_ = 0, kept_ = 0;  ///< Of the second area.
  std::uint32_t n_pages_ = 0, n_pages_sent_ = 0;
};

}  // namespace sluice::cuda
