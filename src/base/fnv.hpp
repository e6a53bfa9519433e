#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice::base {

/// FNV-1a, 64 bits (Fowler, Noll and Vo). Spreads well enough to tell names apart; it stops no enemy.
class Fnv1a {
 public:
  void add(const void* data, std::size_t bytes) noexcept {
    const auto* from = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) value_ = (value_ ^ from[i]) * 0x100000001b3u;
  }
  void add(std::uint64_t number) noexcept { add(&number, sizeof number); }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

inline std::uint64_t fnv1a(std::string_view text) noexcept {
  Fnv1a hash;
  hash.add(text.data(), text.size());
  return hash.value();
}

}  // namespace sluice::base
