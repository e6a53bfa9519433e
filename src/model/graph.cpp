#include "model/graph.hpp"

#include <algorithm>
#include <utility>

#include "model/blocks/attention.hpp"
#include "model/blocks/delta.hpp"
#include "model/blocks/ffn.hpp"
#include "model/blocks/mla.hpp"
#include "model/blocks/moe.hpp"
#include "model/live_rows.hpp"

namespace sluice::model {
namespace {

std::unique_ptr<Block> make_mixer(const MixerSpec& spec, std::uint32_t n_embd) {
  if (const auto* mla = std::get_if<MlaSpec>(&spec)) return std::make_unique<MlaBlock>(*mla, n_embd);
  if (const auto* delta = std::get_if<DeltaSpec>(&spec)) return std::make_unique<DeltaBlock>(*delta, n_embd);
  return std::make_unique<AttentionBlock>(std::get<AttentionSpec>(spec), n_embd);
}

KvLayer kept_by(const MlaSpec& mla) {
  KvLayer layer;
  layer.shape.n_kv_heads = 1;
  layer.shape.k_head_dim = mla.kept_dim();
  layer.shape.v_head_dim = mla.kv_rank;
  layer.shape.v_in_k = true;
  layer.products = std::uint64_t{mla.n_heads} * (mla.kept_dim() + mla.kv_rank);
  return layer;
}

KvLayer kept_by(const DeltaSpec&) {
  return {};
}

KvLayer kept_by(const AttentionSpec& attention) {
  // A chunk lies within the last positions, as many as it has.
  return {{attention.n_kv_heads, attention.k_head_dim, attention.v_head_dim},
          attention.window != 0 ? attention.window : attention.chunk,
          std::uint64_t{attention.n_heads} * (attention.k_head_dim + attention.v_head_dim)};
}

}  // namespace

const MoeSpec* ModelSpec::experts() const noexcept {
  for (const LayerSpec& layer : layers) {
    if (const auto* moe = std::get_if<MoeSpec>(&layer.channel)) return moe;
  }
  return nullptr;
}

std::uint32_t ModelSpec::n_rope_columns() const noexcept {
  std::uint32_t n = 0;
  for (const RopeCurve& curve : curves) n += curve.params.n_rot;
  return n;
}

Graph::Graph(ModelSpec spec) : rope_factors(spec.curves.size()), spec_(std::move(spec)) {
  layers_.resize(spec_.layers.size());
  int next_units = -1;
  for (std::size_t i = layers_.size(); i > 0; --i) {
    const LayerSpec& layer = spec_.layers[i - 1];
    Layer& made = layers_[i - 1];
    made.mixer = make_mixer(layer.mixer, spec_.n_embd);
    if (const auto* moe = std::get_if<MoeSpec>(&layer.channel)) {
      made.channel = std::make_unique<MoeBlock>(*moe, spec_.n_embd);
    } else {
      made.channel = std::make_unique<FfnBlock>(std::get<FfnSpec>(layer.channel), spec_.n_embd);
    }
    made.next_units = next_units;
    if (made.channel->has_units()) next_units = static_cast<int>(i - 1);
  }
  std::vector<StateNeed> states;
  for (const Layer& layer : layers_) states.push_back(layer.mixer->state());
  state_ = plan_state(states);
}

Declaration Graph::declare() {
  Declaring visitor;
  visit(visitor);
  visitor.result.n_layers = spec_.n_layers();
  visitor.result.n_prediction_layers = spec_.n_prediction_layers;
  return std::move(visitor.result);
}

void Graph::visit(TensorVisitor& visitor) {
  const std::uint32_t n_embd = spec_.n_embd;
  const auto norm = [&](const float*& to, const char* name) {
    if (name != nullptr) visitor.vector(to, Role::norm, std::string(name) + ".weight", n_embd);
  };
  const auto in_norm = [&](Norm& to, const char* name) {
    norm(to.gain, name);
    if (spec_.norm_biases) visitor.vector(to.bias, Role::norm, std::string(name) + ".bias", n_embd);
  };
  visitor.pinned(token_embd, Role::token_embedding, "token_embd.weight", n_embd, spec_.n_vocab);
  for (std::size_t i = 0; i < spec_.curves.size(); ++i) {
    const RopeCurve& curve = spec_.curves[i];
    const auto factors = [&](const float*& to, const char* name) {
      if (name != nullptr) visitor.vector(to, Role::rope_table, name, curve.params.n_rot / 2, Need::optional);
    };
    factors(rope_factors[i].usual, curve.factors);
    factors(rope_factors[i].of_long_contexts, curve.long_factors);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    visitor.begin_layer(static_cast<std::uint32_t>(i));
    Layer& layer = layers_[i];
    const LayerSpec& spec = spec_.layers[i];
    in_norm(layer.mixer_norm, spec.mixer_norm);
    layer.mixer->visit(visitor);
    norm(layer.mixer_out_norm, spec.mixer_out_norm);
    in_norm(layer.channel_norm, spec.channel_norm);
    layer.channel->visit(visitor);
    norm(layer.channel_out_norm, spec.channel_out_norm);
  }
  visitor.end_layers();
  in_norm(output_norm, "output_norm");
  visitor.pinned(output, Role::output_head, "output.weight", n_embd, spec_.n_vocab, Need::optional);
  visitor.scales(output_scale, Role::output_head, "output.scale", 1);
  if (spec_.output_bias) visitor.vector(output_bias, Role::output_head, "output.bias", spec_.n_vocab);
}

std::vector<KvLayer> Graph::kv_layers() const {
  std::vector<KvLayer> layers;
  for (const LayerSpec& layer : spec_.layers)
    layers.push_back(std::visit([](const auto& mixer) { return kept_by(mixer); }, layer.mixer));
  return layers;
}

bool has_out_norms(const ModelSpec& spec) noexcept {
  return std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& layer) {
    return layer.mixer_out_norm != nullptr || layer.channel_out_norm != nullptr;
  });
}

std::uint32_t n_logits_rows(const ModelSpec& spec, std::uint32_t n_rows) noexcept {
  // As many as take the room of the residual stream and its normalised copy.
  const std::uint64_t stream = std::uint64_t{2} * n_rows * spec.n_embd;
  const std::uint64_t n = std::clamp<std::uint64_t>(stream / std::max(spec.n_vocab, 1u), 1, 64);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(n, n_rows));
}

PassMemory pass_memory(const Graph& graph, std::uint32_t n_rows) {
  const ModelSpec& spec = graph.spec();
  Arena arena;
  Needs needs{arena};
  LiveRows::needs(arena, n_rows);
  arena.rows(n_rows, spec.n_embd);
  arena.rows(n_rows, spec.n_embd);
  if (has_out_norms(spec)) arena.rows(n_rows, spec.n_embd);
  for (const Graph::Layer& layer : graph.layers()) {
    for (const Block* block : {layer.mixer.get(), layer.channel.get()}) {
      const ArenaScope scope(arena);
      block->needs(needs, n_rows);
    }
  }
  arena.rows(n_logits_rows(spec, n_rows), spec.n_vocab);
  arena.list<float>(spec.n_vocab);
  return {arena.peak().device,
          arena.peak().host,
          {n_rows, needs.widest_input, needs.widest_hidden, spec.n_rope_columns(), needs.widest_heads}};
}

}  // namespace sluice::model
