#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "sluice/options.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<std::string> k_commands{"run",      "inspect", "perplexity", "verify",
                                          "tokenize", "bench",   "profile",    "plan",
                                          "doctor",   "synth",   "replay",     "completion"};

/// One line, in the program's name: what a script or a person sees when something is wrong.
void expect_error(const Outcome& outcome, int status, const std::string& part) {
  EXPECT_EQ(outcome.status, status) << outcome.err;
  EXPECT_THAT(outcome.err, StartsWith("sluice: error: "));
  EXPECT_THAT(outcome.err, HasSubstr(part));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

std::set<std::string> options_in(const std::string& text) {
  const std::regex option("--[a-z][a-z-]*");
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), option), end; at != end; ++at)
    found.insert(at->str());
  return found;
}

TEST(Usage, VersionIsOneLineOnStandardOutput) {
  const Outcome outcome = sluice({"--version"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(std::regex_match(outcome.out, std::regex("sluice \\d+\\.\\d+\\.\\d+ \\(.+\\)\n")))
      << outcome.out;
  EXPECT_EQ(outcome.err, "");
}

TEST(Usage, EveryCommandHasHelp) {
  const Outcome program = sluice({"--help"});
  EXPECT_EQ(program.status, 0);
  for (const std::string& command : k_commands) {
    EXPECT_THAT(program.out, HasSubstr(command));
    for (const char* flag : {"-h", "--help"}) {
      const Outcome outcome = sluice({command, flag});
      EXPECT_EQ(outcome.status, 0) << command;
      EXPECT_THAT(outcome.out, HasSubstr("Usage: sluice " + command));
      EXPECT_EQ(outcome.err, "");
    }
  }
}

TEST(Usage, AWrongCommandLineEndsWithStatusTwoAndOneLine) {
  expect_error(sluice({}), 2, "subcommand");
  expect_error(sluice({"fly"}), 2, "fly");
  expect_error(sluice({"run"}), 2, "MODEL");
  expect_error(sluice({"run", "tales", "--bogus"}), 2, "--bogus");
  expect_error(sluice({"run", "tales", "-p", "x", "-f", "y"}), 2, "--prompt");
  expect_error(sluice({"run", "tales", "-p", "x", "-n", "-5"}), 2, "-5");
  expect_error(sluice({"run", "tales", "-p", "x", "-n", "many"}), 2, "many");
  expect_error(sluice({"run", "tales", "-p", "x", "--memory", "much"}), 2, "much");
  expect_error(sluice({"run", "tales", "-p", "x", "--memory", "0"}), 2, "--memory");
  expect_error(sluice({"run", "tales", "-p", "x", "--policy", "fifo"}), 2, "fifo");
  expect_error(sluice({"run", "tales", "-p", "x", "--threads", "-1"}), 2, "--threads");
  expect_error(sluice({"run", "tales", "-p", "x", "--raw", "--chat"}), 2, "--chat");
  expect_error(sluice({"perplexity", "tales"}), 2, "--file");
  expect_error(sluice({"verify", "tales"}), 2, "--reference");
  expect_error(sluice({"verify", "tales", "--reference", "x", "--min-same-top", "101"}), 2, "--min-same-top");
  expect_error(sluice({"tokenize"}), 2, "MODEL");
  expect_error(sluice({"tokenize", "tales", "-p", "x", "-f", "y"}), 2, "--prompt");
  expect_error(sluice({"tokenize", "tales", "--decode", "--ids"}), 2, "--ids");
  expect_error(sluice({"completion", "tcsh"}), 2, "tcsh");
}

TEST(Usage, SamplingOptionsOutOfRangeAreUsageErrorsThatNameThem) {
  expect_error(sluice({"run", "tales", "-p", "x", "--temp", "-1"}), 2,
               "--temp: expected a number of at least 0");
  expect_error(sluice({"run", "tales", "-p", "x", "--temp", "nan"}), 2, "--temp");
  expect_error(sluice({"run", "tales", "-p", "x", "--top-p", "1.5"}), 2,
               "--top-p: expected a number from 0 to 1");
  expect_error(sluice({"run", "tales", "-p", "x", "--min-p", "2"}), 2, "--min-p");
  expect_error(sluice({"run", "tales", "-p", "x", "--repeat-penalty", "0"}), 2, "--repeat-penalty");
}

TEST(Usage, WholeNumbersOutOfRangeAreRefusedWithTheRangeAndWhatZeroMeans) {
  const std::vector<std::vector<std::string>> commands{{"run", "tales", "-p", "x", "--top-k"},
                                                       {"run", "tales", "-p", "x", "--ctx"},
                                                       {"run", "tales", "-p", "x", "--chunk"},
                                                       {"run", "tales", "-p", "x", "--threads"},
                                                       {"perplexity", "tales", "-f", "x", "--chunks"},
                                                       {"bench", "tales", "-n"},
                                                       {"bench", "tales", "-p"},
                                                       {"inspect", "tales", "--ctx"},
                                                       {"synth", "tiny-moe", "x", "--layers"},
                                                       {"replay", "x", "--experts"}};
  for (std::vector<std::string> words : commands) {
    for (const char* value : {"-1", "1.5", "1e3", "99999999999999999999", "0x10", ""}) {
      std::vector<std::string> with_value = words;
      with_value.emplace_back(value);
      const Outcome outcome = sluice(with_value);
      expect_error(outcome, 2, "expected a whole number from 0 to ");
      EXPECT_THAT(outcome.err, HasSubstr("(0: "));
      EXPECT_THAT(outcome.err, HasSubstr("found '" + std::string(value) + "'"));
    }
  }
  expect_error(sluice({"plan", "tales", "--sequences", "0"}), 2, "from 1 to ");
  // The engine's own limits.
  expect_error(sluice({"run", "tales", "-p", "x", "--chunk", std::to_string(k_max_prefill_chunk + 1)}), 2,
               "from 0 to " + std::to_string(k_max_prefill_chunk));
  expect_error(sluice({"replay", "x", "--experts", "65536"}), 2, "from 0 to 65535");
  expect_error(sluice({"replay", "x", "--warmup", "-1"}), 2, "--warmup");
  expect_error(sluice({"synth", "tiny-moe", "x", "--seed", "-1"}), 2, "--seed");
  // What a reader of JSON with double numbers would round.
  expect_error(sluice({"run", "tales", "-p", "x", "--seed", "9007199254740992"}), 2, "9007199254740991");
}

TEST(Usage, MinusOneMeansWhatUsersOfOtherProgramsExpect) {
  const auto json_of = [](const std::vector<std::string>& more) {
    std::vector<std::string> words{"run", "tales-draft", "-p", "Once upon a time", "--heat", "off", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = sluice(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  // The last of two counts, so that scripts can add to a command line.
  EXPECT_EQ(json_of({"-n", "7", "-n", "1", "--ignore-eos"})["tokens"].size(), 1u);
  std::set<std::uint64_t> seeds;
  for (int i = 0; i < 3; ++i) seeds.insert(json_of({"--seed", "-1", "-n", "1"})["seed"].get<std::uint64_t>());
  EXPECT_GT(seeds.size(), 1u);
  EXPECT_EQ(json_of({"-n", "-1", "--ctx", "24", "--ignore-eos"})["reason"], "context_full");
  const auto penalized = [&](const char* window) {
    return json_of({"-n", "48", "--temp", "0", "--repeat-penalty", "1.5", "--repeat-window", window})["text"];
  };
  EXPECT_EQ(penalized("-1"), penalized("1000"));
  EXPECT_NE(penalized("-1"), penalized("0"));
}

TEST(Usage, AMissingModelIsAnErrorThatNamesTheBuiltInOnes) {
  expect_error(sluice({"run", "no-such-model", "-p", "x"}), 1, "tales, tales-draft");
  expect_error(sluice({"run", "/nowhere/model.gguf", "-p", "x"}), 1, "/nowhere/model.gguf");
  expect_error(sluice({"inspect", "/"}), 1, "is a folder");
  expect_error(sluice({"perplexity", "no-such-model", "-f", "/dev/null"}), 1, "no-such-model");
}

TEST(Usage, AMissingTextIsAnErrorThatNamesIt) {
  expect_error(sluice({"run", "tales", "-f", "/nowhere/prompt.txt"}), 1, "/nowhere/prompt.txt");
  expect_error(sluice({"perplexity", "tales", "-f", "/nowhere/text.txt"}), 1, "/nowhere/text.txt");
  expect_error(sluice({"tokenize", "tales", "-f", "/nowhere/text.txt"}), 1, "/nowhere/text.txt");
  expect_error(sluice({"verify", "tales", "--reference", "/nowhere/x.kld"}), 1, "/nowhere/x.kld");
  expect_error(sluice({"run", "tales", "-f", "/"}), 1, "cannot read /");
  expect_error(sluice({"run", "tales"}), 1, "prompt is empty");
}

TEST(Usage, AFileThatIsNoModelIsRefused) {
  const TempDir folder;
  const std::string text = "This is not a model.";
  write_bytes(folder / "text.gguf", text.data(), text.size());
  expect_error(sluice({"run", (folder / "text.gguf").string(), "-p", "x"}), 1, "text.gguf");
  expect_error(sluice({"inspect", (folder / "text.gguf").string()}), 1, "text.gguf");
}

TEST(Synth, WritesAFileThatTheProgramRuns) {
  const TempDir folder;
  const std::string file = (folder / "m.gguf").string();
  const Outcome outcome = sluice({"synth", "tiny-moe", file, "--layers", "1", "--type", "Q8_0"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith(file + ": "));
  EXPECT_EQ(outcome.err, "");  // Progress is for terminals.
  const Outcome run = sluice({"run", file, "-p", "in the beginning", "-n", "4", "--ignore-eos"});
  EXPECT_EQ(run.status, 0) << run.err;
}

TEST(Synth, WhatCannotBeWrittenIsSaidInOneLine) {
  const TempDir folder;
  const std::string file = (folder / "m.gguf").string();
  expect_error(sluice({"synth", "qwen9", file}), 2, "mixtral-8x7b");
  expect_error(sluice({"synth", "tiny-moe", file, "--type", "Q9"}), 2, "IQ4_XS");
  expect_error(sluice({"synth", "tiny-moe"}), 2, "OUT");
  expect_error(sluice({"synth", "tiny-moe", file, "--layers", "3"}), 1, "has 2");
  expect_error(sluice({"synth", "tiny-moe", file, "--locality", "2"}), 2, "--locality");
  expect_error(sluice({"synth", "tiny-moe", "/nowhere/m.gguf"}), 1, "/nowhere");
  write_bytes(file, "precious", 8);
  expect_error(sluice({"synth", "tiny-moe", file}), 1, "exists");
  EXPECT_EQ(read_text(file), "precious");
  const Outcome forced = sluice({"synth", "tiny-moe", file, "--force"});
  EXPECT_EQ(forced.status, 0) << forced.err;
}

TEST(Synth, AFileBeyondTheLimitOfTheProcessIsRefusedBeforeItIsBegun) {
  const TempDir folder;
  const std::string file = (folder / "m.gguf").string();
  const Outcome outcome =
      Process({"/bin/sh", "-c", "ulimit -f 64 && exec \"$0\" synth tiny-moe \"$1\"", k_program, file}, {})
          .wait();
  expect_error(outcome, 1, "ulimit -f");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Usage, ControlCharactersOfANameDoNotReachTheTerminal) {
  const Outcome outcome = sluice({"run", "bad\x1b[2Jname", "-p", "x"});
  expect_error(outcome, 1, "bad\\x1b[2Jname");
}

TEST(Usage, ModelsAreFoundInTheFoldersOfTheEnvironment) {
  const TempDir folder;
  std::filesystem::create_symlink(builtin_model("tales-29m-moe-Q4_K_M.gguf"), folder / "mine.gguf");
  Process::Options options;
  options.environment["SLUICE_MODELS"] = "/nowhere::" + folder.path().string();
  for (const char* name : {"mine", "mine.gguf"}) {
    const Outcome outcome = sluice({"inspect", name}, options);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("qwen3moe"));
  }
}

TEST(Inspect, ShowsMetadataRolesAndPlacementOfABuiltInModel) {
  const Outcome outcome = sluice({"inspect", "tales", "--tensors"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part :
       {"qwen3moe.expert_count", "expert", "placement", "smallest budget", "blk.0.attn_q.weight"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
}

TEST(Inspect, JsonHoldsTheSameFactsForPrograms) {
  const Outcome outcome = sluice({"inspect", "tales", "--tensors", "--json", "--ctx", "256"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["architecture"], "qwen3moe");
  EXPECT_TRUE(json["runnable"].get<bool>());
  EXPECT_EQ(json["plan"]["n_ctx"], 256);
  EXPECT_EQ(json["tensors"].size(), json["n_tensors"].get<std::size_t>());
  std::uint64_t tensor_bytes = 0, role_bytes = 0;
  for (const auto& tensor : json["tensors"]) tensor_bytes += tensor["bytes"].get<std::uint64_t>();
  for (const auto& [role, bytes] : json["bytes_by_role"].items()) role_bytes += bytes.get<std::uint64_t>();
  EXPECT_EQ(tensor_bytes, role_bytes);
}

TEST(Inspect, SaysWhyABudgetDoesNotFit) {
  const Outcome outcome = sluice({"inspect", "tales", "--memory", "1M"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("placement\n  none: "));
}

TEST(Completion, ScriptsKnowEveryOptionOfEveryCommand) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome script = sluice({"completion", shell});
    ASSERT_EQ(script.status, 0) << shell;
    for (const std::string& command : k_commands) {
      EXPECT_THAT(script.out, HasSubstr(command)) << shell;
      const std::set<std::string> options = options_in(sluice({command, "--help"}).out);
      EXPECT_TRUE(options.contains("--help"));
      for (const std::string& option : options) {
        const std::string spelled = std::string(shell) == "fish" ? " -l " + option.substr(2) + " " : option;
        EXPECT_THAT(script.out, HasSubstr(spelled)) << shell;
      }
    }
  }
}

std::string bash_completes(const TempDir& folder, const std::string& words, int current) {
  const std::string command = "source '" + (folder / "script").string() + "' && COMP_WORDS=(" + words +
                              ") && COMP_CWORD=" + std::to_string(current) +
                              " && _sluice && echo \"${COMPREPLY[*]}\"";
  return Process({"/bin/bash", "-c", command}, {}).wait().out;
}

TEST(Completion, BashOffersCommandsOptionsListedValuesAndModels) {
  if (access("/bin/bash", X_OK) != 0) GTEST_SKIP() << "needs /bin/bash";
  const TempDir folder;
  const std::string script = sluice({"completion", "bash"}).out;
  write_bytes(folder / "script", script.data(), script.size());
  EXPECT_EQ(bash_completes(folder, "sluice ru", 1), "run\n");
  EXPECT_EQ(bash_completes(folder, "sluice run tales --po", 3), "--policy\n");
  EXPECT_EQ(bash_completes(folder, "sluice run tales --policy lr", 4), "lru\n");
  EXPECT_EQ(bash_completes(folder, "sluice inspect tales-", 2), "tales-draft\n");
  EXPECT_EQ(bash_completes(folder, "sluice completion z", 2), "zsh\n");
  EXPECT_EQ(bash_completes(folder, "sluice perplexity tales -f '" + folder.path().string() + "/scr'", 4),
            (folder / "script").string() + "\n");
}

}  // namespace
}  // namespace sluice::test
