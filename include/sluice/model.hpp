#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/error.hpp"
#include "sluice/options.hpp"
#include "sluice/plan.hpp"
#include "sluice/predict.hpp"
#include "sluice/stats.hpp"
#include "sluice/tokenizer.hpp"

namespace sluice {

/// Facts of an open model.
struct ModelInfo {
  std::string path;
  std::string name;           ///< general.name, or the file's name.
  std::string architecture;   ///< "qwen3moe", ...
  std::string quantization;   ///< Type that holds most weight bytes, "Q4_K".
  std::string chat_template;  ///< tokenizer.chat_template, or empty.
  std::uint64_t n_parameters = 0;
  std::uint64_t file_bytes = 0;
  std::uint32_t n_layers = 0;
  std::uint32_t n_embd = 0;
  std::uint32_t n_experts = 0;
  std::uint32_t n_experts_used = 0;
  std::uint32_t n_ctx_train = 0;
  std::uint32_t n_vocab = 0;
  std::vector<std::uint64_t> expert_bytes;  ///< Of each layer that has experts: the weights of one.
};

class Model;

/// One conversation: its tokens' KV cache and position. Belongs to a Model; move-only; its memory goes back
/// to the model when it dies. When the model is gone, nothing can be computed with it any more: rewind(),
/// share_prefix() and Model::step() throw Error(invalid_argument).
///
/// Threads: as the calls of its model, so it may not be used or destroyed while another thread is in a call
/// of the model.
class Sequence {
 public:
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();
  /// Tokens computed so far; the next token gets this position.
  std::uint32_t n_tokens() const noexcept;
  /// Room left, in tokens.
  std::uint32_t n_free() const noexcept;
  /// Goes back to the first `n` tokens and forgets the others. Returns how many are left: `n`, or fewer where
  /// the model does not keep what it would need to go on from there (layers that see only the last tokens, or
  /// recurrent ones), so that the caller has to compute the rest again. A pass of at most
  /// Plan::rewind_tokens tokens can always be taken back, or a part of it. Throws Error(invalid_argument)
  /// when there are fewer than `n`, and from a callback of the model.
  std::uint32_t rewind(std::uint32_t n);
  /// Begins this empty sequence with the first `n` tokens of another one of the same model, which were then
  /// computed once; their memory is shared until one of the two goes on in the middle of a page. Returns how
  /// many it has now, as rewind(). Throws Error(invalid_argument) when this one is not empty or the other has
  /// fewer than `n`, and from a callback of the model.
  std::uint32_t share_prefix(const Sequence& from, std::uint32_t n);

  struct Impl;

 private:
  friend class Model;
  struct Deleter {
    void operator()(Impl* impl) const noexcept;
  };
  explicit Sequence(Impl* impl) noexcept;
  void check_usable(const char* call) const;
  std::unique_ptr<Impl, Deleter> impl_;
};

/// Which rows of a step need logits.
enum class LogitsWanted { none, last, all };

struct StepItem {
  Sequence* sequence = nullptr;
  std::span<const TokenId> tokens;  ///< Appended to the sequence; at least one.
  LogitsWanted logits = LogitsWanted::last;
  /// So many of the tokens, at the end, are guesses that the caller may take back: beside them an item of one
  /// token counts as decoding.
  std::uint32_t n_guesses = 0;
  /// May be null. Raised from a signal handler or another thread, it ends this item's part of a pass within
  /// one layer; the other items go on.
  const std::atomic<bool>* cancel = nullptr;
};

/// An item of a step that failed by itself, while the others went on. Its sequence is as before the pass.
struct ItemFailure {
  std::size_t item = 0;
  ErrorCode code = ErrorCode::io;  ///< io, invalid_file (an expert cannot be read) or cancelled.
  std::string message;
};

/// Called once per row that wants logits, in order: which item, which of its tokens, and [n_vocab] logits
/// that are valid during the call only.
using LogitsSink = std::function<void(std::size_t item, std::size_t token, std::span<const float> logits)>;

/// How far a step is: tokens of its items that are computed, those of the pass under way in parts as its
/// layers are done, and all of them.
using StepProgress = std::function<void(double n_done, std::size_t n_tokens)>;

/// An open model under a memory budget. Thread-compatible: one call at a time per model.
///
/// Callbacks (a LogitsSink, StepProgress, OpenOptions::on_routing, the condition of preload_while()) run
/// inside a call. They may look at info(), plan(), tokenizer() and stats(), raise a cancel flag and destroy
/// sequences. What would change the model or a sequence throws Error(invalid_argument) there. The model
/// itself must outlive the call.
class Model {
 public:
  /// Opens a GGUF file (any shard of a split one), plans its placement and loads what the plan pins. Throws
  /// Error: io, invalid_file, unsupported, budget when the budget is below the floor (the message says the
  /// floor), or cancelled (OpenOptions::cancel).
  static Model open(const std::filesystem::path& path, const OpenOptions& options = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelInfo& info() const noexcept;
  const Plan& plan() const noexcept;
  /// What computing takes, for predict().
  WorkFacts work() const;
  /// What earlier runs (OpenOptions::heat), not this one, let expect of decoding. Nothing when they say
  /// nothing or no expert streams.
  std::optional<HeatForecast> heat_forecast() const noexcept;
  const Tokenizer& tokenizer() const noexcept;

  /// Throws Error(budget) when max_sequences are alive. One that a callback destroys lives until the call of
  /// that callback returns.
  Sequence new_sequence();

  /// Appends tokens to one or several sequences, sharing every weight that is read between them, and delivers
  /// the logits asked for. Items larger than the plan's chunk are computed in several passes. On an error
  /// nothing of the failed pass counts: each sequence keeps the tokens of the passes that were complete.
  /// When an item fails by itself the others are computed to their end before its error is thrown.
  /// Throws Error: context_full or kv_full (before anything is computed), io (a read failed: names tensor and
  /// offset), cancelled, invalid_argument (token out of range, a sequence given twice).
  void step(std::span<const StepItem> items, const LogitsSink& sink = {});

  /// A step that is one pass over the layers: of at most plan().prefill_chunk tokens in all. For programs
  /// that serve many sequences and decide before each pass what it computes. Items of one token, or one and
  /// guesses, use the cache of experts as decoding, whatever else is in the pass. Returns the items that
  /// failed by themselves; the others get the bits that they would have got without them. Throws as step()
  /// for what concerns all, and Error(invalid_argument) for more tokens; no sequence has changed then.
  std::vector<ItemFailure> pass(std::span<const StepItem> items, const LogitsSink& sink = {});

  /// A flag the caller may raise from a signal handler or another thread: a running step() ends within one
  /// layer with Error(cancelled). step() never clears it.
  void set_cancel_flag(const std::atomic<bool>* flag) noexcept;

  /// Called before each layer of a step from now on, on the thread that computes; must not throw. An empty
  /// one ends it.
  void set_progress(StepProgress progress);

  /// Reads experts that an earlier run used most (OpenOptions::heat) into free slots, one after the other,
  /// while `may_go_on()` returns true; returns when it does not or none is left. For moments when the program
  /// waits, such as for a user's input: steps do this by themselves when the drive has nothing else to do.
  /// Between reads it does what relieve() does.
  void preload_while(const std::function<bool()>& may_go_on);

  /// Looks at the memory of the machine and of the control group, at most every 25 ms, and gives some of the
  /// model's back to the system when little is left for others: first experts, then dense weights, which are
  /// read again when they are needed. Steps do this by themselves, and take the memory again. For a program
  /// that keeps a model open and waits: to be called between steps, 20 to 40 times a second, by the thread
  /// that runs the steps or another that no step runs beside. A look takes a tenth of a millisecond, giving
  /// back some milliseconds.
  void relieve();

  /// Adds the use counts since the model was opened, or since they were saved last, to the heat file. Writes
  /// it as a whole or not at all. Does nothing without OpenOptions::heat or when no token was computed; a
  /// failure is a warning.
  void save_heat();

  Stats stats() const;

  struct Impl;

 private:
  explicit Model(std::unique_ptr<Impl> impl) noexcept;
  friend struct ModelAccess;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
