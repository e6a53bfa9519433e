// Goal: models share memory with others: nobody in a memory cgroup is killed, and every text is the one of a
// model that is alone. Method: the program itself on a model of some hundred megabytes with random weights,
// with neighbours in the same group. Needs a user who may make memory cgroups, which is root as a rule.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sluice/synth.hpp"
#include "system/memory_cgroup.hpp"

namespace sluice::test {
namespace {

constexpr std::uint64_t k_mib = 1u << 20;

/// One model for all tests: two layers of 128 experts, a quarter of a gigabyte of them.
class Pressure : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (MemoryCgroup(512 * k_mib).folder().empty()) return;
    dir_ = new TempDir;
    path_ = (*dir_ / "model.gguf").string();
    const Outcome made =
        sluice({"synth", "qwen3-30b-a3b", path_, "--type", "IQ1_S", "--layers", "2", "--locality", "1"});
    ASSERT_EQ(made.status, 0) << made.err;
    const Outcome alone = sluice(story());
    ASSERT_EQ(alone.status, 0) << alone.err;
    const nlohmann::json result = nlohmann::json::parse(alone.out);
    text_ = result["text"];
    floor_bytes_ = result["plan"]["floor_bytes"];
    ASSERT_EQ(result["plan"]["streamed_bytes"].get<std::uint64_t>(), 0u) << "the machine is too small";
    planned_bytes_ = result["plan"]["planned_bytes"];
  }
  static void TearDownTestSuite() {
    delete dir_;
    dir_ = nullptr;
  }
  void SetUp() override {
    if (dir_ == nullptr) GTEST_SKIP() << "this user may not make a memory cgroup";
  }

  static std::vector<std::string> story(const std::string& n_tokens = "24") {
    return {"run", path_,       "-p", "Once upon a time", "-n",  n_tokens, "--temp",      "0", "--ctx",
            "512", "--threads", "1",  "--heat",           "off", "--json", "--ignore-eos"};
  }
  static void expect_the_text(const Outcome& outcome) {
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(nlohmann::json::parse(outcome.out)["text"].get<std::string>(), text_);
  }

  static TempDir* dir_;
  static std::string path_, text_;
  static std::uint64_t floor_bytes_, planned_bytes_;
};
TempDir* Pressure::dir_ = nullptr;
std::string Pressure::path_, Pressure::text_;
std::uint64_t Pressure::floor_bytes_ = 0, Pressure::planned_bytes_ = 0;

TEST_F(Pressure, TwoThatStartTogetherShareAGroup) {
  const MemoryCgroup group(planned_bytes_ * 11 / 10);
  for (const bool together : {true, false}) {
    Process first(group.command(story()), {});
    if (!together) first.read_output(1);  // The answer is being written when the second one starts.
    Process second(group.command(story()), {});
    expect_the_text(first.wait());
    expect_the_text(second.wait());
  }
}

TEST_F(Pressure, AGreedyNeighbourGetsWhatAModelThatRunsCanSpare) {
  const MemoryCgroup group(planned_bytes_ * 11 / 10);
  Process model(group.command(story("200")), {});
  Neighbour neighbour(group, (planned_bytes_ - floor_bytes_) * 3 / 4, 2 * k_mib);
  EXPECT_TRUE(neighbour.has_all()) << "it was killed";
  EXPECT_EQ(neighbour.leave(), 0);
  const Outcome outcome = model.wait();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string text = nlohmann::json::parse(outcome.out)["text"];
  EXPECT_EQ(text.substr(0, text_.size()), text_);
}

TEST_F(Pressure, ANeighbourThatNeverWaitsGetsItsMemoryWhileAnAnswerIsWritten) {
  std::vector<std::string> arguments = story("100");
  arguments.erase(std::find(arguments.begin(), arguments.end(), "--json"));
  const Outcome alone = sluice(arguments);
  ASSERT_EQ(alone.status, 0) << alone.err;
  const MemoryCgroup group(planned_bytes_ * 11 / 10);
  Process model(group.command(arguments), {});
  ASSERT_FALSE(model.read_output(1).empty());
  Neighbour neighbour(group, (planned_bytes_ - floor_bytes_) / 2, 2 * k_mib, 10);
  EXPECT_TRUE(neighbour.has_all()) << "it was killed";
  EXPECT_EQ(neighbour.leave(), 0);
  const Outcome outcome = model.wait();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, alone.out);
}

TEST_F(Pressure, AChatThatWaitsGivesWayAndAnswersAsBefore) {
  const int user = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (user < 0 || grantpt(user) != 0 || unlockpt(user) != 0) GTEST_SKIP() << "needs a pseudo-terminal";
  const int program = open(ptsname(user), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(program, 0);
  const auto type = [&](const std::string& line) {
    ASSERT_EQ(write(user, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  };
  const std::vector<std::string> chat = {"run", path_,       "-n", "8",      "--temp", "0",           "--ctx",
                                         "512", "--threads", "1",  "--heat", "off",    "--ignore-eos"};
  Process::Options options;
  options.input_fd = program;
  std::string expected;
  for (const bool has_neighbour : {false, true}) {
    const MemoryCgroup group(planned_bytes_ * 12 / 10);
    Process process(group.command(chat), options);
    type("Hello\n");
    const std::size_t n_answer = process.read_output(1).size();
    ASSERT_GT(n_answer, 0u) << process.errors();
    if (has_neighbour) {
      Neighbour neighbour(group, (planned_bytes_ - floor_bytes_) * 3 / 4, 2 * k_mib);
      EXPECT_TRUE(neighbour.has_all()) << "it was killed";
      EXPECT_EQ(neighbour.leave(), 0);
    }
    type("And then?\n/exit\n");
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    if (!has_neighbour) expected = outcome.out;
    EXPECT_EQ(outcome.out, expected);
  }
  close(program);
  close(user);
}

}  // namespace
}  // namespace sluice::test
