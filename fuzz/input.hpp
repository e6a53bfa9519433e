#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace sluice::fuzz {

/// Ends the program when what must hold does not: both libFuzzer and a test program see that.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

/// Takes numbers and texts off the front of an input. When the input is used up, numbers are 0 and texts
/// empty, so that every input is a valid one.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) noexcept
      : rest_(reinterpret_cast<const char*>(data), size) {}

  std::uint8_t byte() noexcept {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  /// Below `bound`, which is from 1 to 256.
  std::size_t below(std::size_t bound) noexcept { return byte() % bound; }
  std::string_view text(std::size_t n_bytes) noexcept {
    const std::string_view taken = rest_.substr(0, n_bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const noexcept { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace sluice::fuzz
