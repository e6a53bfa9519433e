#include "support/reference_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <string>

#include "gguf/reader.hpp"
#include "kernels/quant.hpp"
#include "support/reference_delta.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::test {
namespace {

using Vector = std::vector<double>;

double logistic(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}
double silu(double gate, double up) {
  return gate * logistic(gate) * up;
}
double gelu_tanh(double gate, double up) {
  const double inner = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
  return 0.5 * gate * (1 + std::tanh(inner)) * up;
}
double swiglu_oai(double gate, double up) {
  const double g = std::min(gate, 7.0);
  return g * logistic(1.702 * g) * (std::clamp(up, -7.0, 7.0) + 1);
}
double capped(double x, double cap) {
  return cap == 0 ? x : cap * std::tanh(x / cap);
}

/// What an architecture means but its files do not say.
struct Meaning {
  const char* architecture;
  bool rotates_neighbours = false;  ///< Elements 2i and 2i + 1, not i and i + n/2.
  bool normalizes_weights = true;   ///< Of the chosen experts.
  double (*activation)(double gate, double up) = silu;
  std::uint64_t full_every = 1;  ///< Of so many layers the last sees all positions, the others a window.
  bool has_local_curve = false;  ///< Layers with a window rotate by another curve.
  bool scales_embedding = false;
  bool norms_rotated = false;  ///< Heads of queries and keys, after they rotated.
  /// Of so many layers the last does not rotate, and the others normalize heads without a gain; 0: none.
  std::uint64_t whole_step = 0;
  bool weighs_input = false;  ///< Of experts, by logistic scores.
};
constexpr Meaning k_meanings[] = {
    {"deepseek2", true, false},
    {"ernie4_5-moe", true},
    {.architecture = "gemma2", .activation = gelu_tanh, .full_every = 2, .scales_embedding = true},
    {.architecture = "gemma3",
     .activation = gelu_tanh,
     .full_every = 6,
     .has_local_curve = true,
     .scales_embedding = true},
    {"glm4", true},
    {"glm4moe", false},
    {.architecture = "gpt-oss", .activation = swiglu_oai, .full_every = 2},
    {"granitemoe", true},
    {.architecture = "hunyuan-moe", .norms_rotated = true},
    {"llama", true},
    {.architecture = "llama4",
     .rotates_neighbours = true,
     .normalizes_weights = false,
     .norms_rotated = true,
     .whole_step = 4,
     .weighs_input = true},
    {"minimax-m2", false},
    {"mistral3", true},
    {"olmoe", false, false},
    {"phi3", false},
    {"phimoe", false},
    {"qwen2", false},
    {"qwen2moe", false, false},
    {"qwen3", false},
    {"qwen35", false},
    {"qwen35moe", false},
    {"qwen3moe", false},
    {"qwen3next", false},
    {"seed_oss", false},
};

const Meaning& meaning_of(const std::string& architecture) {
  for (const Meaning& meaning : k_meanings) {
    if (architecture == meaning.architecture) return meaning;
  }
  throw std::runtime_error("the reference model does not know " + architecture);
}

/// The model's facts and decoded weights, looked up by name on demand.
class Reference {
 public:
  explicit Reference(const std::filesystem::path& path) : bytes_(read_bytes(path)) {
    MemorySource source(path.string(), bytes_);
    file_ = gguf::parse_file(source);
    arch_ = std::string(file_.metadata.require_string("general.architecture"));
    meaning_ = meaning_of(arch_);
  }

  std::vector<Vector> run(const std::vector<std::int32_t>& tokens);

 private:
  std::uint64_t fact(const char* key, std::uint64_t fallback) const {
    return file_.metadata.get_uint(arch_ + "." + key).value_or(fallback);
  }
  double number(const char* key, double fallback) const {
    return file_.metadata.get_float(arch_ + "." + key).value_or(fallback);
  }
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  /// Rows [first, first + n) of a tensor seen as a stack of rows.
  std::vector<Vector> rows(const std::string& name, std::uint64_t first, std::uint64_t n) const {
    const gguf::TensorInfo* tensor = file_.find_tensor(name);
    if (tensor == nullptr) throw std::runtime_error("reference model lacks " + name);
    const std::uint64_t n_in = tensor->dims[0], row_bytes = gguf::row_bytes(tensor->type, n_in);
    std::vector<float> decoded(n_in);
    std::vector<Vector> result;
    for (std::uint64_t row = first; row < first + n; ++row) {
      kernels::dequantize_row(tensor->type, bytes_.data() + tensor->offset_bytes + row * row_bytes,
                              decoded.data(), n_in);
      result.emplace_back(decoded.begin(), decoded.end());
    }
    return result;
  }
  Vector vector(const std::string& name) const { return rows(name, 0, 1)[0]; }

  Vector product(const std::string& name, const Vector& x, std::uint64_t stack_idx = 0) const {
    const gguf::TensorInfo* tensor = file_.find_tensor(name);
    if (tensor == nullptr) throw std::runtime_error("reference model lacks " + name);
    const std::string scale_name = name.substr(0, name.rfind('.')) + ".scale";
    const double scale = has(scale_name) ? vector(scale_name).at(stack_idx) : 1.0;
    Vector y;
    for (const Vector& row : rows(name, stack_idx * tensor->dims[1], tensor->dims[1]))
      y.push_back(scale * std::inner_product(row.begin(), row.end(), x.begin(), 0.0));
    return y;
  }
  void add_bias(const std::string& name, Vector& y, std::uint64_t stack_idx = 0) const {
    if (!has(name)) return;
    const Vector bias = rows(name, stack_idx, 1)[0];
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i];
  }
  Vector norm(const double* x, std::size_t n, const Vector& gain) const {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += x[i] * x[i];
    const double scale =
        1.0 / std::sqrt(sum / static_cast<double>(n) + number("attention.layer_norm_rms_epsilon", 1e-5));
    Vector y(n);
    for (std::size_t i = 0; i < n; ++i) y[i] = x[i] * scale * gain[i];
    return y;
  }
  Vector norm(const Vector& x, const std::string& gain) const {
    Vector y = norm(x.data(), x.size(), vector(gain));
    add_bias(gain.substr(0, gain.rfind('.')) + ".bias", y);
    return y;
  }
  /// The gain is as long as what is normalized: a head or the whole row.
  void norm_heads(Vector& x, const Vector& gain) const {
    const std::size_t head_dim = gain.size();
    for (std::size_t head = 0; head < x.size() / head_dim; ++head) {
      const Vector y = norm(x.data() + head * head_dim, head_dim, gain);
      std::copy(y.begin(), y.end(), x.begin() + static_cast<std::ptrdiff_t>(head * head_dim));
    }
  }
  /// Phi 3 has one set for contexts up to the original one and one for longer ones; the engine opens a model
  /// for the context that its file names.
  Vector rope_divisors(std::size_t n, bool is_local) const {
    if (is_local) return Vector(n, 1.0);
    if (has("rope_freqs.weight")) return vector("rope_freqs.weight");
    if (!has("rope_factors_short.weight")) return Vector(n, 1.0);
    const std::uint64_t n_ctx = fact("context_length", 0);
    const bool is_long = n_ctx > fact("rope.scaling.original_context_length", n_ctx);
    return vector(is_long ? "rope_factors_long.weight" : "rope_factors_short.weight");
  }
  bool has_window(std::uint64_t layer) const {
    return layer % meaning_.full_every != meaning_.full_every - 1;
  }
  void rotate(Vector& x, std::size_t head_dim, std::size_t position, bool is_local) const;
  /// down(activation(gate x, up x)). Without a matrix of its own gate is the first half of up.
  Vector gated_ffn(const std::string& gate, const std::string& up, const std::string& down, const Vector& x,
                   std::uint64_t stack_idx) const {
    Vector hidden, other = product(up, x, stack_idx);
    if (has(gate)) {
      hidden = product(gate, x, stack_idx);
    } else {
      const auto middle = other.begin() + static_cast<std::ptrdiff_t>(other.size() / 2);
      hidden.assign(other.begin(), middle);
      other.erase(other.begin(), middle);
    }
    const auto bias_of = [](const std::string& weight) {
      return weight.substr(0, weight.rfind('.')) + ".bias";
    };
    add_bias(bias_of(gate), hidden, stack_idx);
    add_bias(bias_of(up), other, stack_idx);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = meaning_.activation(hidden[i], other[i]);
    Vector y = product(down, hidden, stack_idx);
    add_bias(bias_of(down), y, stack_idx);
    return y;
  }
  Vector router_weights(const Vector& logits, const std::vector<std::size_t>& chosen, bool is_logistic) const;
  void keep_groups(Vector& scores, bool is_logistic) const;
  Vector experts(std::uint64_t layer, const Vector& x) const;
  Vector channel(std::uint64_t layer, const Vector& x) const;
  struct Projected {
    Vector q, k, v, gate;  ///< Of attention without gates the last is empty.
  };
  Projected project(std::uint64_t layer, const Vector& x, std::size_t position) const;
  Projected project_latent(std::uint64_t layer, const Vector& x, std::size_t position) const;
  double score_scale(std::size_t k_dim) const;
  /// The query matrix makes a query and a gate for each head, side by side.
  void split_gates(Projected& to) const {
    Vector q;
    for (std::size_t i = 0; i < to.q.size(); ++i) (i / head_dim() % 2 == 0 ? q : to.gate).push_back(to.q[i]);
    to.q = q;
  }
  /// What the attention half of a layer, or what stands for it, adds to each position of the stream.
  std::vector<Vector> attention(std::uint64_t layer, const std::vector<Vector>& stream) const;
  std::vector<Vector> delta_net(std::uint64_t layer, const std::vector<Vector>& stream) const;
  Vector attend(std::uint64_t layer, const Vector& q, const std::vector<Vector>& keys,
                const std::vector<Vector>& values) const;
  std::size_t n_heads() const { return fact("attention.head_count", 0); }
  std::size_t n_kv_heads() const { return fact("attention.head_count_kv", n_heads()); }
  std::size_t head_dim() const {
    return fact("attention.key_length", fact("embedding_length", 0) / n_heads());
  }

  std::vector<std::byte> bytes_;
  gguf::ModelFile file_;
  std::string arch_;
  Meaning meaning_;
};

/// YaRN (Peng et al. 2023, section 3.2): interpolate slow rotations, keep fast ones, blend between.
void Reference::rotate(Vector& x, std::size_t head_dim, std::size_t position, bool is_local) const {
  const std::size_t n_rot = fact("rope.dimension_count", head_dim);
  const double base = number(is_local ? "rope.freq_base_swa" : "rope.freq_base", 10000.0);
  const std::string scaling(
      is_local ? "none" : file_.metadata.get_string(arch_ + ".rope.scaling.type").value_or("none"));
  const double factor = scaling == "none" ? 1.0 : number("rope.scaling.factor", 1.0);
  const double n_orig =
      static_cast<double>(fact("rope.scaling.original_context_length", fact("context_length", 0)));
  const Vector divisors = rope_divisors(n_rot / 2, is_local);
  const auto turns_to_dim = [&](double turns) {
    return static_cast<double>(n_rot) * std::log(n_orig / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  for (std::size_t head = 0; head < x.size() / head_dim; ++head) {
    for (std::size_t pair = 0; pair < n_rot / 2; ++pair) {
      const double plain = static_cast<double>(position) *
                           std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(n_rot)) /
                           divisors[pair];
      double angle = plain / factor;
      double size = number("rope.scaling.attn_factor", 1.0);
      if (scaling == "yarn") {
        const double low = std::max(0.0, std::floor(turns_to_dim(32.0)));
        const double high = std::min(static_cast<double>(n_rot) - 1, std::ceil(turns_to_dim(1.0)));
        const double ramp =
            1.0 - std::clamp((static_cast<double>(pair) - low) / std::max(0.001, high - low), 0.0, 1.0);
        angle = angle * (1 - ramp) + plain * ramp;
        const double multiplier = number("rope.scaling.yarn_log_multiplier", 0.0);
        // Where whole heads grow, score_scale() says it.
        if (fact("attention.kv_lora_rank", 0) == 0)
          size *= (1.0 + 0.1 * std::log(factor)) / (1.0 + 0.1 * multiplier * std::log(factor));
      }
      const std::size_t i = head * head_dim + (meaning_.rotates_neighbours ? 2 * pair : pair);
      const std::size_t j = meaning_.rotates_neighbours ? i + 1 : i + n_rot / 2;
      const double a = x[i], b = x[j];
      x[i] = (a * std::cos(angle) - b * std::sin(angle)) * size;
      x[j] = (a * std::sin(angle) + b * std::cos(angle)) * size;
    }
  }
}

/// By the place in `chosen`.
Vector Reference::router_weights(const Vector& logits, const std::vector<std::size_t>& chosen,
                                 bool is_logistic) const {
  double all = 0;
  for (const double logit : logits) all += std::exp(logit);
  Vector weights;
  double total = 0;
  for (const std::size_t expert : chosen) {
    weights.push_back(is_logistic ? logistic(logits[expert]) : std::exp(logits[expert]) / all);
    total += weights.back();
  }
  const bool normalizes =
      file_.metadata.get_bool(arch_ + ".expert_weights_norm").value_or(meaning_.normalizes_weights);
  for (double& weight : weights) weight *= number("expert_weights_scale", 1.0) / (normalizes ? total : 1.0);
  return weights;
}

/// Leaves experts of the best groups only: those with the best expert or, with logistic scores, the best two.
void Reference::keep_groups(Vector& scores, bool is_logistic) const {
  const std::size_t n_groups = fact("expert_group_count", 1), size = scores.size() / n_groups;
  const std::size_t n_used = fact("expert_group_used_count", n_groups);
  std::vector<std::pair<double, std::size_t>> groups;
  for (std::size_t group = 0; group < n_groups; ++group) {
    Vector own(scores.begin() + static_cast<std::ptrdiff_t>(group * size),
               scores.begin() + static_cast<std::ptrdiff_t>((group + 1) * size));
    std::sort(own.rbegin(), own.rend());
    groups.emplace_back(is_logistic && n_groups > 1 ? own[0] + own[1] : own[0], group);
  }
  std::sort(groups.rbegin(), groups.rend());
  for (std::size_t i = n_used; i < n_groups; ++i) {
    for (std::size_t expert = 0; expert < size; ++expert) scores[groups[i].second * size + expert] = -1e300;
  }
}

Vector Reference::experts(std::uint64_t layer, const Vector& x) const {
  Vector logits = product(fmt::format("blk.{}.ffn_gate_inp.weight", layer), x);
  add_bias(fmt::format("blk.{}.ffn_gate_inp.bias", layer), logits);
  const bool is_logistic = fact("expert_gating_func", meaning_.weighs_input ? 2 : 1) == 2;
  double all = 0;
  for (const double logit : logits) all += std::exp(logit);
  Vector scores;
  for (const double logit : logits) scores.push_back(is_logistic ? logistic(logit) : std::exp(logit) / all);
  add_bias(fmt::format("blk.{}.exp_probs_b.bias", layer), scores);
  keep_groups(scores, is_logistic);
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(fact("expert_used_count", 0));
  const Vector weights = router_weights(logits, order, is_logistic);
  Vector sum(x.size(), 0.0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t expert = order[i];
    const bool is_merged = has(fmt::format("blk.{}.ffn_down_exps.weight", layer));
    const auto name = [&](const char* part) {
      return is_merged ? fmt::format("blk.{}.{}_exps.weight", layer, part)
                       : fmt::format("blk.{}.{}.{}.weight", layer, part, expert);
    };
    Vector in = x;
    if (meaning_.weighs_input) {
      for (double& value : in) value *= weights[i];
    }
    const Vector y =
        gated_ffn(name("ffn_gate"), name("ffn_up"), name("ffn_down"), in, is_merged ? expert : 0);
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += (meaning_.weighs_input ? 1.0 : weights[i]) * y[j];
  }
  return sum;
}

/// What the feed-forward half of a layer adds.
Vector Reference::channel(std::uint64_t layer, const Vector& x) const {
  const auto name = [&](const char* part) { return fmt::format("blk.{}.{}.weight", layer, part); };
  if (!has(name("ffn_gate_inp"))) return gated_ffn(name("ffn_gate"), name("ffn_up"), name("ffn_down"), x, 0);
  Vector sum = experts(layer, x);
  if (has(name("ffn_down_shexp"))) {
    const Vector shared =
        gated_ffn(name("ffn_gate_shexp"), name("ffn_up_shexp"), name("ffn_down_shexp"), x, 0);
    const bool has_gate = has(name("ffn_gate_inp_shexp"));
    const double gate = has_gate ? logistic(product(name("ffn_gate_inp_shexp"), x)[0]) : 1.0;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gate * shared[i];
  }
  return sum;
}

/// Queries, keys and values of one position.
Reference::Projected Reference::project(std::uint64_t layer, const Vector& x, std::size_t position) const {
  const auto name = [&](const char* part, const char* suffix = "weight") {
    return fmt::format("blk.{}.{}.{}", layer, part, suffix);
  };
  Projected to;
  if (has(name("attn_qkv"))) {
    Vector all = product(name("attn_qkv"), x);
    add_bias(name("attn_qkv", "bias"), all);
    const auto k = all.begin() + static_cast<std::ptrdiff_t>(n_heads() * head_dim());
    const auto v = k + static_cast<std::ptrdiff_t>(n_kv_heads() * head_dim());
    to = {{all.begin(), k}, {k, v}, {v, all.end()}, {}};
  } else {
    to = {product(name("attn_q"), x), product(name("attn_k"), x), product(name("attn_v"), x), {}};
    add_bias(name("attn_q", "bias"), to.q);
    add_bias(name("attn_k", "bias"), to.k);
    add_bias(name("attn_v", "bias"), to.v);
  }
  if (to.q.size() == 2 * n_heads() * head_dim()) split_gates(to);
  const std::uint64_t step = meaning_.whole_step;
  const auto normalize = [&] {
    const bool has_gain = has(name("attn_q_norm"));
    if (!has_gain && step == 0) return;
    norm_heads(to.q, has_gain ? vector(name("attn_q_norm")) : Vector(head_dim(), 1.0));
    norm_heads(to.k, has_gain ? vector(name("attn_k_norm")) : Vector(head_dim(), 1.0));
  };
  if (!meaning_.norms_rotated) normalize();
  if (step == 0 || (layer + 1) % step != 0) {
    const bool is_local = meaning_.has_local_curve && has_window(layer);
    rotate(to.q, head_dim(), position, is_local);
    rotate(to.k, head_dim(), position, is_local);
    if (meaning_.norms_rotated) normalize();
  }
  const double temperature = number("attention.temperature_scale", 0.0);
  const std::uint64_t interval = fact("rope.scaling.original_context_length", fact("context_length", 0));
  for (double& value : to.q)
    value *= 1.0 + temperature * std::log(1.0 + static_cast<double>(position / interval));
  return to;
}

/// The same from latent vectors, written out: every head gets a key and a value of its own.
Reference::Projected Reference::project_latent(std::uint64_t layer, const Vector& x,
                                               std::size_t position) const {
  const auto name = [&](const char* part) { return fmt::format("blk.{}.{}.weight", layer, part); };
  const std::size_t n_rot = fact("rope.dimension_count", 0), rank = fact("attention.kv_lora_rank", 0);
  const std::size_t k_dim = fact("attention.key_length_mla", fact("attention.key_length", 0));
  const std::size_t n_plain = k_dim - n_rot;
  Projected to;
  to.q = has(name("attn_q"))
             ? product(name("attn_q"), x)
             : product(name("attn_q_b"), norm(product(name("attn_q_a"), x), name("attn_q_a_norm")));
  const Vector kept = product(name("attn_kv_a_mqa"), x);
  const auto middle = kept.begin() + static_cast<std::ptrdiff_t>(rank);
  const Vector latent = norm(Vector(kept.begin(), middle), name("attn_kv_a_norm"));
  Vector k_rotated(middle, kept.end());
  rotate(k_rotated, n_rot, position, false);
  for (std::size_t head = 0; head < n_heads(); ++head) {
    const auto q_tail = to.q.begin() + static_cast<std::ptrdiff_t>(head * k_dim + n_plain);
    Vector q_rotated(q_tail, q_tail + static_cast<std::ptrdiff_t>(n_rot));
    rotate(q_rotated, n_rot, position, false);
    std::copy(q_rotated.begin(), q_rotated.end(), q_tail);
    Vector key(n_plain, 0.0), value;
    if (has(name("attn_kv_b"))) {
      const Vector both = product(name("attn_kv_b"), latent);
      const auto own = both.begin() + static_cast<std::ptrdiff_t>(both.size() / n_heads() * head);
      const auto own_value = own + static_cast<std::ptrdiff_t>(n_plain);
      key.assign(own, own_value);
      value.assign(own_value, own + static_cast<std::ptrdiff_t>(both.size() / n_heads()));
    } else {
      // attn_k_b holds, for each element of the latent vector, what it adds to the key.
      const std::vector<Vector> parts = rows(name("attn_k_b"), head * rank, rank);
      for (std::size_t j = 0; j < rank; ++j) {
        for (std::size_t i = 0; i < n_plain; ++i) key[i] += parts[j][i] * latent[j];
      }
      value = product(name("attn_v_b"), latent, head);
    }
    to.k.insert(to.k.end(), key.begin(), key.end());
    to.k.insert(to.k.end(), k_rotated.begin(), k_rotated.end());
    to.v.insert(to.v.end(), value.begin(), value.end());
  }
  return to;
}

double Reference::score_scale(std::size_t k_dim) const {
  const double usual = 1.0 / std::sqrt(static_cast<double>(k_dim));
  const bool is_yarn = file_.metadata.get_string(arch_ + ".rope.scaling.type").value_or("none") == "yarn";
  if (fact("attention.kv_lora_rank", 0) == 0 || !is_yarn) return number("attention.scale", usual);
  const double growth =
      1.0 + number("rope.scaling.yarn_log_multiplier", 0.0) * std::log(number("rope.scaling.factor", 1.0));
  return usual * growth * growth;
}

Vector Reference::attend(std::uint64_t layer, const Vector& q, const std::vector<Vector>& keys,
                         const std::vector<Vector>& values) const {
  const std::string sinks = fmt::format("blk.{}.attn_sinks.weight", layer);
  const std::uint64_t window = has_window(layer) ? fact("attention.sliding_window", 0) : 0;
  const std::size_t first = window != 0 && keys.size() > window ? keys.size() - window : 0;
  const std::size_t n = q.size() / n_heads(), n_kv = keys[0].size() / n, v_dim = values[0].size() / n_kv;
  const double scale = score_scale(n);
  Vector attended(n_heads() * v_dim, 0.0);
  for (std::size_t head = 0; head < n_heads(); ++head) {
    const std::size_t kv = head / (n_heads() / n_kv);
    Vector scores;
    for (std::size_t past = first; past < keys.size(); ++past) {
      double score = 0;
      for (std::size_t i = 0; i < n; ++i) score += q[head * n + i] * keys[past][kv * n + i];
      scores.push_back(capped(score * scale, number("attn_logit_softcapping", 0.0)));
    }
    double highest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    if (has(sinks)) {
      const double sink = vector(sinks)[head];
      highest = std::max(highest, sink);
      total = std::exp(sink - highest);
    }
    for (double& score : scores) total += score = std::exp(score - highest);
    for (std::size_t past = first; past < keys.size(); ++past) {
      for (std::size_t i = 0; i < v_dim; ++i)
        attended[head * v_dim + i] += scores[past - first] / total * values[past][kv * v_dim + i];
    }
  }
  return attended;
}

std::vector<Vector> Reference::attention(std::uint64_t layer, const std::vector<Vector>& stream) const {
  const auto name = [&](const char* part, const char* suffix = "weight") {
    return fmt::format("blk.{}.{}.{}", layer, part, suffix);
  };
  std::vector<Vector> keys, values, result;
  for (std::size_t position = 0; position < stream.size(); ++position) {
    const Vector x = norm(stream[position], name("attn_norm"));
    const Projected now = fact("attention.kv_lora_rank", 0) != 0 ? project_latent(layer, x, position)
                                                                 : project(layer, x, position);
    keys.push_back(now.k);
    values.push_back(now.v);
    Vector heads = attend(layer, now.q, keys, values);
    for (std::size_t i = 0; i < now.gate.size(); ++i) heads[i] *= logistic(now.gate[i]);
    result.push_back(product(name("attn_output"), heads));
    add_bias(name("attn_output", "bias"), result.back());
  }
  return result;
}

/// A gated delta net (Yang et al. 2024).
std::vector<Vector> Reference::delta_net(std::uint64_t layer, const std::vector<Vector>& stream) const {
  const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", layer, part); };
  ReferenceDelta delta;
  delta.n_k_heads = fact("ssm.group_count", 0);
  delta.n_v_heads = fact("ssm.time_step_rank", 0);
  delta.head_dim = fact("ssm.state_size", 0);
  delta.is_grouped = has(name("ssm_ba.weight"));
  delta.convolution =
      rows(name("ssm_conv1d.weight"), 0, (2 * delta.n_k_heads + delta.n_v_heads) * delta.head_dim);
  delta.dt_bias = vector(name("ssm_dt.bias"));
  delta.a = vector(name("ssm_a"));
  delta.least_length = number("attention.layer_norm_rms_epsilon", 1e-5);
  std::vector<ReferenceDelta::Row> projected;
  std::vector<Vector> z;
  for (const Vector& x : stream) {
    const Vector normed = norm(x, name("attn_norm.weight"));
    z.push_back(product(name("attn_gate.weight"), normed));
    auto& row = projected.emplace_back();
    row.qkv = product(name("attn_qkv.weight"), normed);
    if (!delta.is_grouped) {
      row.beta = product(name("ssm_beta.weight"), normed);
      row.alpha = product(name("ssm_alpha.weight"), normed);
      continue;
    }
    const Vector both = product(name("ssm_ba.weight"), normed);
    const std::size_t n_each = delta.n_v_heads / delta.n_k_heads;
    for (std::size_t i = 0; i < both.size(); ++i)
      (i / n_each % 2 == 0 ? row.beta : row.alpha).push_back(both[i]);
  }
  std::vector<Vector> result = delta.run(projected);
  for (std::size_t position = 0; position < result.size(); ++position) {
    Vector& y = result[position];
    norm_heads(y, vector(name("ssm_norm.weight")));
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= z[position][i] * logistic(z[position][i]);
    y = product(name("ssm_out.weight"), y);
  }
  return result;
}

std::vector<Vector> Reference::run(const std::vector<std::int32_t>& tokens) {
  std::vector<Vector> stream;
  for (const std::int32_t token : tokens) {
    stream.push_back(rows("token_embd.weight", static_cast<std::uint64_t>(token), 1)[0]);
    const double scale = meaning_.scales_embedding ? std::sqrt(stream.back().size()) : 1.0;
    for (double& value : stream.back()) value *= number("embedding_scale", scale);
  }
  const double residual_scale = number("residual_scale", 1.0);
  const std::uint64_t n_layers = fact("block_count", 0) - fact("nextn_predict_layers", 0);
  for (std::uint64_t layer = 0; layer < n_layers; ++layer) {
    const auto name = [&](const char* part, const char* suffix = "weight") {
      return fmt::format("blk.{}.{}.{}", layer, part, suffix);
    };
    const bool is_recurrent = has(fmt::format("blk.{}.ssm_a", layer));
    std::vector<Vector> mixed = is_recurrent ? delta_net(layer, stream) : attention(layer, stream);
    for (std::size_t position = 0; position < tokens.size(); ++position) {
      if (has(name("ffn_norm")) && has(name("post_attention_norm")))
        mixed[position] = norm(mixed[position], name("post_attention_norm"));
      for (std::size_t i = 0; i < stream[position].size(); ++i)
        stream[position][i] += residual_scale * mixed[position][i];
    }
    const std::string channel_norm = name(has(name("ffn_norm")) ? "ffn_norm" : "post_attention_norm");
    for (Vector& x : stream) {
      Vector out = channel(layer, norm(x, channel_norm));
      if (has(name("post_ffw_norm"))) out = norm(out, name("post_ffw_norm"));
      for (std::size_t i = 0; i < out.size(); ++i) x[i] += residual_scale * out[i];
    }
  }
  std::vector<Vector> logits;
  for (const Vector& x : stream) {
    logits.push_back(
        product(has("output.weight") ? "output.weight" : "token_embd.weight", norm(x, "output_norm.weight")));
    add_bias("output.bias", logits.back());
    for (double& logit : logits.back())
      logit = capped(logit / number("logit_scale", 1.0), number("final_logit_softcapping", 0.0));
  }
  return logits;
}

}  // namespace

std::vector<std::vector<double>> reference_logits(const std::filesystem::path& path,
                                                  const std::vector<std::int32_t>& tokens) {
  return Reference(path).run(tokens);
}

}  // namespace sluice::test
