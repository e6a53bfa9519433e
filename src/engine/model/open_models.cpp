#include "engine/model/open_models.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace sluice::engine {
namespace {

/// The one list of the process: its memory is one as well.
struct List {
  std::mutex mutex;
  std::map<std::uint64_t, ModelMemory> models;
  std::uint64_t last_id = 0;
};

List& the_list() {
  // Never destroyed: a model may be the last thing that a program ends.
  static List& list = *new List;
  return list;
}

}  // namespace

OpenModel::OpenModel(const ModelMemory& memory) : planned_bytes_(memory.planned_bytes) {
  List& list = the_list();
  const std::lock_guard lock(list.mutex);
  list.models.emplace(list.last_id + 1, memory);
  id_ = ++list.last_id;
}

OpenModel::~OpenModel() {
  if (id_ == 0) return;
  List& list = the_list();
  const std::lock_guard lock(list.mutex);
  list.models.erase(id_);
}

OpenModel::OpenModel(OpenModel&& other) noexcept
    : planned_bytes_(std::exchange(other.planned_bytes_, 0)), id_(std::exchange(other.id_, 0)) {}

OpenModel& OpenModel::operator=(OpenModel&& other) noexcept {
  std::swap(planned_bytes_, other.planned_bytes_);
  std::swap(id_, other.id_);
  return *this;
}

ModelMemory open_models() {
  List& list = the_list();
  const std::lock_guard lock(list.mutex);
  ModelMemory all;
  for (const auto& [id, memory] : list.models) {
    all.planned_bytes += memory.planned_bytes;
    all.process_bytes = std::max(all.process_bytes, memory.process_bytes);
  }
  return all;
}

}  // namespace sluice::engine
