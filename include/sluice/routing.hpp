#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

namespace sluice {

struct ModelInfo;

/// What the routers of one pass over the layers chose. Valid during the call that delivers it.
struct RoutedPass {
  /// One token of each sequence; otherwise a piece of a prompt, or guesses that are being verified.
  bool is_decode = false;
  std::uint32_t n_tokens = 0;  ///< Rows of the pass.
  std::uint32_t n_layers = 0;  ///< Layers that have experts.
  std::uint32_t n_used = 0;    ///< Experts per token and layer.
  /// [n_layers, n_tokens, n_used] ids; those of one token by falling weight.
  std::span<const std::uint16_t> experts;
};

/// Called after each complete pass by the thread that computes it. Must not throw.
using RoutingObserver = std::function<void(const RoutedPass&)>;

/// Writes a routing trace: JSON lines, first an object about the model, then one per token:
/// {"tok": 17, "phase": "prompt" | "decode", "layers": [[ids of the first layer with experts], ...]}.
/// Buffered and written in whole lines. A write that fails (a full disk) ends the trace with one warning on
/// standard error and leaves the lines before it; the run goes on. Used by one thread at a time: that which
/// computes, once the observer is in use. Must outlive the last pass that its observer sees.
class TraceWriter {
 public:
  /// Creates the file, or replaces one that is empty or an earlier trace. Throws Error(io) naming the path
  /// when it cannot be created, Error(invalid_argument) when it exists and is something else.
  explicit TraceWriter(const std::filesystem::path& path);
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;
  ~TraceWriter();  ///< Writes what is buffered.

  /// For OpenOptions::on_routing; refers to this writer.
  RoutingObserver observer();
  /// Writes the header. Call once, before the first pass. `prefill_chunk` is the plan's. Throws
  /// Error(invalid_argument) for a model without experts.
  void begin(const ModelInfo& info, std::uint32_t prefill_chunk);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
