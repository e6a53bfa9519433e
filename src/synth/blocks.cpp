#include "synth/blocks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "kernels/quant.hpp"

namespace sluice::synth {
namespace {

using gguf::TensorType;

constexpr std::size_t k_pool_bytes = 4u << 20;
/// Elements from which the deviation of random blocks is measured.
constexpr std::size_t k_sample_elements = 1u << 16;
constexpr std::uint16_t k_no_field = 0xffff;

/// The fields of a block that may not be arbitrary bits.
struct BlockForm {
  TensorType type;
  std::uint16_t scale_offset;    ///< Of the scale, a half.
  std::uint16_t minimum_offset;  ///< Of the scale of the minima, a half.
  float minimum_ratio;           ///< Minimum over scale that makes the mean 0 when all other bits are random.
};

// Where each minimum stands follows from the means of the integers: in Q4_K a value is scale * s * q -
// minimum * m with s and m of equal distribution and q of mean 7.5.
constexpr auto k_forms = std::to_array<BlockForm>({
    {TensorType::q4_0, 0, k_no_field, 0},    {TensorType::q4_1, 0, 2, -7.5f},
    {TensorType::q5_0, 0, k_no_field, 0},    {TensorType::q5_1, 0, 2, -15.5f},
    {TensorType::q8_0, 0, k_no_field, 0},    {TensorType::q2_k, 80, 82, 1.5f},
    {TensorType::q3_k, 108, k_no_field, 0},  {TensorType::q4_k, 0, 2, 7.5f},
    {TensorType::q5_k, 0, 2, 15.5f},         {TensorType::q6_k, 208, k_no_field, 0},
    {TensorType::iq1_s, 0, k_no_field, 0},   {TensorType::iq1_m, 48, k_no_field, 0},
    {TensorType::iq2_xxs, 0, k_no_field, 0}, {TensorType::iq2_xs, 0, k_no_field, 0},
    {TensorType::iq2_s, 0, k_no_field, 0},   {TensorType::iq3_xxs, 0, k_no_field, 0},
    {TensorType::iq3_s, 0, k_no_field, 0},   {TensorType::iq4_nl, 0, k_no_field, 0},
    {TensorType::iq4_xs, 0, k_no_field, 0},  {TensorType::tq1_0, 52, k_no_field, 0},
    {TensorType::tq2_0, 64, k_no_field, 0},  {TensorType::q1_0, 0, k_no_field, 0},
    {TensorType::q2_0, 0, k_no_field, 0},    {TensorType::q2_0_g128, 0, k_no_field, 0},
});

const BlockForm* find_form(TensorType type) noexcept {
  const auto found = std::find_if(k_forms.begin(), k_forms.end(),
                                  [type](const BlockForm& form) { return form.type == type; });
  return found == k_forms.end() ? nullptr : &*found;
}

bool is_float(TensorType type) noexcept {
  return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16;
}

bool is_prime(std::size_t n) noexcept {
  if (n < 2) return false;
  for (std::size_t divisor = 2; divisor * divisor <= n; ++divisor) {
    if (n % divisor == 0) return false;
  }
  return true;
}

std::size_t largest_prime_up_to(std::size_t n) noexcept {
  while (!is_prime(n)) --n;
  return n;
}

void put_half(std::byte* at, float value) noexcept {
  const std::uint16_t bits = kernels::f32_to_f16(value);
  std::memcpy(at, &bits, sizeof bits);
}

/// IQ1_M has a quarter of its scale, lowest first, in the top nibble of each of four 16-bit words.
void put_scale(const BlockForm& form, std::byte* block, float value) noexcept {
  if (form.type != TensorType::iq1_m) return put_half(block + form.scale_offset, value);
  const unsigned bits = kernels::f32_to_f16(value);
  for (unsigned word = 0; word < 4; ++word) {
    std::byte& top = block[form.scale_offset + 2 * word + 1];
    top = (top & std::byte{0x0f}) | static_cast<std::byte>((bits >> 4 * word & 0xf) << 4);
  }
}

/// An unsigned E4M3 number: bias 7, three bits of mantissa.
float ue4m3(int bits) noexcept {
  const int exponent = bits >> 3, mantissa = bits & 7;
  return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

/// Gives each of the scales at the beginning of NVFP4 blocks one of the two numbers around `scale`, so often
/// that the mean square is right: weights are small, and there the numbers lie far apart.
void put_nvfp4_scales(std::span<std::byte> blocks, std::size_t block_bytes, float scale,
                      SynthRandom& random) {
  constexpr int k_largest = 0x7e, k_n_scales = 4;
  int low = 0;
  while (low + 1 < k_largest && ue4m3(low + 1) <= scale) ++low;
  const float a = ue4m3(low), b = ue4m3(low + 1);
  const float share = std::clamp((scale * scale - a * a) / (b * b - a * a), 0.0f, 1.0f);
  const auto threshold = static_cast<std::uint64_t>(share * 65536.0f);
  for (std::size_t at = 0; at < blocks.size(); at += block_bytes) {
    for (std::size_t i = 0; i < k_n_scales; ++i)
      blocks[at + i] = static_cast<std::byte>(random.below(65536) < threshold ? low + 1 : low);
  }
}

float deviation(TensorType type, std::span<const std::byte> blocks) {
  const gguf::TypeTraits& traits = gguf::type_traits(type);
  const std::size_t n_blocks =
      std::min(blocks.size() / traits.block_bytes, k_sample_elements / traits.block_elements);
  std::vector<float> values(n_blocks * traits.block_elements);
  const bool known = kernels::dequantize_row(type, blocks.data(), values.data(), values.size());
  SLUICE_CHECK(known);
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return static_cast<float>(std::sqrt(squares / static_cast<double>(values.size())));
}

}  // namespace

float SynthRandom::normal() noexcept {
  // Three draws of four 16-bit uniforms.
  std::uint32_t sum = 0;
  for (int draw = 0; draw < 3; ++draw) {
    const std::uint64_t bits = next();
    for (int part = 0; part < 4; ++part) sum += static_cast<std::uint32_t>(bits >> (16 * part) & 0xffff);
  }
  return static_cast<float>(sum) * 0x1p-16f - 6.0f;
}

bool can_synthesize(TensorType type) noexcept {
  return is_float(type) || type == TensorType::mxfp4 || type == TensorType::nvfp4 ||
         find_form(type) != nullptr;
}

BlockPool::BlockPool(TensorType type, float std_dev, std::uint64_t seed)
    : block_bytes_(gguf::type_traits(type).block_bytes),
      bytes_(largest_prime_up_to(k_pool_bytes / block_bytes_) * block_bytes_) {
  SynthRandom random(seed);
  if (is_float(type)) {
    fill_floats(type, std_dev, random);
  } else {
    fill_blocks(type, std_dev, random);
  }
}

void BlockPool::fill_floats(TensorType type, float std_dev, SynthRandom& random) {
  for (std::size_t at = 0; at < bytes_.size(); at += block_bytes_) {
    const float value = std_dev * random.normal();
    if (type == TensorType::f16) {
      put_half(&bytes_[at], value);
    } else if (type == TensorType::bf16) {
      // bfloat16 is the upper half of a float.
      std::memcpy(&bytes_[at], reinterpret_cast<const std::byte*>(&value) + 2, 2);
    } else {
      std::memcpy(&bytes_[at], &value, sizeof value);
    }
  }
}

void BlockPool::fill_blocks(TensorType type, float std_dev, SynthRandom& random) {
  std::size_t at = 0;
  for (; at + 8 <= bytes_.size(); at += 8) {
    const std::uint64_t bits = random.next();
    std::memcpy(&bytes_[at], &bits, sizeof bits);
  }
  for (; at < bytes_.size(); ++at) bytes_[at] = static_cast<std::byte>(random.next() >> 56);

  if (type == TensorType::mxfp4) {
    // The scale is a power of two, so the deviation is met within a factor of 1.42.
    constexpr int k_exponent_of_one = 127;
    for (at = 0; at < bytes_.size(); at += block_bytes_) bytes_[at] = std::byte{k_exponent_of_one};
    const float steps = std::round(std::log2(std_dev / deviation(type, bytes_)));
    const int exponent = std::clamp(k_exponent_of_one + static_cast<int>(steps), 1, 250);
    for (at = 0; at < bytes_.size(); at += block_bytes_) bytes_[at] = static_cast<std::byte>(exponent);
    return;
  }
  if (type == TensorType::nvfp4) {
    put_nvfp4_scales(bytes_, block_bytes_, 1.0f, random);
    return put_nvfp4_scales(bytes_, block_bytes_, std_dev / deviation(type, bytes_), random);
  }
  const BlockForm* form = find_form(type);
  SLUICE_CHECK(form != nullptr);
  const bool has_minimum = form->minimum_offset != k_no_field;
  const auto set_scale = [&](std::byte* block, float scale) {
    put_scale(*form, block, scale);
    if (has_minimum) put_half(block + form->minimum_offset, scale * form->minimum_ratio);
  };
  for (at = 0; at < bytes_.size(); at += block_bytes_) set_scale(&bytes_[at], 1.0f);
  const float scale = std_dev / deviation(type, bytes_);
  for (at = 0; at < bytes_.size(); at += block_bytes_) {
    // Integers such as -8 to 7 have a small mean of their own; scales of both signs cancel it.
    const bool negative = !has_minimum && random.below(2) == 1;
    set_scale(&bytes_[at], negative ? -scale : scale);
  }
}

void BlockPool::take(std::size_t phase, std::uint64_t n,
                     const std::function<void(std::span<const std::byte>)>& sink) const {
  while (n != 0) {
    const std::size_t n_here = static_cast<std::size_t>(std::min<std::uint64_t>(n, n_blocks() - phase));
    sink(bytes().subspan(phase * block_bytes_, n_here * block_bytes_));
    n -= n_here;
    phase = 0;
  }
}

const BlockPool& BlockPools::get(TensorType type, float std_dev) {
  const auto key = std::make_pair(type, std_dev);
  const auto found = pools_.find(key);
  if (found != pools_.end()) return found->second;
  return pools_.emplace(key, BlockPool(type, std_dev, seed_ + pools_.size())).first->second;
}

}  // namespace sluice::synth
