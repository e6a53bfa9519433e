#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "gguf/metadata.hpp"

namespace sluice::model {

/// The keys of one architecture ("qwen3.block_count", ...): reads them with limits and remembers which it was
/// asked for, so that none is ignored quietly. Errors name the key, what was found and what was expected.
class Keys {
 public:
  /// The architecture is what general.architecture says.
  explicit Keys(const gguf::Metadata& metadata);

  const std::string& architecture() const noexcept { return architecture_; }
  const std::string& file() const noexcept { return metadata_.source_name; }
  /// With the architecture in front, for messages.
  std::string full(std::string_view name) const { return architecture_ + "." + std::string(name); }
  bool has(std::string_view name) const { return metadata_.contains(full(name)); }

  /// An integer from 1 to `limit`. Throws Error(invalid_file).
  std::uint32_t require(std::string_view name, std::uint64_t limit);
  std::uint32_t get_or(std::string_view name, std::uint32_t fallback, std::uint64_t limit);
  /// 0 when the key is missing or 0.
  std::uint32_t count(std::string_view name, std::uint64_t limit);
  /// A number, or an array with the same number for every layer. Throws Error(unsupported) when they differ.
  std::uint32_t require_uniform(std::string_view name, std::uint32_t n_layers, std::uint64_t limit,
                                std::optional<std::uint32_t> fallback = {});
  /// A finite number. Throws Error(invalid_file).
  float get_float_or(std::string_view name, float fallback);
  /// The same, above 0.
  float get_positive_or(std::string_view name, float fallback);
  bool get_bool_or(std::string_view name, bool fallback);
  std::string get_string_or(std::string_view name, std::string_view fallback);

  /// For a key that makes no difference to this architecture.
  void ignore(std::string_view name) { read(name); }

  /// Throws Error(unsupported) naming every key of the architecture that nobody asked for and that is not on
  /// the list of those that make no difference.
  void refuse_unread() const;

 private:
  const std::string& read(std::string_view name);
  std::uint32_t check(const std::string& key, std::uint64_t value, std::uint64_t limit) const;

  const gguf::Metadata& metadata_;
  std::string architecture_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace sluice::model
