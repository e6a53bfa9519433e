// Goal: `sluice bench` measures what it was asked, its figures agree with one another, and scripts/compare
// computes what it prints. No test asks for a speed: the machine may be busy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/program.hpp"
#include "support/tiny_model.hpp"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

Outcome bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  return sluice(std::move(arguments));
}

/// Runs with --json and small passes, and checks what holds for every report.
Json report_of(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  const Outcome outcome = bench(std::move(arguments));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  Json report = Json::parse(outcome.out);
  const double bound = report["machine"]["read_bytes_per_second"];
  EXPECT_GT(bound, 0);
  for (const Json& test : report["tests"]) {
    const double median = test["tokens_per_second"], least = test["min_tokens_per_second"],
                 most = test["max_tokens_per_second"];
    EXPECT_GT(least, 0);
    EXPECT_LE(least, median);
    EXPECT_LE(median, most);
    EXPECT_EQ(test["samples_tokens_per_second"].size(), report["n_repetitions"].get<std::size_t>());
    EXPECT_EQ(test["noisy"].get<bool>(), test["spread"].get<double>() > 0.05);
    EXPECT_DOUBLE_EQ(test["spread"].get<double>(), (most - least) / median);
    EXPECT_DOUBLE_EQ(test["ms_per_token"].get<double>() * median, 1000);
    EXPECT_DOUBLE_EQ(test["memory_bytes_per_second"].get<double>(),
                     test["weight_bytes_per_token"].get<double>() * median);
    if (report["machine"]["read_beyond_cache"].get<bool>()) {
      EXPECT_DOUBLE_EQ(test["fraction_of_bound"].get<double>() * bound,
                       test["memory_bytes_per_second"].get<double>());
    } else {
      EXPECT_TRUE(test["fraction_of_bound"].is_null());
    }
    if (test["kind"] == "decode") {
      EXPECT_EQ(test["weight_bytes_per_token"].get<double>(),
                report["stats"]["active_weight_bytes_per_token"].get<double>());
    }
    EXPECT_GE(test["stall_share"].get<double>(), 0);
    EXPECT_LE(test["stall_share"].get<double>(), 1);
    const double n_wanted = test["n_hits"].get<double>() + test["n_joins"].get<double>() +
                            test["n_misses"].get<double>() + test["n_ahead_used"].get<double>();
    if (n_wanted > 0) {
      EXPECT_DOUBLE_EQ(test["hit_rate"].get<double>() * n_wanted, test["n_hits"].get<double>());
    }
    EXPECT_EQ(test["n_misses"] == 0, test["drive_bytes_per_token"] == 0);
  }
  return report;
}

std::vector<std::string> names(const Json& report) {
  std::vector<std::string> result;
  for (const Json& test : report["tests"]) result.push_back(test["test"]);
  return result;
}

TEST(Bench, MeasuresEveryTestAsked) {
  const Json report = report_of({"tales", "-p", "8,16", "-n", "4", "-d", "0,8", "-r", "3", "--threads", "1"});
  EXPECT_THAT(names(report), ElementsAre("pp8", "pp16", "tg4", "pp8 @ d8", "pp16 @ d8", "tg4 @ d8"));
  EXPECT_EQ(report["plan"]["n_ctx"], 24) << "what the longest test needs";
  EXPECT_EQ(report["n_threads"], 1);
  EXPECT_EQ(report["machine"]["read_threads"], 1);
  for (const char* key : {"version", "build", "date"}) EXPECT_FALSE(report[key].get<std::string>().empty());
  for (const char* key : {"cpu_model", "kernel", "isa"})
    EXPECT_FALSE(report["machine"][key].get<std::string>().empty());
  for (const Json& test : report["tests"]) EXPECT_EQ(test["drive_bytes_per_token"], 0) << "all is in memory";
}

TEST(Bench, TokensAddUpToWhatTheModelCounted) {
  const Json report =
      report_of({"tales", "-p", "8", "-n", "3", "-d", "5", "-r", "2", "--warmup", "2", "--memory", "64M"});
  EXPECT_EQ(report["stats"]["n_prefill_tokens"], 5 + 4 * 8) << "depth and four prompts";
  EXPECT_EQ(report["stats"]["n_decode_tokens"], 4 * 3);
}

TEST(Bench, AZeroLeavesATestOut) {
  EXPECT_THAT(names(report_of({"tales", "-p", "0", "-n", "2", "-r", "1", "--memory", "64M"})),
              ElementsAre("tg2"));
  EXPECT_THAT(names(report_of({"tales", "-p", "4", "-n", "0", "-r", "1", "--memory", "64M"})),
              ElementsAre("pp4"));
}

/// A budget that holds some of the built-in model's experts and not all, whatever this build of the program
/// takes.
std::uint64_t small_budget() {
  const Outcome outcome = sluice({"inspect", "tales", "--ctx", "24", "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return Json::parse(outcome.out)["plan"]["floor_bytes"].get<std::uint64_t>() + (4u << 20);
}

TEST(Bench, AStreamedModelReportsTheDriveAndKeepsItsBudget) {
  const std::uint64_t budget = small_budget();
  const Json report =
      report_of({"tales", "-p", "24", "-n", "12", "-r", "2", "--memory", std::to_string(budget)});
  std::uint64_t n_misses = 0;
  for (const Json& test : report["tests"]) {
    n_misses += test["n_misses"].get<std::uint64_t>();
    if (test["n_misses"] > 0) {
      EXPECT_GT(test["drive_bytes_per_second"].get<double>(), 0);
    }
    EXPECT_LT(test["hit_rate"].get<double>(), 1);
  }
  EXPECT_GT(n_misses, 0u);
  EXPECT_GT(report["plan"]["streamed_bytes"].get<std::uint64_t>(), 0u);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LE(report["stats"]["peak_rss_bytes"].get<std::uint64_t>(), budget);
#endif
}

TEST(Bench, AModelWithoutVocabularyCanBeMeasured) {
  const TempDir folder;
  std::vector<std::byte> file = make_tiny_model({});
  const std::string with = "gpt2", without = "none";
  const auto found = std::search(file.begin(), file.end(), with.begin(), with.end(),
                                 [](std::byte a, char b) { return a == static_cast<std::byte>(b); });
  ASSERT_NE(found, file.end()) << "tokenizer.ggml.model";
  std::transform(without.begin(), without.end(), found, [](char c) { return static_cast<std::byte>(c); });
  write_bytes(folder / "mute.gguf", file.data(), file.size());
  const std::string path = (folder / "mute.gguf").string();
  EXPECT_EQ(sluice({"run", path, "-p", "x"}).status, 1) << "it has no vocabulary";
  EXPECT_THAT(names(report_of({path, "-p", "8", "-n", "4", "-r", "2", "--memory", "64M"})),
              ElementsAre("pp8", "tg4"));
}

TEST(Bench, TheTableNamesMachineTestsAndDrive) {
  const Outcome outcome =
      bench({"tales", "-p", "8", "-n", "4", "-r", "2", "--memory", std::to_string(small_budget())});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"memory read", "pp8", "tg4", "weights/token", "hit rate", "experts cached"})
    EXPECT_THAT(outcome.out, HasSubstr(part));
}

void expect_error(const Outcome& outcome, int status, const std::string& part) {
  EXPECT_EQ(outcome.status, status) << outcome.err;
  EXPECT_THAT(outcome.err, StartsWith("sluice: error: "));
  EXPECT_THAT(outcome.err, HasSubstr(part));
  EXPECT_EQ(outcome.out, "");
}

TEST(Bench, WrongOptionsAreUsageErrors) {
  expect_error(bench({}), 2, "MODEL");
  expect_error(bench({"tales", "-p", "0", "-n", "0"}), 2, "nothing to measure");
  expect_error(bench({"tales", "-p", "8,x"}), 2, "x");
  expect_error(bench({"tales", "-p", "-8"}), 2, "-8");
  expect_error(bench({"tales", "-n", "99999999999"}), 2, "99999999999");
  expect_error(bench({"tales", "-r", "0"}), 2, "--repetitions");
  expect_error(bench({"tales", "--ctx", "16"}), 2, "--ctx 16");
}

TEST(Bench, WhatTheModelCannotDoIsAnError) {
  expect_error(bench({"no-such-model"}), 1, "no-such-model");
  expect_error(bench({"tales", "-p", "4096", "--memory", "64M"}), 1, "trained for 2048");
  expect_error(bench({"tales", "-p", "8", "--memory", "1M"}), 1, "too small");
}

// --- scripts/compare
// -------------------------------------------------------------------------------------------------

const std::string k_compare = std::string(SLUICE_SOURCE_DIR) + "/scripts/compare";

void write_script(const std::filesystem::path& path, const std::string& text) {
  const std::string script = "#!/bin/bash\n" + text;
  write_bytes(path, script.data(), script.size());
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

/// A llama-bench that reports the lines of a file, one pair of tests per call.
class Compare : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access("/bin/bash", X_OK) != 0) GTEST_SKIP() << "needs /bin/bash";
    options_.environment["LLAMA_BENCH"] = "bash " + (folder_ / "peer").string();
  }

  /// Call number n, from 0, reports the n-th of these rates for both tests.
  void peer_reports(const std::string& rates) {
    write_script(folder_ / "peer", "rates=(" + rates + ")\nn=$(cat '" + counter("peer") +
                                       "' 2>/dev/null || echo 0)\necho $((n + 1)) > '" + counter("peer") +
                                       R"('
echo '{"n_prompt": 8, "n_gen": 0, "n_depth": 0, "avg_ns": 1, "avg_ts": '"${rates[n]}"', "stddev_ts": 9.0}'
echo '{"n_prompt": 0, "n_gen": 4, "n_depth": 0, "avg_ns": 1, "avg_ts": '"${rates[n]}"', "stddev_ts": 9.0}'
)");
  }
  void sluice_reports(const std::string& rates) {
    write_script(folder_ / "sluice", "rates=(" + rates + ")\nn=$(cat '" + counter("ours") +
                                         "' 2>/dev/null || echo 0)\necho $((n + 1)) > '" + counter("ours") +
                                         R"('
for test in pp8 tg4; do printf '      "test": "%s",\n      "tokens_per_second": %s,\n' $test "${rates[n]}"; done
)");
    options_.environment["SLUICE"] = (folder_ / "sluice").string();
  }
  Outcome compare(const std::string& rounds) {
    return Process({"/bin/bash", k_compare, builtin_model("tales-29m-moe-Q4_K_M.gguf").string(), "-p", "8",
                    "-n", "4", "-t", "1", "-r", rounds},
                   options_)
        .wait();
  }
  std::string counter(const char* side) const { return (folder_ / side).string() + ".calls"; }

  TempDir folder_;
  Process::Options options_;
};

TEST_F(Compare, PrintsMediansRatioAndPairsAndLeavesOutTheFirstRound) {
  sluice_reports("9999 20 60 30");
  peer_reports("1 10 10 20");
  const Outcome outcome = compare("3");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  // Medians 30 and 10; pairs 2, 6 and 1.5.
  for (const char* test : {"pp8", "tg4"}) {
    EXPECT_THAT(outcome.out,
                ::testing::ContainsRegex(std::string(test) +
                                         " +30.00 +10.00 +3.000 +2.000 +1.500 to 6.000 +noisy: sluice "
                                         "llama-bench"));
  }
}

TEST_F(Compare, EvenRoundsTakeTheMeanOfTheTwoInTheMiddle) {
  sluice_reports("1 10 10");
  peer_reports("1 10.2 10");
  EXPECT_THAT(compare("2").out,
              ::testing::ContainsRegex("pp8 +10.00 +10.10 +0.990 +0.990 +0.980 to 1.000\n"));
}

TEST_F(Compare, ReadsWhatTheProgramItselfPrints) {
  options_.environment["SLUICE"] = k_program;
  peer_reports("1 1");
  const Outcome outcome = compare("1");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("pp8"));
  EXPECT_THAT(outcome.out, HasSubstr("tg4"));
}

TEST_F(Compare, FailuresAreNamed) {
  sluice_reports("1 1");
  write_script(folder_ / "peer", "echo 'cannot load the model' >&2; exit 3\n");
  Outcome outcome = compare("1");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot load the model"));
  EXPECT_THAT(outcome.err, HasSubstr("llama-bench failed"));
  write_script(folder_ / "peer", "echo '{}'\n");
  outcome = compare("1");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("no result"));
  options_.environment["LLAMA_BENCH"] = "no-such-command --flag";
  EXPECT_THAT(compare("1").err, HasSubstr("no-such-command"));
  EXPECT_EQ(Process({"/bin/bash", k_compare, "-p", "many"}, options_).wait().status, 1);
}

}  // namespace
}  // namespace sluice::test
