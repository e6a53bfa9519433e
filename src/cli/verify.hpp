#pragma once

#include "cli/options.hpp"
#include "sluice/verify.hpp"

namespace sluice::cli {

/// What a comparison found, and what was asked of it.
struct VerifyReport {
  VerifyResult result;
  double max_kl = 0;
  double min_same_top_percent = 0;

  bool kl_is_within() const noexcept { return result.mean_kl <= max_kl; }
  bool same_top_is_within() const noexcept { return 100 * result.same_top() >= min_same_top_percent; }
  bool is_within() const noexcept { return kl_is_within() && same_top_is_within(); }
};

}  // namespace sluice::cli
