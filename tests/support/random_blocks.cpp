#include "support/random_blocks.hpp"

#include <array>
#include <cstring>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>

namespace sluice::test {
namespace {

using gguf::TensorType;

/// SplitMix64 (Steele, Lea & Flood 2014): the same stream with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint32_t bound) noexcept {
    return static_cast<std::uint32_t>((next() >> 32) * bound >> 32);
  }
  float unit() noexcept { return static_cast<float>(next() >> 40) * 0x1p-24f; }

 private:
  std::uint64_t state_;
};

enum class Field : std::uint8_t {
  f16,          ///< Half-precision scale.
  f32,          ///< Single-precision scale.
  exponent,     ///< MXFP4's shared power of two (E8M0).
  ue4m3,        ///< NVFP4's unsigned E4M3 scale.
  split_f16,    ///< IQ1_M: a half spread over the top nibbles of four 16-bit words.
  f16_element,  ///< Element of an unquantized type.
  bf16_element,
  f32_element,
};

struct FieldAt {
  std::uint16_t offset;
  Field field;
};

/// The bytes of a block that may not be arbitrary. Written out here, apart from the library's own block
/// structs, so that a wrong offset there shows as a difference.
struct BlockRecipe {
  TensorType type;
  std::uint16_t elements;
  std::uint16_t bytes;
  std::array<FieldAt, 4> fields;
  std::uint8_t n_fields;
};

constexpr BlockRecipe recipe(TensorType type, int elements, int bytes,
                             std::initializer_list<FieldAt> fields) {
  BlockRecipe result{type, static_cast<std::uint16_t>(elements), static_cast<std::uint16_t>(bytes), {}, 0};
  for (const FieldAt& field : fields) result.fields[result.n_fields++] = field;
  return result;
}

constexpr auto k_recipes = std::to_array<BlockRecipe>({
    recipe(TensorType::f32, 1, 4, {{0, Field::f32_element}}),
    recipe(TensorType::f16, 1, 2, {{0, Field::f16_element}}),
    recipe(TensorType::bf16, 1, 2, {{0, Field::bf16_element}}),
    recipe(TensorType::q4_0, 32, 18, {{0, Field::f16}}),
    recipe(TensorType::q4_1, 32, 20, {{0, Field::f16}, {2, Field::f16}}),
    recipe(TensorType::q5_0, 32, 22, {{0, Field::f16}}),
    recipe(TensorType::q5_1, 32, 24, {{0, Field::f16}, {2, Field::f16}}),
    recipe(TensorType::q8_0, 32, 34, {{0, Field::f16}}),
    recipe(TensorType::q8_1, 32, 36, {{0, Field::f16}, {2, Field::f16}}),
    recipe(TensorType::q2_k, 256, 84, {{80, Field::f16}, {82, Field::f16}}),
    recipe(TensorType::q3_k, 256, 110, {{108, Field::f16}}),
    recipe(TensorType::q4_k, 256, 144, {{0, Field::f16}, {2, Field::f16}}),
    recipe(TensorType::q5_k, 256, 176, {{0, Field::f16}, {2, Field::f16}}),
    recipe(TensorType::q6_k, 256, 210, {{208, Field::f16}}),
    recipe(TensorType::q8_k, 256, 292, {{0, Field::f32}}),
    recipe(TensorType::iq2_xxs, 256, 66, {{0, Field::f16}}),
    recipe(TensorType::iq2_xs, 256, 74, {{0, Field::f16}}),
    recipe(TensorType::iq2_s, 256, 82, {{0, Field::f16}}),
    recipe(TensorType::iq3_xxs, 256, 98, {{0, Field::f16}}),
    recipe(TensorType::iq3_s, 256, 110, {{0, Field::f16}}),
    recipe(TensorType::iq1_s, 256, 50, {{0, Field::f16}}),
    recipe(TensorType::iq1_m, 256, 56, {{48, Field::split_f16}}),
    recipe(TensorType::iq4_nl, 32, 18, {{0, Field::f16}}),
    recipe(TensorType::iq4_xs, 256, 136, {{0, Field::f16}}),
    recipe(TensorType::tq1_0, 256, 54, {{52, Field::f16}}),
    recipe(TensorType::tq2_0, 256, 66, {{64, Field::f16}}),
    recipe(TensorType::mxfp4, 32, 17, {{0, Field::exponent}}),
    recipe(TensorType::q1_0, 128, 18, {{0, Field::f16}}),
    recipe(TensorType::q2_0, 64, 18, {{0, Field::f16}}),
    recipe(TensorType::q2_0_g128, 128, 34, {{0, Field::f16}}),
    recipe(TensorType::nvfp4, 64, 36,
           {{0, Field::ue4m3}, {1, Field::ue4m3}, {2, Field::ue4m3}, {3, Field::ue4m3}}),
});

const BlockRecipe& find_recipe(TensorType type) {
  for (const BlockRecipe& candidate : k_recipes) {
    if (candidate.type == type) return candidate;
  }
  throw std::invalid_argument("random_rows: type id " + std::to_string(static_cast<std::uint32_t>(type)) +
                              " has no quantized blocks");
}

/// A half with a random sign and mantissa and an exponent within [2^lowest, 2^highest].
std::uint16_t random_f16(Random& random, int lowest, int highest) {
  const auto exponent = static_cast<std::uint32_t>(lowest + 15) +
                        random.below(static_cast<std::uint32_t>(highest - lowest + 1));
  return static_cast<std::uint16_t>(random.below(2) << 15 | exponent << 10 | random.below(1u << 10));
}

void put_u16(std::byte* at, std::uint16_t value) {
  std::memcpy(at, &value, sizeof value);
}
void put_f32(std::byte* at, float value) {
  std::memcpy(at, &value, sizeof value);
}

void fill_field(std::byte* block, FieldAt at, Random& random) {
  std::byte* place = block + at.offset;
  switch (at.field) {
    case Field::f16:
      return put_u16(place, random_f16(random, -10, -4));
    case Field::f32:
      return put_f32(place, (random.unit() - 0.5f) * 0.02f);
    case Field::exponent:
      *place = static_cast<std::byte>(117 + random.below(8));
      return;
    case Field::ue4m3:
      *place = static_cast<std::byte>(random.below(0x20));
      return;
    case Field::split_f16: {
      const std::uint16_t scale = random_f16(random, -10, -4);
      for (int word = 0; word < 4; ++word) {
        const auto nibble = static_cast<std::uint8_t>(scale >> (4 * word) & 0xf);
        std::byte& high = place[2 * word + 1];
        high = (high & std::byte{0x0f}) | static_cast<std::byte>(nibble << 4);
      }
      return;
    }
    case Field::f16_element:
      return put_u16(place, random_f16(random, -8, 0));
    case Field::bf16_element: {
      const std::uint32_t exponent = 119 + random.below(9);
      return put_u16(place,
                     static_cast<std::uint16_t>(random.below(2) << 15 | exponent << 7 | random.below(128)));
    }
    case Field::f32_element:
      return put_f32(place, random.unit() * 2.0f - 1.0f);
  }
}

}  // namespace

std::vector<std::byte> random_rows(TensorType type, std::size_t n_rows, std::size_t n_cols,
                                   std::uint64_t seed) {
  const BlockRecipe& block = find_recipe(type);
  if (n_cols % block.elements != 0) {
    throw std::invalid_argument("random_rows: " + std::to_string(n_cols) +
                                " columns are no multiple of the block of " + std::to_string(block.elements));
  }
  Random random(seed * 64 + static_cast<std::uint32_t>(type));
  std::vector<std::byte> rows(n_rows * (n_cols / block.elements) * block.bytes);
  for (std::byte& byte : rows) byte = static_cast<std::byte>(random.next() >> 56);
  for (std::size_t at = 0; at < rows.size(); at += block.bytes) {
    for (const FieldAt& field : std::span(block.fields).first(block.n_fields)) {
      fill_field(rows.data() + at, field, random);
    }
  }
  return rows;
}

std::vector<float> random_floats(std::size_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& value : values) {
    // Irwin-Hall: twelve uniforms have variance 1.
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += random.unit();
    value = sum;
  }
  return values;
}

}  // namespace sluice::test
