#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gguf/reader.hpp"
#include "kernels/ops.hpp"
#include "model/binding.hpp"
#include "model/graph.hpp"
#include "model/kv_layout.hpp"
#include "residency/plan.hpp"
#include "residency/unit_map.hpp"
#include "sluice/options.hpp"
#include "storage/backend.hpp"
#include "storage/file.hpp"
#include "tokenizer/tokenizer.hpp"

namespace sluice::engine {

/// A parsed header and the files it was read from. They stay open, so that weights come from the same files
/// even when another one gets a name meanwhile.
struct Header {
  gguf::ModelFile file;
  std::vector<std::unique_ptr<storage::File>> shards;  ///< As in `file`; none when it lies in no file.
  std::uint64_t read_bytes = 0;
};

/// Everything that is known about a model before any weight is read.
struct Prepared {
  gguf::ModelFile file;
  std::unique_ptr<model::Graph> graph;  ///< Gets its weights when they are loaded.
  model::BoundTensors tensors;
  model::KvLayout kv;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;  ///< Null when the file has no vocabulary.
  std::string chat_template;
  std::vector<std::unique_ptr<storage::File>> shards;
  std::vector<std::unique_ptr<storage::File>> copies;  ///< Of the shards; empty without a second copy.
  std::uint32_t alignment_bytes = 1;                   ///< The widest that direct reads of a shard need.
  residency::UnitMap units;
  /// To know all this: of the header, to see whether weights are there, and to compare copies.
  std::uint64_t read_bytes = 0;

  const model::ModelSpec& spec() const noexcept { return graph->spec(); }
};

/// Parses the header of a model given by any shard; reads nothing else. With `allow_missing_data` the files
/// may end before their tensors do.
Header parse_header(const std::filesystem::path& path, bool allow_missing_data = false);

/// general.name, or the stem of the file's name.
std::string model_name(const gguf::ModelFile& file);

/// Checks a parsed model against its architecture and builds vocabulary and unit map. The vocabulary's texts
/// are dropped from the metadata when `keep_metadata` is false: they would be held twice. `assumed_alignment`
/// is that of a header without files.
std::unique_ptr<Prepared> prepare(Header header, const OpenOptions& options, bool keep_metadata,
                                  std::uint32_t assumed_alignment = 1);

/// Reads `n_samples` blocks of every matrix; the tokenizer must still be there. Throws Error(invalid_file)
/// where weights were never written (residency/zero_check.hpp).
void check_weights(Prepared& prepared, std::size_t n_samples = 1);

/// What the runtime allocates by itself after the plan is made, as far as it grows with the model.
std::uint64_t bookkeeping_bytes(const Prepared& prepared);

/// The planner's view of a prepared model; refers to both arguments.
residency::ModelFacts model_facts(const Prepared& prepared, const kernels::Ops& ops);

}  // namespace sluice::engine
