#include "gguf/types.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/check.hpp"

namespace sluice::gguf {
namespace {

constexpr std::uint32_t k_type_ids = 41;

// Block shapes of the ggml file format. Entries with no name are ids that were removed (4, 5: early Q4_2 and
// Q4_3; 31-33 and 36-38: layouts repacked for one CPU, which never belonged into files).
constexpr std::array<TypeTraits, k_type_ids> make_table() {
  std::array<TypeTraits, k_type_ids> table{};
  const auto put = [&table](TensorType type, const char* name, std::uint32_t elements, std::uint32_t bytes) {
    table[static_cast<std::uint32_t>(type)] = {type, name, elements, bytes};
  };
  put(TensorType::f32, "F32", 1, 4);
  put(TensorType::f16, "F16", 1, 2);
  put(TensorType::q4_0, "Q4_0", 32, 18);
  put(TensorType::q4_1, "Q4_1", 32, 20);
  put(TensorType::q5_0, "Q5_0", 32, 22);
  put(TensorType::q5_1, "Q5_1", 32, 24);
  put(TensorType::q8_0, "Q8_0", 32, 34);
  put(TensorType::q8_1, "Q8_1", 32, 36);
  put(TensorType::q2_k, "Q2_K", 256, 84);
  put(TensorType::q3_k, "Q3_K", 256, 110);
  put(TensorType::q4_k, "Q4_K", 256, 144);
  put(TensorType::q5_k, "Q5_K", 256, 176);
  put(TensorType::q6_k, "Q6_K", 256, 210);
  put(TensorType::q8_k, "Q8_K", 256, 292);
  put(TensorType::iq2_xxs, "IQ2_XXS", 256, 66);
  put(TensorType::iq2_xs, "IQ2_XS", 256, 74);
  put(TensorType::iq3_xxs, "IQ3_XXS", 256, 98);
  put(TensorType::iq1_s, "IQ1_S", 256, 50);
  put(TensorType::iq4_nl, "IQ4_NL", 32, 18);
  put(TensorType::iq3_s, "IQ3_S", 256, 110);
  put(TensorType::iq2_s, "IQ2_S", 256, 82);
  put(TensorType::iq4_xs, "IQ4_XS", 256, 136);
  put(TensorType::i8, "I8", 1, 1);
  put(TensorType::i16, "I16", 1, 2);
  put(TensorType::i32, "I32", 1, 4);
  put(TensorType::i64, "I64", 1, 8);
  put(TensorType::f64, "F64", 1, 8);
  put(TensorType::iq1_m, "IQ1_M", 256, 56);
  put(TensorType::bf16, "BF16", 1, 2);
  put(TensorType::tq1_0, "TQ1_0", 256, 54);
  put(TensorType::tq2_0, "TQ2_0", 256, 66);
  put(TensorType::mxfp4, "MXFP4", 32, 17);
  put(TensorType::nvfp4, "NVFP4", 64, 36);
  return table;
}

constexpr std::array<TypeTraits, k_type_ids> k_table = make_table();

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

const NamedId* find_id(std::span<const NamedId> ids, std::uint32_t id) noexcept {
  const auto found =
      std::find_if(ids.begin(), ids.end(), [id](const NamedId& each) { return each.id == id; });
  return found == ids.end() ? nullptr : &*found;
}

}  // namespace

std::optional<TypeTraits> find_type_traits(std::uint32_t type_id) noexcept {
  if (type_id >= k_table.size() || k_table[type_id].name == nullptr) return std::nullopt;
  return k_table[type_id];
}

std::string describe_unknown_type(std::uint32_t type_id) {
  if (const NamedId* removed = find_id(k_removed, type_id)) {
    return fmt::format(
        "tensor type {} ({}) was removed from the GGUF format: take the {} file of the same model", type_id,
        removed->name, removed->instead);
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
  SLUICE_CHECK(type_id < k_table.size());
  SLUICE_CHECK(k_table[type_id].name != nullptr);
  return k_table[type_id];
}

}  // namespace sluice::gguf
