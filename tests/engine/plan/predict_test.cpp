// Goal: a prediction follows from facts and rates as docs/performance.md says: bounds hold, every cause has
// its effect in the right direction, the hit curves are those of the page, and what was measured there is
// met.
#include "sluice/predict.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sluice/error.hpp"

namespace sluice {
namespace {

constexpr double k_giga = 1e9;
constexpr std::uint64_t k_mib = 1u << 20;

/// Qwen3-30B-A3B's shape in Q4_K_M, cut to some layers; all matrices but the output taken as Q4_K.
WorkFacts moe_work(std::uint32_t n_layers) {
  WorkFacts work;
  work.n_layers = work.n_expert_layers = n_layers;
  work.n_experts = 128;
  work.n_experts_used = 8;
  const std::uint64_t attention = 18'874'368, expert = 3 * 2048 * 768;
  work.always = {{"Q4_K", attention * n_layers * 9 / 16, attention * n_layers}};
  work.output = {{"Q6_K", 255'000'000, 311'164'928}};
  work.expert = {{"Q4_K", expert * n_layers * 9 / 16, expert * n_layers}};
  work.unit_bytes = 2'900'000;
  work.part_bytes = work.unit_bytes / 3;
  work.kv = {{0, std::uint64_t{2048} * n_layers, std::uint64_t{8192} * n_layers}};
  return work;
}

Plan moe_plan(const WorkFacts& work, double cached_share) {
  Plan plan;
  plan.n_units = std::uint64_t{work.n_expert_layers} * work.n_experts;
  plan.n_cached_units =
      static_cast<std::uint64_t>(std::lround(cached_share * static_cast<double>(plan.n_units)));
  plan.streamed_bytes = (plan.n_units - plan.n_cached_units) * work.unit_bytes;
  plan.prefill_chunk = 512;
  plan.n_ctx = 4096;
  return plan;
}

/// The machine of docs/performance.md, "Results".
SpeedRates rates() {
  SpeedRates result;
  result.memory_bytes = 61 * k_giga;
  result.kernels = {{"Q4_K", 1, 180 * k_giga},  {"Q4_K", 64, 550 * k_giga}, {"Q6_K", 1, 134 * k_giga},
                    {"Q6_K", 64, 510 * k_giga}, {"F16", 1, 92 * k_giga},    {"F16", 64, 158 * k_giga}};
  for (const std::uint32_t block : {64u << 10, 512u << 10}) {
    for (const std::uint32_t depth : {1u, 4u, 16u})
      result.random.push_back(
          {block, depth, 4.3 * k_giga * (block < 1u << 18 ? 0.5 : 1) * (depth < 8 ? 0.75 : 1)});
  }
  result.sequential_bytes = 4.2 * k_giga;
  return result;
}

Workload decode_only(std::optional<double> hit_rate = {}) {
  Workload workload;
  workload.n_prompt = 0;
  workload.n_answer = 32;
  workload.hit_rate = hit_rate;
  return workload;
}

Workload prefill_only(std::uint32_t n_prompt) {
  Workload workload;
  workload.n_prompt = n_prompt;
  workload.n_answer = 0;
  return workload;
}

TEST(HitCurve, IsThePagesAtItsPointsAndBetweenThem) {
  EXPECT_DOUBLE_EQ(expected_hit_rate(Routing::favorable, 0.25), 0.846);
  EXPECT_DOUBLE_EQ(expected_hit_rate(Routing::typical, 0.25), (0.846 + 0.641) / 2);
  EXPECT_DOUBLE_EQ(expected_hit_rate(Routing::uniform, 0.25), 0.25);
  const double between = expected_hit_rate(Routing::favorable, 0.3);
  EXPECT_GT(between, 0.846);
  EXPECT_LT(between, 0.934);
}

TEST(HitCurve, RisesFromNothingToAllAndLocalityNeverHurts) {
  for (const Routing routing : {Routing::uniform, Routing::typical, Routing::favorable}) {
    EXPECT_EQ(expected_hit_rate(routing, 0), 0);
    EXPECT_EQ(expected_hit_rate(routing, -1), 0);
    EXPECT_EQ(expected_hit_rate(routing, 1), 1);
    EXPECT_EQ(expected_hit_rate(routing, 7), 1);
  }
  double last = 0;
  for (double share = 0.005; share < 1; share += 0.005) {
    const double typical = expected_hit_rate(Routing::typical, share);
    EXPECT_GT(typical, last);
    EXPECT_GE(typical, share);
    EXPECT_GE(expected_hit_rate(Routing::favorable, share), typical);
    last = typical;
  }
}

TEST(Predict, MeetsWhatThePageMeasuredWithinAQuarter) {
  const auto expect_near = [](double predicted, double measured) {
    EXPECT_GT(predicted, 0.75 * measured);
    EXPECT_LT(predicted, 1.25 * measured);
  };
  // Everything in memory.
  const WorkFacts cut = moe_work(8), whole = moe_work(48);
  expect_near(predict(cut, moe_plan(cut, 1), rates(), decode_only()).decode.tokens_per_second, 106);
  expect_near(predict(whole, moe_plan(whole, 1), rates(), decode_only()).decode.tokens_per_second, 25.6);
  expect_near(predict(cut, moe_plan(cut, 1), rates(), prefill_only(128)).prefill.tokens_per_second, 460);
  expect_near(predict(cut, moe_plan(cut, 1), rates(), prefill_only(512)).prefill.tokens_per_second, 700);
  expect_near(predict(whole, moe_plan(whole, 1), rates(), prefill_only(512)).prefill.tokens_per_second, 115);
  Workload deep = decode_only();
  deep.depth = 8192;
  expect_near(predict(cut, moe_plan(cut, 1), rates(), deep).decode.tokens_per_second, 55);
  // The whole model in 6 GiB, with and without look-ahead.
  Workload streamed = decode_only(0.55);
  expect_near(predict(whole, moe_plan(whole, 0.3), rates(), streamed).decode.tokens_per_second, 7.6);
  streamed.look_ahead = false;
  expect_near(predict(whole, moe_plan(whole, 0.3), rates(), streamed).decode.tokens_per_second, 6.2);
}

TEST(Predict, LayersWithAWindowReadOnlyWhatTheySee) {
  WorkFacts half = moe_work(8);
  Workload deep = decode_only();
  deep.depth = 32'768;
  const double all = predict(half, moe_plan(half, 1), rates(), deep).decode.memory_ns;
  const KvWork part = half.kv[0];
  half.kv = {{0, part.token_bytes / 2, part.products / 2}, {128, part.token_bytes / 2, part.products / 2}};
  const double windowed = predict(half, moe_plan(half, 1), rates(), deep).decode.memory_ns;
  half.kv.pop_back();
  const double only_half = predict(half, moe_plan(half, 1), rates(), deep).decode.memory_ns;
  const double of_window = 128.0 * static_cast<double>(part.token_bytes / 2) * 1e9 / rates().memory_bytes;
  EXPECT_NEAR(windowed - only_half, of_window, 1e-6 * of_window);
  EXPECT_LT(windowed, all);
}

TEST(Predict, NoTermIsExceededAndTheLargestIsTheLimit) {
  const WorkFacts work = moe_work(48);
  for (const double share : {0.02, 0.2, 0.5, 0.9, 1.0}) {
    const Prediction prediction = predict(work, moe_plan(work, share), rates(), {});
    for (const PassPrediction& pass : {prediction.prefill, prediction.decode}) {
      EXPECT_GE(pass.token_ns, pass.drive_ns) << share;
      EXPECT_GE(pass.token_ns, pass.memory_ns) << share;
      EXPECT_GE(pass.token_ns, pass.compute_ns) << share;
      const double largest = std::max({pass.drive_ns, pass.memory_ns, pass.compute_ns});
      EXPECT_EQ(pass.limit == "drive", largest == pass.drive_ns) << share;
      EXPECT_EQ(pass.limit == "memory", largest == pass.memory_ns) << share;
      EXPECT_DOUBLE_EQ(pass.tokens_per_second * pass.token_ns, k_giga);
    }
    EXPECT_NEAR(prediction.answer_seconds,
                4096 / prediction.prefill.tokens_per_second + 300 / prediction.decode.tokens_per_second,
                1e-6);
  }
}

TEST(Predict, MoreMemoryMoreHitsAndAFasterDriveNeverSlowIt) {
  const WorkFacts work = moe_work(48);
  double last = 0;
  for (double share = 0; share <= 1; share += 0.05) {
    const double rate = predict(work, moe_plan(work, share), rates(), decode_only()).decode.tokens_per_second;
    EXPECT_GE(rate, last) << share;
    last = rate;
  }
  last = 0;
  for (double hits = 0; hits <= 1; hits += 0.1) {
    const double rate =
        predict(work, moe_plan(work, 0.3), rates(), decode_only(hits)).decode.tokens_per_second;
    EXPECT_GT(rate, last) << hits;
    last = rate;
  }
  last = 0;
  for (const double giga : {0.5, 1.0, 3.0, 6.0, 14.0}) {
    SpeedRates drive = rates();
    set_drive_rate(drive, giga * k_giga);
    const Prediction prediction = predict(work, moe_plan(work, 0.3), drive, {});
    EXPECT_GT(1 / prediction.answer_seconds, last) << giga;
    last = 1 / prediction.answer_seconds;
  }
}

TEST(Predict, AllHitsAreAsFastAsEverythingInMemory) {
  const WorkFacts work = moe_work(8);
  const double resident = predict(work, moe_plan(work, 1), rates(), decode_only()).decode.token_ns;
  const Prediction hit = predict(work, moe_plan(work, 0.5), rates(), decode_only(1.0));
  EXPECT_NEAR(hit.decode.token_ns, resident, 1e-6 * resident);
  EXPECT_EQ(hit.decode.drive_bytes, 0);
}

TEST(Predict, DecodingReadsTheMissedExpertsAndEvenRoutingMissesWhatIsNotCached) {
  const WorkFacts work = moe_work(48);
  const Plan plan = moe_plan(work, 0.25);
  Workload workload = decode_only();
  workload.routing = Routing::uniform;
  const PassPrediction pass = predict(work, plan, rates(), workload).decode;
  EXPECT_DOUBLE_EQ(pass.hit_rate, 0.25);
  EXPECT_DOUBLE_EQ(pass.drive_bytes, 0.75 * 8 * 48 * 2'900'000);
  EXPECT_EQ(pass.limit, "drive");
}

TEST(Predict, ALargePassReadsEveryExpertThatIsNotCachedOnce) {
  const WorkFacts work = moe_work(48);
  const Plan plan = moe_plan(work, 0.25);
  const PassPrediction pass = predict(work, plan, rates(), prefill_only(512)).prefill;
  EXPECT_NEAR(pass.drive_bytes * 512, static_cast<double>(plan.streamed_bytes),
              0.01 * static_cast<double>(plan.streamed_bytes));
  EXPECT_NEAR(pass.hit_rate, 0.25, 0.01);
  // Two passes read twice as much for twice as many tokens; half passes read more per token.
  EXPECT_NEAR(predict(work, plan, rates(), prefill_only(1024)).prefill.drive_bytes, pass.drive_bytes, 1);
  Plan small = plan;
  small.prefill_chunk = 64;
  EXPECT_GT(predict(work, small, rates(), prefill_only(512)).prefill.drive_bytes, 4 * pass.drive_bytes);
}

TEST(Predict, DenseWeightsThatDoNotFitAreReadInEveryPass) {
  WorkFacts work = moe_work(32);
  work.n_experts = work.n_experts_used = work.n_expert_layers = 0;
  work.expert.clear();
  Plan plan;
  plan.prefill_chunk = 512;
  plan.n_ctx = 4096;
  const Prediction resident = predict(work, plan, rates(), {});
  plan.streamed_bytes = plan.dense_streamed_bytes = 4096 * k_mib;
  const Prediction streamed = predict(work, plan, rates(), {});
  EXPECT_DOUBLE_EQ(streamed.decode.drive_bytes, static_cast<double>(plan.dense_streamed_bytes));
  EXPECT_DOUBLE_EQ(streamed.prefill.drive_bytes, static_cast<double>(plan.dense_streamed_bytes) / 512);
  EXPECT_EQ(streamed.decode.limit, "drive");
  // The drive works all the time: near 4 GiB at the mean of 4.2 GB/s in order and 4.3 at random places.
  EXPECT_NEAR(streamed.decode.token_ns / 1e9, 4.295 / 4.25, 0.05);
  EXPECT_GT(streamed.decode.token_ns, resident.decode.token_ns);
}

TEST(Predict, ReadRatesAreTakenAtTheSizeAndDepthOfTheReads) {
  WorkFacts work = moe_work(48);
  const Plan plan = moe_plan(work, 0.3);
  work.part_bytes = 1 << 20;  // Two pieces of 512 KiB.
  // All experts are missed: more reads are in flight than were measured.
  const double large = predict(work, plan, rates(), decode_only(0.0)).decode.drive_ns;
  work.part_bytes = 64 << 10;
  const double small = predict(work, plan, rates(), decode_only(0.0)).decode.drive_ns;
  EXPECT_NEAR(small / large, 2, 0.01) << "64 KiB reads reach half the rate";
  work = moe_work(48);
  // One expert missed a layer: few reads in flight.
  SpeedRates deep = rates();
  std::erase_if(deep.random, [](const ReadRate& rate) { return rate.depth < 16; });
  const double few = predict(work, plan, rates(), decode_only(0.9)).decode.drive_ns;
  const double as_many = predict(work, plan, deep, decode_only(0.9)).decode.drive_ns;
  EXPECT_GT(few, 1.1 * as_many);
}

TEST(Predict, TheRangeOfAResidentModelIsAPoint) {
  const WorkFacts work = moe_work(8);
  const PredictionRange whole = predict_range(work, moe_plan(work, 1), rates(), {});
  EXPECT_EQ(whole.low.answer_seconds, whole.high.answer_seconds);
  const PredictionRange part = predict_range(work, moe_plan(work, 0.2), rates(), {});
  EXPECT_LT(part.low.decode.tokens_per_second, part.typical.decode.tokens_per_second);
  EXPECT_LT(part.typical.decode.tokens_per_second, part.high.decode.tokens_per_second);
}

TEST(Predict, WhatEarlierRunsUsedIsTheFigureAndLeavesTheRangeAsItIs) {
  const WorkFacts work = moe_work(48);
  const Plan plan = moe_plan(work, 0.25);
  Workload workload;
  const PredictionRange unknown = predict_range(work, plan, rates(), workload);
  EXPECT_FALSE(unknown.heat);
  EXPECT_EQ(&unknown.expected(), &unknown.typical);
  workload.heat = HeatForecast{1000, 0.6};
  const PredictionRange known = predict_range(work, plan, rates(), workload);
  ASSERT_TRUE(known.heat);
  EXPECT_EQ(&known.expected(), &*known.heat);
  EXPECT_DOUBLE_EQ(known.heat->decode.hit_rate, 0.6);
  EXPECT_DOUBLE_EQ(known.heat->decode.drive_bytes, 0.4 * 8 * 48 * 2'900'000);
  EXPECT_EQ(known.heat->workload.heat->n_tokens, 1000);
  EXPECT_EQ(known.low.answer_seconds, unknown.low.answer_seconds);
  EXPECT_EQ(known.typical.answer_seconds, unknown.typical.answer_seconds);
  EXPECT_EQ(known.high.answer_seconds, unknown.high.answer_seconds);
  // A pass that uses every expert finds what is cached, whatever decoding finds; a small one is like it.
  EXPECT_NEAR(known.heat->prefill.hit_rate, 0.25, 0.01);
  workload.n_prompt = 1;
  EXPECT_DOUBLE_EQ(predict(work, plan, rates(), workload).prefill.hit_rate, 0.6);
  // What was measured is worth more.
  workload.hit_rate = 0.3;
  EXPECT_DOUBLE_EQ(predict(work, plan, rates(), workload).decode.hit_rate, 0.3);
}

TEST(Predict, EmbeddingsOnTheDriveTakeARead) {
  WorkFacts work = moe_work(8);
  work.embedding_row_bytes = 1152;
  Plan plan = moe_plan(work, 1);
  const Prediction before = predict(work, plan, rates(), {});
  plan.streamed_bytes = plan.embedding_streamed_bytes = 170 * k_mib;
  const Prediction after = predict(work, plan, rates(), {});
  // As long as the smallest read that was measured, alone: 64 KiB at three eighths of 4.3 GB/s.
  const double read_ns = 65536 / 1.6125;
  EXPECT_NEAR(after.decode.token_ns - before.decode.token_ns, read_ns, 1);
  EXPECT_DOUBLE_EQ(after.decode.drive_ns, read_ns);
  EXPECT_DOUBLE_EQ(after.decode.drive_bytes, 1152);
  EXPECT_EQ(after.decode.hit_rate, 1);
  // A prompt's rows are read side by side.
  EXPECT_NEAR(after.prefill.token_ns - before.prefill.token_ns, read_ns / 32, 1);
  EXPECT_DOUBLE_EQ(after.prefill.drive_bytes, 1152);
  // Rows that are large for the drive take what it delivers.
  work.embedding_row_bytes = 64 << 10;
  EXPECT_DOUBLE_EQ(predict(work, plan, rates(), {}).prefill.drive_ns, 65536 / 4.25);
  // A drive of which only a rate is said answers at once.
  SpeedRates said = rates();
  set_drive_rate(said, 1e9);
  EXPECT_DOUBLE_EQ(predict(work, plan, said, {}).decode.drive_ns, 65536);
}

TEST(Predict, AnUnmeasuredTypeIsTakenAsASimilarOneAndARareOneAsTheSlowest) {
  WorkFacts work = moe_work(8);
  const Plan plan = moe_plan(work, 1);
  const auto compute = [&](const char* type) {
    work.expert.front().type = type;
    return predict(work, plan, rates(), decode_only()).decode.compute_ns;
  };
  EXPECT_EQ(compute("Q2_K"), compute("Q4_K"));
  EXPECT_EQ(compute("Q3_K"), compute("Q6_K"));
  EXPECT_EQ(compute("TQ1_0"), compute("F16")) << "the slowest with one row";
  EXPECT_GT(compute("Q6_K"), compute("Q4_K"));
}

TEST(Predict, WhatIsMissingIsAnErrorThatNamesTheCommand) {
  const WorkFacts work = moe_work(8);
  SpeedRates no_drive = rates();
  no_drive.random.clear();
  no_drive.sequential_bytes = 0;
  EXPECT_NO_THROW(predict(work, moe_plan(work, 1), no_drive, {}));
  const auto message = [&](const SpeedRates& some) -> std::string {
    try {
      predict(work, moe_plan(work, 0.5), some, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(no_drive).find("sluice profile MODEL"), std::string::npos);
  EXPECT_NE(message({}).find("'sluice profile'"), std::string::npos);
}

TEST(Predict, NothingAskedIsNothingPredicted) {
  const WorkFacts work = moe_work(8);
  Workload nothing;
  nothing.n_prompt = nothing.n_answer = 0;
  const Prediction prediction = predict(work, moe_plan(work, 1), rates(), nothing);
  EXPECT_EQ(prediction.answer_seconds, 0);
  EXPECT_EQ(prediction.prefill.tokens_per_second, 0);
  EXPECT_EQ(prediction.decode.tokens_per_second, 0);
}

TEST(Workload, IsCutToTheContext) {
  const auto cut = [](std::uint32_t n_ctx) { return cut_to_context({}, n_ctx); };
  EXPECT_EQ(cut(8192).n_prompt, 4096u);
  EXPECT_EQ(cut(4096).n_prompt, 3796u);
  EXPECT_EQ(cut(4096).n_answer, 300u);
  EXPECT_EQ(cut(100).n_prompt, 50u);
  EXPECT_EQ(cut(100).n_answer, 50u);
  EXPECT_EQ(cut(1).n_prompt, 1u);
  EXPECT_EQ(cut(0).n_prompt, 0u);
}

TEST(SpeedRates, OfSeveralDrivesTheSlowestCounts) {
  Profile profile;
  profile.machine.emplace().memory.read_bytes_per_second = 5;
  for (const double rate : {3.0, 2.0, 4.0}) {
    DriveProfile& drive = profile.drives.emplace_back();
    drive.random.push_back({4096, 1, rate});
    drive.sequential = ReadRate{4096, 1, 10 * rate};
  }
  profile.drives.emplace_back();  // Without rates.
  const SpeedRates result = speed_rates(profile);
  EXPECT_EQ(result.memory_bytes, 5);
  EXPECT_EQ(result.sequential_bytes, 20);
  EXPECT_FALSE(result.knows_machine()) << "no kernel was measured";
  EXPECT_TRUE(result.knows_drive());
}

}  // namespace
}  // namespace sluice
