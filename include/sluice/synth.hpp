#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sluice/error.hpp"

namespace sluice {

/// A model whose shape can be synthesized. Not every architecture among them can be run by this version.
struct SynthShape {
  std::string name;          ///< "qwen3-30b-a3b".
  std::string architecture;  ///< "qwen3moe".
  std::uint32_t n_layers = 0;
  std::uint32_t n_experts = 0;  ///< 0: dense.
  std::uint32_t n_experts_used = 0;
};

/// Every shape that synthesize() knows, in a fixed order.
std::vector<SynthShape> synth_shapes();
/// Every weight type that synthesize() knows: "Q4_K_M" (the mix of types that the model's published 4-bit
/// files have) and the names of tensor types.
std::vector<std::string> synth_types();

struct SynthOptions {
  std::string shape;  ///< A name of synth_shapes().
  /// A name of synth_types(). A tensor type is given to every matrix whose rows are whole blocks of it; the
  /// others get a type of smaller blocks.
  std::string type = "Q4_K_M";
  /// Layers to keep, 0: all of them; prediction layers, which some models have behind these, are kept too.
  /// block_count follows.
  std::uint32_t n_layers = 0;
  std::uint64_t seed = 1;  ///< The same seed, shape and options give the same file.
  /// How unevenly the experts of a layer are used, from 0 to 1. 0: routers are plain random matrices, which
  /// use all experts about equally. Above 0, all rows of the embedding share their last 256 elements, so that
  /// the residual stream carries one constant direction, and every row of a router has a component along it
  /// that adds -2 * locality * ln(rank) to its logit, less the mean. Ranks are a random order of the experts,
  /// another one in every layer; chosen experts are thus about Zipf distributed with the exponent 2 *
  /// locality. Which expert is popular does not depend on the text: real models reuse experts in ways
  /// (topics, repeated tokens) that this leaves out.
  double locality = 0;
  bool overwrite = false;  ///< Replace a file that exists.
  /// May be raised from a signal handler or another thread: ends the work with Error(cancelled).
  const std::atomic<bool>* cancel = nullptr;
};

struct SynthResult {
  std::uint64_t file_bytes = 0;
  std::uint64_t n_parameters = 0;
  std::uint64_t n_tensors = 0;
  std::uint32_t n_layers = 0;
};

/// Told how much of the file is written: bytes so far and in all.
using SynthProgress = std::function<void(std::uint64_t written_bytes, std::uint64_t file_bytes)>;

/// Writes a GGUF file with the tensors, types and vocabulary size of a real model and valid random weights,
/// for tests of speed and I/O: it runs where its architecture does, its text means nothing. Blocks repeat
/// after some MiB, at another phase in every tensor and expert. The vocabulary spells every byte; most other
/// tokens come from no text.
///
/// Free space is checked first. The file grows as PATH.partial and is renamed when it is whole and on the
/// drive; nothing is left behind when something fails. Its pages are dropped from the page cache, so that the
/// first read of it is cold. Throws Error: invalid_argument (an unknown shape or type, options out of range,
/// PATH exists), io, cancelled.
SynthResult synthesize(const std::filesystem::path& path, const SynthOptions& options,
                       const SynthProgress& progress = {});

}  // namespace sluice
