// Goal: counting and taking agree, places are aligned and do not overlap, and a scope gives back what it
// took.
#include "model/arena.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::model {
namespace {

struct Taken {
  kernels::Rows outer, first, second;
  std::span<std::uint16_t> list;
};

Taken take(Arena& arena) {
  Taken taken;
  taken.outer = arena.rows(3, 5);
  {
    const ArenaScope scope(arena);
    taken.first = arena.rows(2, 100);
    taken.list = arena.list<std::uint16_t>(7);
  }
  const ArenaScope scope(arena);
  taken.second = arena.rows(4, 10);
  return taken;
}

TEST(Arena, TakesWhatItCounted) {
  Arena counting;
  const Taken nothing = take(counting);
  EXPECT_EQ(nothing.first.data, nullptr);
  EXPECT_TRUE(nothing.list.empty());
  EXPECT_EQ(counting.peak().device, 64u + 832u);
  EXPECT_EQ(counting.peak().host, 64u);

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> device(counting.peak().device / 64), host(counting.peak().host / 64);
  Arena arena(device.front().bytes, host.front().bytes, counting.peak());
  const Taken taken = take(arena);
  EXPECT_EQ(arena.peak().device, counting.peak().device);
  EXPECT_EQ(arena.mark().device, 64u);
  EXPECT_EQ(taken.outer.data, reinterpret_cast<float*>(device.front().bytes));
  EXPECT_EQ(taken.first.data, taken.outer.data + 16);
  EXPECT_EQ(taken.second.data, taken.first.data);
  EXPECT_EQ(taken.list.size(), 7u);
  EXPECT_EQ(taken.second.stride, 10u);
}

TEST(ArenaDeathTest, TakingMoreThanWasCountedIsAnError) {
  alignas(64) std::byte device[128], host[64];
  Arena arena(device, host, {128, 64});
  arena.rows(1, 32);
  arena.list<float>(16);
  EXPECT_DEATH(arena.rows(1, 1), "at <= size");
  EXPECT_DEATH(arena.list<float>(1), "at <= size");
}

}  // namespace
}  // namespace sluice::model
