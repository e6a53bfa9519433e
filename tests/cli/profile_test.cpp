// Goal: `sluice profile` measures once, says what it kept and how old it is, and goes on without what is not
// there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class ProfileTest : public testing::Test {
 protected:
  // Measuring takes a second or two: tests that are about something else begin with these results.
  static void SetUpTestSuite() {
    results_ = new TempDir;
    Process::Options options;
    options.environment["XDG_CACHE_HOME"] = results_->path().string();
    ASSERT_EQ(sluice({"profile"}, options).status, 0);
  }
  static void TearDownTestSuite() { delete results_; }
  void begin_with_results() {
    std::filesystem::copy(results_->path(), dir_ / "cache", std::filesystem::copy_options::recursive);
  }

  Outcome profile(std::vector<std::string> words) {
    words.insert(words.begin(), "profile");
    Process::Options options;
    options.environment["XDG_CACHE_HOME"] = (dir_ / "cache").string();
    return sluice(words, options);
  }
  /// Results that are a number of days older than they are.
  void age(std::int64_t days) {
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "cache/sluice/profile")) {
      Json json = Json::parse(read_text(entry.path()));
      json["measured_at"] = json["measured_at"].get<std::int64_t>() - days * 86400;
      std::ofstream(entry.path()) << json.dump();
    }
  }
  TempDir dir_;
  static inline TempDir* results_ = nullptr;
};

TEST_F(ProfileTest, MeasuresOnceAndKeepsTheResults) {
  const Outcome first = profile({"--json"});
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("measuring: memory"));
  const Json measured = Json::parse(first.out);
  EXPECT_GT(measured["machine"]["read_bytes_per_second"], 0);
  EXPECT_GE(measured["kernels"].size(), 12u);
  EXPECT_EQ(measured["kept_in"], (dir_ / "cache/sluice/profile").string());
  EXPECT_TRUE(measured["drives"].empty());

  age(3);
  const Outcome kept = profile({});
  ASSERT_EQ(kept.status, 0) << kept.err;
  EXPECT_EQ(kept.err, "");
  EXPECT_THAT(kept.out, HasSubstr("3 days ago"));
  EXPECT_THAT(kept.out, HasSubstr("Q4_K"));

  const Outcome old = profile({"--max-age", "2"});
  EXPECT_THAT(old.err, HasSubstr("measuring: memory"));
  EXPECT_THAT(old.out, HasSubstr("just now"));
}

TEST_F(ProfileTest, ADamagedResultIsReportedInALineAndMeasuredAgain) {
  begin_with_results();
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "cache/sluice/profile"))
    std::ofstream(entry.path()) << "{";
  const Outcome outcome = profile({});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("is not used: it is no JSON object\n"));
  EXPECT_THAT(outcome.out, HasSubstr("just now"));
}

TEST_F(ProfileTest, AModelThatIsMissingOrSmallLeavesTheRest) {
  begin_with_results();
  const Outcome missing = profile({"no-such-model.gguf"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.out,
              HasSubstr("no drive was measured: there is no file or model 'no-such-model.gguf'"));
  EXPECT_THAT(missing.out, HasSubstr("memory "));
  const Outcome small = profile({builtin_model("tales-draft-3.7m-Q8_0.gguf").string()});
  EXPECT_EQ(small.status, 0);
  EXPECT_THAT(small.out, HasSubstr("not measured: the file has"));
}

TEST_F(ProfileTest, ALargeFileGetsATableOfItsDrive) {
  begin_with_results();
  std::ofstream(dir_ / "holes").put('x');
  std::filesystem::resize_file(dir_ / "holes", std::uint64_t{256} << 20);
  const Outcome outcome = profile({(dir_ / "holes").string(), "--seconds", "0.3"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("knee"));
  EXPECT_THAT(outcome.out, HasSubstr("not kept: "));
  EXPECT_THAT(outcome.out, HasSubstr("64.0 KiB"));
  EXPECT_THAT(outcome.out, HasSubstr("in flight"));
}

TEST_F(ProfileTest, AFolderThatCannotBeMadeIsAWarning) {
  std::ofstream(dir_ / "cache").put('x');
  const Outcome outcome = profile({"--json"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("sluice: warning: the results are not kept: "));
  EXPECT_EQ(Json::parse(outcome.out)["kept_in"], "");
}

}  // namespace
}  // namespace sluice::test
