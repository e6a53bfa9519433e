#pragma once

#include <cstddef>

#include "gguf/types.hpp"
#include "kernels/formats/all.hpp"

namespace sluice::kernels::scalar {

#define SLUICE_TYPE(id, type, Code, name, elements, bytes, use, similar)      \
  static_assert(sizeof(Block##Code) == (bytes) && alignof(Block##Code) == 1); \
  static_assert(Block##Code::k_elements == (elements));
#include "gguf/types.def"

/// Calls visitor.template operator()<Block>() with the block struct of a type and returns true; false when
/// the number is no type's.
template <typename Visitor>
constexpr bool visit_block(TensorType type, Visitor&& visitor) {
  switch (type) {
#define SLUICE_TYPE(id, type, Code, name, elements, bytes, use, similar) \
  case TensorType::type:                                                 \
    visitor.template operator()<Block##Code>();                          \
    return true;
#include "gguf/types.def"
  }
  return false;
}

/// `n` elements (whole blocks) from `source`, at any address.
template <typename Block>
void decode_row(const void* source, float* out, std::size_t n) noexcept {
  const auto* blocks = static_cast<const Block*>(source);
  for (std::size_t b = 0; b < n / Block::k_elements; ++b) decode(blocks[b], out + b * Block::k_elements);
}

}  // namespace sluice::kernels::scalar
