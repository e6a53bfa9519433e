// Goal: a unit's parts land at their places with the file's bytes, and what becomes of every read is told
// once: read, cancelled, or failed with the tensor's name and the offset.
#include "residency/unit_reader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "residency/unit_cache_bench.hpp"

namespace sluice::residency {
namespace {

/// A reader over the bench's file, and memory for some slots.
struct Reading {
  static constexpr std::uint32_t k_n_slots = 12;

  explicit Reading(Bench& bench)
      : slot_bytes(bench.map.layers[0].slot_bytes),
        memory(platform::MappedRegion::allocate(k_n_slots * slot_bytes, /*prefault=*/true)),
        reader(bench.file, bench.map, *bench.store, k_n_slots) {}

  std::byte* slot(std::uint32_t idx) { return memory.data() + idx * slot_bytes; }
  void start(std::uint32_t idx, UnitId unit, storage::Priority priority) {
    reader.start(idx, unit, slot(idx), priority);
  }
  std::vector<UnitReader::Done> finish() {
    std::vector<UnitReader::Done> all;
    while (reader.n_reading() != 0) {
      const auto done = reader.wait(1);
      all.insert(all.end(), done.begin(), done.end());
    }
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.slot < b.slot; });
    return all;
  }

  std::uint64_t slot_bytes;
  platform::MappedRegion memory;
  UnitReader reader;
};

TEST(UnitReader, PutsEveryPartWhereItSays) {
  storage::FaultPlan faults{.short_read_rate = 0.3, .eintr_rate = 0.2, .delay_rate = 0.3, .reorder = true};
  Bench bench(1, 1, CachePolicy::lfru, &faults);
  Reading reading(bench);
  for (std::uint32_t layer = 0; layer < bench.model.n_layers; ++layer) {
    for (std::uint32_t expert = 0; expert < 8; ++expert)
      reading.start(expert, {layer, expert}, storage::Priority::demand);
    const std::vector<UnitReader::Done> done = reading.finish();
    ASSERT_EQ(done.size(), 8u);
    for (const UnitReader::Done& unit : done) {
      EXPECT_EQ(unit.outcome, UnitReader::Outcome::read);
      const LayerUnits& units = bench.map.layers[layer];
      for (std::size_t part = 0; part < units.n_parts(); ++part) {
        const std::byte* expected = bench.bytes.data() + units.experts[unit.slot][part].offset_bytes;
        EXPECT_EQ(std::memcmp(reading.reader.part(reading.slot(unit.slot), {layer, unit.slot}, part),
                              expected, units.shapes[part].bytes()),
                  0)
            << "layer " << layer << " expert " << unit.slot << " part " << part;
      }
    }
    EXPECT_EQ(reading.reader.take_progress().n_units, 8u);
    EXPECT_EQ(reading.reader.take_progress().n_units, 0u);
  }
}

TEST(UnitReader, HasRoomForAsManyUnitsAsSlots) {
  Bench bench(1, 1);
  Reading reading(bench);
  for (std::uint32_t slot = 0; slot < Reading::k_n_slots; ++slot) {
    EXPECT_TRUE(reading.reader.has_room());
    reading.start(slot, {slot / 8, slot % 8}, storage::Priority::demand);
  }
  EXPECT_FALSE(reading.reader.has_room());
  EXPECT_EQ(reading.finish().size(), Reading::k_n_slots);
  EXPECT_TRUE(reading.reader.has_room());
}

TEST(UnitReader, CancelsWhatIsSpeculativeUnlessItIsPromoted) {
  Bench bench(1, 1);
  Reading reading(bench);
  // More than the drive is given at once, so that the last ones wait.
  for (std::uint32_t slot = 0; slot < 8; ++slot) reading.start(slot, {0, slot}, storage::Priority::demand);
  for (std::uint32_t slot = 8; slot < 12; ++slot)
    reading.start(slot, {1, slot - 8}, storage::Priority::speculative);
  reading.reader.promote(10);
  reading.reader.cancel_speculative();
  const std::vector<UnitReader::Done> done = reading.finish();
  ASSERT_EQ(done.size(), 12u);
  for (const UnitReader::Done& unit : done) {
    const bool is_cancelled = unit.slot == 8 || unit.slot == 9 || unit.slot == 11;
    EXPECT_EQ(unit.outcome, is_cancelled ? UnitReader::Outcome::cancelled : UnitReader::Outcome::read)
        << unit.slot;
  }
}

TEST(UnitReader, SaysWhatFailedAndReadsTheSlotAgain) {
  Bench probe(1, 1);
  const UnitPart where = probe.map.layers[1].experts[4][2];
  bool fails = true;
  storage::FaultPlan faults;
  faults.failing_ranges.push_back({where.offset_bytes + 8192, where.offset_bytes + 8200, 5});
  faults.applies_to = [&fails](int) { return fails; };
  Bench bench(1, 1, CachePolicy::lfru, &faults);
  Reading reading(bench);
  reading.start(3, {1, 4}, storage::Priority::demand);
  ASSERT_EQ(reading.finish()[0].outcome, UnitReader::Outcome::failed);
  const UnitFailure failure = reading.reader.failure(3);
  EXPECT_EQ(failure.expert, 4u);
  EXPECT_EQ(failure.code, ErrorCode::io);
  for (const char* part : {"tiny.gguf", "blk.1.ffn_down_exps.weight (expert 4)", "Input/output error"})
    EXPECT_NE(failure.message.find(part), std::string::npos) << failure.message;
  fails = false;
  reading.start(3, {1, 4}, storage::Priority::demand);
  EXPECT_EQ(reading.finish()[0].outcome, UnitReader::Outcome::read);
}

TEST(UnitReader, WeightsThatAreAllZeroAreAFailure) {
  Bench bench(1, 1);
  const UnitPart where = bench.map.layers[2].experts[6][1];
  const std::vector<std::byte> zeros(bench.map.layers[2].shapes[1].bytes());
  std::copy(zeros.begin(), zeros.end(),
            bench.bytes.begin() + static_cast<std::ptrdiff_t>(where.offset_bytes));
  test::write_bytes(bench.store->file(0).path(), bench.bytes.data(), bench.bytes.size());
  Reading reading(bench);
  reading.start(0, {2, 6}, storage::Priority::demand);
  ASSERT_EQ(reading.finish()[0].outcome, UnitReader::Outcome::failed);
  const UnitFailure failure = reading.reader.failure(0);
  EXPECT_EQ(failure.code, ErrorCode::invalid_file);
  EXPECT_NE(failure.message.find("blk.2.ffn_up_exps.weight (expert 6)"), std::string::npos)
      << failure.message;
}

}  // namespace
}  // namespace sluice::residency
