#include "base/error.hpp"
#include "model/architecture_parts.hpp"

namespace sluice::model::arch {
namespace {

// What the files do not say.
constexpr std::uint32_t k_chunk = 8192, k_whole_step = 4, k_maverick_experts = 128;
constexpr kernels::Temperature k_temperature = {0.1f, 8192, 1};

}  // namespace

// Llama 4: of four layers three rotate and see their own chunk of the text, and one sees all, without
// positions, with queries that grow. In some layers one expert per row, whose weight scales its input, beside
// one that every row gets.
ModelSpec read_llama4(Keys& keys) {
  ModelSpec model = read_decoder(keys, Pairs::neighbours);
  if (keys.has("attention.sliding_window") &&
      keys.count("attention.sliding_window", k_max_context) != k_chunk) {
    base::fail(ErrorCode::unsupported,
               "{}: {} is not {}: models of this architecture with other layers cannot "
               "be run",
               keys.file(), keys.full("attention.sliding_window"), k_chunk);
  }
  MoeSpec moe = read_experts(keys, {.scoring = kernels::RouterParams::Scoring::sigmoid, .normalize = false});
  if (moe.router.n_used != 1) {
    base::fail(ErrorCode::unsupported, "{}: {} is {}, expected 1", keys.file(),
               keys.full("expert_used_count"), moe.router.n_used);
  }
  moe.weights_at_input = true;
  moe.shared = read_shared_expert(keys);
  if (moe.shared.width == 0) moe.shared = moe.expert;
  AttentionSpec chunked = read_attention(keys), whole = chunked;
  chunked.chunk = k_chunk;
  chunked.norms_rotated = true;
  // Maverick's heads have no norm.
  if (moe.n_experts != k_maverick_experts) chunked.qk_norm = AttentionSpec::QkNorm::gainless;
  whole.rotates = false;
  whole.temperature = k_temperature;
  add_mixed_layers(model, keys, chunked, moe);
  for (std::uint32_t i = k_whole_step - 1; i < model.n_layers(); i += k_whole_step)
    model.layers[i].mixer = whole;
  return model;
}

}  // namespace sluice::model::arch
