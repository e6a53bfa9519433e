#include "synth/shapes.hpp"

#include <fmt/core.h>

#include <array>

#include "base/error.hpp"
#include "synth/families.hpp"

namespace sluice::synth {
namespace {

using T = gguf::TensorType;

// --- mixes of types
// ------------------------------------------------------------------------------------------

constexpr Types k_q4_more_q6 = {T::q4_k, T::q6_k};
constexpr Mix k_plain_q4 = {};
constexpr Mix k_q4_k_m = {
    .output = T::q6_k, .v = k_q4_more_q6, .down = k_q4_more_q6, .expert_down = k_q4_more_q6};
/// Llama's 70B files spend more on values.
constexpr Mix k_q4_k_m_70b = {
    .output = T::q6_k, .v = {T::q5_k, T::q6_k}, .down = k_q4_more_q6, .expert_down = k_q4_more_q6};
/// With eight experts the attention is a small share of the file, so more bits there cost little.
constexpr Mix k_q4_k_m_8_experts = {.output = T::q6_k,
                                    .k = T::q8_0,
                                    .v = T::q8_0,
                                    .attn_output = T::q5_k,
                                    .down = k_q4_more_q6,
                                    .expert_down = k_q4_more_q6};
/// Experts stay as they were published.
constexpr Mix k_gpt_oss_mix = {
    .output = T::q6_k, .v = k_q4_more_q6, .expert_down = T::mxfp4, .expert_gate_up = T::mxfp4};
constexpr Mix k_qwen3_next_mix = {
    .output = T::q6_k, .v = k_q4_more_q6, .qkv = T::q5_k, .down = k_q4_more_q6, .expert_down = k_q4_more_q6};
constexpr Mix k_qwen35_397b_mix = {.embedding = T::q6_k,
                                   .output = T::q6_k,
                                   .k = T::q8_0,
                                   .v = T::q8_0,
                                   .attn_output = T::q5_k,
                                   .down = k_q4_more_q6,
                                   .expert_down = {T::q4_k, T::q6_k, T::q4_0}};
constexpr Mix k_gemma4_mix = {.embedding = T::q6_k, .v = T::q6_k, .down = T::q6_k};

// --- shapes
// --------------------------------------------------------------------------------------------------

constexpr ShapeSpec qwen3_moe(const char* name, std::uint32_t n_layers, std::uint32_t n_embd,
                              std::uint32_t n_heads, std::uint32_t n_ff, std::uint32_t n_ff_expert,
                              std::uint32_t n_ctx, float rope_base) {
  return {.name = name,
          .family = &k_qwen3_moe_family,
          .mix = &k_q4_k_m,
          .pre_tokenizer = "qwen2",
          .n_layers = n_layers,
          .n_embd = n_embd,
          .n_heads = n_heads,
          .n_kv_heads = 4,
          .head_dim = 128,
          .n_ff = n_ff,
          .n_ff_expert = n_ff_expert,
          .n_experts = 128,
          .n_experts_used = 8,
          .n_vocab = 151936,
          .n_ctx = n_ctx,
          .rope_base = rope_base,
          .norm_eps = 1e-6f};
}

constexpr ShapeSpec tiny_moe() {
  ShapeSpec shape = qwen3_moe("tiny-moe", 2, 512, 4, 512, 256, 4096, 1e6f);
  shape.n_kv_heads = 2;
  shape.head_dim = 64;
  shape.n_experts = 16;
  shape.n_experts_used = 4;
  shape.n_vocab = 1024;
  return shape;
}

constexpr ShapeSpec dense(const Family& family, const char* name, std::uint32_t n_layers,
                          std::uint32_t n_embd, std::uint32_t n_heads, std::uint32_t n_kv_heads,
                          std::uint32_t n_ff) {
  return {.name = name,
          .family = &family,
          .mix = &k_q4_k_m,
          .pre_tokenizer = "qwen2",
          .n_layers = n_layers,
          .n_embd = n_embd,
          .n_heads = n_heads,
          .n_kv_heads = n_kv_heads,
          .head_dim = 128,
          .n_ff = n_ff,
          .n_vocab = 151936,
          .n_ctx = 40960,
          .rope_base = 1e6f,
          .norm_eps = 1e-6f};
}

constexpr ShapeSpec qwen25(const char* name, std::uint32_t n_layers, std::uint32_t n_embd,
                           std::uint32_t n_heads, std::uint32_t n_kv_heads, std::uint32_t n_ff) {
  ShapeSpec shape = dense(k_qwen2_family, name, n_layers, n_embd, n_heads, n_kv_heads, n_ff);
  shape.n_vocab = 152064;
  shape.n_ctx = 32768;
  return shape;
}

constexpr ShapeSpec mixtral(const char* name, std::uint32_t n_layers, std::uint32_t n_embd,
                            std::uint32_t n_heads, std::uint32_t n_ff, std::uint32_t n_ctx) {
  ShapeSpec shape = dense(k_mixtral_family, name, n_layers, n_embd, n_heads, 8, n_ff);
  shape.mix = &k_q4_k_m_8_experts;
  shape.pre_tokenizer = "llama-bpe";
  shape.n_ff_expert = n_ff;
  shape.n_experts = 8;
  shape.n_experts_used = 2;
  shape.n_vocab = 32000;
  shape.n_ctx = n_ctx;
  shape.norm_eps = 1e-5f;
  return shape;
}

constexpr ShapeSpec llama3(const char* name, const Mix& mix, std::uint32_t n_layers, std::uint32_t n_embd,
                           std::uint32_t n_heads, std::uint32_t n_ff) {
  ShapeSpec shape = dense(k_llama3_family, name, n_layers, n_embd, n_heads, 8, n_ff);
  shape.mix = &mix;
  shape.pre_tokenizer = "llama-bpe";
  shape.n_vocab = 128256;
  shape.n_ctx = 131072;
  shape.rope_base = 5e5f;
  shape.norm_eps = 1e-5f;
  return shape;
}

constexpr ShapeSpec gpt_oss(const char* name, std::uint32_t n_layers, std::uint32_t n_experts) {
  return {.name = name,
          .family = &k_gpt_oss_family,
          .mix = &k_gpt_oss_mix,
          .pre_tokenizer = "gpt-4o",
          .n_layers = n_layers,
          .n_embd = 2880,
          .n_heads = 64,
          .n_kv_heads = 8,
          .head_dim = 64,
          .sliding_window = 128,
          .n_ff = 2880,
          .n_ff_expert = 2880,
          .n_experts = n_experts,
          .n_experts_used = 4,
          .n_vocab = 201088,
          .n_ctx = 131072,
          .rope_base = 150000.0f,
          .norm_eps = 1e-5f,
          .yarn_factor = 32.0f};
}

constexpr ShapeSpec k_glm45_air = {.name = "glm-4.5-air",
                                   .family = &k_glm4_moe_family,
                                   .mix = &k_plain_q4,
                                   .pre_tokenizer = "glm4",
                                   .n_layers = 46,
                                   .n_prediction_layers = 1,
                                   .n_dense_layers = 1,
                                   .n_embd = 4096,
                                   .n_heads = 96,
                                   .n_kv_heads = 8,
                                   .head_dim = 128,
                                   .n_rot = 64,
                                   .n_ff = 10944,
                                   .n_ff_expert = 1408,
                                   .n_experts = 128,
                                   .n_experts_used = 8,
                                   .n_vocab = 151552,
                                   .n_ctx = 131072,
                                   .rope_base = 1e6f,
                                   .norm_eps = 1e-5f,
                                   .expert_scale = 1.0f};

constexpr ShapeSpec k_deepseek_v31 = {.name = "deepseek-v3.1",
                                      .family = &k_deepseek2_family,
                                      .mix = &k_plain_q4,
                                      .pre_tokenizer = "deepseek-v3",
                                      .n_layers = 61,
                                      .n_dense_layers = 3,
                                      .n_embd = 7168,
                                      .n_heads = 128,
                                      .n_kv_heads = 1,
                                      .head_dim = 192,
                                      .n_rot = 64,
                                      .n_ff = 18432,
                                      .n_ff_expert = 2048,
                                      .n_experts = 256,
                                      .n_experts_used = 8,
                                      .n_vocab = 129280,
                                      .n_ctx = 163840,
                                      .rope_base = 1e4f,
                                      .norm_eps = 1e-6f,
                                      .expert_scale = 2.5f,
                                      .yarn_factor = 40.0f,
                                      .q_rank = 1536,
                                      .kv_rank = 512,
                                      .kv_rank_rope = 576,
                                      .mla_key = 192,
                                      .mla_key_unrotated = 128,
                                      .mla_value = 128};

constexpr ShapeSpec kimi_k2() {
  ShapeSpec shape = k_deepseek_v31;
  shape.name = "kimi-k2";
  shape.pre_tokenizer = "kimi-k2";
  shape.n_dense_layers = 1;
  shape.n_heads = 64;
  shape.n_experts = 384;
  shape.n_vocab = 163840;
  shape.n_ctx = 262144;
  shape.rope_base = 5e4f;
  shape.norm_eps = 1e-5f;
  shape.expert_scale = 2.827f;
  shape.yarn_factor = 64.0f;
  return shape;
}

constexpr ShapeSpec glm_52() {
  ShapeSpec shape = k_deepseek_v31;
  shape.name = "glm-5.2";
  shape.family = &k_glm_dsa_family;
  shape.pre_tokenizer = "glm4";
  shape.n_layers = 78;
  shape.n_prediction_layers = 1;
  shape.n_embd = 6144;
  shape.n_heads = 64;
  shape.n_ff = 12288;
  shape.n_vocab = 154880;
  shape.n_ctx = 1048576;
  shape.rope_base = 8e6f;
  shape.norm_eps = 1e-5f;
  shape.q_rank = 2048;
  shape.mla_key = 256;
  shape.mla_key_unrotated = 192;
  shape.mla_value = 256;
  return shape;
}

/// Three layers with a gated delta rule for each with attention.
constexpr ShapeSpec k_qwen3_coder_next = {.name = "qwen3-coder-next",
                                          .family = &k_qwen3_next_family,
                                          .mix = &k_qwen3_next_mix,
                                          .pre_tokenizer = "qwen2",
                                          .n_layers = 48,
                                          .full_attention_interval = 4,
                                          .n_embd = 2048,
                                          .n_heads = 16,
                                          .n_kv_heads = 2,
                                          .head_dim = 256,
                                          .n_rot = 64,
                                          .n_ff = 5120,
                                          .n_ff_expert = 512,
                                          .n_experts = 512,
                                          .n_experts_used = 10,
                                          .n_vocab = 151936,
                                          .n_ctx = 262144,
                                          .rope_base = 5e6f,
                                          .norm_eps = 1e-6f,
                                          .ssm_inner = 4096,
                                          .ssm_heads = 32,
                                          .ssm_qkv = 8192};

constexpr ShapeSpec qwen35_35b() {
  ShapeSpec shape = k_qwen3_coder_next;
  shape.name = "qwen3.5-35b-a3b";
  shape.family = &k_qwen35_moe_family;
  shape.mix = &k_plain_q4;
  shape.pre_tokenizer = "qwen35";
  shape.n_layers = 40;
  shape.n_ff = 0;
  shape.n_experts = 256;
  shape.n_experts_used = 8;
  shape.n_vocab = 248320;
  shape.rope_base = 1e7f;
  return shape;
}

constexpr ShapeSpec qwen35_397b() {
  ShapeSpec shape = qwen35_35b();
  shape.name = "qwen3.5-397b-a17b";
  shape.mix = &k_qwen35_397b_mix;
  shape.n_layers = 60;
  shape.n_embd = 4096;
  shape.n_heads = 32;
  shape.n_ff_expert = 1024;
  shape.n_experts = 512;
  shape.n_experts_used = 10;
  shape.ssm_inner = 8192;
  shape.ssm_heads = 64;
  shape.ssm_qkv = 12288;
  return shape;
}

constexpr ShapeSpec qwen38_27b() {
  ShapeSpec shape = qwen35_35b();
  shape.name = "qwen3.8-27b";
  shape.family = &k_qwen35_family;
  shape.n_layers = 64;
  shape.n_embd = 5120;
  shape.n_heads = 24;
  shape.n_kv_heads = 4;
  shape.n_ff = 17408;
  shape.n_ff_expert = 0;
  shape.n_experts = 0;
  shape.n_experts_used = 0;
  shape.ssm_inner = 6144;
  shape.ssm_heads = 48;
  shape.ssm_qkv = 10240;
  return shape;
}

constexpr ShapeSpec k_gemma4_31b = {.name = "gemma-4-31b",
                                    .family = &k_gemma4_family,
                                    .mix = &k_gemma4_mix,
                                    .pre_tokenizer = "gemma4",
                                    .n_layers = 60,
                                    .full_attention_interval = 6,
                                    .n_embd = 5376,
                                    .n_heads = 32,
                                    .n_kv_heads = 4,
                                    .head_dim = 512,
                                    .n_kv_heads_swa = 16,
                                    .head_dim_swa = 256,
                                    .sliding_window = 1024,
                                    .n_ff = 21504,
                                    .n_vocab = 262144,
                                    .n_ctx = 262144,
                                    .rope_base = 1e6f,
                                    .norm_eps = 1e-6f};

/// A shape made as small as tests want it, with rows of whole K-quant blocks.
constexpr ShapeSpec tiny_of(ShapeSpec shape, const char* name, std::uint32_t n_layers) {
  shape.name = name;
  shape.n_layers = n_layers;
  shape.n_prediction_layers = 0;
  shape.n_embd = 512;
  shape.n_heads = 4;
  shape.n_ff_expert = 256;
  shape.n_experts = 16;
  shape.n_experts_used = 4;
  shape.n_vocab = 1024;
  return shape;
}

constexpr ShapeSpec tiny_gpt_oss() {
  ShapeSpec shape = tiny_of(gpt_oss("", 24, 32), "tiny-gpt-oss", 2);
  shape.n_kv_heads = 2;
  shape.n_ff = 256;
  return shape;
}

constexpr ShapeSpec tiny_latent() {
  ShapeSpec shape = tiny_of(k_deepseek_v31, "tiny-latent", 2);
  shape.n_dense_layers = 1;
  shape.n_ff = 512;
  shape.q_rank = 256;
  return shape;
}

constexpr ShapeSpec tiny_hybrid() {
  ShapeSpec shape = tiny_of(qwen35_35b(), "tiny-hybrid", 4);
  shape.ssm_inner = 2048;
  shape.ssm_heads = 16;
  shape.ssm_qkv = 6144;
  return shape;
}

constexpr auto k_shapes = std::to_array<ShapeSpec>({
    qwen3_moe("qwen3-30b-a3b", 48, 2048, 32, 6144, 768, 40960, 1e6f),
    qwen3_moe("qwen3-coder-30b", 48, 2048, 32, 6144, 768, 262144, 1e7f),
    qwen3_moe("qwen3-235b-a22b", 94, 4096, 64, 12288, 1536, 40960, 1e6f),
    mixtral("mixtral-8x7b", 32, 4096, 32, 14336, 32768),
    mixtral("mixtral-8x22b", 56, 6144, 48, 16384, 65536),
    llama3("llama3-8b", k_q4_k_m, 32, 4096, 32, 14336),
    llama3("llama3-70b", k_q4_k_m_70b, 80, 8192, 64, 28672),
    qwen25("qwen2.5-7b", 28, 3584, 28, 4, 18944),
    qwen25("qwen2.5-32b", 64, 5120, 40, 8, 27648),
    dense(k_qwen3_family, "qwen3-8b", 36, 4096, 32, 8, 12288),
    dense(k_qwen3_family, "qwen3-14b", 40, 5120, 40, 8, 17408),
    dense(k_qwen3_family, "qwen3-32b", 64, 5120, 64, 8, 25600),
    gpt_oss("gpt-oss-20b", 24, 32),
    gpt_oss("gpt-oss-120b", 36, 128),
    k_glm45_air,
    k_qwen3_coder_next,
    qwen35_35b(),
    qwen35_397b(),
    qwen38_27b(),
    k_deepseek_v31,
    kimi_k2(),
    glm_52(),
    k_gemma4_31b,
    // No real models: small enough for tests, with rows of whole K-quant blocks.
    tiny_moe(),
    tiny_gpt_oss(),
    tiny_latent(),
    tiny_hybrid(),
});

}  // namespace

std::span<const ShapeSpec> shape_specs() noexcept {
  return k_shapes;
}

const ShapeSpec& find_shape(std::string_view name) {
  std::string known;
  for (const ShapeSpec& shape : k_shapes) {
    if (name == shape.name) return shape;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", shape.name);
  }
  base::fail(ErrorCode::invalid_argument, "there is no shape '{}'; known are {}", name, known);
}

const char* architecture_name(const ShapeSpec& shape) noexcept {
  return shape.family->architecture;
}

}  // namespace sluice::synth
