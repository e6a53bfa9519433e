// Goal: `sluice plan` shows plans and predictions of files, headers and shapes, `sluice doctor` what is
// wrong; both for people and programs, with honest exit statuses. No test asks for a speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;
namespace fs = std::filesystem;

/// Memory and kernels are measured once for all tests; otherwise each call takes a second.
class PlanTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cache_ = new TempDir;
    ASSERT_EQ(call({"profile"}).status, 0);
  }
  static void TearDownTestSuite() { delete cache_; }

  static Outcome call(std::vector<std::string> words) {
    Process::Options options;
    options.environment["XDG_CACHE_HOME"] = cache_->path().string();
    return sluice(std::move(words), options);
  }
  static Json json_of(std::vector<std::string> words, int status = 0) {
    words.push_back("--json");
    const Outcome outcome = call(std::move(words));
    EXPECT_EQ(outcome.status, status) << outcome.err;
    return Json::parse(outcome.out);
  }
  static void expect_error(const Outcome& outcome, int status, const std::string& part) {
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("sluice: error: "));
    EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_EQ(outcome.out, "");
  }

  static inline TempDir* cache_ = nullptr;
};

TEST_F(PlanTest, AModelThatFitsIsPredictedWithoutADrive) {
  const Json report = json_of({"plan", "tales", "--memory", "128M"});
  const Json& choice = report["choices"].at(0);
  EXPECT_TRUE(choice["plan"]["fully_resident"].get<bool>());
  for (const char* end : {"low", "typical", "high"}) {
    EXPECT_GT(choice["prediction"][end]["decode"]["tokens_per_second"].get<double>(), 0);
    EXPECT_GT(choice["prediction"][end]["prefill"]["tokens_per_second"].get<double>(), 0);
    EXPECT_GT(choice["prediction"][end]["answer_seconds"].get<double>(), 0);
  }
  EXPECT_EQ(
      choice["prediction"]["n_prompt_tokens"].get<int>() + choice["prediction"]["n_answer_tokens"].get<int>(),
      choice["plan"]["n_ctx"].get<int>());
  EXPECT_TRUE(report["notes"].empty()) << report["notes"];
  const Outcome table = call({"plan", "tales", "--memory", "128M"});
  for (const char* part :
       {"expert slots", "everything stays in memory", "prefill", "decode", "answer", "tok/s"})
    EXPECT_THAT(table.out, HasSubstr(part));
}

TEST_F(PlanTest, WhatStreamsFromAnUnknownDriveIsNotPredictedUnlessItsRateIsGiven) {
  const Outcome unknown = call({"plan", "tales", "--memory", "24M"});
  EXPECT_EQ(unknown.status, 0) << unknown.err;
  EXPECT_THAT(unknown.out, HasSubstr("the drive was not measured yet"));
  EXPECT_THAT(unknown.out, HasSubstr("sluice profile"));
  EXPECT_THAT(unknown.out, Not(HasSubstr("tok/s")));
  const Json slow = json_of({"plan", "tales", "--memory", "24M", "--sim-disk", "0.1"}),
             fast = json_of({"plan", "tales", "--memory", "24M", "--sim-disk", "10"});
  EXPECT_EQ(fast["sim_disk_bytes_per_second"], 10e9);
  const auto decode = [](const Json& report) {
    return report["choices"].at(0)["prediction"]["typical"]["decode"]["tokens_per_second"].get<double>();
  };
  EXPECT_GT(decode(fast), decode(slow));
}

TEST_F(PlanTest, SeveralBudgetsStandSideBySide) {
  const std::vector<std::string> words{"plan", "qwen3-30b-a3b", "--memory", "100M,4G,24G", "--sim-disk",
                                       "5",    "--sim-ram",     "64G"};
  const Outcome table = call(words);
  EXPECT_EQ(table.status, 0) << table.err;
  for (const char* part : {"4.00 GiB", "24.0 GiB", "nothing", "refused", "the smallest budget that works"})
    EXPECT_THAT(table.out, HasSubstr(part));
  const Json report = json_of(words);
  const Json& choices = report["choices"];
  ASSERT_EQ(choices.size(), 3u);
  EXPECT_TRUE(choices[0]["plan"].is_null());
  EXPECT_TRUE(choices[0]["prediction"].is_null());
  EXPECT_GT(choices[0]["needed_bytes"].get<std::uint64_t>(), 100u << 20);
  EXPECT_LT(choices[1]["prediction"]["typical"]["decode"]["tokens_per_second"].get<double>(),
            choices[2]["prediction"]["typical"]["decode"]["tokens_per_second"].get<double>());
  EXPECT_LT(choices[1]["prediction"]["low"]["decode"]["hit_rate"].get<double>(),
            choices[1]["prediction"]["high"]["decode"]["hit_rate"].get<double>());
}

TEST_F(PlanTest, ABudgetBeyondTheMachineIsNotCalledTooSmall) {
  const std::vector<std::string> words{"plan", "qwen3-30b-a3b", "--memory", "100M,900T"};
  const Outcome table = call(words);
  EXPECT_EQ(table.status, 1);
  EXPECT_THAT(table.out, HasSubstr("100 MiB is too small"));
  EXPECT_THAT(table.out, HasSubstr("900 TiB (--memory) is more than there is"));
  EXPECT_THAT(table.out, Not(HasSubstr("900 TiB is too small")));
  EXPECT_EQ(json_of(words, 1)["choices"].at(1)["needed_bytes"], 0);
}

TEST_F(PlanTest, ASimulatedMachineIsPlannedForAndItsGpuCountsForNothing) {
  const std::vector<std::string> words{"plan", "qwen3-30b-a3b", "--sim-ram", "16G", "--sim-vram",
                                       "8G",   "--sim-disk",    "5"};
  const Outcome outcome = call(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("15.0 GiB"));
  EXPECT_THAT(outcome.out, HasSubstr("count for nothing"));
  const Json report = json_of(words);
  EXPECT_EQ(report["sim_ram_bytes"], std::uint64_t{16} << 30);
  EXPECT_EQ(report["sim_vram_bytes"], std::uint64_t{8} << 30);
  EXPECT_EQ(report["source"], "shape qwen3-30b-a3b");
}

TEST_F(PlanTest, ABudgetThatIsTooSmallIsTheErrorThatRunGives) {
  expect_error(call({"plan", "tales", "--memory", "2M"}), 1, "too small");
  const Json report = json_of({"plan", "tales", "--memory", "2M"}, 1);
  EXPECT_THAT(report["choices"].at(0)["refusal"].get<std::string>(), HasSubstr("too small"));
  EXPECT_EQ(call({"plan", "tales", "--memory", "1M,2M"}).status, 1);
  expect_error(call({"plan", "tales", "--sim-ram", "16M"}), 1, "simulated 16.0 MiB");
}

TEST_F(PlanTest, WhatIsNoModelAndWhatCannotRunAreErrors) {
  expect_error(call({"plan"}), 2, "MODEL");
  expect_error(call({"plan", "no-such-model"}), 1, "no-such-model");
  expect_error(call({"plan", "glm-5.2"}), 1, "glm-dsa");
  expect_error(call({"plan", "tales", "--sim-disk", "0"}), 2, "--sim-disk");
  expect_error(call({"plan", "tales", "--memory", "1G,much"}), 2, "much");
  expect_error(call({"plan", "tales", "--ctx", "999999"}), 1, "trained for");
}

TEST_F(PlanTest, MoreSequencesTakeMoreMemory) {
  const auto kv = [](const Json& report) {
    for (const Json& item : report["choices"].at(0)["plan"]["items"]) {
      if (item["what"] == "KV cache") return item["bytes"].get<std::uint64_t>();
    }
    return std::uint64_t{0};
  };
  EXPECT_EQ(kv(json_of({"plan", "tales", "--memory", "128M", "--ctx", "512", "--sequences", "3"})),
            3 * kv(json_of({"plan", "tales", "--memory", "128M", "--ctx", "512"})));
}

TEST_F(PlanTest, AHeaderIsPlannedAndDiagnosed) {
  const TempDir folder;
  const std::string file = (folder / "cut.gguf").string();
  std::filesystem::copy_file(builtin_model("tales-29m-moe-Q4_K_M.gguf"), file);
  std::filesystem::resize_file(file, 2u << 20);
  const Json report = json_of({"plan", file, "--memory", "128M"});
  EXPECT_GT(report["missing_bytes"].get<std::uint64_t>(), 10u << 20);
  EXPECT_FALSE(report["choices"].at(0)["prediction"].is_null());
  const Outcome doctor = call({"doctor", file});
  EXPECT_EQ(doctor.status, 1);
  EXPECT_THAT(doctor.out, HasSubstr("is incomplete"));
  EXPECT_THAT(doctor.out, HasSubstr("cure: "));
}

/// What earlier runs of the built-in model used, in the folder of all these tests.
class PlanWithHeatTest : public PlanTest {
 protected:
  void SetUp() override {
    fs::remove_all(folder());
    // Only a run knows the file's name and the model's fingerprint.
    ASSERT_EQ(call({"run", "tales", "-p", "Once", "-n", "1", "--memory", "128M"}).status, 0);
    for (const auto& entry : fs::directory_iterator(folder())) file_ = entry.path();
    ASSERT_FALSE(file_.empty());
  }
  void TearDown() override { fs::remove_all(folder()); }

  static fs::path folder() { return cache_->path() / "sluice" / "heat"; }
  void write(const std::string& text) const { write_bytes(file_, text.data(), text.size()); }
  /// Counts of so many tokens that all used the first four experts of each layer.
  void write_counts(int n_tokens) const {
    Json heat = Json::parse(read_text(file_));
    heat["tokens"] = n_tokens;
    for (Json& layer : heat["layers"]) {
      for (std::size_t expert = 0; expert < layer.size(); ++expert) layer[expert] = expert < 4 ? n_tokens : 0;
    }
    // The file begins with its format and has its keys in this order.
    write(R"({"format": "sluice-heat", "version": 1, "fingerprint": )" + heat["fingerprint"].dump() +
          ", \"tokens\": " + heat["tokens"].dump() + ", \"layers\": " + heat["layers"].dump() + "}\n");
  }
  static Json prediction(const std::string& model) {
    return json_of({"plan", model, "--memory", "20M", "--sim-disk", "0.1"})["choices"].at(0)["prediction"];
  }

  fs::path file_;
};

TEST_F(PlanWithHeatTest, CountsOfEnoughTokensAreTheFigure) {
  const std::vector<std::string> words{"plan", "tales", "--memory", "20M", "--sim-disk", "0.1"};
  EXPECT_TRUE(prediction("tales")["heat"].is_null()) << "one run of a few tokens";
  EXPECT_THAT(call(words).out, HasSubstr("as recorded of real models (all used alike"));
  const Json before = prediction("tales");
  write_counts(1000);
  const Json after = prediction("tales");
  EXPECT_EQ(after["heat_tokens"], 1000);
  EXPECT_GT(after["heat"]["decode"]["hit_rate"].get<double>(), 0.98);
  EXPECT_GT(after["heat"]["decode"]["tokens_per_second"].get<double>(),
            after["high"]["decode"]["tokens_per_second"].get<double>());
  // The plan counts the process itself, so that another call may have a slot more.
  const auto hit_rate = [](const Json& some) { return some["decode"]["hit_rate"].get<double>(); };
  for (const char* end : {"low", "typical", "high"})
    EXPECT_NEAR(hit_rate(after[end]), hit_rate(before[end]), 0.05) << end;
  EXPECT_THAT(call(words).out, HasSubstr("as in the last 1000 tokens on this machine"));
  const Outcome several = call({"plan", "tales", "--memory", "20M,24M", "--sim-disk", "0.1"});
  EXPECT_THAT(several.out, HasSubstr("as in the last 1000 tokens on this machine"));
  // The simulated machine runs the same texts.
  const Json simulated =
      json_of({"plan", "tales", "--memory", "20M", "--sim-disk", "0.1", "--sim-ram", "4G"})["choices"].at(0);
  EXPECT_EQ(simulated["prediction"]["heat_tokens"], 1000);
}

TEST_F(PlanWithHeatTest, WhatStaysWholeAHeaderAndAShapeHaveNone) {
  write_counts(1000);
  EXPECT_TRUE(
      json_of({"plan", "tales", "--memory", "128M"})["choices"].at(0)["prediction"]["heat"].is_null());
  const TempDir folder;
  const std::string path = (folder / "cut.gguf").string();
  fs::copy_file(builtin_model("tales-29m-moe-Q4_K_M.gguf"), path);
  EXPECT_FALSE(prediction(path)["heat"].is_null()) << "the same model elsewhere";
  fs::resize_file(path, fs::file_size(path) - 4096);
  EXPECT_TRUE(prediction(path)["heat"].is_null());
  EXPECT_TRUE(
      json_of({"plan", "tiny-moe", "--sim-disk", "1"})["choices"].at(0)["prediction"]["heat"].is_null());
}

TEST_F(PlanWithHeatTest, ABadFileIsOneWarningAndAPlan) {
  write("milk, bread");
  for (const char* command : {"plan", "doctor"}) {
    const Outcome outcome = call({command, "tales", "--memory", "20M"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.err, StartsWith("sluice: warning: the heat file " + file_.string()));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("expert slots"));
  }
}

TEST_F(PlanTest, DoctorLooksAtTheMachineAlone) {
  const Json report = json_of({"doctor"});
  EXPECT_FALSE(report["has_problem"].get<bool>());
  EXPECT_TRUE(report["outlook"].is_null());
  std::vector<std::string> topics;
  for (const Json& finding : report["findings"]) topics.push_back(finding["topic"]);
  for (const char* topic : {"io_uring", "memory", "cores", "swap", "open files", "profile"})
    EXPECT_EQ(std::count(topics.begin(), topics.end(), topic), 1) << topic;
}

TEST_F(PlanTest, DoctorAddsTheModelAndItsPlan) {
  const Outcome outcome = call({"doctor", "tales", "--memory", "128M"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part :
       {"everything fits", "the header is good", "direct reads", "plan\n", "prediction", "decode"})
    EXPECT_THAT(outcome.out, HasSubstr(part));
  const Json report = json_of({"doctor", "tales", "--memory", "2M"}, 1);
  EXPECT_TRUE(report["has_problem"].get<bool>());
  EXPECT_TRUE(report["outlook"].is_null());
  expect_error(call({"doctor", "no-such-model"}), 1, "no-such-model");
  expect_error(call({"doctor", "tales", "--ctx", "999999"}), 1, "trained for");
}

TEST_F(PlanTest, BenchAndStatsSetThePredictionBesideTheMeasurement) {
  Json report = json_of({"bench", "tales", "-p", "8", "-n", "4", "-r", "1", "--memory", "128M"});
  for (const Json& test : report["tests"]) {
    EXPECT_GT(test["predicted_tokens_per_second"].get<double>(), 0);
    EXPECT_EQ(test["predicted_tokens_per_second"], test["predicted_at_hit_rate_tokens_per_second"])
        << "all is in memory";
  }
  const Outcome table = call({"bench", "tales", "-p", "8", "-n", "4", "-r", "1", "--memory", "128M"});
  EXPECT_THAT(table.out, HasSubstr("predicted tok/s"));
  // Without a profile of the drive nothing is said about what streams.
  report = json_of({"bench", "tales", "-p", "8", "-n", "4", "-r", "1", "--memory", "20M"});
  for (const Json& test : report["tests"]) EXPECT_TRUE(test["predicted_tokens_per_second"].is_null());
  const Outcome run =
      call({"run", "tales", "-p", "Once", "-n", "4", "--seed", "1", "--memory", "128M", "--stats"});
  EXPECT_THAT(run.err, HasSubstr("expected of decoding: "));
}

}  // namespace
}  // namespace sluice::test
