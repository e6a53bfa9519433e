// Goal: the bytes of a prompt mean what its writer meant, however long they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Outcome run_file(const std::string& bytes, const Words& more = {}) {
  Process::Options options;
  options.input = bytes;
  Words words{"run", "tales-draft", "-f", "-", "--temp", "0", "--heat", "off", "--json", "-n", "5"};
  words.insert(words.end(), more.begin(), more.end());
  return sluice(words, options);
}

nlohmann::json json_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

TEST(Prompt, AMarkAtTheStartAndOneNewlineAtTheEndDoNotCount) {
  const auto plain = json_of(run_file("Once upon a time"));
  for (const char* bytes : {"Once upon a time\n", "\xef\xbb\xbfOnce upon a time", "Once upon a time\r\n"}) {
    const auto other = json_of(run_file(bytes));
    EXPECT_EQ(other["n_prompt_tokens"], plain["n_prompt_tokens"]) << bytes;
    EXPECT_EQ(other["text"], plain["text"]) << bytes;
  }
  EXPECT_GT(json_of(run_file("Once upon a time\n\n"))["n_prompt_tokens"], plain["n_prompt_tokens"]);
}

TEST(Prompt, WindowsLineEndsAreNewlinesAndOtherBytesStay) {
  const auto newline = json_of(run_file("One\nTwo"));
  EXPECT_EQ(json_of(run_file("One\r\nTwo"))["n_prompt_tokens"], newline["n_prompt_tokens"]);
  EXPECT_EQ(json_of(run_file("One\r\nTwo"))["text"], newline["text"]);
  // A carriage return alone and NUL are bytes like others.
  EXPECT_GT(json_of(run_file("One\rTwo"))["n_prompt_tokens"], json_of(run_file("OneTwo"))["n_prompt_tokens"]);
  EXPECT_GT(json_of(run_file(std::string("One\0Two", 7)))["n_prompt_tokens"],
            json_of(run_file("One"))["n_prompt_tokens"].get<int>() + 1);
}

TEST(Prompt, APromptThatIsOnlyANewlineIsEmpty) {
  for (const char* bytes : {"", "\n", "\r\n", "\xef\xbb\xbf"}) {
    const Outcome outcome = run_file(bytes);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("the prompt is empty"));
  }
}

TEST(Prompt, EscapesAreReadOnlyWhenAskedFor) {
  const auto run = [](const Words& more) {
    Words words{"run", "tales-draft", "--temp", "0", "--heat", "off", "--json", "-n", "60"};
    words.insert(words.end(), more.begin(), more.end());
    return json_of(sluice(words));
  };
  const auto newline = run({"-p", "One\nTwo"});
  EXPECT_EQ(run({"-p", R"(One\nTwo)", "-e"})["text"], newline["text"]);
  EXPECT_EQ(run({"-p", R"(\x4fne\x0aTwo)", "--escapes"})["text"], newline["text"]);
  EXPECT_GT(run({"-p", R"(One\nTwo)"})["n_prompt_tokens"], newline["n_prompt_tokens"]);
  EXPECT_EQ(run({"-p", R"(a\\b\q\x4)", "-e"})["n_prompt_tokens"],
            run({"-p", R"(a\b\q\x4)"})["n_prompt_tokens"]);
  const std::string text = newline["text"];
  ASSERT_NE(text.find(" the"), std::string::npos) << text;
  EXPECT_EQ(run({"-p", R"(One\nTwo)", "-e", "--stop", R"(\x20the)"})["text"],
            text.substr(0, text.find(" the")));
}

TEST(Prompt, TheContextIsFilledToTheLastTokenAndNeverCut) {
  std::string prompt;
  for (int i = 0; i < 50; ++i) prompt += "the ";
  const int n_tokens = json_of(run_file(prompt, {"--ctx", "256"}))["n_prompt_tokens"];
  const auto with_context = [&](int n_ctx) {
    return run_file(prompt, {"--ctx", std::to_string(n_ctx), "--ignore-eos", "-n", "0"});
  };
  const Outcome refused = with_context(n_tokens - 1);
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("the prompt has " + std::to_string(n_tokens) + " tokens"));
  for (int n_more : {0, 1, 2}) {
    const auto json = json_of(with_context(n_tokens + n_more));
    EXPECT_EQ(json["n_prompt_tokens"], n_tokens);
    // The last token that is drawn needs no room.
    EXPECT_EQ(json["tokens"].size(), static_cast<std::size_t>(n_more + 1));
    EXPECT_EQ(json["reason"], "context_full");
  }
}

TEST(Prompt, LongWordsAndManyMarksAreRefusedForTheirLengthOnly) {
  const auto repeat = [](const std::string& text, int n) {
    std::string result;
    for (int i = 0; i < n; ++i) result += text;
    return result;
  };
  for (const std::string& prompt :
       {std::string(1'000'000, 'a'), std::string(1'000'000, ' '),
        repeat("<|im_start|>user\nhi<|im_end|>\n", 20'000), repeat("<|im_", 200'000),
        repeat("\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9", 60'000)}) {
    const Outcome outcome = run_file(prompt);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("the prompt has "));
  }
}

TEST(Prompt, AReadThatFailsKeepsTheAnswerSoFarAndTheStatistics) {
  const TempDir folder;
  const std::filesystem::path model = folder / "model.gguf";
  std::filesystem::copy_file(builtin_model("tales-29m-moe-Q4_K_M.gguf"), model);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Process::Options options;
  options.error_fd = ends[1];
  Process process(with_program({"run", model.string(), "-p", "Once upon a time", "--ignore-eos", "--ctx",
                                "2048", "--memory", "24M", "--json", "-v", "--stats"}),
                  options);
  close(ends[1]);
  std::string errors;
  const auto read_more = [&] {
    char block[4096];
    const ssize_t n = read(ends[0], block, sizeof block);
    if (n > 0) errors.append(block, static_cast<std::size_t>(n));
    return n > 0;
  };
  // The plan is printed when the model is open.
  while (errors.find("all in memory from") == std::string::npos && read_more()) {
  }
  std::filesystem::resize_file(model, 1 << 20);
  while (read_more()) {
  }
  close(ends[0]);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.status, 1);
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["reason"], "error");
  EXPECT_THAT(json["error"].get<std::string>(), HasSubstr("model.gguf"));
  EXPECT_THAT(errors, HasSubstr("peak RSS"));
  EXPECT_THAT(errors, HasSubstr("sluice: error: "));
}

TEST(Prompt, AnOutputThatDoesNotBlockIsWaitedFor) {
  Process::Options options;
  options.small_output = true;
  const Words words{"inspect", "tales", "--tensors", "--json"};
  const std::string expected = sluice(words).out;
  ASSERT_GT(expected.size(), 3 * 4096u);
  EXPECT_EQ(sluice(words, options).out.size(), expected.size());
}

}  // namespace
}  // namespace sluice::test
