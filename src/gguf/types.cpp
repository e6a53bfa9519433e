#include "gguf/types.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/check.hpp"

namespace sluice::gguf {
namespace {

constexpr TypeTraits k_types[] = {
#define SLUICE_TYPE(id, type, Code, name, elements, bytes, use, similar) \
  {TensorType::type, name, elements, bytes, TypeUse::use, TensorType::similar, id},
#define SLUICE_VARIANT(id, file_id, type, Code, name, elements, bytes, use, similar) \
  {TensorType::type, name, elements, bytes, TypeUse::use, TensorType::similar, file_id},
#include "gguf/types.def"
};

/// Place in k_types by id; ids without a type have k_none.
constexpr std::uint8_t k_none = 0xff;
constexpr auto k_places = [] {
  std::array<std::uint8_t, k_type_ids> places{};
  places.fill(k_none);
  std::uint8_t place = 0;
  for (const TypeTraits& traits : k_types) places[static_cast<std::uint32_t>(traits.type)] = place++;
  return places;
}();

struct NamedId {
  std::uint32_t id;
  const char* name;
  const char* instead;  ///< The type of a file of the same model that can be used.
};

// Ids that were in the format for a while.
constexpr auto k_removed = std::to_array<NamedId>({
    {4, "Q4_2", "Q4_0"},
    {5, "Q4_3", "Q4_1"},
    {31, "Q4_0_4_4", "Q4_0"},
    {32, "Q4_0_4_8", "Q4_0"},
    {33, "Q4_0_8_8", "Q4_0"},
    {36, "IQ4_NL_4_4", "IQ4_NL"},
    {37, "IQ4_NL_4_8", "IQ4_NL"},
    {38, "IQ4_NL_8_8", "IQ4_NL"},
});

// Ids of the fork ik_llama.cpp; it has more without a name here.
constexpr std::uint32_t k_first_fork_id = 133, k_last_fork_id = 511;
constexpr auto k_fork = std::to_array<NamedId>({
    {133, "Q6_0", "Q6_K"},
    {134, "IQ1_BN", "TQ1_0"},
    {135, "IQ2_BN", "TQ2_0"},
    {137, "IQ2_K", "Q2_K"},
    {138, "IQ3_K", "Q3_K"},
    {139, "IQ4_K", "Q4_K"},
    {140, "IQ5_K", "Q5_K"},
    {141, "IQ6_K", "Q6_K"},
    {144, "IQ4_KS", "IQ4_XS"},
    {145, "IQ2_KS", "IQ2_XS"},
    {146, "IQ4_KSS", "IQ4_XS"},
});

// Ids of PrismML's fork, which ik_llama.cpp used for others (IQ2_TN and IQ1_TN) in 2024 and gave up.
constexpr auto k_prism = std::to_array<NamedId>({{142, "PQ2_0", "Q2_0"}, {143, "PTQ1_0", "TQ1_0"}});

const NamedId* find_id(std::span<const NamedId> ids, std::uint32_t id) noexcept {
  const auto found =
      std::find_if(ids.begin(), ids.end(), [id](const NamedId& each) { return each.id == id; });
  return found == ids.end() ? nullptr : &*found;
}

}  // namespace

std::optional<TypeTraits> find_type_traits(std::uint32_t type_id) noexcept {
  if (type_id >= k_type_ids || k_places[type_id] == k_none) return std::nullopt;
  const TypeTraits& traits = k_types[k_places[type_id]];
  if (traits.file_id != type_id) return std::nullopt;  // A variant, whose own id is no file's.
  return traits;
}

std::span<const TypeTraits> all_types() noexcept {
  return k_types;
}

std::string describe_unknown_type(std::uint32_t type_id) {
  if (const NamedId* removed = find_id(k_removed, type_id)) {
    return fmt::format(
        "tensor type {} ({}) was removed from the GGUF format: take the {} file of the same model", type_id,
        removed->name, removed->instead);
  }
  if (const NamedId* prism = find_id(k_prism, type_id)) {
    return fmt::format(
        "tensor type {} ({}) is one of PrismML's fork of llama.cpp and not of the GGUF format; its models "
        "may also need "
        "a transform of activations that this program does not do: take another file of the same model (for "
        "example {}), "
        "or run this one with that fork",
        type_id, prism->name, prism->instead);
  }
  if (type_id >= k_first_fork_id && type_id <= k_last_fork_id) {
    const NamedId* known = find_id(k_fork, type_id);
    return fmt::format(
        "tensor type {}{} is one of the fork ik_llama.cpp and not of the GGUF format: take another file of "
        "the "
        "same model (for example {}), or run this one with ik_llama.cpp",
        type_id, known == nullptr ? "" : fmt::format(" ({})", known->name),
        known == nullptr ? "Q4_K_M" : known->instead);
  }
  return fmt::format(
      "tensor type {} is unknown: the file is damaged, made by a fork, or newer than this program (update "
      "it, or "
      "take another file of the same model)",
      type_id);
}

const TypeTraits& type_traits(TensorType type) noexcept {
  const auto type_id = static_cast<std::uint32_t>(type);
  SLUICE_CHECK(type_id < k_type_ids && k_places[type_id] != k_none);
  return k_types[k_places[type_id]];
}

}  // namespace sluice::gguf
