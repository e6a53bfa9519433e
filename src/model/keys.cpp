#include "model/keys.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.hpp"

namespace sluice::model {
namespace {

/// Keys that may stay unread, each with its reason.
struct Harmless {
  std::string_view name;
  std::string_view reason;
};
constexpr std::array k_harmless = {
    Harmless{"vocab_size", "the embedding's rows say it"},
    Harmless{"rope.scaling.finetuned", "says how the model was trained, not how it is run"},
    Harmless{"tensor_data_layout",
             "how the converter found the weights; the architecture says how they are now"},
    Harmless{"pooling_type", "for embeddings of whole texts, which are not made here"},
};

bool is_harmless(std::string_view name) noexcept {
  return std::any_of(k_harmless.begin(), k_harmless.end(),
                     [&](const Harmless& entry) { return entry.name == name; });
}

}  // namespace

Keys::Keys(const gguf::Metadata& metadata)
    : metadata_(metadata), architecture_(metadata.require_string("general.architecture")) {}

const std::string& Keys::read(std::string_view name) {
  return *read_.insert(full(name)).first;
}

std::uint32_t Keys::check(const std::string& key, std::uint64_t value, std::uint64_t limit) const {
  if (value == 0 || value > limit) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected 1 to {}", file(), key, value, limit);
  }
  return static_cast<std::uint32_t>(value);
}

std::uint32_t Keys::require(std::string_view name, std::uint64_t limit) {
  const std::string& key = read(name);
  return check(key, metadata_.require_uint(key), limit);
}

std::uint32_t Keys::get_or(std::string_view name, std::uint32_t fallback, std::uint64_t limit) {
  const std::string& key = read(name);
  const auto value = metadata_.get_uint(key);
  return value ? check(key, *value, limit) : fallback;
}

std::uint32_t Keys::count(std::string_view name, std::uint64_t limit) {
  const std::string& key = read(name);
  const std::uint64_t value = metadata_.get_uint(key).value_or(0);
  return value == 0 ? 0 : check(key, value, limit);
}

std::uint32_t Keys::require_uniform(std::string_view name, std::uint32_t n_layers, std::uint64_t limit,
                                    std::optional<std::uint32_t> fallback) {
  const std::string& key = read(name);
  if (!metadata_.contains(key)) {
    if (fallback) return *fallback;
    return check(key, metadata_.require_uint(key), limit);
  }
  const auto first = metadata_.get_uint_at(key, 0);
  for (std::uint32_t layer = 1; layer < n_layers; ++layer) {
    const auto value = metadata_.get_uint_at(key, layer);
    if (value != first) {
      base::fail(
          ErrorCode::unsupported,
          "{}: {} differs between layers ({} in layer 0, {} in layer {}); such models cannot be run yet",
          file(), key, first.value_or(0), value.value_or(0), layer);
    }
  }
  return check(key, first.value_or(0), limit);
}

float Keys::get_float_or(std::string_view name, float fallback) {
  const std::string& key = read(name);
  const auto value = metadata_.get_float(key);
  if (!value) return fallback;
  if (!std::isfinite(*value)) {
    base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected a finite number", file(), key, *value);
  }
  return static_cast<float>(*value);
}

float Keys::get_positive_or(std::string_view name, float fallback) {
  const float value = get_float_or(name, fallback);
  if (value > 0) return value;
  base::fail(ErrorCode::invalid_file, "{}: {} is {}, expected a positive number", file(), full(name), value);
}

bool Keys::get_bool_or(std::string_view name, bool fallback) {
  return metadata_.get_bool(read(name)).value_or(fallback);
}

std::string Keys::get_string_or(std::string_view name, std::string_view fallback) {
  return std::string(metadata_.get_string(read(name)).value_or(fallback));
}

void Keys::refuse_unread() const {
  std::string unread;
  const std::string prefix = architecture_ + ".";
  for (const auto& entry : metadata_.entries()) {
    const std::string_view key = entry.key;
    if (!key.starts_with(prefix) || read_.count(key) != 0 || is_harmless(key.substr(prefix.size()))) continue;
    unread += (unread.empty() ? "" : ", ") + std::string(key);
  }
  if (unread.empty()) return;
  base::fail(ErrorCode::unsupported,
             "{}: this version does not know what these keys mean for architecture \"{}\": {}; running the "
             "model without them might give wrong text",
             file(), architecture_, unread);
}

}  // namespace sluice::model
