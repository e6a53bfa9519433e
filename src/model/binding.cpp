#include "model/binding.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "residency/roles.hpp"

namespace sluice::model {
namespace {

using gguf::TensorInfo;
using gguf::TensorType;

/// Looks tensors up, checks their shapes, and remembers what is missing and what was used.
class Binder {
 public:
  explicit Binder(const gguf::ModelFile& file) : file_(file) {}

  /// A matrix [n_out, n_in].
  const TensorInfo* matrix(const std::string& name, std::uint64_t n_in, std::uint64_t n_out) {
    const TensorInfo* tensor = require(name);
    if (tensor != nullptr) {
      expect_shape(*tensor, n_in, n_out);
      expect_float(*tensor);
    }
    return tensor;
  }
  /// A vector of any plain float type.
  const TensorInfo* vector(const std::string& name, std::uint64_t n) {
    const TensorInfo* tensor = require(name);
    if (tensor != nullptr) check_vector(*tensor, n);
    return tensor;
  }
  const TensorInfo* optional_vector(const std::string& name, std::uint64_t n) {
    if (file_.find_tensor(name) == nullptr) return nullptr;
    return vector(name, n);
  }
  const TensorInfo* find(const std::string& name) {
    const TensorInfo* tensor = file_.find_tensor(name);
    if (tensor != nullptr) used_.insert(tensor);
    return tensor;
  }

  void fail_if_missing() const {
    if (missing_.empty()) return;
    constexpr std::size_t k_max_named = 8;
    std::string names;
    for (std::size_t i = 0; i < std::min(missing_.size(), k_max_named); ++i)
      names += (i == 0 ? "" : ", ") + missing_[i];
    if (missing_.size() > k_max_named) names += fmt::format(" and {} more", missing_.size() - k_max_named);
    base::fail(
        ErrorCode::invalid_file,
        "{}: {} required tensor{} missing: {}; the file is incomplete or not of the architecture it names",
        file_.metadata.source_name, missing_.size(), missing_.size() == 1 ? " is" : "s are", names);
  }

  void warn_about_unused() const {
    std::size_t n_unused = 0;
    const TensorInfo* first = nullptr;
    for (const TensorInfo& tensor : file_.tensors) {
      if (used_.count(&tensor) != 0 || residency::classify_tensor(tensor.name) == Role::expert) continue;
      if (first == nullptr) first = &tensor;
      ++n_unused;
    }
    if (n_unused != 0) {
      base::warn("{}: {} tensor{} not used by this architecture and ignored (first: {})",
                 file_.metadata.source_name, n_unused, n_unused == 1 ? " is" : "s are", first->name);
    }
  }

 private:
  const TensorInfo* require(const std::string& name) {
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr) missing_.push_back(name);
    return tensor;
  }
  void expect_shape(const TensorInfo& tensor, std::uint64_t n_in, std::uint64_t n_out) const {
    if (tensor.dims[0] == n_in && tensor.dims[1] == n_out && tensor.dims[2] == 1 && tensor.dims[3] == 1)
      return;
    base::fail(
        ErrorCode::invalid_file,
        "{}: tensor {}: expected shape [{}, {}], found [{}, {}, {}, {}]; metadata and tensors disagree",
        file_.metadata.source_name, tensor.name, n_in, n_out, tensor.dims[0], tensor.dims[1], tensor.dims[2],
        tensor.dims[3]);
  }
  void expect_float(const TensorInfo& tensor) const {
    switch (tensor.type) {
      case TensorType::i8:
      case TensorType::i16:
      case TensorType::i32:
      case TensorType::i64:
      case TensorType::f64:
      case TensorType::q8_1:
      case TensorType::q8_k:
        base::fail(ErrorCode::unsupported, "{}: tensor {} has type {}, which is not a weight type",
                   file_.metadata.source_name, tensor.name, gguf::type_name(tensor.type));
      default:
        return;
    }
  }
  void check_vector(const TensorInfo& tensor, std::uint64_t n) const {
    expect_shape(tensor, n, 1);
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

LayerTensors bind_layer(Binder& binder, const HyperParams& params, std::uint32_t layer_idx) {
  const auto name = [&](const char* part, const char* suffix = "weight") {
    return fmt::format("blk.{}.{}.{}", layer_idx, part, suffix);
  };
  LayerTensors layer;
  layer.attn_norm = binder.vector(name("attn_norm"), params.n_embd);
  layer.q = binder.matrix(name("attn_q"), params.n_embd, params.q_dim());
  layer.k = binder.matrix(name("attn_k"), params.n_embd, params.k_dim());
  layer.v = binder.matrix(name("attn_v"), params.n_embd, params.v_dim());
  if (params.has_qkv_bias) {
    layer.q_bias = binder.vector(name("attn_q", "bias"), params.q_dim());
    layer.k_bias = binder.vector(name("attn_k", "bias"), params.k_dim());
    layer.v_bias = binder.vector(name("attn_v", "bias"), params.v_dim());
  } else {
    layer.q_bias = binder.optional_vector(name("attn_q", "bias"), params.q_dim());
    layer.k_bias = binder.optional_vector(name("attn_k", "bias"), params.k_dim());
    layer.v_bias = binder.optional_vector(name("attn_v", "bias"), params.v_dim());
  }
  if (params.has_qk_norm) {
    layer.q_norm = binder.vector(name("attn_q_norm"), params.k_head_dim);
    layer.k_norm = binder.vector(name("attn_k_norm"), params.k_head_dim);
  }
  layer.attn_out =
      binder.matrix(name("attn_output"), std::uint64_t{params.n_heads} * params.v_head_dim, params.n_embd);
  layer.attn_out_bias = binder.optional_vector(name("attn_output", "bias"), params.n_embd);
  layer.ffn_norm = binder.vector(name("ffn_norm"), params.n_embd);
  if (params.is_moe()) {
    layer.router = binder.matrix(name("ffn_gate_inp"), params.n_embd, params.n_experts);
  } else {
    layer.ffn_gate = binder.matrix(name("ffn_gate"), params.n_embd, params.n_ff);
    layer.ffn_up = binder.matrix(name("ffn_up"), params.n_embd, params.n_ff);
    layer.ffn_down = binder.matrix(name("ffn_down"), params.n_ff, params.n_embd);
  }
  return layer;
}

}  // namespace

std::vector<ModelTensors::Block> ModelTensors::blocks() const {
  std::vector<Block> all;
  for (const LayerTensors& layer : layers) {
    all.push_back({Role::attention, {layer.q, layer.k, layer.v, layer.attn_out}});
    if (layer.ffn_gate != nullptr)
      all.push_back({Role::dense_ffn, {layer.ffn_gate, layer.ffn_up, layer.ffn_down}});
  }
  return all;
}

namespace {

/// In file order, each once, without null. Tensors lie in file order in one array, so their addresses sort as
/// the file does.
std::vector<const TensorInfo*> in_file_order(std::vector<const TensorInfo*> tensors) {
  std::sort(tensors.begin(), tensors.end());
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  tensors.erase(std::remove(tensors.begin(), tensors.end(), nullptr), tensors.end());
  return tensors;
}

}  // namespace

std::vector<const gguf::TensorInfo*> ModelTensors::pinned() const {
  std::vector<const gguf::TensorInfo*> all = {token_embd, output_norm, output, rope_freqs};
  for (const LayerTensors& layer : layers) {
    for (const TensorInfo* tensor :
         {layer.attn_norm, layer.q, layer.k, layer.v, layer.q_bias, layer.k_bias, layer.v_bias, layer.q_norm,
          layer.k_norm, layer.attn_out, layer.attn_out_bias, layer.ffn_norm, layer.router, layer.ffn_gate,
          layer.ffn_up, layer.ffn_down}) {
      all.push_back(tensor);
    }
  }
  return in_file_order(std::move(all));
}

std::vector<const gguf::TensorInfo*> ModelTensors::vectors() const {
  std::vector<const gguf::TensorInfo*> all = {output_norm, rope_freqs};
  for (const LayerTensors& layer : layers) {
    for (const TensorInfo* tensor : {layer.attn_norm, layer.q_bias, layer.k_bias, layer.v_bias, layer.q_norm,
                                     layer.k_norm, layer.attn_out_bias, layer.ffn_norm}) {
      all.push_back(tensor);
    }
  }
  return in_file_order(std::move(all));
}

std::uint64_t converted_vector_bytes(const gguf::TensorInfo& tensor) noexcept {
  return tensor.type == TensorType::f32 ? 0 : tensor.n_elements() * sizeof(float);
}

ModelTensors bind_tensors(const gguf::ModelFile& file, HyperParams& params) {
  Binder binder(file);
  ModelTensors tensors;
  // The vocabulary's size is what the embedding says; the tokenizer is checked against it.
  if (const TensorInfo* embedding = file.find_tensor("token_embd.weight")) {
    if (embedding->dims[1] == 0 || embedding->dims[1] > k_max_vocab) {
      base::fail(ErrorCode::invalid_file, "{}: tensor token_embd.weight has {} rows, expected 1 to {}",
                 file.metadata.source_name, embedding->dims[1], k_max_vocab);
    }
    params.n_vocab = static_cast<std::uint32_t>(embedding->dims[1]);
  }
  tensors.token_embd = binder.matrix("token_embd.weight", params.n_embd, params.n_vocab);
  tensors.output_norm = binder.vector("output_norm.weight", params.n_embd);
  tensors.output = binder.find("output.weight") != nullptr
                       ? binder.matrix("output.weight", params.n_embd, params.n_vocab)
                       : tensors.token_embd;
  tensors.rope_freqs = binder.optional_vector("rope_freqs.weight", params.rope.n_rot / 2);
  tensors.layers.reserve(params.n_layers);
  for (std::uint32_t layer_idx = 0; layer_idx < params.n_layers; ++layer_idx)
    tensors.layers.push_back(bind_layer(binder, params, layer_idx));
  binder.fail_if_missing();
  binder.warn_about_unused();
  return tensors;
}

}  // namespace sluice::model
