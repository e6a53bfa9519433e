#pragma once

#include <cstdint>

namespace sluice::gguf {

// Limits on what a file may claim. Generous against real models, small against hostile ones.
constexpr std::uint64_t k_max_metadata_entries = 65'536;
/// Everything before the tensor data. Also keeps the 32-bit ends of a StringArray from overflowing.
constexpr std::uint64_t k_max_header_bytes = 1ull << 30;
constexpr std::uint64_t k_max_key_bytes = 65'535;
constexpr std::uint64_t k_max_string_bytes = 64ull << 20;
constexpr std::uint64_t k_max_array_elements = 64ull << 20;
constexpr std::uint32_t k_max_array_depth = 4;
constexpr std::uint64_t k_max_nested_arrays = 65'536;  ///< Arrays inside arrays, in one file.
constexpr std::uint64_t k_max_tensors = 1'000'000;
constexpr std::uint64_t k_max_tensor_name_bytes = 63;  ///< The format's own limit of 64 with its terminator.
constexpr std::uint32_t k_max_dims = 4;
constexpr std::uint64_t k_max_shards = 10'000;
constexpr std::uint64_t k_max_alignment_bytes = 1ull << 20;
constexpr std::uint64_t k_alignment_unit_bytes = 8;  ///< An alignment is a multiple of it.
constexpr std::uint32_t k_default_alignment_bytes = 32;

}  // namespace sluice::gguf
