#include "engine/model/prepare.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/model/second_copy.hpp"
#include "engine/model/state_pool.hpp"
#include "model/architecture.hpp"
#include "model/forward.hpp"
#include "residency/dense_stream.hpp"
#include "residency/roles.hpp"
#include "residency/row_gather.hpp"
#include "residency/weight_store.hpp"
#include "residency/zero_check.hpp"

namespace sluice::engine {
namespace {

std::uint32_t widest_alignment(const std::vector<std::unique_ptr<storage::File>>& shards) {
  std::uint32_t alignment = 1;
  for (const auto& shard : shards) alignment = std::max(alignment, shard->alignment_bytes());
  return alignment;
}

/// What read windows add to `alignment_bytes` at most when blocks lie apart or are not pinned at all, or the
/// embeddings are not.
std::uint64_t split_bytes(const Prepared& prepared, std::uint64_t alignment_bytes) {
  std::vector<residency::TensorBlock> blocks;
  std::vector<const gguf::TensorInfo*> rest = prepared.tensors.pinned();
  for (const model::BoundTensors::Block& block : prepared.tensors.blocks) blocks.push_back(block.tensors);
  rest.erase(std::remove_if(rest.begin(), rest.end(),
                            [&](const gguf::TensorInfo* tensor) {
                              return std::any_of(blocks.begin(), blocks.end(), [&](const auto& block) {
                                return std::find(block.begin(), block.end(), tensor) != block.end();
                              });
                            }),
             rest.end());
  const residency::PinnedLayout layout = residency::plan_pinned(rest, prepared.alignment_bytes, blocks);
  // Where the embeddings are left out, the windows on either side of them end.
  return std::max(layout.region_bytes - layout.weight_bytes, alignment_bytes) - alignment_bytes +
         2 * std::uint64_t{prepared.alignment_bytes};
}

kernels::KvType kernel_type(KvType type) {
  return type == KvType::q8_0 ? kernels::KvType::q8_0 : kernels::KvType::f16;
}

bool has_vocabulary(const gguf::Metadata& metadata) {
  const auto model = metadata.get_string("tokenizer.ggml.model");
  return model && *model != "no_vocab" && *model != "none";
}

}  // namespace

Header parse_header(const std::filesystem::path& path, bool allow_missing_data) {
  Header header;
  std::vector<std::unique_ptr<storage::File>> opened;  // In the order of parsing: the one given comes first.
  const auto open = [&](const std::string& name) {
    opened.push_back(storage::File::open(name, true));
    return storage::make_byte_source(*opened.back(), &header.read_bytes);
  };
  header.file = gguf::parse_model(path.string(), open, {allow_missing_data});
  for (const gguf::ShardInfo& shard : header.file.shards) {
    const auto its = std::find_if(opened.begin(), opened.end(), [&](const auto& file) {
      return file != nullptr && file->path() == shard.path;
    });
    SLUICE_CHECK(its != opened.end());
    header.shards.push_back(std::move(*its));
  }
  return header;
}

std::string model_name(const gguf::ModelFile& file) {
  return std::string(file.metadata.get_string("general.name")
                         .value_or(std::filesystem::path(file.shards.front().path).stem().string()));
}

std::unique_ptr<Prepared> prepare(Header header, const OpenOptions& options, bool keep_metadata,
                                  std::uint32_t assumed_alignment) {
  auto prepared = std::make_unique<Prepared>();
  prepared->file = std::move(header.file);
  prepared->shards = std::move(header.shards);
  prepared->read_bytes = header.read_bytes;
  gguf::Metadata& metadata = prepared->file.metadata;
  model::ModelSpec spec = model::read_spec(metadata);
  spec.n_vocab = model::vocabulary_rows(prepared->file);
  prepared->graph = std::make_unique<model::Graph>(std::move(spec));
  const model::Declaration declaration = prepared->graph->declare();
  prepared->tensors = model::bind(prepared->file, declaration);
  std::vector<model::KvLayer> kv_layers = prepared->graph->kv_layers();
  for (model::KvLayer& layer : kv_layers) layer.shape.type = kernel_type(options.kv_type);
  prepared->kv = model::plan_kv(kv_layers);
  const std::uint32_t n_vocab = prepared->spec().n_vocab;
  if (has_vocabulary(metadata)) {
    prepared->tokenizer = tokenizer::make_tokenizer(metadata, {options.pre_tokenizer});
    if (prepared->tokenizer->vocab_size() > n_vocab) {
      base::fail(
          ErrorCode::invalid_file,
          "{}: the vocabulary has {} tokens but token_embd.weight only {} rows; the file is inconsistent",
          metadata.source_name, prepared->tokenizer->vocab_size(), n_vocab);
    }
  }
  prepared->chat_template = std::string(metadata.get_string("tokenizer.chat_template").value_or(""));
  if (!keep_metadata) {
    for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type",
                            "tokenizer.ggml.merges"}) {
      metadata.drop(key);
    }
  }
  if (!prepared->shards.empty() && !options.second_copy.empty()) {
    prepared->copies =
        open_second_copy(prepared->file, prepared->shards, options.second_copy, &prepared->read_bytes);
  }
  prepared->alignment_bytes = std::max(assumed_alignment, widest_alignment(prepared->shards));
  prepared->units = residency::map_units(prepared->file, prepared->spec().n_layers(), declaration.experts,
                                         prepared->alignment_bytes);
  return prepared;
}

void check_weights(Prepared& prepared, std::size_t n_samples) {
  const tokenizer::Tokenizer* words = prepared.tokenizer.get();
  const auto is_trained = [words](std::uint64_t row) {
    if (words == nullptr) return true;
    return row < words->vocab_size() &&
           words->token_kind(static_cast<tokenizer::TokenId>(row)) == tokenizer::TokenKind::normal;
  };
  residency::check_weights(prepared.file, prepared.shards, n_samples, is_trained, &prepared.read_bytes);
}

std::uint64_t bookkeeping_bytes(const Prepared& prepared) {
  // Slot, use counts and place of a unit; what heat lists when it is read and when it is saved.
  constexpr std::uint64_t k_unit_bytes = 96 + 64;
  // A candidate of the sampler, and a copy while candidates are sorted.
  constexpr std::uint64_t k_token_bytes = 16;
  // Its place, and its part in the layout while pinned weights are read.
  constexpr std::uint64_t k_tensor_bytes = 96;
  // A chunk of the ring in the list in use and in the next one, which grows by doubling.
  constexpr std::uint64_t k_chunk_bytes = 64;
  std::uint64_t streamable_bytes = 0;
  for (const model::BoundTensors::Block& block : prepared.tensors.blocks) {
    for (const auto* tensor : block.tensors) streamable_bytes += tensor->size_bytes;
  }
  return prepared.units.n_units() * k_unit_bytes + prepared.spec().n_vocab * k_token_bytes +
         prepared.file.tensors.size() * k_tensor_bytes + streamable_bytes / base::k_mib * k_chunk_bytes;
}

residency::ModelFacts model_facts(const Prepared& prepared, const kernels::Ops& ops) {
  residency::ModelFacts facts;
  const std::vector<const gguf::TensorInfo*> pinned = prepared.tensors.pinned();
  constexpr std::array k_roles = {Role::token_embedding, Role::output_head, Role::norm,
                                  Role::attention,       Role::router,      Role::shared_expert,
                                  Role::dense_ffn,       Role::rope_table,  Role::other};
  for (const Role role : k_roles) {
    std::uint64_t bytes = 0;
    for (const model::BoundTensor& bound : prepared.tensors.all) {
      if (bound.info == nullptr || bound.need.role != role) continue;
      bytes += bound.info->size_bytes;
      if (bound.need.is_floats()) bytes += model::converted_vector_bytes(*bound.info);
    }
    if (bytes != 0) facts.pinned_bytes.emplace_back(role, bytes);
  }
  const residency::PinnedLayout layout = residency::plan_pinned(pinned, prepared.alignment_bytes);
  facts.alignment_bytes = layout.region_bytes - layout.weight_bytes;
  for (const residency::LayerUnits& layer : prepared.units.layers) {
    facts.expert_layers.push_back({layer.n_experts, prepared.spec().n_experts_used(), layer.slot_bytes});
  }
  const std::uint32_t alignment_bytes = prepared.alignment_bytes;
  std::vector<const gguf::TensorInfo*> streamable;
  for (const model::BoundTensors::Block& block : prepared.tensors.blocks) {
    residency::DenseBlockFacts block_facts{block.role, 0};
    for (const auto* tensor : block.tensors) {
      block_facts.bytes += tensor->size_bytes;
      streamable.push_back(tensor);
    }
    facts.blocks.push_back(block_facts);
  }
  facts.ring_slot_bytes = residency::stream_slot_bytes(streamable, alignment_bytes);
  facts.split_bytes = split_bytes(prepared, facts.alignment_bytes);
  const gguf::TensorInfo& embedding = *prepared.tensors.token_embd;
  if (&embedding != prepared.tensors.output) facts.embedding_bytes = embedding.size_bytes;
  facts.gather_bytes = [row_bytes = gguf::row_bytes(embedding.type, embedding.dims[0]),
                        alignment_bytes](std::uint32_t n_rows) {
    return residency::RowGather::buffer_bytes(row_bytes, n_rows, alignment_bytes);
  };
  for (const model::KvGroup& group : prepared.kv.groups)
    facts.kv_groups.push_back({group.page_bytes, group.window});
  facts.kv_page_tokens = kernels::KvShape::page_tokens;
  const bool is_q8 =
      !prepared.kv.views.empty() && prepared.kv.views.front().shape.type == kernels::KvType::q8_0;
  facts.kv_type = is_q8 ? "q8_0" : "f16";
  facts.state_bytes = StatePool::bytes_of_sequence(prepared.graph->state());
  if (facts.state_bytes != 0) facts.rewind_tokens = model::k_state_log_rows;
  facts.bookkeeping_bytes = bookkeeping_bytes(prepared);
  facts.n_ctx_train = prepared.spec().n_ctx_train;
  facts.scratch_bytes = [&graph = *prepared.graph, &ops](std::uint32_t n_rows) {
    return model::Forward::scratch_bytes(graph, ops, n_rows);
  };
  return facts;
}

}  // namespace sluice::engine
