#include "cli/json.hpp"

#include "cli/json_parts.hpp"

namespace sluice::cli {

std::string inspect_json(const Inspection& inspection, bool with_tensors) {
  Json metadata = Json::array();
  for (const MetadataFact& fact : inspection.metadata) {
    metadata.push_back({{"key", fact.key}, {"type", fact.type}, {"value", fact.value}});
  }
  Json json = {
      {"path", inspection.path},
      {"gguf_version", inspection.gguf_version},
      {"architecture", inspection.architecture},
      {"name", inspection.name},
      {"file_bytes", inspection.file_bytes},
      {"n_parameters", inspection.n_parameters},
      {"n_tensors", inspection.tensors.size()},
      {"shards", inspection.shards},
      {"runnable", inspection.runnable},
      {"why_not", inspection.why_not},
      {"metadata", std::move(metadata)},
      {"bytes_by_role", inspection.bytes_by_role},
      {"plan",
       inspection.runnable && inspection.plan_error.empty() ? plan_json(inspection.plan) : Json(nullptr)},
      {"plan_error", inspection.plan_error},
  };
  if (with_tensors) {
    Json tensors = Json::array();
    for (const TensorFact& tensor : inspection.tensors) {
      tensors.push_back({{"name", tensor.name},
                         {"type", tensor.type},
                         {"dims", tensor.dims},
                         {"bytes", tensor.bytes},
                         {"shard", tensor.shard},
                         {"offset", tensor.offset},
                         {"role", role_name(tensor.role)}});
    }
    json["tensors"] = std::move(tensors);
  }
  return print(json);
}

}  // namespace sluice::cli
