#include "storage/copy_choice.hpp"

#include "base/check.hpp"
#include "base/units.hpp"

namespace sluice::storage {
namespace {

constexpr std::uint64_t k_recent_bytes = 128 * base::k_mib;
constexpr std::uint64_t k_min_known_bytes = base::k_mib;

}  // namespace

void DriveMeter::start(std::uint64_t bytes, std::uint64_t now_ns) noexcept {
  if (outstanding_bytes_ == 0) seen_ns_ = now_ns;
  outstanding_bytes_ += bytes;
}

void DriveMeter::finish(std::uint64_t bytes, std::uint64_t delivered, std::uint64_t now_ns) noexcept {
  SLUICE_CHECK(bytes <= outstanding_bytes_ && now_ns >= seen_ns_);
  outstanding_bytes_ -= bytes;
  read_bytes_ += delivered;
  recent_bytes_ += delivered;
  busy_ns_ += now_ns - seen_ns_;
  recent_ns_ += now_ns - seen_ns_;
  seen_ns_ = now_ns;
  if (recent_bytes_ > k_recent_bytes) {
    recent_bytes_ /= 2;
    recent_ns_ /= 2;
  }
}

void DriveMeter::retract(std::uint64_t bytes) noexcept {
  SLUICE_CHECK(bytes <= outstanding_bytes_);
  outstanding_bytes_ -= bytes;
}

double DriveMeter::bytes_per_second() const noexcept {
  if (recent_bytes_ < k_min_known_bytes || recent_ns_ == 0) return 0;
  return static_cast<double>(recent_bytes_) * 1e9 / static_cast<double>(recent_ns_);
}

std::size_t choose_copy(const CopyState& first, const CopyState& second, std::uint64_t bytes) noexcept {
  if (first.is_failing != second.is_failing) return first.is_failing ? 1 : 0;
  if (second.n_passed_over >= k_max_passed_over) return 1;
  if (first.n_passed_over >= k_max_passed_over) return 0;
  double first_rate = first.bytes_per_second, second_rate = second.bytes_per_second;
  if (first_rate <= 0) first_rate = second_rate;
  if (second_rate <= 0) second_rate = first_rate;
  const auto first_work = static_cast<double>(first.outstanding_bytes + bytes);
  const auto second_work = static_cast<double>(second.outstanding_bytes + bytes);
  if (first_rate <= 0) return second_work < first_work ? 1 : 0;
  return second_work / second_rate < first_work / first_rate ? 1 : 0;
}

}  // namespace sluice::storage
