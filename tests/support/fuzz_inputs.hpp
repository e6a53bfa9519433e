#pragma once

#include <cstdint>
#include <string>

namespace sluice::test {

/// Feeds a libFuzzer target `n_inputs` inputs drawn from `seed`: the files of fuzz/seeds/NAME, first as they
/// are, then with a few random changes each (bytes, cuts, repeats, numbers, parts of another file), and every
/// tenth time random bytes. So compilers without libFuzzer run every target, too, on the same inputs
/// everywhere. The target aborts when what it states does not hold.
void feed_fuzz_target(int (*target)(const std::uint8_t*, std::size_t), const std::string& name, int n_inputs,
                      std::uint64_t seed);

}  // namespace sluice::test
