#include "sluice/inspect.hpp"

#include <fmt/core.h>

#include "engine/model/prepare.hpp"
#include "engine/plan/machine_facts.hpp"
#include "engine/plan/planner.hpp"
#include "residency/roles.hpp"
#include "sluice/error.hpp"

namespace sluice {
namespace {

std::string type_text(const gguf::Value& value) {
  const auto* array = std::get_if<gguf::Array>(&value.data);
  if (array == nullptr) return gguf::value_type_name(value.type);
  return fmt::format("array of {} [{}]", gguf::value_type_name(array->element_type), array->size());
}

void describe(const gguf::ModelFile& file, Inspection& inspection) {
  inspection.gguf_version = file.version;
  inspection.architecture = std::string(file.metadata.get_string("general.architecture").value_or(""));
  inspection.name = std::string(file.metadata.get_string("general.name").value_or(""));
  for (const gguf::ShardInfo& shard : file.shards) {
    inspection.shards.push_back(shard.path);
    inspection.file_bytes += shard.file_bytes;
  }
  for (const auto& entry : file.metadata.entries()) {
    inspection.metadata.push_back({entry.key, type_text(entry.value), gguf::describe_value(entry.value)});
  }
  for (const gguf::TensorInfo& tensor : file.tensors) {
    const Role role = residency::classify_tensor(tensor.name);
    inspection.n_parameters += tensor.n_elements();
    inspection.bytes_by_role[role_name(role)] += tensor.size_bytes;
    inspection.tensors.push_back({tensor.name,
                                  gguf::type_name(tensor.type),
                                  {tensor.dims.begin(), tensor.dims.begin() + tensor.n_dims},
                                  tensor.size_bytes,
                                  tensor.shard_idx,
                                  tensor.offset_bytes,
                                  role});
  }
}

}  // namespace

Inspection inspect(const std::filesystem::path& path, const OpenOptions& options) {
  Inspection inspection;
  inspection.path = path.string();
  engine::Header header = engine::parse_header(path);
  describe(header.file, inspection);
  std::unique_ptr<engine::Prepared> prepared;
  try {
    prepared = engine::prepare(std::move(header), options, false);
    engine::check_weights(*prepared);
  } catch (const Error& error) {
    inspection.why_not = error.what();
    return inspection;
  }
  inspection.runnable = true;
  try {
    const engine::Planner planner(*prepared, options);
    inspection.plan = planner.plan(engine::machine_facts(), options);
  } catch (const Error& error) {
    inspection.plan_error = error.what();
  }
  return inspection;
}

}  // namespace sluice
