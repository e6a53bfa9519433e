#pragma once

#include <memory>

#include "base/thread_pool.hpp"
#include "engine/model/prepare.hpp"
#include "kernels/ops.hpp"

namespace sluice::engine {

/// Makes plans as opening the model would, for commands that load nothing. Refers to the model.
class Planner {
 public:
  /// With as many threads as opening would use: each has scratch of its own.
  Planner(const Prepared& prepared, const OpenOptions& options);

  /// Throws as residency::make_plan().
  residency::Placement place(const residency::MachineFacts& machine, const OpenOptions& options) const;
  Plan plan(const residency::MachineFacts& machine, const OpenOptions& options) const {
    return place(machine, options).plan;
  }

 private:
  base::ThreadPool pool_;  ///< Of no threads: only their number matters.
  std::unique_ptr<kernels::Ops> ops_;
  residency::ModelFacts facts_;
};

}  // namespace sluice::engine
