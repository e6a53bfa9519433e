#pragma once

#include <cstdint>

namespace sluice::engine {

/// What an open model has taken of the memory that all models of a process share.
struct ModelMemory {
  std::uint64_t planned_bytes = 0;  ///< Its plan without the process's share: a part of it may be untouched.
  std::uint64_t process_bytes = 0;  ///< The process's own share, as that plan counted it.
};

/// Keeps the memory of one open model in a list of the process while it lives: models are opened by parts of
/// a program that know nothing of each other, and the next one must count what the others were promised.
/// Any thread may make and destroy one. Move-only.
class OpenModel {
 public:
  OpenModel() = default;
  explicit OpenModel(const ModelMemory& memory);
  ~OpenModel();
  OpenModel(OpenModel&& other) noexcept;
  OpenModel& operator=(OpenModel&& other) noexcept;

  std::uint64_t planned_bytes() const noexcept { return planned_bytes_; }

 private:
  std::uint64_t planned_bytes_ = 0;
  std::uint64_t id_ = 0;  ///< 0: not in the list.
};

/// All models in the list: the sum of what they planned, and the largest share of the process.
ModelMemory open_models();

}  // namespace sluice::engine
