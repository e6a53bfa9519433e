#include "support/fuzz_inputs.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "support/test_data.hpp"

namespace sluice::test {
namespace {

using base::SplitMix64;

std::vector<std::string> load_seeds(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(fuzz_seeds(name)))
    paths.push_back(entry.path());
  // The order of a folder differs from machine to machine, that of the inputs must not.
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) seeds.push_back(read_text(path));
  if (seeds.empty()) throw std::runtime_error("no seeds for " + name);
  return seeds;
}

/// A part of `text` of at most `max_bytes` bytes.
std::string random_part(const std::string& text, std::size_t max_bytes, SplitMix64& random) {
  const std::size_t begin = random.below(text.size() + 1);
  return text.substr(begin, random.below(max_bytes + 1));
}

void replace_number(std::string& text, SplitMix64& random) {
  constexpr std::array<std::string_view, 12> k_numbers = {
      "0",     "1",   "-1", "65535", "65536", "4294967296", "18446744073709551615", "99999999999999999999",
      "1e400", "0.5", "",   "007"};
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto begin = std::find_if(text.begin() + static_cast<std::ptrdiff_t>(random.below(text.size() + 1)),
                                  text.end(), is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  text.replace(begin, end, k_numbers[random.below(k_numbers.size())]);
}

void change(std::string& text, const std::vector<std::string>& seeds, SplitMix64& random) {
  const std::size_t at = random.below(text.size() + 1);
  switch (random.below(8)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(random.next());
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
      break;
    case 2:
      text.insert(at, 1, static_cast<char>(random.next()));
      break;
    case 3:
      text.erase(at, random.below(12));
      break;
    case 4:
      text.insert(at, random_part(text, 64, random));
      break;
    case 5:
      text.insert(at, random_part(seeds[random.below(seeds.size())], 200, random));
      break;
    case 6:
      replace_number(text, random);
      break;
    default:
      if (random.below(4) == 0) text.resize(at);
      break;
  }
}

std::string random_bytes(SplitMix64& random) {
  std::string text(random.below(200), '\0');
  for (char& byte : text) byte = static_cast<char>(random.next());
  return text;
}

}  // namespace

void feed_fuzz_target(int (*target)(const std::uint8_t*, std::size_t), const std::string& name, int n_inputs,
                      std::uint64_t seed) {
  const std::vector<std::string> seeds = load_seeds(name);
  SplitMix64 random(seed);
  for (int i = 0; i < n_inputs; ++i) {
    const auto n = static_cast<std::size_t>(i);
    std::string input = seeds[n % seeds.size()];
    if (n >= seeds.size()) {
      if (i % 10 == 0) input = random_bytes(random);
      for (std::uint64_t k = 1 + random.below(6); k > 0; --k) change(input, seeds, random);
    }
    target(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }
}

}  // namespace sluice::test
