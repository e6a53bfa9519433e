#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "storage/backend.hpp"

namespace sluice::storage {
namespace {

class FaultBackend final : public Backend {
 public:
  FaultBackend(std::unique_ptr<Backend> inner, const FaultPlan& plan)
      : inner_(std::move(inner)),
        plan_(plan),
        random_(plan.seed),
        ops_(inner_->capacity()),
        inner_out_(ops_.size()) {
    name_ = std::string("fault(") + inner_->name() + ")";
    for (std::size_t i = ops_.size(); i > 0; --i) free_.push_back(i - 1);
    ended_.reserve(ops_.size());
  }

  const char* name() const noexcept override { return name_.c_str(); }
  std::size_t capacity() const noexcept override { return ops_.size(); }
  std::size_t in_flight() const noexcept override { return ops_.size() - free_.size(); }

  std::size_t submit(std::span<const ReadOp> ops) override {
    if (has_failed_) fail();
    std::size_t limit = ops.size();
    // An idle backend takes at least one, as every backend does, or its user could not go on.
    if (happens(plan_.full_rate))
      limit = std::min<std::size_t>(limit, in_flight() == 0 ? 1 : random_.below(2));
    std::size_t n = 0;
    while (n < limit && !free_.empty() && start(ops[n])) ++n;
    return n;
  }

  std::size_t wait(std::span<Completion> out, std::size_t min_count) override {
    if (has_failed_ || ++n_waits_ == plan_.fails_at_wait) fail();
    SLUICE_CHECK(min_count <= in_flight() && min_count <= out.size());
    for (Ended& ended : ended_) ended.held_polls -= ended.held_polls > 0 ? 1 : 0;
    collect(0);
    std::size_t n = deliver(out, 0);
    while (n < min_count) {
      if (inner_->in_flight() != 0) {
        collect(1);
      } else {
        // Only held ones are left: the wait cannot end before one of them is let go.
        const std::size_t pick = plan_.reorder ? random_.below(ended_.size()) : 0;
        ended_[pick].held_polls = 0;
      }
      n = deliver(out, n);
    }
    return n;
  }

 private:
  [[noreturn]] void fail() {
    has_failed_ = true;
    while (inner_->in_flight() != 0) inner_->wait(inner_out_, 1);
    ended_.clear();
    free_.clear();
    for (std::size_t i = ops_.size(); i > 0; --i) free_.push_back(i - 1);
    base::fail(ErrorCode::io, "{}: this backend was made to fail", name_);
  }
  bool happens(double rate) noexcept { return random_.uniform() < rate; }
  bool applies_to(const ReadOp& op) const { return !plan_.applies_to || plan_.applies_to(op.fd); }
  struct Ended {
    std::size_t slot = 0;
    std::int64_t result = 0;
    std::uint32_t held_polls = 0;
  };

  // False when the inner backend is full.
  bool start(const ReadOp& op) {
    std::int64_t error = 0;
    for (const FaultPlan::Range& range : plan_.failing_ranges) {
      if (op.offset < range.end && range.begin < op.offset + op.length) error = -range.error;
    }
    if (happens(plan_.eintr_rate)) error = -EINTR;
    if (happens(plan_.eagain_rate)) error = -EAGAIN;
    if (!applies_to(op)) error = 0;
    const std::size_t slot = free_.back();
    if (error == 0) {
      ReadOp inner_op = op;
      inner_op.tag = slot;
      if (inner_->submit({&inner_op, 1}) == 0) return false;
    }
    free_.pop_back();
    ops_[slot] = op;
    if (error != 0) end(slot, error);
    return true;
  }

  void end(std::size_t slot, std::int64_t result) {
    const bool is_held = happens(plan_.delay_rate) && applies_to(ops_[slot]);
    ended_.push_back({slot, result, is_held ? plan_.delay_polls : 0});
  }

  void collect(std::size_t min_count) {
    const std::size_t n = inner_->wait(inner_out_, min_count);
    for (const Completion& completion : std::span(inner_out_).first(n)) {
      const auto slot = static_cast<std::size_t>(completion.tag);
      end(slot, shorten(ops_[slot], completion.result));
    }
  }

  // The read was done in full. What a short one would not have delivered is overwritten, so that a user who
  // relies on it fails the comparison.
  std::int64_t shorten(const ReadOp& op, std::int64_t result) {
    const std::int64_t granularity = plan_.granularity_bytes;
    if (!happens(plan_.short_read_rate) || result <= granularity || !applies_to(op)) return result;
    const auto n_choices = static_cast<std::uint64_t>((result - 1) / granularity);
    const std::int64_t shortened = granularity * (1 + static_cast<std::int64_t>(random_.below(n_choices)));
    std::memset(op.destination + shortened, 0xdb, static_cast<std::size_t>(result - shortened));
    return shortened;
  }

  std::size_t deliver(std::span<Completion> out, std::size_t n) {
    if (plan_.reorder) {
      for (std::size_t i = ended_.size(); i > 1; --i) std::swap(ended_[i - 1], ended_[random_.below(i)]);
    }
    std::size_t kept = 0;
    for (const Ended& ended : ended_) {
      if (ended.held_polls == 0 && n < out.size()) {
        out[n++] = {ops_[ended.slot].tag, ended.result};
        free_.push_back(ended.slot);
      } else {
        ended_[kept++] = ended;
      }
    }
    ended_.resize(kept);
    return n;
  }

  std::unique_ptr<Backend> inner_;
  FaultPlan plan_;
  base::SplitMix64 random_;
  std::string name_;
  std::vector<ReadOp> ops_;  ///< What each slot was asked for; a slot is the tag given to the inner backend.
  std::vector<std::size_t> free_;
  std::vector<Ended> ended_;  ///< Done and not yet handed out, oldest first unless reordered.
  std::vector<Completion> inner_out_;
  std::uint64_t n_waits_ = 0;
  bool has_failed_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_fault_backend(std::unique_ptr<Backend> inner, const FaultPlan& plan) {
  SLUICE_CHECK(inner != nullptr && inner->in_flight() == 0 && plan.granularity_bytes != 0);
  return std::make_unique<FaultBackend>(std::move(inner), plan);
}

}  // namespace sluice::storage
