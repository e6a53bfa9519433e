#pragma once

#include "model/keys.hpp"
#include "model/spec.hpp"

// What the files in arch/ share: each part reads its keys and checks them. All throw
// Error(invalid_file) naming the key, the value found and what was expected, or Error(unsupported).
namespace sluice::model::arch {

/// Which elements of a head rotate together.
enum class Pairs : std::uint8_t {
  neighbours,  ///< (2i, 2i + 1): files whose queries and keys were permuted for it.
  halves,      ///< (i, i + n_rot/2).
};

/// Sizes, norm and rotation; no layers yet.
ModelSpec read_decoder(Keys& keys, Pairs pairs);
/// Heads and their sizes. Needs "block_count".
AttentionSpec read_attention(Keys& keys);
/// A dense feed-forward block of "feed_forward_length".
FfnSpec read_ffn(Keys& keys);

struct ExpertDefaults {
  kernels::RouterParams::Scoring scoring = kernels::RouterParams::Scoring::softmax;
  bool normalize = true;
};
/// Experts without a shared one: their number, width and how the router chooses. Where the file does not say
/// it, the scoring and whether weights are normalized are the architecture's.
MoeSpec read_experts(Keys& keys, ExpertDefaults defaults);

/// The width of the expert that every row gets, 0 when the file names none.
FfnSpec read_shared_expert(Keys& keys);
/// The same for files that may give the number of such experts instead, each as wide as the others: they are
/// one.
FfnSpec read_shared_experts(Keys& keys, const MoeSpec& moe);

/// All layers alike, but for those that guess further tokens ("nextn_predict_layers"), which are counted in
/// "block_count" and are not run. Needs "block_count".
void add_layers(ModelSpec& model, Keys& keys, const MixerSpec& mixer, const ChannelSpec& channel);
/// The same, but only every "interleave_moe_layer_step"th layer behind the first "leading_dense_block_count"
/// has experts; the others have a dense block of "feed_forward_length". Without keys all have experts.
void add_mixed_layers(ModelSpec& model, Keys& keys, const MixerSpec& mixer, const MoeSpec& moe);

/// All layers but the last of each `period` see only `window` positions (0: all of them) and rotate by the
/// curve. For layers with AttentionSpec.
void let_layers_slide(ModelSpec& model, std::uint32_t window, std::uint32_t period, std::uint32_t curve);

/// What Gemma 2 and 3 have in common: a scaled embedding, GELU, norms before and behind each part. The
/// largest model, known by its number of layers, scales scores by the width that a head would have if all
/// heads shared the row.
ModelSpec read_gemma(Keys& keys, AttentionSpec attention, std::uint32_t n_layers_of_largest);

/// Heads and state of a gated delta net ("ssm.").
DeltaSpec read_delta(Keys& keys);

/// Of each "full_attention_interval" layers the last has attention with gates, the others the delta rule.
void add_hybrid_layers(ModelSpec& model, Keys& keys, const DeltaSpec& delta, const ChannelSpec& channel);

}  // namespace sluice::model::arch
