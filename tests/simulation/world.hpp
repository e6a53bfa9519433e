#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "base/random.hpp"
#include "platform/memory.hpp"
#include "storage/backend.hpp"

namespace sluice::simulation {

/// Everything outside the engine, simulated: the drive, the machine's memory and the clock, all drawn from
/// one seed. One thread uses it at a time.
class World {
 public:
  /// What the machine's memory does.
  enum class Weather { plenty, tight, breathing };

  explicit World(std::uint64_t seed);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  base::SplitMix64 random;

  bool happens(double rate) noexcept { return random.uniform() < rate; }
  /// From `low` to `high`, both included.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) noexcept {
    return low + random.below(high - low + 1);
  }

  /// Holds the contents of a file, which the simulated drive serves from then on.
  void add_file(const std::filesystem::path& path, std::shared_ptr<const std::vector<std::byte>> bytes);
  /// A drive with faults that readers must get over (short reads, interrupts, delays, another order, a full
  /// queue), in a measure drawn now.
  std::unique_ptr<storage::Backend> make_backend();
  /// From now on reads of a file end with EIO at this rate.
  void set_failing(const std::filesystem::path& path, double rate);
  std::uint64_t n_failed_reads() const noexcept { return n_failed_; }
  /// Of all backends: reads they took, and bytes they delivered, direct ones in whole blocks.
  std::uint64_t n_reads() const noexcept { return n_reads_; }
  std::uint64_t served_bytes() const noexcept { return served_bytes_; }

  /// The weather, and what the machine then says of its memory at each look.
  void set_weather(Weather weather) noexcept;
  platform::MemoryLimits memory_limits() noexcept;

  /// Raises the flag after so many reads or layers from now.
  void cancel_after(std::uint64_t n_events) noexcept { n_events_ = n_events; }
  void count_event() noexcept {
    if (n_events_ != 0 && --n_events_ == 0) cancel = true;
  }
  void calm() noexcept {
    n_events_ = 0;
    cancel = false;
  }
  std::atomic<bool> cancel{false};

  /// The clock of the one world that exists: each look takes a moment.
  static std::uint64_t now_ns() noexcept;
  void pass_time(std::uint64_t ns) noexcept { now_ns_ += ns; }

 private:
  friend class Drive;
  friend class Meter;
  struct Content {
    std::shared_ptr<const std::vector<std::byte>> bytes;
    std::uint32_t block_bytes = 1;  ///< That direct reads are counted in.
    double failure_rate = 0;
  };
  const Content& content_of(int fd) const;

  std::map<ino_t, Content> files_;
  std::uint64_t n_failed_ = 0, n_reads_ = 0, served_bytes_ = 0;
  std::uint64_t n_events_ = 0;
  std::uint64_t now_ns_ = 1'000'000;
  Weather weather_ = Weather::plenty;
  std::uint64_t free_bytes_ = 0;
};

}  // namespace sluice::simulation
