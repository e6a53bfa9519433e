#include "sluice/synth.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.hpp"
#include "base/error.hpp"
#include "gguf/writer.hpp"
#include "kernels/quant.hpp"
#include "synth/blocks.hpp"
#include "synth/header.hpp"
#include "synth/new_file.hpp"
#include "synth/shapes.hpp"

namespace sluice {
namespace {

using gguf::TensorType;
using synth::BlockPool;
using synth::Fill;
using synth::ShapeSpec;
using synth::SynthRandom;
using synth::TensorSpec;

/// Elements at the end of each embedding row that all rows share: a block of every type.
constexpr std::uint32_t k_shared_elements = 256;
/// Exponent of the experts' Zipf distribution at locality 1.
constexpr double k_full_exponent = 2.0;
/// Variance that a layer adds to the residual stream, roughly; measured on random weights of several shapes.
constexpr double k_layer_variance = 0.25;

std::vector<float> decode(TensorType type, std::span<const std::byte> blocks, std::size_t n_elements) {
  std::vector<float> values(n_elements);
  const bool known = kernels::dequantize_row(type, blocks.data(), values.data(), values.size());
  SLUICE_CHECK(known);
  return values;
}

/// Makes the data of one file's tensors.
class Synthesizer {
 public:
  Synthesizer(const ShapeSpec& shape, const SynthOptions& options)
      : shape_(shape), options_(options), pools_(options.seed) {}

  void write(const TensorSpec& spec, std::uint64_t tensor_idx, const gguf::ByteSink& sink) {
    // The multiplier spreads neighbouring tensors over all seeds.
    SynthRandom random(options_.seed + (tensor_idx + 1) * 0xd1342543de82ef95u);
    switch (spec.fill) {
      case Fill::ones:
        return write_floats(std::vector<float>(spec.dims[0], 1.0f), sink);
      case Fill::minus_ones:
        return write_floats(std::vector<float>(spec.dims[0], -1.0f), sink);
      case Fill::rope_factors:
        return write_floats(rope_factors(spec.dims[0]), sink);
      case Fill::proportional_rope:
        return write_floats(proportional_factors(spec.dims[0]), sink);
      case Fill::router:
        return write_router(spec, random, sink);
      case Fill::embedding:
        if (options_.locality > 0) return write_embedding(spec, random, sink);
        break;
      case Fill::random:
      case Fill::bias:
        break;
    }
    write_random(spec, random, sink);
  }

 private:
  static void write_floats(const std::vector<float>& values, const gguf::ByteSink& sink) {
    sink(std::as_bytes(std::span(values)));
  }

  /// Every expert begins at a place of its own in the pool.
  void write_random(const TensorSpec& spec, SynthRandom& random, const gguf::ByteSink& sink) {
    const BlockPool& pool = pools_.get(spec.type, spec.std_dev);
    const std::uint64_t n_slices = spec.dims.size() > 2 ? spec.dims[2] : 1;
    const std::uint64_t n_rows = spec.dims.size() > 1 ? spec.dims[1] : 1;
    const std::uint64_t n_blocks = spec.dims[0] / gguf::type_traits(spec.type).block_elements * n_rows;
    for (std::uint64_t slice = 0; slice < n_slices; ++slice)
      pool.take(random.below(pool.n_blocks()), n_blocks, sink);
  }

  void write_embedding(const TensorSpec& spec, SynthRandom& random, const gguf::ByteSink& sink) {
    const BlockPool& pool = pools_.get(spec.type, spec.std_dev);
    const gguf::TypeTraits& traits = gguf::type_traits(spec.type);
    const std::size_t n_shared = k_shared_elements / traits.block_elements;
    const auto shared = pool.bytes().first(n_shared * traits.block_bytes);
    shared_direction_ = decode(spec.type, shared, k_shared_elements);
    const std::uint64_t n_own = spec.dims[0] / traits.block_elements - n_shared;
    for (std::uint64_t row = 0; row < spec.dims[1]; ++row) {
      pool.take(random.below(pool.n_blocks()), n_own, sink);
      sink(shared);
    }
  }

  void write_router(const TensorSpec& spec, SynthRandom& random, const gguf::ByteSink& sink) {
    const std::size_t n_embd = spec.dims[0], n_experts = spec.dims[1];
    std::vector<float> rows(n_embd * n_experts);
    for (float& value : rows) value = spec.std_dev * random.normal();
    if (options_.locality > 0) add_popularity(spec, random, rows);
    write_floats(rows, sink);
  }

  /// The normalized state has the shared direction c with the length |c| / rms; so c * bias * rms / |c|^2 in
  /// an expert's row adds `bias` to its logit.
  void add_popularity(const TensorSpec& spec, SynthRandom& random, std::vector<float>& rows) const {
    const std::size_t n_embd = spec.dims[0], n_experts = spec.dims[1];
    std::vector<std::size_t> ranks(n_experts);
    std::iota(ranks.begin(), ranks.end(), std::size_t{1});
    for (std::size_t i = n_experts - 1; i > 0; --i) std::swap(ranks[i], ranks[random.below(i + 1)]);
    double mean_log = 0;
    for (const std::size_t rank : ranks) mean_log += std::log(static_cast<double>(rank));
    mean_log /= static_cast<double>(n_experts);
    double squares = 0;
    for (const float value : shared_direction_)
      squares += static_cast<double>(value) * static_cast<double>(value);
    const double rms = std::sqrt(1.0 + k_layer_variance * (spec.layer_idx + 0.5));
    for (std::size_t expert = 0; expert < n_experts; ++expert) {
      const double bias =
          k_full_exponent * options_.locality * (mean_log - std::log(static_cast<double>(ranks[expert])));
      const auto gain = static_cast<float>(bias * rms / squares);
      float* shared_part = rows.data() + (expert + 1) * n_embd - shared_direction_.size();
      for (std::size_t i = 0; i < shared_direction_.size(); ++i)
        shared_part[i] += gain * shared_direction_[i];
    }
  }

  /// Llama 3.1's scaling: long waves are stretched by 8, short ones not, those between gradually.
  std::vector<float> rope_factors(std::uint64_t n_factors) const {
    constexpr double k_factor = 8, k_low = 1, k_high = 4, k_old_context = 8192, k_two_pi = 6.283185307179586;
    std::vector<float> factors(n_factors);
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const double exponent = static_cast<double>(i) / static_cast<double>(n_factors);
      const double waves =
          k_old_context / (k_two_pi * std::pow(static_cast<double>(shape_.rope_base), exponent));
      const double share = std::clamp((waves - k_low) / (k_high - k_low), 0.0, 1.0);
      factors[i] = static_cast<float>(1.0 / ((1.0 - share) / k_factor + share));
    }
    return factors;
  }

  /// Gemma 4's heads rotate in their first quarter only: the other frequencies are divided to nothing.
  static std::vector<float> proportional_factors(std::uint64_t n_factors) {
    constexpr float k_no_rotation = 1e30f;
    std::vector<float> factors(n_factors, k_no_rotation);
    std::fill_n(factors.begin(), n_factors / 4, 1.0f);
    return factors;
  }

  const ShapeSpec& shape_;
  const SynthOptions& options_;
  synth::BlockPools pools_;
  std::vector<float> shared_direction_;
};

void check_options(const ShapeSpec& shape, const SynthOptions& options) {
  if (options.n_layers > shape.n_layers) {
    base::fail(ErrorCode::invalid_argument, "{} layers were asked for, but {} has {}", options.n_layers,
               shape.name, shape.n_layers);
  }
  if (!(options.locality >= 0 && options.locality <= 1)) {
    base::fail(ErrorCode::invalid_argument, "the locality is {}, expected 0 to 1", options.locality);
  }
}

}  // namespace

SynthResult synthesize(const std::filesystem::path& path, const SynthOptions& options,
                       const SynthProgress& progress) {
  const ShapeSpec& shape = synth::find_shape(options.shape);
  check_options(shape, options);
  synth::SynthHeader header(shape, options.type, options.n_layers);
  const std::vector<TensorSpec>& specs = header.specs;
  gguf::Writer& writer = header.writer;
  SynthResult result;
  result.n_layers = header.n_layers;
  result.n_parameters = header.n_parameters;
  result.file_bytes = header.file_bytes;
  result.n_tensors = specs.size();

  synth::NewFile file(path, result.file_bytes, options.overwrite);
  const gguf::ByteSink to_file = [&](std::span<const std::byte> part) {
    if (options.cancel != nullptr && options.cancel->load())
      base::fail(ErrorCode::cancelled, "writing {} was stopped", path.string());
    file.append(part);
    if (progress) progress(file.n_appended(), result.file_bytes);
  };
  to_file(header.bytes);
  Synthesizer synthesizer(shape, options);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    synthesizer.write(specs[i], i,
                      [&](std::span<const std::byte> part) { writer.append_tensor(part, to_file); });
  }
  file.commit();
  return result;
}

}  // namespace sluice
