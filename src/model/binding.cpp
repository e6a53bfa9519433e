#include "model/binding.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "model/spec.hpp"
#include "residency/roles.hpp"

namespace sluice::model {
namespace {

using gguf::TensorInfo;
using gguf::TensorType;

/// Names, beginnings that end with a dot, or ends that begin with one, of tensors that may stay unused, each
/// with its reason.
struct Harmless {
  std::string_view name;
  std::string_view reason;
};
constexpr std::array k_harmless = {
    Harmless{"v.", "sees images, which are not read here"},
    Harmless{"a.", "hears sound, which is not read here"},
    Harmless{"mm.", "brings images and sound to the text model"},
    Harmless{".input_scale", "for activations of four bits; here they have eight"},
    Harmless{"attn_rot_embd", "rotation frequencies as the base gives them, in files of 2023"},
};

bool is_harmless(const TensorInfo& tensor) noexcept {
  const std::string_view name = tensor.name;
  const std::string_view part = residency::parse_tensor_name(name).part;
  return std::any_of(k_harmless.begin(), k_harmless.end(), [&](const Harmless& entry) {
    if (entry.name.starts_with('.')) return name.ends_with(entry.name);
    return entry.name.ends_with('.') ? name.starts_with(entry.name) : part == entry.name;
  });
}

/// Whether it belongs to a layer that guesses further tokens, which is not done here.
bool is_of_prediction(const TensorInfo& tensor, const Declaration& declaration) noexcept {
  const std::int64_t layer = residency::parse_tensor_name(tensor.name).layer;
  return layer >= declaration.n_layers &&
         layer < std::int64_t{declaration.n_layers} + declaration.n_prediction_layers;
}

/// "a, b and 3 more".
std::string list_names(const std::vector<std::string>& names) {
  constexpr std::size_t k_max_named = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), k_max_named); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > k_max_named) text += fmt::format(" and {} more", names.size() - k_max_named);
  return text;
}

/// Finds tensors, checks them, and remembers what is missing and what was used.
class Binder {
 public:
  explicit Binder(const gguf::ModelFile& file) : file_(file) {}

  const TensorInfo* find(const TensorNeed& need) {
    const TensorInfo* tensor = file_.find_tensor(need.name);
    if (tensor == nullptr) {
      if (need.need == Need::required) missing_.push_back(need.name);
      return nullptr;
    }
    used_.insert(tensor);
    expect_shape(*tensor, need);
    if (need.is_floats()) {
      expect_floats(*tensor);
    } else {
      expect_weights(*tensor);
    }
    return tensor;
  }

  /// Experts lie in one tensor or in one each; residency::map_units checks them.
  void use_units(const residency::UnitLayerSpec& layer) {
    for (const residency::UnitPartSpec& part : layer.parts) {
      const std::string prefix = fmt::format("blk.{}.{}", layer.layer_idx, part.stem);
      if (use(prefix + "_exps.weight")) continue;
      for (std::uint32_t expert = 0; expert < layer.n_experts; ++expert)
        use(fmt::format("{}.{}.weight", prefix, expert));
    }
  }

  void fail_if_missing() const {
    if (missing_.empty()) return;
    base::fail(
        ErrorCode::invalid_file,
        "{}: {} required tensor{} missing: {}; the file is incomplete or not of the architecture it names",
        file_.metadata.source_name, missing_.size(), missing_.size() == 1 ? " is" : "s are",
        list_names(missing_));
  }

  void fail_if_unused(const Declaration& declaration) const {
    std::vector<std::string> unused;
    for (const TensorInfo& tensor : file_.tensors) {
      if (used_.count(&tensor) == 0 && !is_harmless(tensor) && !is_of_prediction(tensor, declaration))
        unused.push_back(tensor.name);
    }
    if (unused.empty()) return;
    base::fail(
        ErrorCode::unsupported,
        "{}: this version does not know what to do with {} tensor{} of the file: {}; running the model "
        "without would give wrong text",
        file_.metadata.source_name, unused.size(), unused.size() == 1 ? "" : "s", list_names(unused));
  }

 private:
  bool use(const std::string& name) {
    const TensorInfo* tensor = file_.find_tensor(name);
    if (tensor != nullptr) used_.insert(tensor);
    return tensor != nullptr;
  }
  void expect_shape(const TensorInfo& tensor, const TensorNeed& need) const {
    if (tensor.dims[0] == need.n_in && tensor.dims[1] == need.n_out && tensor.dims[2] == need.n_stacked &&
        tensor.dims[3] == 1)
      return;
    base::fail(
        ErrorCode::invalid_file,
        "{}: tensor {}: expected shape [{}, {}{}], found [{}, {}, {}, {}]; metadata and tensors disagree",
        file_.metadata.source_name, tensor.name, need.n_in, need.n_out,
        need.n_stacked == 1 ? "" : fmt::format(", {}", need.n_stacked), tensor.dims[0], tensor.dims[1],
        tensor.dims[2], tensor.dims[3]);
  }
  void expect_weights(const TensorInfo& tensor) const {
    if (gguf::type_traits(tensor.type).use == gguf::TypeUse::weight) return;
    base::fail(ErrorCode::unsupported, "{}: tensor {} has type {}, which is not a weight type",
               file_.metadata.source_name, tensor.name, gguf::type_name(tensor.type));
  }
  void expect_floats(const TensorInfo& tensor) const {
    if (tensor.type != TensorType::f32 && tensor.type != TensorType::f16 && tensor.type != TensorType::bf16 &&
        tensor.type != TensorType::f64) {
      base::fail(
          ErrorCode::unsupported,
          "{}: tensor {} has type {}; expected F32, F16, BF16 or F64 for a vector: convert the model anew",
          file_.metadata.source_name, tensor.name, gguf::type_name(tensor.type));
    }
    if (tensor.type == TensorType::f32 && tensor.offset_bytes % alignof(float) != 0) {
      base::fail(ErrorCode::invalid_file, "{}: tensor {} starts at offset {}, not a multiple of 4",
                 file_.metadata.source_name, tensor.name, tensor.offset_bytes);
    }
  }

  const gguf::ModelFile& file_;
  std::vector<std::string> missing_;
  std::set<const TensorInfo*> used_;
};

const TensorInfo* named(const BoundTensors& tensors, std::string_view name) {
  for (const BoundTensor& bound : tensors.all) {
    if (bound.need.name == name) return bound.info;
  }
  return nullptr;
}

}  // namespace

std::vector<const TensorInfo*> BoundTensors::pinned() const {
  std::vector<const TensorInfo*> found;
  for (const BoundTensor& bound : all) {
    if (bound.info != nullptr) found.push_back(bound.info);
  }
  // Tensors lie in file order in one array, so their addresses sort as the file does.
  std::sort(found.begin(), found.end());
  return found;
}

std::uint64_t converted_vector_bytes(const TensorInfo& tensor) noexcept {
  return tensor.type == TensorType::f32 ? 0 : tensor.n_elements() * sizeof(float);
}

std::uint32_t vocabulary_rows(const gguf::ModelFile& file) {
  const TensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) return 0;
  if (embedding->dims[1] == 0 || embedding->dims[1] > k_max_vocab) {
    base::fail(ErrorCode::invalid_file, "{}: tensor token_embd.weight has {} rows, expected 1 to {}",
               file.metadata.source_name, embedding->dims[1], k_max_vocab);
  }
  return static_cast<std::uint32_t>(embedding->dims[1]);
}

BoundTensors bind(const gguf::ModelFile& file, const Declaration& declaration) {
  Binder binder(file);
  BoundTensors tensors;
  for (const Role role : declaration.blocks) tensors.blocks.push_back({role, {}});
  for (const TensorNeed& need : declaration.tensors) {
    const TensorInfo* tensor = binder.find(need);
    tensors.all.push_back({need, tensor});
    if (need.block >= 0 && tensor != nullptr)
      tensors.blocks[static_cast<std::size_t>(need.block)].tensors.push_back(tensor);
  }
  for (const residency::UnitLayerSpec& layer : declaration.experts) binder.use_units(layer);
  binder.fail_if_missing();
  binder.fail_if_unused(declaration);
  tensors.token_embd = named(tensors, "token_embd.weight");
  const TensorInfo* const output = named(tensors, "output.weight");
  tensors.output = output != nullptr ? output : tensors.token_embd;
  return tensors;
}

}  // namespace sluice::model
