#include "synth/families.hpp"

// Tables only: what each family's files hold. Names, orders of dimensions and keys are those of GGUF files as
// llama.cpp's converter writes them.
namespace sluice::synth {
namespace {

using S = ShapeSpec;
using P = Place;

constexpr Types Mix::*k_f32 = nullptr;

constexpr Dim of(std::uint32_t S::*a, std::uint32_t S::*b = nullptr) {
  return {1, a, b};
}
constexpr Dim twice(std::uint32_t S::*a, std::uint32_t S::*b = nullptr) {
  return {2, a, b};
}
constexpr Dim number(std::uint32_t n) {
  return {n, nullptr, nullptr};
}

constexpr Dim k_embd = of(&S::n_embd), k_vocab = of(&S::n_vocab), k_experts = of(&S::n_experts),
              k_q = of(&S::n_heads, &S::head_dim), k_kv = of(&S::n_kv_heads, &S::head_dim),
              k_head = of(&S::head_dim), k_ff = of(&S::n_ff), k_ff_expert = of(&S::n_ff_expert),
              k_heads = of(&S::n_heads), k_ssm_heads = of(&S::ssm_heads);

// --- parts
// ---------------------------------------------------------------------------------------------------

constexpr TensorRule k_frame[] = {
    {"token_embd.weight", P::file_begin, {k_embd, k_vocab}, &Mix::embedding, Fill::embedding},
    {"output_norm.weight", P::file_end, {k_embd}, k_f32, Fill::ones},
};
constexpr TensorRule k_output[] = {
    {"output.weight", P::file_end, {k_embd, k_vocab}, &Mix::output},
};
constexpr TensorRule k_llama3_rope[] = {
    {"rope_freqs.weight", P::file_begin, {number(64)}, k_f32, Fill::rope_factors},
};
constexpr TensorRule k_attention[] = {
    {"attn_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
    {"attn_q.weight", P::every_layer, {k_embd, k_q}, &Mix::rest},
    {"attn_k.weight", P::every_layer, {k_embd, k_kv}, &Mix::k},
    {"attn_v.weight", P::every_layer, {k_embd, k_kv}, &Mix::v},
    {"attn_output.weight", P::every_layer, {k_q, k_embd}, &Mix::attn_output},
};
constexpr TensorRule k_qkv_bias[] = {
    {"attn_q.bias", P::every_layer, {k_q}, k_f32, Fill::bias},
    {"attn_k.bias", P::every_layer, {k_kv}, k_f32, Fill::bias},
    {"attn_v.bias", P::every_layer, {k_kv}, k_f32, Fill::bias},
};
constexpr TensorRule k_qk_norm[] = {
    {"attn_q_norm.weight", P::every_layer, {k_head}, k_f32, Fill::ones},
    {"attn_k_norm.weight", P::every_layer, {k_head}, k_f32, Fill::ones},
};
constexpr TensorRule k_ffn_norm[] = {
    {"ffn_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
};
constexpr TensorRule k_post_attention_norm[] = {
    {"post_attention_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
};
constexpr TensorRule k_dense_ffn[] = {
    {"ffn_gate.weight", P::dense_layers, {k_embd, k_ff}, &Mix::rest},
    {"ffn_up.weight", P::dense_layers, {k_embd, k_ff}, &Mix::rest},
    {"ffn_down.weight", P::dense_layers, {k_ff, k_embd}, &Mix::down},
};
constexpr TensorRule k_expert_ffn[] = {
    {"ffn_gate_inp.weight", P::expert_layers, {k_embd, k_experts}, k_f32, Fill::router},
    {"ffn_gate_exps.weight", P::expert_layers, {k_embd, k_ff_expert, k_experts}, &Mix::expert_gate_up},
    {"ffn_up_exps.weight", P::expert_layers, {k_embd, k_ff_expert, k_experts}, &Mix::expert_gate_up},
    {"ffn_down_exps.weight", P::expert_layers, {k_ff_expert, k_embd, k_experts}, &Mix::expert_down},
};
constexpr TensorRule k_expert_bias[] = {
    {"ffn_gate_inp.bias", P::expert_layers, {k_experts}, k_f32, Fill::bias},
    {"ffn_gate_exps.bias", P::expert_layers, {k_ff_expert, k_experts}, k_f32, Fill::bias},
    {"ffn_up_exps.bias", P::expert_layers, {k_ff_expert, k_experts}, k_f32, Fill::bias},
    {"ffn_down_exps.bias", P::expert_layers, {k_embd, k_experts}, k_f32, Fill::bias},
};
constexpr TensorRule k_selection_bias[] = {
    {"exp_probs_b.bias", P::expert_layers, {k_experts}, k_f32, Fill::bias},
};
constexpr TensorRule k_shared_expert[] = {
    {"ffn_gate_shexp.weight", P::expert_layers, {k_embd, k_ff_expert}, &Mix::rest},
    {"ffn_up_shexp.weight", P::expert_layers, {k_embd, k_ff_expert}, &Mix::rest},
    {"ffn_down_shexp.weight", P::expert_layers, {k_ff_expert, k_embd}, &Mix::down},
};
constexpr TensorRule k_shared_gate[] = {
    {"ffn_gate_inp_shexp.weight", P::expert_layers, {k_embd}, k_f32},
};
constexpr TensorRule k_sinks[] = {
    {"attn_output.bias", P::every_layer, {k_embd}, k_f32, Fill::bias},
    {"attn_sinks.weight", P::every_layer, {k_heads}, k_f32, Fill::bias},
};
constexpr TensorRule k_prediction[] = {
    {"nextn.eh_proj.weight", P::prediction_layers, {twice(&S::n_embd), k_embd}, &Mix::rest},
    {"nextn.enorm.weight", P::prediction_layers, {k_embd}, k_f32, Fill::ones},
    {"nextn.hnorm.weight", P::prediction_layers, {k_embd}, k_f32, Fill::ones},
    {"nextn.shared_head_norm.weight", P::prediction_layers, {k_embd}, k_f32, Fill::ones},
};
constexpr TensorRule k_prediction_vocabulary[] = {
    {"nextn.embed_tokens.weight", P::prediction_layers, {k_embd, k_vocab}, &Mix::embedding, Fill::embedding},
    {"nextn.shared_head_head.weight", P::prediction_layers, {k_embd, k_vocab}, &Mix::output},
};
constexpr Dim k_q_rank = of(&S::q_rank), k_kv_rank = of(&S::kv_rank), k_mla_value = of(&S::mla_value);
constexpr TensorRule k_latent_attention[] = {
    {"attn_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
    {"attn_q_a.weight", P::every_layer, {k_embd, k_q_rank}, &Mix::rest},
    {"attn_q_a_norm.weight", P::every_layer, {k_q_rank}, k_f32, Fill::ones},
    {"attn_q_b.weight", P::every_layer, {k_q_rank, of(&S::n_heads, &S::mla_key)}, &Mix::rest},
    {"attn_kv_a_mqa.weight", P::every_layer, {k_embd, of(&S::kv_rank_rope)}, &Mix::rest},
    {"attn_kv_a_norm.weight", P::every_layer, {k_kv_rank}, k_f32, Fill::ones},
    {"attn_k_b.weight", P::every_layer, {of(&S::mla_key_unrotated), k_kv_rank, k_heads}, &Mix::rest},
    {"attn_v_b.weight", P::every_layer, {k_kv_rank, k_mla_value, k_heads}, &Mix::rest},
    {"attn_output.weight", P::every_layer, {of(&S::n_heads, &S::mla_value), k_embd}, &Mix::attn_output},
};
constexpr TensorRule k_indexer[] = {
    {"indexer.attn_k.weight", P::indexer_layers, {k_embd, number(128)}, &Mix::rest},
    {"indexer.attn_q_b.weight", P::indexer_layers, {k_q_rank, number(32 * 128)}, &Mix::rest},
    {"indexer.k_norm.weight", P::indexer_layers, {number(128)}, k_f32, Fill::ones},
    {"indexer.k_norm.bias", P::indexer_layers, {number(128)}, k_f32, Fill::bias},
    {"indexer.proj.weight", P::indexer_layers, {k_embd, number(32)}, &Mix::rest},
};
constexpr Dim k_gated_q = twice(&S::n_heads, &S::head_dim), k_ssm_inner = of(&S::ssm_inner),
              k_ssm_qkv = of(&S::ssm_qkv);
constexpr TensorRule k_gated_hybrid[] = {
    {"attn_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
    {"attn_q.weight", P::full_attention_layers, {k_embd, k_gated_q}, &Mix::rest},
    {"attn_k.weight", P::full_attention_layers, {k_embd, k_kv}, &Mix::k},
    {"attn_v.weight", P::full_attention_layers, {k_embd, k_kv}, &Mix::v},
    {"attn_q_norm.weight", P::full_attention_layers, {k_head}, k_f32, Fill::ones},
    {"attn_k_norm.weight", P::full_attention_layers, {k_head}, k_f32, Fill::ones},
    {"attn_output.weight", P::full_attention_layers, {k_q, k_embd}, &Mix::attn_output},
    {"attn_qkv.weight", P::other_attention_layers, {k_embd, k_ssm_qkv}, &Mix::qkv},
    {"attn_gate.weight", P::other_attention_layers, {k_embd, k_ssm_inner}, &Mix::rest},
    {"ssm_conv1d.weight", P::other_attention_layers, {number(4), k_ssm_qkv}, k_f32},
    {"ssm_a", P::other_attention_layers, {k_ssm_heads}, k_f32, Fill::minus_ones},
    {"ssm_dt.bias", P::other_attention_layers, {k_ssm_heads}, k_f32, Fill::bias},
    {"ssm_norm.weight", P::other_attention_layers, {number(128)}, k_f32, Fill::ones},
    {"ssm_out.weight", P::other_attention_layers, {k_ssm_inner, k_embd}, &Mix::rest},
    {"post_attention_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
};
constexpr TensorRule k_two_gates[] = {
    {"ssm_alpha.weight", P::other_attention_layers, {k_embd, k_ssm_heads}, &Mix::rest},
    {"ssm_beta.weight", P::other_attention_layers, {k_embd, k_ssm_heads}, &Mix::rest},
};
constexpr TensorRule k_joint_gates[] = {
    {"ssm_ba.weight", P::other_attention_layers, {k_embd, twice(&S::ssm_heads)}, &Mix::rest},
};
constexpr Dim k_q_swa = of(&S::n_heads, &S::head_dim_swa),
              k_kv_swa = of(&S::n_kv_heads_swa, &S::head_dim_swa), k_head_swa = of(&S::head_dim_swa);
/// Layers with full attention use the keys as values.
constexpr TensorRule k_gemma4[] = {
    {"rope_freqs.weight", P::file_begin, {number(256)}, k_f32, Fill::proportional_rope},
    {"attn_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
    {"attn_q.weight", P::full_attention_layers, {k_embd, k_q}, &Mix::rest},
    {"attn_k.weight", P::full_attention_layers, {k_embd, k_kv}, &Mix::k},
    {"attn_q_norm.weight", P::full_attention_layers, {k_head}, k_f32, Fill::ones},
    {"attn_k_norm.weight", P::full_attention_layers, {k_head}, k_f32, Fill::ones},
    {"attn_output.weight", P::full_attention_layers, {k_q, k_embd}, &Mix::attn_output},
    {"attn_q.weight", P::other_attention_layers, {k_embd, k_q_swa}, &Mix::rest},
    {"attn_k.weight", P::other_attention_layers, {k_embd, k_kv_swa}, &Mix::k},
    {"attn_v.weight", P::other_attention_layers, {k_embd, k_kv_swa}, &Mix::v},
    {"attn_q_norm.weight", P::other_attention_layers, {k_head_swa}, k_f32, Fill::ones},
    {"attn_k_norm.weight", P::other_attention_layers, {k_head_swa}, k_f32, Fill::ones},
    {"attn_output.weight", P::other_attention_layers, {k_q_swa, k_embd}, &Mix::attn_output},
    {"post_attention_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
    {"ffn_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
    {"post_ffw_norm.weight", P::every_layer, {k_embd}, k_f32, Fill::ones},
    {"layer_output_scale.weight", P::every_layer, {number(1)}, k_f32, Fill::ones},
};

// --- keys
// ----------------------------------------------------------------------------------------------------

constexpr Fact constant(const char* key, std::uint32_t value) {
  return {key, nullptr, nullptr, Fact::Kind::constant, static_cast<double>(value), nullptr};
}
constexpr Fact real_constant(const char* key, double value) {
  return {key, nullptr, nullptr, Fact::Kind::real_constant, value, nullptr};
}
constexpr Fact truth(const char* key) {
  return {key, nullptr, nullptr, Fact::Kind::truth, 1, nullptr};
}
constexpr Fact text(const char* key, const char* value) {
  return {key, nullptr, nullptr, Fact::Kind::text, 0, value};
}
constexpr Fact computed(const char* key, Fact::Kind kind) {
  return {key, nullptr, nullptr, kind, 0, nullptr};
}
constexpr Fact real(const char* key, float S::*value) {
  return {key, nullptr, value, Fact::Kind::number, 0, nullptr};
}

constexpr Fact k_classic_facts[] = {
    {"feed_forward_length", &S::n_ff},      {"attention.head_count_kv", &S::n_kv_heads},
    {"attention.key_length", &S::head_dim}, {"attention.value_length", &S::head_dim},
    {"rope.dimension_count", &S::head_dim}, {"vocab_size", &S::n_vocab},
};
constexpr Fact k_expert_facts[] = {
    {"expert_count", &S::n_experts},
    {"expert_used_count", &S::n_experts_used},
};
constexpr Fact k_expert_width_facts[] = {
    {"expert_feed_forward_length", &S::n_ff_expert},
};
constexpr Fact k_yarn_facts[] = {
    text("rope.scaling.type", "yarn"),
    real("rope.scaling.factor", &S::yarn_factor),
    constant("rope.scaling.original_context_length", 4096),
};
constexpr Fact k_gpt_oss_facts[] = {
    {"feed_forward_length", &S::n_ff},
    {"attention.head_count_kv", &S::n_kv_heads},
    {"attention.key_length", &S::head_dim},
    {"attention.value_length", &S::head_dim},
    {"attention.sliding_window", &S::sliding_window},
};
/// Experts chosen by the logistic function of their scores, weights scaled, one shared expert.
constexpr Fact k_sigmoid_expert_facts[] = {
    {"feed_forward_length", &S::n_ff},
    {"leading_dense_block_count", &S::n_dense_layers},
    constant("expert_shared_count", 1),
    constant("expert_gating_func", 2),
    real("expert_weights_scale", &S::expert_scale),
    truth("expert_weights_norm"),
    {"rope.dimension_count", &S::n_rot},
};
constexpr Fact k_glm4_moe_facts[] = {
    {"attention.head_count_kv", &S::n_kv_heads},
    {"attention.key_length", &S::head_dim},
    {"attention.value_length", &S::head_dim},
};
constexpr Fact k_prediction_facts[] = {
    {"nextn_predict_layers", &S::n_prediction_layers},
};
constexpr Fact k_latent_facts[] = {
    {"attention.head_count_kv", &S::n_kv_heads},   {"attention.q_lora_rank", &S::q_rank},
    {"attention.kv_lora_rank", &S::kv_rank},       {"attention.key_length", &S::kv_rank_rope},
    {"attention.value_length", &S::kv_rank},       {"attention.key_length_mla", &S::mla_key},
    {"attention.value_length_mla", &S::mla_value}, {"vocab_size", &S::n_vocab},
};
constexpr Fact k_deepseek2_facts[] = {
    real_constant("rope.scaling.yarn_log_multiplier", 0.1),
};
constexpr Fact k_glm_dsa_facts[] = {
    constant("expert_group_count", 1),
    constant("expert_group_used_count", 1),
    constant("attention.indexer.head_count", 32),
    constant("attention.indexer.key_length", 128),
    constant("attention.indexer.top_k", 2048),
    computed("attention.indexer.types", Fact::Kind::indexer_layers),
};
constexpr Fact k_gated_hybrid_facts[] = {
    {"attention.head_count_kv", &S::n_kv_heads},
    {"attention.key_length", &S::head_dim},
    {"attention.value_length", &S::head_dim},
    {"rope.dimension_count", &S::n_rot},
    {"full_attention_interval", &S::full_attention_interval},
    constant("ssm.conv_kernel", 4),
    constant("ssm.state_size", 128),
    constant("ssm.group_count", 16),
    {"ssm.time_step_rank", &S::ssm_heads},
    {"ssm.inner_size", &S::ssm_inner},
};
constexpr Fact k_dense_width_facts[] = {
    {"feed_forward_length", &S::n_ff},
};
constexpr Fact k_shared_width_facts[] = {
    {"expert_shared_feed_forward_length", &S::n_ff_expert},
};
constexpr Fact k_sections_facts[] = {
    computed("rope.dimension_sections", Fact::Kind::rope_sections),
};
constexpr Fact k_gemma4_facts[] = {
    {"feed_forward_length", &S::n_ff},
    computed("attention.head_count_kv", Fact::Kind::kv_heads_of_layers),
    {"attention.key_length", &S::head_dim},
    {"attention.value_length", &S::head_dim},
    {"attention.key_length_swa", &S::head_dim_swa},
    {"attention.value_length_swa", &S::head_dim_swa},
    {"attention.sliding_window", &S::sliding_window},
    computed("attention.sliding_window_pattern", Fact::Kind::sliding_layers),
    constant("attention.shared_kv_layers", 0),
    constant("embedding_length_per_layer_input", 0),
    real_constant("final_logit_softcapping", 30),
    real_constant("rope.freq_base_swa", 10000),
    {"rope.dimension_count", &S::head_dim},
    {"rope.dimension_count_swa", &S::head_dim_swa},
};

// --- families
// --------------------------------------------------------------------------------------------------

using Tensors = std::span<const TensorRule>;
using Facts = std::span<const Fact>;

constexpr Tensors k_llama3_tensors[] = {k_frame,     k_output,   k_llama3_rope,
                                        k_attention, k_ffn_norm, k_dense_ffn};
constexpr Tensors k_mixtral_tensors[] = {k_frame, k_output, k_attention, k_ffn_norm, k_expert_ffn};
constexpr Tensors k_qwen2_tensors[] = {k_frame, k_output, k_attention, k_qkv_bias, k_ffn_norm, k_dense_ffn};
constexpr Tensors k_qwen3_tensors[] = {k_frame, k_output, k_attention, k_qk_norm, k_ffn_norm, k_dense_ffn};
constexpr Tensors k_qwen3_moe_tensors[] = {k_frame,   k_output,   k_attention,
                                           k_qk_norm, k_ffn_norm, k_expert_ffn};
constexpr Tensors k_gpt_oss_tensors[] = {
    k_frame, k_output, k_attention, k_qkv_bias, k_post_attention_norm, k_sinks, k_expert_ffn, k_expert_bias};
constexpr Tensors k_glm4_moe_tensors[] = {
    k_frame,      k_output,         k_attention,     k_qkv_bias,   k_post_attention_norm,  k_dense_ffn,
    k_expert_ffn, k_selection_bias, k_shared_expert, k_prediction, k_prediction_vocabulary};
constexpr Tensors k_deepseek2_tensors[] = {k_frame,     k_output,     k_latent_attention, k_ffn_norm,
                                           k_dense_ffn, k_expert_ffn, k_selection_bias,   k_shared_expert};
constexpr Tensors k_glm_dsa_tensors[] = {k_frame,         k_output,    k_latent_attention, k_indexer,
                                         k_ffn_norm,      k_dense_ffn, k_expert_ffn,       k_selection_bias,
                                         k_shared_expert, k_prediction};
constexpr Tensors k_qwen3_next_tensors[] = {k_frame,      k_output,        k_gated_hybrid, k_joint_gates,
                                            k_expert_ffn, k_shared_expert, k_shared_gate};
constexpr Tensors k_qwen35_moe_tensors[] = {k_frame,      k_output,        k_gated_hybrid, k_two_gates,
                                            k_expert_ffn, k_shared_expert, k_shared_gate};
constexpr Tensors k_qwen35_tensors[] = {k_frame, k_output, k_gated_hybrid, k_two_gates, k_dense_ffn};
constexpr Tensors k_gemma4_tensors[] = {k_frame, k_gemma4, k_dense_ffn};

constexpr Facts k_dense_model_facts[] = {k_classic_facts};
constexpr Facts k_mixtral_facts[] = {k_classic_facts, k_expert_facts};
constexpr Facts k_qwen3_moe_facts[] = {k_classic_facts, k_expert_facts, k_expert_width_facts};
constexpr Facts k_gpt_oss_model_facts[] = {k_gpt_oss_facts, k_expert_facts, k_expert_width_facts,
                                           k_yarn_facts};
constexpr Facts k_glm4_moe_model_facts[] = {k_glm4_moe_facts, k_expert_facts, k_expert_width_facts,
                                            k_sigmoid_expert_facts, k_prediction_facts};
constexpr Facts k_deepseek2_model_facts[] = {k_latent_facts,         k_expert_facts, k_expert_width_facts,
                                             k_sigmoid_expert_facts, k_yarn_facts,   k_deepseek2_facts};
constexpr Facts k_glm_dsa_model_facts[] = {k_latent_facts,         k_expert_facts,     k_expert_width_facts,
                                           k_sigmoid_expert_facts, k_prediction_facts, k_glm_dsa_facts};
constexpr Facts k_qwen3_next_facts[] = {k_gated_hybrid_facts, k_dense_width_facts, k_expert_facts,
                                        k_expert_width_facts, k_shared_width_facts};
constexpr Facts k_qwen35_moe_facts[] = {k_gated_hybrid_facts, k_sections_facts, k_expert_facts,
                                        k_expert_width_facts, k_shared_width_facts};
constexpr Facts k_qwen35_facts[] = {k_gated_hybrid_facts, k_sections_facts, k_dense_width_facts};
constexpr Facts k_gemma4_model_facts[] = {k_gemma4_facts};

}  // namespace

constinit const Family k_llama3_family = {"llama", k_llama3_tensors, k_dense_model_facts};
constinit const Family k_mixtral_family = {"llama", k_mixtral_tensors, k_mixtral_facts};
constinit const Family k_qwen2_family = {"qwen2", k_qwen2_tensors, k_dense_model_facts};
constinit const Family k_qwen3_family = {"qwen3", k_qwen3_tensors, k_dense_model_facts};
constinit const Family k_qwen3_moe_family = {"qwen3moe", k_qwen3_moe_tensors, k_qwen3_moe_facts};
constinit const Family k_gpt_oss_family = {"gpt-oss", k_gpt_oss_tensors, k_gpt_oss_model_facts};
constinit const Family k_glm4_moe_family = {"glm4moe", k_glm4_moe_tensors, k_glm4_moe_model_facts};
constinit const Family k_deepseek2_family = {"deepseek2", k_deepseek2_tensors, k_deepseek2_model_facts};
constinit const Family k_glm_dsa_family = {"glm-dsa", k_glm_dsa_tensors, k_glm_dsa_model_facts};
constinit const Family k_qwen3_next_family = {"qwen3next", k_qwen3_next_tensors, k_qwen3_next_facts};
constinit const Family k_qwen35_moe_family = {"qwen35moe", k_qwen35_moe_tensors, k_qwen35_moe_facts};
constinit const Family k_qwen35_family = {"qwen35", k_qwen35_tensors, k_qwen35_facts};
constinit const Family k_gemma4_family = {"gemma4", k_gemma4_tensors, k_gemma4_model_facts};

}  // namespace sluice::synth
