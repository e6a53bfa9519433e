#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

const std::string k_repetitive =
    "The cat sat on the mat. The dog ran to the hill. The cat sat on the mat. The dog ran to the hill. The "
    "cat sat on "
    "the mat. The dog ran to the hill. The cat sat";

Words story(Words more) {
  Words words{"run", "tales", "-p", k_repetitive, "-n", "60", "--ctx", "256", "--seed", "5", "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

nlohmann::json run(Words more) {
  const Outcome outcome = sluice(story(std::move(more)));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

std::uint64_t stat(const nlohmann::json& result, const char* name) {
  return result["stats"][name].get<std::uint64_t>();
}

TEST(Speculation, ChangesNoToken) {
  const auto plain = run({"--speculate", "off"});
  EXPECT_EQ(stat(plain, "n_speculative_passes"), 0u);
  for (const Words& more :
       {Words{"--speculate", "lookup"}, Words{"--draft", "tales-draft"},
        Words{"--speculate", "draft", "--draft", "tales-draft", "--draft-max", "2"}, Words{}}) {
    const auto result = run(more);
    EXPECT_EQ(result["tokens"], plain["tokens"]);
    EXPECT_EQ(result["text"], plain["text"]);
    EXPECT_EQ(stat(result, "n_decode_tokens"), stat(plain, "n_decode_tokens"));
    EXPECT_LE(stat(result, "n_lookup_accepted"), stat(result, "n_lookup_guessed"));
    EXPECT_LE(stat(result, "n_draft_accepted"), stat(result, "n_draft_guessed"));
    if (more.empty()) {
      EXPECT_EQ(stat(result, "n_speculative_passes"), 0u);
    }
  }
}

TEST(Speculation, TheBudgetHoldsForModelAndDraft) {
  const auto most = run({"--draft", "tales-draft", "--memory", "1G"});
  // The floor counts the process as it is at that moment, which varies from run to run.
  const std::uint64_t floor = most["plan"]["floor_bytes"].get<std::uint64_t>() + (1u << 20);
  for (const std::uint64_t extra : {0u, 2u << 20, 8u << 20}) {
    const auto result = run({"--draft", "tales-draft", "--memory", std::to_string(floor + extra)});
    EXPECT_LE(stat(result, "peak_rss_bytes"), floor + extra);
    EXPECT_EQ(result["tokens"], most["tokens"]);
  }
  const Outcome refused =
      sluice(story({"--draft", "tales-draft", "--memory", std::to_string(floor - (4u << 20))}));
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("draft model"));
}

TEST(Speculation, AConversationGoesOnAsWithoutIt) {
  Process::Options options;
  options.input = "Tell me a story about a boat.";
  const Words chat{"run", "tales", "--chat", "--temp", "0", "-n", "40", "--ctx", "512"};
  Words with = chat;
  with.insert(with.end(), {"--draft", "tales-draft"});
  const Outcome plain = sluice(chat, options);
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(sluice(with, options).out, plain.out);
}

TEST(Speculation, ContradictionsAreUsageErrors) {
  const auto refused = [](Words more, const char* part) {
    const Outcome outcome = sluice(story(std::move(more)));
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(part));
  };
  refused({"--speculate", "draft"}, "--draft");
  refused({"--speculate", "off", "--draft", "tales-draft"}, "--draft");
  refused({"--speculate", "lookup", "--draft", "tales-draft"}, "--draft");
  refused({"--speculate", "perhaps"}, "perhaps");
  refused({"--draft-max", "0"}, "--draft-max");
  refused({"--speculate", "lookup", "--trace", "/nowhere/trace"}, "--trace");
}

TEST(Speculation, AContextOfOneTokenLeavesNoRoomForGuesses) {
  Words words{"run", "tales",  "-p", "Once",   "-n",  "4",     "--ctx",
              "1",   "--temp", "0",  "--heat", "off", "--json"};
  const Outcome plain = sluice(words);
  words.insert(words.end(), {"--draft", "tales-draft"});
  const Outcome drafted = sluice(words);
  EXPECT_EQ(drafted.status, 0) << drafted.err;
  const auto result = nlohmann::json::parse(drafted.out);
  EXPECT_EQ(result["tokens"], nlohmann::json::parse(plain.out)["tokens"]);
  EXPECT_EQ(result["tokens"].size(), 1u);
  EXPECT_EQ(result["reason"], "context_full");
  EXPECT_EQ(stat(result, "n_draft_guessed"), 0u);
}

TEST(Speculation, AMissingDraftIsAnErrorThatNamesIt) {
  const Outcome outcome = sluice(story({"--draft", "no-such-draft"}));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no-such-draft"));
}

TEST(Speculation, StatsSayWhatWasGuessed) {
  Words words = story({"--draft", "tales-draft", "--stats"});
  const Outcome outcome = sluice(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("draft model"));
  const Outcome plain = sluice(story({"--stats"}));
  EXPECT_THAT(plain.err, Not(HasSubstr("guesses accepted")));
}

}  // namespace
}  // namespace sluice::test
