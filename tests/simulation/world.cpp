#include "simulation/world.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "storage/file.hpp"

namespace sluice::simulation {
namespace {

World* current_world = nullptr;

constexpr std::uint64_t k_total_bytes = std::uint64_t{16} << 20;

ino_t inode_of(const std::filesystem::path& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) throw std::runtime_error("cannot stat " + path.string());
  return status.st_ino;
}

}  // namespace

/// A drive in memory. What a read delivers is written when it ends and not before: until then its buffer
/// holds rubbish, so whoever looks too early computes rubbish.
class Drive final : public storage::Backend {
 public:
  explicit Drive(World& world) : world_(world), capacity_(world.between(1, 64)) {}
  const char* name() const noexcept override { return "simulated"; }
  std::size_t in_flight() const noexcept override { return ops_.size(); }
  std::size_t capacity() const noexcept override { return capacity_; }

  std::size_t submit(std::span<const storage::ReadOp> ops) override {
    const std::size_t n = std::min(ops.size(), capacity_ - ops_.size());
    for (const storage::ReadOp& op : ops.first(n)) {
      std::memset(op.destination, 0x7f, op.length);
      ops_.push_back(op);
    }
    return n;
  }

  std::size_t wait(std::span<storage::Completion> out, std::size_t min_count) override {
    SLUICE_CHECK(min_count <= ops_.size() && min_count <= out.size());
    const std::size_t most = std::min(out.size(), ops_.size());
    std::size_t n = min_count;
    while (n < most && world_.happens(0.4)) ++n;
    for (std::size_t i = 0; i < n; ++i) out[i] = end_one();
    return n;
  }

 private:
  storage::Completion end_one() {
    world_.pass_time(world_.between(1'000, 200'000));
    const auto pick = ops_.begin() +
                      static_cast<std::ptrdiff_t>(world_.happens(0.7) ? 0 : world_.random.below(ops_.size()));
    const storage::ReadOp op = *pick;
    ops_.erase(pick);
    const World::Content& content = world_.content_of(op.fd);
    if (world_.happens(content.failure_rate)) return {op.tag, -EIO};
    const std::uint64_t size = content.bytes->size();
    const std::uint64_t n = op.offset >= size ? 0 : std::min<std::uint64_t>(op.length, size - op.offset);
    if (n != 0) std::memcpy(op.destination, content.bytes->data() + op.offset, n);
    return {op.tag, static_cast<std::int64_t>(n)};
  }

  World& world_;
  std::size_t capacity_;
  std::vector<storage::ReadOp> ops_;
};

/// Counts what a backend takes and delivers, as its user sees it.
class Meter final : public storage::Backend {
 public:
  Meter(World& world, std::unique_ptr<storage::Backend> inner) : world_(world), inner_(std::move(inner)) {}
  const char* name() const noexcept override { return inner_->name(); }
  std::size_t in_flight() const noexcept override { return inner_->in_flight(); }
  std::size_t capacity() const noexcept override { return inner_->capacity(); }

  std::size_t submit(std::span<const storage::ReadOp> ops) override {
    const std::size_t n = inner_->submit(ops);
    for (const storage::ReadOp& op : ops.first(n)) {
      const bool is_new = block_of_.emplace(op.tag, block_bytes(op.fd)).second;
      SLUICE_CHECK(is_new);
      world_.count_event();
    }
    world_.n_reads_ += n;
    return n;
  }

  std::size_t wait(std::span<storage::Completion> out, std::size_t min_count) override {
    const std::size_t n = inner_->wait(out, min_count);
    for (const storage::Completion& completion : out.first(n)) {
      const auto found = block_of_.find(completion.tag);
      SLUICE_CHECK(found != block_of_.end());
      if (completion.result == -EIO) ++world_.n_failed_;
      if (completion.result > 0) {
        world_.served_bytes_ += base::align_up(static_cast<std::uint64_t>(completion.result), found->second);
      }
      block_of_.erase(found);
    }
    return n;
  }

 private:
  std::uint32_t block_bytes(int fd) const {
    return (fcntl(fd, F_GETFL) & O_DIRECT) != 0 ? world_.content_of(fd).block_bytes : 1;
  }

  World& world_;
  std::unique_ptr<storage::Backend> inner_;
  std::map<std::uint64_t, std::uint32_t> block_of_;  ///< Per read in flight.
};

World::World(std::uint64_t seed) : random(seed) {
  SLUICE_CHECK(current_world == nullptr);
  current_world = this;
  set_weather(Weather::plenty);
}

World::~World() {
  current_world = nullptr;
}

void World::add_file(const std::filesystem::path& path, std::shared_ptr<const std::vector<std::byte>> bytes) {
  files_[inode_of(path)] = {std::move(bytes), storage::File::open(path.string(), true)->alignment_bytes(), 0};
}

void World::set_failing(const std::filesystem::path& path, double rate) {
  files_.at(inode_of(path)).failure_rate = rate;
}

const World::Content& World::content_of(int fd) const {
  struct stat status = {};
  if (fstat(fd, &status) != 0) throw std::runtime_error("a read of a descriptor that is closed");
  return files_.at(status.st_ino);
}

std::unique_ptr<storage::Backend> World::make_backend() {
  storage::FaultPlan faults;
  faults.seed = random.next();
  const double measure = happens(0.3) ? 0.0 : random.uniform();
  faults.short_read_rate = 0.4 * measure * random.uniform();
  faults.granularity_bytes = happens(0.5) ? 512 : 4096;
  faults.eintr_rate = 0.3 * measure * random.uniform();
  faults.eagain_rate = 0.3 * measure * random.uniform();
  faults.delay_rate = 0.5 * measure * random.uniform();
  faults.delay_polls = static_cast<std::uint32_t>(between(1, 6));
  faults.reorder = happens(0.5);
  faults.full_rate = 0.4 * measure * random.uniform();
  return std::make_unique<Meter>(*this, storage::make_fault_backend(std::make_unique<Drive>(*this), faults));
}

void World::set_weather(Weather weather) noexcept {
  weather_ = weather;
  free_bytes_ = weather == Weather::plenty ? k_total_bytes : between(0, k_total_bytes / 16);
}

platform::MemoryLimits World::memory_limits() noexcept {
  if (weather_ == Weather::breathing && happens(0.1))
    free_bytes_ = happens(0.3) ? k_total_bytes : between(0, k_total_bytes / 16);
  platform::MemoryLimits limits;
  limits.total_bytes = k_total_bytes;
  limits.available_bytes = free_bytes_;
  return limits;
}

std::uint64_t World::now_ns() noexcept {
  if (current_world == nullptr) return 1;
  current_world->now_ns_ += 1'000;
  return current_world->now_ns_;
}

}  // namespace sluice::simulation
