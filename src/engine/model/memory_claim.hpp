#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "platform/memory.hpp"
#include "residency/governor.hpp"

namespace sluice::engine {

using ReadLimits = std::function<platform::MemoryLimits()>;

/// What is free of the group or machine that leaves least, and its size; nothing when nothing is known.
std::optional<residency::PressureFacts> memory_facts(const platform::MemoryLimits& limits);

/// Takes memory for a model that is being opened: with a look at what the system has left before each part,
/// because others may take it at the same time. Used by one thread.
class MemoryClaim {
 public:
  /// How long must_take() waits for others while nothing changes.
  static constexpr std::uint64_t k_wait_ns = 3'000'000'000;

  explicit MemoryClaim(ReadLimits read_limits, std::uint64_t wait_ns = k_wait_ns)
      : read_limits_(std::move(read_limits)), wait_ns_(wait_ns) {}

  /// What the plan has promised to things that are touched later. may_take() leaves it free.
  void set_later_bytes(std::uint64_t bytes) noexcept { later_bytes_ = bytes; }
  /// Whether `bytes` more leave the low-water mark free, or more where others take memory fast.
  bool may_take(std::uint64_t bytes);
  /// For what the model cannot do without. It goes down to half of the mark, at which other models see that
  /// they should give way, and waits for them.
  bool must_take(std::uint64_t bytes);

 private:
  /// Memory as it is now, and what others have taken since the look before.
  std::optional<residency::PressureFacts> look();

  ReadLimits read_limits_;
  std::uint64_t wait_ns_;
  std::uint64_t later_bytes_ = 0;
  std::uint64_t allowed_bytes_ = 0;  ///< May be taken before the next look.
  std::uint64_t looked_ns_ = 0;
  std::uint64_t seen_free_bytes_ = 0;  ///< At that look.
  std::uint64_t granted_bytes_ = 0;    ///< Since.
};

}  // namespace sluice::engine
