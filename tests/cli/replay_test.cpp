// Goal: a run's routing can be written and replayed, and use counts are kept from run to run, without either
// ever costing an answer. Method: the program itself on the built-in model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

/// 24 tokens under a budget that holds a part of the experts.
Words story(Words more = {}) {
  Words words{"run", "tales", "-p",  "Once upon a time", "-n",  "24",        "--temp",
              "0",   "--ctx", "256", "--memory",         "22M", "--threads", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Process::Options with_cache(const TempDir& folder) {
  Process::Options options;
  options.environment["XDG_CACHE_HOME"] = folder.path().string();
  return options;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

nlohmann::json json_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

TEST(Trace, ARunCanBeRecordedAndReplayed) {
  const TempDir folder;
  const std::string path = (folder / "trace.jsonl").string();
  const Outcome plain = sluice(story());
  const Outcome traced = sluice(story({"--trace", path}));
  EXPECT_EQ(traced.status, 0) << traced.err;
  EXPECT_EQ(traced.out, plain.out);
  EXPECT_EQ(traced.err, "");

  const auto report = json_of(sluice({"replay", path, "--json", "--warmup", "0"}));
  EXPECT_EQ(report["format"], "sluice-trace 1");
  EXPECT_EQ(report["n_layers"], 8);
  EXPECT_EQ(report["n_experts"], 32);
  EXPECT_EQ(report["n_experts_used"], 4);
  const int n_prompt = report["n_prompt_tokens"];
  EXPECT_GT(n_prompt, 1);
  EXPECT_EQ(report["n_tokens"], n_prompt + 23) << "the last token is never fed back";
  EXPECT_EQ(report["n_counted_tokens"], 23);
  EXPECT_EQ(report["results"].size(), 6u * 9u);
  for (const auto& result : report["results"]) {
    EXPECT_EQ(result["n_wanted"], 23 * 8 * 4);
    EXPECT_LE(result["n_hits"], result["n_wanted"]);
    EXPECT_GT(result["missed_bytes"], 0);
  }

  const Outcome table =
      sluice({"replay", path, "--policy", "lfru", "--policy", "belady", "--share", "12.5,50"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("12.5 %"));
  EXPECT_THAT(table.out, HasSubstr("\nlfru "));
  EXPECT_THAT(table.out, HasSubstr("\nbelady "));
  EXPECT_THAT(table.out, ::testing::Not(HasSubstr("global")));
  EXPECT_THAT(sluice({"replay", path, "--slots", "3,4"}).out, HasSubstr("3 slots"));
}

TEST(Trace, AFullDiskEndsTheTraceAndNotTheRun) {
  const Outcome plain = sluice(story());
  const Outcome traced = sluice(story({"--trace", "/dev/full"}));
  EXPECT_EQ(traced.status, 0);
  EXPECT_EQ(traced.out, plain.out);
  EXPECT_THAT(traced.err, StartsWith("sluice: warning: the routing trace /dev/full ends"));
  EXPECT_EQ(std::count(traced.err.begin(), traced.err.end(), '\n'), 1) << traced.err;
}

TEST(Trace, FilesThatCannotBeWrittenAndDenseModelsAreErrors) {
  const auto expect_error = [](const Outcome& outcome, const std::string& part) {
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, StartsWith("sluice: error: "));
    EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_EQ(outcome.out, "");
  };
  const TempDir folder;
  expect_error(sluice(story({"--trace", "/nowhere/at/all"})), "/nowhere/at/all");
  write_bytes(folder / "model.gguf", "GGUF", 4);
  expect_error(sluice(story({"--trace", (folder / "model.gguf").string()})), "is not replaced");
  expect_error(sluice({"run", "tales-draft", "-p", "a", "-n", "1", "--trace", (folder / "trace").string()}),
               "has no experts");
}

TEST(Replay, WrongTracesAndOptionsAreOneLine) {
  const TempDir folder;
  const std::string path = (folder / "trace").string();
  const std::string text = "{\"tok\": 1, \"layers\": [[0, 1]]}\n{\"tok\": 2, \"layers\": [[0, 70000]]}\n";
  write_bytes(path, text.data(), text.size());
  const Outcome outcome = sluice({"replay", path});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, StartsWith("sluice: error: " + path + ": line 2: byte "));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  for (const Words& wrong : std::vector<Words>{{"replay"},
                                               {"replay", path, "--policy", "fifo"},
                                               {"replay", path, "--share", "101"},
                                               {"replay", path, "--share", "1", "--slots", "1"},
                                               {"replay", path, "--slots", "-1"}}) {
    EXPECT_EQ(sluice(wrong).status, 2) << wrong.back();
  }
}

TEST(Heat, CountsAreKeptInTheCacheFolderAndChangeNoToken) {
  const TempDir folder;
  const Outcome first = sluice(story({"--json"}), with_cache(folder));
  const std::vector<fs::path> files = files_in(folder / "sluice" / "heat");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_THAT(files.front().filename().string(), StartsWith("Sluice-Tales-29M-MoE-"));
  const Outcome second = sluice(story({"--json"}), with_cache(folder));
  EXPECT_EQ(first.err + second.err, "");
  const auto cold = json_of(first), warm = json_of(second);
  EXPECT_EQ(cold["tokens"], warm["tokens"]);
  EXPECT_EQ(cold["stats"]["n_preloaded"], 0);
  EXPECT_GT(warm["stats"]["n_preloaded"], 0);
  const auto heat = nlohmann::json::parse(read_text(files.front()));
  EXPECT_GT(heat["tokens"], cold["stats"]["n_prefill_tokens"].get<int>() * 2) << "both runs count";
}

TEST(Heat, CanBeOffOrAFileOfItsOwn) {
  const TempDir folder;
  EXPECT_EQ(sluice(story({"--heat", "off"}), with_cache(folder)).err, "");
  EXPECT_TRUE(files_in(folder.path()).empty());
  EXPECT_EQ(sluice(story({"--heat", (folder / "mine.json").string()}), with_cache(folder)).err, "");
  EXPECT_EQ(files_in(folder.path()), std::vector<fs::path>{folder / "mine.json"});
  Process::Options homeless;
  homeless.environment = {{"XDG_CACHE_HOME", "relative"}, {"HOME", ""}};
  const Outcome outcome = sluice(story(), homeless);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(Heat, WhatIsWrongWithTheFileIsOneWarning) {
  const TempDir folder;
  const std::string expected = sluice(story({"--heat", "off"})).out;
  const fs::path notes = folder / "notes";
  write_bytes(notes, "milk", 4);
  const fs::path cut = folder / "cut";
  ASSERT_EQ(sluice(story({"--heat", cut.string()})).status, 0);
  fs::resize_file(cut, fs::file_size(cut) / 2);
  for (const fs::path& path : {cut, notes / "not-a-folder"}) {
    const Outcome outcome = sluice(story({"--heat", path.string()}));
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, expected);
    EXPECT_THAT(outcome.err, StartsWith("sluice: warning: the heat file " + path.string()));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  // What is no heat file: that it is not used is said at the start, that it is left alone at the end.
  EXPECT_THAT(sluice(story({"--heat", notes.string()})).err, HasSubstr("no heat file and is left as it is"));
  EXPECT_EQ(read_text(notes), "milk");
}

TEST(Heat, AKilledRunLeavesNothing) {
  const TempDir folder;
  Process process(with_program({"run", "tales", "-p", "Once upon a time", "--ignore-eos", "--ctx", "2048"}),
                  with_cache(folder));
  EXPECT_FALSE(process.read_output(100).empty());
  process.send(SIGKILL);
  EXPECT_EQ(process.wait().status, 1000 + SIGKILL);
  EXPECT_TRUE(files_in(folder / "sluice" / "heat").empty());
}

}  // namespace
}  // namespace sluice::test
