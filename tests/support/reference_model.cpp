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
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::test {
namespace {

using Vector = std::vector<double>;

/// The model's facts and decoded weights, looked up by name on demand.
class Reference {
 public:
  explicit Reference(const std::filesystem::path& path) : bytes_(read_bytes(path)) {
    MemorySource source(path.string(), bytes_);
    file_ = gguf::parse_file(source);
    arch_ = std::string(file_.metadata.require_string("general.architecture"));
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
    Vector y;
    for (const Vector& row : rows(name, stack_idx * tensor->dims[1], tensor->dims[1])) {
      y.push_back(std::inner_product(row.begin(), row.end(), x.begin(), 0.0));
    }
    return y;
  }
  void add_bias(const std::string& name, Vector& y) const {
    if (!has(name)) return;
    const Vector bias = vector(name);
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
    return norm(x.data(), x.size(), vector(gain));
  }
  void norm_heads(Vector& x, std::size_t head_dim, const std::string& gain) const {
    for (std::size_t head = 0; head < x.size() / head_dim; ++head) {
      const Vector y = norm(x.data() + head * head_dim, head_dim, vector(gain));
      std::copy(y.begin(), y.end(), x.begin() + static_cast<std::ptrdiff_t>(head * head_dim));
    }
  }
  void rotate(Vector& x, std::size_t head_dim, std::size_t position) const;
  Vector swiglu_ffn(const std::string& gate, const std::string& up, const std::string& down, const Vector& x,
                    std::uint64_t stack_idx) const {
    Vector hidden = product(gate, x, stack_idx);
    const Vector other = product(up, x, stack_idx);
    for (std::size_t i = 0; i < hidden.size(); ++i)
      hidden[i] = hidden[i] / (1.0 + std::exp(-hidden[i])) * other[i];
    return product(down, hidden, stack_idx);
  }
  Vector experts(std::uint64_t layer, const Vector& x) const;

  std::vector<std::byte> bytes_;
  gguf::ModelFile file_;
  std::string arch_;
};

/// YaRN (Peng et al. 2023, section 3.2): interpolate slow rotations, keep fast ones, blend between.
void Reference::rotate(Vector& x, std::size_t head_dim, std::size_t position) const {
  const std::size_t n_rot = fact("rope.dimension_count", head_dim);
  const double base = number("rope.freq_base", 10000.0);
  const std::string scaling(file_.metadata.get_string(arch_ + ".rope.scaling.type").value_or("none"));
  const double factor = scaling == "none" ? 1.0 : number("rope.scaling.factor", 1.0);
  const double n_orig =
      static_cast<double>(fact("rope.scaling.original_context_length", fact("context_length", 0)));
  const Vector divisors = has("rope_freqs.weight") ? vector("rope_freqs.weight") : Vector(n_rot / 2, 1.0);
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
      double size = 1.0;
      if (scaling == "yarn") {
        const double low = std::max(0.0, std::floor(turns_to_dim(32.0)));
        const double high = std::min(static_cast<double>(n_rot) - 1, std::ceil(turns_to_dim(1.0)));
        const double ramp =
            1.0 - std::clamp((static_cast<double>(pair) - low) / std::max(0.001, high - low), 0.0, 1.0);
        angle = angle * (1 - ramp) + plain * ramp;
        size = 1.0 + 0.1 * std::log(factor);
      }
      const bool is_neox = arch_ != "llama";
      const std::size_t i = head * head_dim + (is_neox ? pair : 2 * pair);
      const std::size_t j = is_neox ? i + n_rot / 2 : i + 1;
      const double a = x[i], b = x[j];
      x[i] = (a * std::cos(angle) - b * std::sin(angle)) * size;
      x[j] = (a * std::sin(angle) + b * std::cos(angle)) * size;
    }
  }
}

Vector Reference::experts(std::uint64_t layer, const Vector& x) const {
  const Vector logits = product(fmt::format("blk.{}.ffn_gate_inp.weight", layer), x);
  const std::size_t n_used = fact("expert_used_count", 0);
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  double total = 0;
  for (std::size_t i = 0; i < n_used; ++i) total += std::exp(logits[order[i]] - logits[order[0]]);
  Vector sum(x.size(), 0.0);
  for (std::size_t i = 0; i < n_used; ++i) {
    const std::size_t expert = order[i];
    const auto name = [&](const char* part) {
      const std::string merged = fmt::format("blk.{}.{}_exps.weight", layer, part);
      return has(merged) ? merged : fmt::format("blk.{}.{}.{}.weight", layer, part, expert);
    };
    const bool is_merged = has(fmt::format("blk.{}.ffn_gate_exps.weight", layer));
    const Vector y =
        swiglu_ffn(name("ffn_gate"), name("ffn_up"), name("ffn_down"), x, is_merged ? expert : 0);
    const double weight = std::exp(logits[expert] - logits[order[0]]) / total;
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += weight * y[j];
  }
  return sum;
}

std::vector<Vector> Reference::run(const std::vector<std::int32_t>& tokens) {
  const std::size_t n_heads = fact("attention.head_count", 0),
                    n_kv_heads = fact("attention.head_count_kv", n_heads);
  const std::size_t head_dim = fact("attention.key_length", fact("embedding_length", 0) / n_heads);
  std::vector<Vector> stream;
  for (const std::int32_t token : tokens)
    stream.push_back(rows("token_embd.weight", static_cast<std::uint64_t>(token), 1)[0]);
  for (std::uint64_t layer = 0; layer < fact("block_count", 0); ++layer) {
    const auto name = [&](const char* part, const char* suffix = "weight") {
      return fmt::format("blk.{}.{}.{}", layer, part, suffix);
    };
    std::vector<Vector> keys, values;
    for (std::size_t position = 0; position < tokens.size(); ++position) {
      const Vector h = norm(stream[position], name("attn_norm"));
      Vector q = product(name("attn_q"), h), k = product(name("attn_k"), h), v = product(name("attn_v"), h);
      add_bias(name("attn_q", "bias"), q);
      add_bias(name("attn_k", "bias"), k);
      add_bias(name("attn_v", "bias"), v);
      if (has(name("attn_q_norm"))) {
        norm_heads(q, head_dim, name("attn_q_norm"));
        norm_heads(k, head_dim, name("attn_k_norm"));
      }
      rotate(q, head_dim, position);
      rotate(k, head_dim, position);
      keys.push_back(k);
      values.push_back(v);
      Vector attended(n_heads * head_dim, 0.0);
      for (std::size_t head = 0; head < n_heads; ++head) {
        const std::size_t kv = head / (n_heads / n_kv_heads) * head_dim;
        Vector scores;
        for (std::size_t past = 0; past <= position; ++past) {
          double score = 0;
          for (std::size_t i = 0; i < head_dim; ++i) score += q[head * head_dim + i] * keys[past][kv + i];
          scores.push_back(score / std::sqrt(static_cast<double>(head_dim)));
        }
        const double highest = *std::max_element(scores.begin(), scores.end());
        double total = 0;
        for (double& score : scores) total += score = std::exp(score - highest);
        for (std::size_t past = 0; past <= position; ++past) {
          for (std::size_t i = 0; i < head_dim; ++i)
            attended[head * head_dim + i] += scores[past] / total * values[past][kv + i];
        }
      }
      const Vector out = product(name("attn_output"), attended);
      for (std::size_t i = 0; i < out.size(); ++i) stream[position][i] += out[i];
    }
    for (Vector& x : stream) {
      const Vector h = norm(x, name("ffn_norm"));
      const Vector out = has(name("ffn_gate_inp"))
                             ? experts(layer, h)
                             : swiglu_ffn(name("ffn_gate"), name("ffn_up"), name("ffn_down"), h, 0);
      for (std::size_t i = 0; i < out.size(); ++i) x[i] += out[i];
    }
  }
  std::vector<Vector> logits;
  for (const Vector& x : stream) {
    logits.push_back(
        product(has("output.weight") ? "output.weight" : "token_embd.weight", norm(x, "output_norm.weight")));
  }
  return logits;
}

}  // namespace

std::vector<std::vector<double>> reference_logits(const std::filesystem::path& path,
                                                  const std::vector<std::int32_t>& tokens) {
  return Reference(path).run(tokens);
}

}  // namespace sluice::test
