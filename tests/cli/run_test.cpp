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
using ::testing::StartsWith;
using Words = std::vector<std::string>;

const std::string k_prompt = "Once upon a time";

Words story(Words more = {}) {
  Words words{"run", "tales", "-p", k_prompt, "-n", "24", "--temp", "0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Long enough that it cannot end before a signal arrives: its context holds two thousand tokens.
const Words k_endless{"run", "tales", "-p", k_prompt, "--ignore-eos", "--seed", "3", "--ctx", "2048"};

nlohmann::json json_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

TEST(Run, ABuiltInModelContinuesAPrompt) {
  const Outcome outcome = sluice(story());
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GT(outcome.out.size(), 24u);
  EXPECT_TRUE(outcome.out.ends_with("\n"));
  EXPECT_EQ(outcome.err, "");
}

TEST(Run, PromptsFromOptionFileAndStandardInputAreTheSame) {
  const std::string expected = sluice(story()).out;
  Process::Options piped;
  piped.input = k_prompt + "\n";
  EXPECT_EQ(sluice({"run", "tales", "-n", "24", "--temp", "0"}, piped).out, expected);
  EXPECT_EQ(sluice({"run", "tales", "-n", "24", "--temp", "0", "-f", "-"}, piped).out, expected);
  EXPECT_EQ(sluice({"run", "tales", "-n", "24", "--temp", "0", "--raw"}, piped).out, expected);
  const TempDir folder;
  write_bytes(folder / "prompt", piped.input.data(), piped.input.size());
  EXPECT_EQ(sluice({"run", "tales", "-n", "24", "--temp", "0", "-f", (folder / "prompt").string()}).out,
            expected);
}

TEST(Run, TheSameSeedGivesTheSameText) {
  const auto text = [](const char* seed) {
    return sluice({"run", "tales", "-p", k_prompt, "-n", "40", "--temp", "1.2", "--seed", seed}).out;
  };
  EXPECT_EQ(text("11"), text("11"));
  EXPECT_NE(text("11"), text("12"));
}

TEST(Run, TheBudgetChangesNoToken) {
  const auto plan = json_of(sluice({"inspect", "tales", "--json", "--ctx", "128"}))["plan"];
  const auto answer = [](std::uint64_t bytes) {
    return json_of(sluice(story({"--ctx", "128", "--json", "--memory", std::to_string(bytes)})));
  };
  // The floor contains the size of the process itself, which is not the same in each run.
  constexpr std::uint64_t k_margin = 2 << 20;
  const auto least = answer(plan["floor_bytes"].get<std::uint64_t>() + k_margin);
  const auto most = answer(plan["resident_from_bytes"].get<std::uint64_t>() + k_margin);
  EXPECT_FALSE(least["plan"]["fully_resident"].get<bool>());
  EXPECT_TRUE(most["plan"]["fully_resident"].get<bool>());
  EXPECT_GT(least["stats"]["n_misses"].get<std::uint64_t>(), 0u);
  EXPECT_EQ(least["tokens"], most["tokens"]);
  EXPECT_EQ(least["text"], most["text"]);
}

TEST(Run, ABudgetBelowTheFloorIsAnErrorThatSaysTheFloor) {
  const Outcome outcome = sluice(story({"--memory", "2M"}));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, StartsWith("sluice: error: "));
  EXPECT_THAT(outcome.err, HasSubstr("MiB"));
}

TEST(Run, JsonHoldsTextTokensReasonStatsAndPlan) {
  const Outcome outcome = sluice(story({"--json"}));
  const auto json = json_of(outcome);
  EXPECT_EQ(json["text"].get<std::string>() + "\n", sluice(story()).out);
  EXPECT_EQ(json["reason"], "token_limit");
  EXPECT_EQ(json["tokens"].size(), 24u);
  EXPECT_GT(json["seed"].get<std::uint64_t>(), 0u);
  EXPECT_EQ(json["stats"]["n_prefill_tokens"], json["n_prompt_tokens"]);
  EXPECT_EQ(json["stats"]["n_decode_tokens"], 23);
  EXPECT_GT(json["stats"]["peak_rss_bytes"].get<std::uint64_t>(), 0u);
  EXPECT_LE(json["plan"]["planned_bytes"].get<std::uint64_t>(),
            json["plan"]["budget_bytes"].get<std::uint64_t>());
  EXPECT_EQ(json["model"]["architecture"], "qwen3moe");
}

TEST(Run, StatsGoToStandardErrorAndLeaveTheTextAlone) {
  const Outcome outcome = sluice(story({"--stats"}));
  EXPECT_EQ(outcome.out, sluice(story()).out);
  for (const char* part :
       {"budget", "peak RSS", "hit rate", "kernel's count", "prefill", "decode", "tok/s", "threads"}) {
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
}

TEST(Run, ASecondCopyChangesNoTokenAndIsCounted) {
  const TempDir folder;
  const std::filesystem::path copy = folder / "copy.gguf";
  std::filesystem::copy_file(builtin_model("tales-29m-moe-Q4_K_M.gguf"), copy);
  const Words words{"--ctx", "128", "--memory", "18M", "--second-copy", copy.string()};
  Words as_json = words, with_stats = words;
  as_json.push_back("--json");
  with_stats.push_back("--stats");
  const auto json = json_of(sluice(story(as_json)));
  EXPECT_EQ(json["text"].get<std::string>() + "\n", sluice(story()).out);
  ASSERT_EQ(json["stats"]["drives"].size(), 2u);
  EXPECT_EQ(json["stats"]["drives"][1]["file"], copy.string());
  EXPECT_THAT(sluice(story(with_stats)).err, HasSubstr("drive 2"));
}

TEST(Run, AStopStringEndsTheText) {
  const std::string whole = sluice(story()).out;
  const std::string stop = whole.substr(whole.size() / 2, 5);
  const auto json = json_of(sluice(story({"--stop", "[never,this]", "--stop", stop, "--json"})));
  EXPECT_EQ(json["reason"], "stop_string");
  EXPECT_EQ(json["stop_string"], stop);
  EXPECT_EQ(json["text"], whole.substr(0, whole.find(stop)));
}

TEST(Run, AFullContextEndsTheAnswerAndIsNoted) {
  const Outcome outcome = sluice({"run", "tales", "-p", k_prompt, "--ignore-eos", "--ctx", "32"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("context of 32 tokens is full"));
}

TEST(Run, APromptLargerThanTheContextIsRefused) {
  std::string prompt;
  for (int i = 0; i < 100; ++i) prompt += "word ";
  const Outcome outcome = sluice({"run", "tales", "-p", prompt, "--ctx", "32"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("context"));
  EXPECT_EQ(outcome.out, "");
}

TEST(Run, NeitherTheLocaleNorTheHomeFolderMatters) {
  const std::string expected =
      sluice({"run", "tales", "-p", "Caf\u00e9, na\u00efve \u2014", "-n", "16", "--temp", "0"}).out;
  const TempDir folder;
  std::filesystem::permissions(folder.path(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  for (const std::string& home : {folder.path().string(), std::string("/nowhere")}) {
    Process::Options options;
    options.environment = {{"LC_ALL", "C"}, {"LANG", "C"}, {"HOME", home}, {"TMPDIR", "/nowhere"}};
    const Outcome outcome =
        sluice({"run", "tales", "-p", "Caf\u00e9, na\u00efve \u2014", "-n", "16", "--temp", "0"}, options);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, expected);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Run, AReaderThatGoesAwayEndsTheAnswerQuietly) {
  Process process(with_program(k_endless), {});
  EXPECT_EQ(process.read_output(10).size(), 10u);
  process.close_output();
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.status, 141);
  EXPECT_EQ(outcome.err, "");
}

TEST(Run, OutputThatCannotBeWrittenIsAnError) {
  Process::Options closed;
  closed.close_output = true;
  const Outcome without = sluice(story(), closed);
  EXPECT_EQ(without.status, 1);
  EXPECT_THAT(without.err, StartsWith("sluice: error: cannot write to standard output"));
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "needs /dev/full";
  Process::Options full;
  full.output_path = "/dev/full";
  for (const Words& words : {story(), Words{"--help"}, Words{"inspect", "tales"}}) {
    const Outcome outcome = sluice(words, full);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, StartsWith("sluice: error: cannot write to standard output"));
  }
}

TEST(Run, ASignalEndsTheAnswerWithItsStatusANewlineAndTheStats) {
  for (const auto& [signal, status] : {std::pair{SIGTERM, 143}, std::pair{SIGINT, 130}}) {
    Words words = with_program(k_endless);
    words.push_back("--stats");
    Process process(words, {});
    EXPECT_FALSE(process.read_output(1).empty());
    process.send(signal);
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_TRUE(outcome.out.ends_with("\n"));
    EXPECT_THAT(outcome.err, HasSubstr("peak RSS"));
    EXPECT_THAT(outcome.err, Not(HasSubstr("error")));
  }
}

TEST(Run, ASignalEndsAnAnswerThatNobodyReads) {
  Process process(with_program(k_endless), {});
  EXPECT_FALSE(process.read_output(1).empty());
  // Nothing more is read: whether the pipe is full by now or not, the program has to end.
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().status, 143);
}

TEST(Perplexity, PrintsOneLineAndProgressOnStandardError) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "Lily had a little red ball. She liked to play with it in the park. ";
  Process::Options options;
  options.input = text;
  const Outcome outcome = sluice({"perplexity", "tales", "-f", "-", "--ctx", "64", "--chunks", "3"}, options);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("perplexity "));
  EXPECT_THAT(outcome.out, HasSubstr("in 3 windows of 64"));
  EXPECT_THAT(outcome.err, HasSubstr("window 3 of 3"));
  const auto json =
      json_of(sluice({"perplexity", "tales", "-f", "-", "--ctx", "64", "--chunks", "3", "--json"}, options));
  EXPECT_EQ(json["n_chunks"], 3);
  EXPECT_EQ(json["n_scored"], 3 * 31);
  EXPECT_GT(json["perplexity"].get<double>(), 1.0);
}

TEST(Perplexity, ATextShorterThanTwoWindowsIsRefused) {
  Process::Options options;
  options.input = "Too short.";
  const Outcome outcome = sluice({"perplexity", "tales", "-f", "-"}, options);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("two windows"));
}

}  // namespace
}  // namespace sluice::test
