#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::gguf {

/// Element types of GGUF tensors. The numbers are the file format's (ggml's type ids); the gaps are types
/// that were removed from the format.
enum class TensorType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q8_1 = 9,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  q8_k = 15,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  i8 = 24,
  i16 = 25,
  i32 = 26,
  i64 = 27,
  f64 = 28,
  iq1_m = 29,
  bf16 = 30,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
  nvfp4 = 40,
};

/// A row of `n` elements is stored as n / block_elements blocks of block_bytes each.
struct TypeTraits {
  TensorType type;
  const char* name;  ///< The usual spelling: "Q4_K", "IQ2_XXS", "F16".
  std::uint32_t block_elements;
  std::uint32_t block_bytes;
};

/// Facts of a type; nothing when the id is unknown or was removed.
std::optional<TypeTraits> find_type_traits(std::uint32_t type_id) noexcept;

/// What is known of an id that find_type_traits() does not have, and the cure: a sentence for a message.
std::string describe_unknown_type(std::uint32_t type_id);

/// Facts of a known type.
const TypeTraits& type_traits(TensorType type) noexcept;

/// "Q4_K" for messages; "type 77" style text is the caller's business.
inline const char* type_name(TensorType type) noexcept {
  return type_traits(type).name;
}

/// Bytes of a row of `n_elements`, which must be a multiple of the block size.
inline std::uint64_t row_bytes(TensorType type, std::uint64_t n_elements) noexcept {
  const TypeTraits& traits = type_traits(type);
  return n_elements / traits.block_elements * traits.block_bytes;
}

}  // namespace sluice::gguf
