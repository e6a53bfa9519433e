#include "engine/plan/work_facts.hpp"

#include <algorithm>

namespace sluice::engine {
namespace {

/// Adds to the entry of its type.
void add(std::vector<TypeWork>& work, gguf::TensorType type, std::uint64_t bytes, std::uint64_t products) {
  const char* name = gguf::type_name(type);
  auto found =
      std::find_if(work.begin(), work.end(), [name](const TypeWork& part) { return part.type == name; });
  if (found == work.end()) found = work.insert(work.end(), {name, 0, 0});
  found->bytes += bytes;
  found->products += products;
}

void add_experts(const Prepared& prepared, WorkFacts& work) {
  std::uint64_t unit_bytes = 0, part_bytes = 0, n_parts = 0;
  for (const residency::LayerUnits& layer : prepared.units.layers) {
    for (const residency::PartShape& shape : layer.shapes) {
      add(work.expert, shape.type, shape.bytes(), std::uint64_t{shape.n_in} * shape.n_out);
      part_bytes += shape.bytes();
      ++n_parts;
    }
    unit_bytes += layer.slot_bytes;
  }
  work.n_expert_layers = static_cast<std::uint32_t>(prepared.units.layers.size());
  if (work.n_expert_layers == 0) return;
  work.n_experts = prepared.spec().n_experts();
  work.n_experts_used = prepared.spec().n_experts_used();
  work.unit_bytes = unit_bytes / work.n_expert_layers;
  work.part_bytes = part_bytes / n_parts;
}

}  // namespace

WorkFacts work_facts(const Prepared& prepared) {
  WorkFacts work;
  work.n_layers = prepared.spec().n_layers();
  for (const gguf::TensorInfo* tensor : prepared.tensors.pinned()) {
    // Of the embedding one row is read.
    if (tensor == prepared.tensors.token_embd || tensor == prepared.tensors.output) continue;
    // Norms and biases are added and scaled with, which is not worth counting.
    add(work.always, tensor->type, tensor->size_bytes, tensor->n_dims > 1 ? tensor->n_elements() : 0);
  }
  const gguf::TensorInfo& output = *prepared.tensors.output;
  add(work.output, output.type, output.size_bytes, output.n_elements());
  add_experts(prepared, work);
  const gguf::TensorInfo& embedding = *prepared.tensors.token_embd;
  work.embedding_row_bytes = gguf::row_bytes(embedding.type, embedding.dims[0]);
  for (const model::KvGroup& group : prepared.kv.groups)
    work.kv.push_back({group.window, group.token_bytes(), group.products});
  work.state_bytes = prepared.graph->state().slot_bytes;
  return work;
}

}  // namespace sluice::engine
