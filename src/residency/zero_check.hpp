#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.hpp"
#include "gguf/reader.hpp"
#include "storage/file.hpp"

namespace sluice::residency {

// Downloads that reserve space leave zeros where nothing arrived. Size and header are right then, and the
// model speaks nonsense. No trained matrix holds a run of zeros of this length before its last eighth, where
// padding may be; biases and norms may be all zero.
constexpr std::uint64_t k_zero_run_bytes = 64 * 1024;

/// Zero bytes within one tensor, from its start.
struct ZeroRun {
  std::uint64_t offset_bytes = 0, bytes = 0;
};

/// Looks at one cache line in each of up to `max_places` places of a matrix and, only where that is zero, at
/// the rest of the run. One below k_zero_run_bytes is reported when all of it is zero.
std::optional<ZeroRun> find_zeros(std::span<const std::byte> data, std::size_t max_places) noexcept;

enum class ZeroRule {
  allowed,  ///< Norms, biases, tables, and whatever no graph uses.
  by_row,   ///< Embeddings and output head: rows of tokens that no text has may be zero.
  no_run,   ///< All other matrices.
};
ZeroRule zero_rule(const gguf::TensorInfo& tensor) noexcept;

/// What to say of such zeros: tensor, offsets and cure.
std::string zeros_message(std::string_view path, std::string_view tensor_name, std::uint64_t file_offset,
                          std::uint64_t bytes);
/// Throws it as Error(invalid_file).
[[noreturn]] void fail_zeros(std::string_view path, std::string_view tensor_name, std::uint64_t file_offset,
                             std::uint64_t bytes);

/// Whether a row of the embeddings or the output head belongs to a token that texts have.
using IsTrainedRow = base::FunctionRef<bool(std::uint64_t row)>;

/// Looks for holes in the files, which costs no read, and reads `n_samples` blocks of 4 KiB of every matrix;
/// of a matrix that holds all experts of a layer they lie in different experts, of embeddings and output head
/// there are
/// 16. Throws Error(invalid_file) where zeros are that zero_rule() does not allow. Adds the bytes read to
/// *read_bytes.
void check_weights(const gguf::ModelFile& file, std::span<const std::unique_ptr<storage::File>> shards,
                   std::size_t n_samples, IsTrainedRow is_trained, std::uint64_t* read_bytes);

}  // namespace sluice::residency
