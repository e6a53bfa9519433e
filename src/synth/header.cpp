#include "synth/header.hpp"

#include <algorithm>
#include <span>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "gguf/limits.hpp"
#include "sluice/synth.hpp"
#include "synth/blocks.hpp"

namespace sluice {
namespace {

constexpr const char* k_mix_name = "Q4_K_M";

synth::WeightTypes parse_type(const std::string& name) {
  if (name == k_mix_name) return {};
  std::string known;
  for (const std::string& candidate : synth_types()) known += (known.empty() ? "" : ", ") + candidate;
  for (const gguf::TypeTraits& traits : gguf::all_types()) {
    if (name == traits.name && synth::can_synthesize(traits.type)) return {traits.type};
  }
  base::fail(ErrorCode::invalid_argument, "weights cannot be synthesized as '{}'; known types are {}", name,
             known);
}

/// A header in memory.
class MemorySource final : public gguf::ByteSource {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes) : name_(std::move(name)), bytes_(bytes) {}
  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) override {
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  }

 private:
  std::string name_;
  std::span<const std::byte> bytes_;
};

}  // namespace

std::vector<SynthShape> synth_shapes() {
  std::vector<SynthShape> shapes;
  for (const synth::ShapeSpec& shape : synth::shape_specs())
    shapes.push_back(
        {shape.name, synth::architecture_name(shape), shape.n_layers, shape.n_experts, shape.n_experts_used});
  return shapes;
}

std::vector<std::string> synth_types() {
  std::vector<std::string> types = {k_mix_name};
  for (const gguf::TypeTraits& traits : gguf::all_types()) {
    if (synth::can_synthesize(traits.type)) types.emplace_back(traits.name);
  }
  return types;
}

namespace synth {

SynthHeader::SynthHeader(const ShapeSpec& shape, const std::string& type, std::uint32_t layers)
    : n_layers(layers == 0 ? shape.n_layers : layers) {
  const WeightTypes types = parse_type(type);
  specs = tensor_specs(shape, types, n_layers);
  add_metadata(shape, types, n_layers, writer.metadata());
  for (const TensorSpec& spec : specs) {
    writer.add_tensor(spec.name, spec.type, spec.dims);
    std::uint64_t n_elements = 1;
    for (const std::uint64_t dim : spec.dims) n_elements *= dim;
    n_parameters += n_elements;
  }
  writer.write_header(
      [this](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
  const gguf::TensorInfo& last = writer.tensors().back();
  // The writer pads the last tensor too.
  file_bytes = base::align_up(last.offset_bytes + last.size_bytes, gguf::k_default_alignment_bytes);
}

gguf::ModelFile parse_shape(const std::string& shape, const std::string& type) {
  const SynthHeader header(find_shape(shape), type, 0);
  MemorySource source("shape " + shape, header.bytes);
  gguf::ModelFile file = gguf::parse_file(source, {/*allow_missing_data=*/true});
  file.shards.front().file_bytes = header.file_bytes;
  return file;
}

}  // namespace synth
}  // namespace sluice
