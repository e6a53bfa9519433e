#pragma once

#include <cstdint>

namespace sluice::base {

/// A point in a device's work; 0 is over. A device's later tickets are larger. The CPU gives only 0.
using Ticket = std::uint64_t;

/// A device, for those who only must know when its work is over.
class TicketSource {
 public:
  virtual bool is_done(Ticket ticket) noexcept = 0;
  /// Returns when the ticket is done. After a failure of the device all are.
  virtual void wait(Ticket ticket) noexcept = 0;

 protected:
  ~TicketSource() = default;
};

}  // namespace sluice::base
