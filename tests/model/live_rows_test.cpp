// Goal: rows of failed sequences are cut out, everything that names a row follows, and the others stay in
// order.
#include "model/live_rows.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace sluice::model {
namespace {

/// Rows of three sequences: 0 decodes, 1 and 2 read prompts of two and three tokens.
struct Rows {
  std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5, 6};
  std::vector<std::uint32_t> positions = {9, 0, 1, 4, 5, 6};
  std::vector<std::uint32_t> sequence_of = {0, 1, 1, 2, 2, 2};
  std::vector<std::uint32_t> logits_rows = {0, 2, 4, 5};
  std::vector<RowKind> kinds = {RowKind::decode, RowKind::prompt, RowKind::prompt,
                                RowKind::prompt, RowKind::prompt, RowKind::prompt};
  std::array<std::atomic<bool>, 3> flags{};
  std::vector<const std::atomic<bool>*> cancels = {&flags[0], nullptr, &flags[2]};
  std::vector<kernels::SequenceView> sequences = std::vector<kernels::SequenceView>(3);
  std::vector<std::byte> host = std::vector<std::byte>(4096);

  PassRows pass() const {
    return {tokens, {positions, sequence_of, sequences, {}}, logits_rows, kinds, cancels};
  }
};

std::vector<std::uint32_t> copy(std::span<const std::uint32_t> values) {
  return {values.begin(), values.end()};
}

TEST(LiveRows, BeginWithAll) {
  Rows rows;
  Arena arena(nullptr, rows.host.data(), {0, rows.host.size()});
  const PassRows pass = rows.pass();
  LiveRows live(arena, pass);
  EXPECT_EQ(live.n_rows(), 6u);
  EXPECT_EQ(copy(live.tables().positions), rows.positions);
  EXPECT_EQ(copy(live.decode_rows()), (std::vector<std::uint32_t>{0}));
  live.fail_cancelled();
  EXPECT_FALSE(live.cut());
  EXPECT_TRUE(live.failures().empty());
  Arena counter;
  LiveRows::needs(counter, 6);
  EXPECT_EQ(counter.peak().host, arena.peak().host);
}

TEST(LiveRows, CutOutFailedSequences) {
  Rows rows;
  Arena arena(nullptr, rows.host.data(), {0, rows.host.size()});
  const PassRows pass = rows.pass();
  LiveRows live(arena, pass);
  live.fail(1, ErrorCode::io, "first");
  live.fail(1, ErrorCode::invalid_file, "second");
  ASSERT_TRUE(live.cut());
  EXPECT_EQ(copy(live.kept()), (std::vector<std::uint32_t>{0, 3, 4, 5}));
  EXPECT_EQ(copy(live.tables().positions), (std::vector<std::uint32_t>{9, 4, 5, 6}));
  EXPECT_EQ(copy(live.tables().sequence_of), (std::vector<std::uint32_t>{0, 2, 2, 2}));
  EXPECT_EQ(copy(live.logits_rows()), (std::vector<std::uint32_t>{0, 2, 3}));
  EXPECT_EQ(live.logits_index(1), 2u);
  EXPECT_EQ(live.logits_index(2), 3u);
  EXPECT_FALSE(live.cut());

  rows.flags[0] = true;
  live.fail_cancelled();
  ASSERT_TRUE(live.cut());
  EXPECT_EQ(copy(live.kept()), (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_TRUE(live.decode_rows().empty());
  rows.flags[2] = true;
  live.fail_cancelled();
  ASSERT_TRUE(live.cut());
  EXPECT_EQ(live.n_rows(), 0u);
  ASSERT_EQ(live.failures().size(), 3u);
  EXPECT_EQ(live.failures()[0].message, "first");
  EXPECT_EQ(live.failures()[2].code, ErrorCode::cancelled);
}

}  // namespace
}  // namespace sluice::model
