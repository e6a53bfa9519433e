#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "sluice/routing.hpp"

namespace sluice {

class Model;
class Tokenizer;
struct ModelInfo;
struct Plan;

/// Which units stay when a cache is full.
enum class CachePolicy { lfru, lru };
/// How keys and values are kept. q8_0 takes 17/32 of the memory of f16, for models whose heads have a
/// multiple of 32 elements; logits change a little.
enum class KvType { f16, q8_0 };
/// How bytes come from the drive. `automatic` takes io_uring with O_DIRECT where both are allowed.
enum class IoBackend { automatic, uring, pread };

/// Limits of OpenOptions::max_sequences, prefill_chunk and n_threads.
inline constexpr std::uint32_t k_max_sequences = 4096;
inline constexpr std::uint32_t k_max_prefill_chunk = 16'384;
inline constexpr int k_max_threads = 256;
/// Tokens that a sequence can always take back (Sequence::rewind), but for models with recurrent state
/// (Plan::rewind_tokens).
inline constexpr std::uint32_t k_max_rewind = 128;

/// What takes time while a model opens, in this order; the last two are of models with experts.
enum class OpenStage {
  weights,  ///< Weights that stay in memory are read.
  memory,   ///< Memory for experts is taken; nothing is read.
  experts,  ///< All experts are read, because all of them fit.
};
struct OpenProgress {
  OpenStage stage = OpenStage::weights;
  std::uint64_t done_bytes = 0;
  /// For `weights` and `experts`: what both read together. For `memory`: what it takes, at most.
  std::uint64_t total_bytes = 0;
};

struct OpenOptions {
  /// Hard limit on everything the process holds, in bytes. 0: what the cgroup and the machine leave, less
  /// headroom.
  std::uint64_t memory_bytes = 0;
  /// What the program will allocate itself while the model is open: part of memory_bytes, left to it.
  std::uint64_t program_bytes = 0;
  /// Tokens of context per sequence. 0: the smaller of the model's and 4096.
  std::uint32_t n_ctx = 0;
  /// Sequences that may exist at once.
  std::uint32_t max_sequences = 1;
  /// Tokens that all sequences together may keep; the budget reserves KV for them. At least n_ctx. 0: each
  /// sequence's whole context.
  std::uint64_t kv_tokens = 0;
  KvType kv_type = KvType::f16;
  /// Most tokens computed in one pass. 0: chosen from the budget. Changes speed, never tokens.
  std::uint32_t prefill_chunk = 0;
  /// Worker threads, the caller included. 0: the cores this process may use.
  int n_threads = 0;
  /// The GPU that computes, by its number; negative: the CPU computes. The model must fit the memory whole,
  /// and so must its weights, KV cache and scratch that of the GPU.
  int gpu = -1;
  CachePolicy policy = CachePolicy::lfru;
  /// Reads the experts that the next layer will probably use while the drive is idle.
  bool look_ahead = true;
  IoBackend io = IoBackend::automatic;
  /// Another copy of the model's file (of a split one: any shard) on another drive; empty: none. Reads are
  /// divided between the drives by their speed, and what one fails to read is read from the other. Its header
  /// must be the same, byte for byte.
  std::filesystem::path second_copy;
  /// Overrides the file's tokenizer.ggml.pre.
  std::string pre_tokenizer;
  // While the model opens, and not later:
  /// May be raised from a signal handler or another thread: opening ends with Error(cancelled). Not looked at
  /// while the header is read and the vocabulary built, which takes some tenths of a second.
  const std::atomic<bool>* cancel = nullptr;
  /// Told how far opening is, often, on the thread that opens. Must not throw.
  std::function<void(const OpenProgress&)> on_progress;
  /// Called once all that the header says is known and the plan is made, before any weight is read; what it
  /// throws ends the opening. Called again in the rare case that others took memory meanwhile and the plan
  /// has to change. For what can be refused before minutes of loading: a prompt longer than the context, a
  /// file without a vocabulary.
  std::function<void(const ModelInfo&, const Tokenizer&, const Plan&)> before_loading;
  // While it runs:
  /// Gets the experts that each pass used; not for dense models. Its buffer is part of the plan.
  RoutingObserver on_routing;
  /// Where use counts of experts are kept between runs: a file, or a folder (ending with '/') in which the
  /// model's own file is named after it. Empty: nowhere. What is wrong with the file is a warning, never an
  /// error. See Model::save_heat().
  std::filesystem::path heat;
  /// A draft that is open already (open_draft()): memory_bytes covers it too. Looked at only while the model
  /// opens.
  const Model* draft = nullptr;
};

}  // namespace sluice
