#include "kernels/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice::kernels {
namespace {

/// The pair index (not rounded) that turns `n_turns` times within the original context.
double pair_of_turns(const RopeParams& params, double n_turns) noexcept {
  return params.n_rot * std::log(params.n_ctx_orig / (n_turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(double{params.base}));
}

}  // namespace

double rope_frequencies(const RopeParams& params, std::span<double> frequencies) noexcept {
  const double scale = params.freq_scale;
  double magnitude = params.attn_factor;
  double low = 0, high = 0;
  const bool yarn = params.ext_factor != 0.0f;
  if (yarn) {
    low = std::max(0.0, std::floor(pair_of_turns(params, params.beta_fast)));
    high = std::min(params.n_rot - 1.0, std::ceil(pair_of_turns(params, params.beta_slow)));
    // The paper's temperature, as a factor on both queries and keys.
    magnitude *= 1.0 + 0.1 * std::log(1.0 / scale);
  }
  for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
    double own = std::pow(double{params.base}, -2.0 * static_cast<double>(pair) / params.n_rot);
    if (params.freq_factors != nullptr) own /= params.freq_factors[pair];
    double frequency = own * scale;
    if (yarn) {
      const double position = (static_cast<double>(pair) - low) / std::max(0.001, high - low);
      const double keep = (1.0 - std::clamp(position, 0.0, 1.0)) * params.ext_factor;
      frequency = frequency * (1.0 - keep) + own * keep;
    }
    frequencies[pair] = frequency;
  }
  return magnitude;
}

void rope_angles(std::span<const double> frequencies, double magnitude, std::uint32_t position,
                 float* cosines, float* sines) noexcept {
  for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
    const double angle = position * frequencies[pair];
    cosines[pair] = static_cast<float>(std::cos(angle) * magnitude);
    sines[pair] = static_cast<float>(std::sin(angle) * magnitude);
  }
}

}  // namespace sluice::kernels
