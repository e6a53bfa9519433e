#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace sluice::gguf {

/// Element types of GGUF tensors; types.def lists them. The numbers are the file format's (ggml's type ids),
/// but for variants, whose ids no file may use.
enum class TensorType : std::uint32_t {
#define SLUICE_TYPE(id, type, Code, name, elements, bytes, use, similar) type = id,
#include "gguf/types.def"
};

constexpr std::uint32_t k_type_ids = 64;  ///< All of TensorType is below.

enum class TypeUse : std::uint8_t {
  weight,      ///< Matrices may have it.
  activation,  ///< Formats that ggml keeps activations in: decoded, but no matrix of a model has them.
  number,      ///< Decoded, not multiplied.
};

/// A row of `n` elements is stored as n / block_elements blocks of block_bytes each.
struct TypeTraits {
  TensorType type;
  const char* name;  ///< The usual spelling: "Q4_K", "IQ2_XXS", "F16".
  std::uint32_t block_elements;
  std::uint32_t block_bytes;
  TypeUse use;
  TensorType
      similar;  ///< The weight type whose kernel's rate is taken for this one's; itself where it is measured.
  std::uint32_t file_id;  ///< What files call it.
};

/// All types, in the order of types.def.
std::span<const TypeTraits> all_types() noexcept;

/// Facts of the type that files give this id; nothing when the id is unknown or was removed. One id has two
/// block shapes (Q2_0, see types.def): this is the one of the format, and the reader looks for the other.
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
