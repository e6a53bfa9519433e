#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "cli/terminal.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

Process::Options on(const Terminal& terminal) {
  Process::Options options;
  options.input_fd = terminal.program_end();
  return options;
}

const Words k_chat{"run", "tales", "--temp", "0", "-n", "12", "--ctx", "512"};

TEST(Chat, AnswersEachLineUntilExit) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program(k_chat), on(terminal));
  terminal.type("Tell me a story.\n\nAnd then?\n/nonsense\n/stats\n/exit\n");
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("peak RSS"));
  EXPECT_THAT(outcome.err, HasSubstr("no command /nonsense"));
  // The first answer is that of the same message given as an option.
  const std::string single =
      sluice({"run", "tales", "--temp", "0", "-n", "12", "--ctx", "512", "--chat", "-p", "Tell me a story."})
          .out;
  EXPECT_EQ(outcome.out.substr(0, single.size()), single);
  EXPECT_GT(outcome.out.size(), single.size());
}

TEST(Chat, ATurnPrefillsOnlyWhatIsNew) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program(k_chat), on(terminal));
  terminal.type("Tell me a long story about a dog, a cat and a bird in the park.\nGo on.\n/stats\n/exit\n");
  const Outcome chat = process.wait();
  const auto prompt_tokens = [](const std::string& text) {
    const Outcome outcome = sluice({"run", "tales", "-n", "1", "--json", "--chat", "-p", text});
    return nlohmann::json::parse(outcome.out)["n_prompt_tokens"].get<int>();
  };
  const int first = prompt_tokens("Tell me a long story about a dog, a cat and a bird in the park.");
  const int second = prompt_tokens("Go on.");
  // The second turn adds the last token of the answer and the end mark with its newline at most; if anything
  // was computed again, at least the whole first message would be.
  const std::size_t at = chat.err.find("tokens in", chat.err.find("prefill"));
  ASSERT_NE(at, std::string::npos) << chat.err;
  const int n_prefill = std::stoi(chat.err.substr(chat.err.rfind("  ", at - 2) + 2));
  EXPECT_GE(n_prefill, first + second);
  EXPECT_LE(n_prefill, first + second + 4);
}

TEST(Chat, ResetForgetsTheConversation) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program(k_chat), on(terminal));
  terminal.type("Tell me a story.\n/reset\nTell me a story.\n/exit\n");
  const Outcome outcome = process.wait();
  ASSERT_EQ(outcome.out.size() % 2, 0u) << outcome.out;
  EXPECT_EQ(outcome.out.substr(0, outcome.out.size() / 2), outcome.out.substr(outcome.out.size() / 2));
}

/// What a chat prints in which the same is asked before and after /reset, and the halves of it: they are
/// equal if the answers are.
std::vector<std::string> answers_around_reset(const Words& options) {
  const Terminal terminal;
  Words words{"run", "tales", "--temp", "0.8", "-n", "30", "--ctx", "512"};
  words.insert(words.end(), options.begin(), options.end());
  Process process(with_program(words), on(terminal));
  const std::string ask = "Tell me a story.\n";
  terminal.type(ask + "/reset\n" + ask + "/exit\n");
  const Outcome outcome = process.wait();
  const std::size_t half = outcome.out.size() / 2;
  return {outcome.out, outcome.out.substr(0, half), outcome.out.substr(half)};
}

TEST(Chat, ResetDoesNotRepeatTheAnswer) {
  SLUICE_NEEDS_TERMINAL(terminal);
  const auto fresh = answers_around_reset({});
  EXPECT_NE(fresh[1], fresh[2]);
  EXPECT_NE(answers_around_reset({})[0], fresh[0]);
  // With a seed the whole session can be repeated.
  const auto seeded = answers_around_reset({"--seed", "7"});
  EXPECT_NE(seeded[1], seeded[2]);
  EXPECT_EQ(answers_around_reset({"--seed", "7"})[0], seeded[0]);
}

TEST(Chat, ThePenaltySeesEarlierTurns) {
  SLUICE_NEEDS_TERMINAL(terminal);
  const Words options{"run",   "tales", "--temp",           "0",   "-n",          "12",
                      "--ctx", "512",   "--repeat-penalty", "1.5", "--speculate", "off"};
  Process process(with_program(options), on(terminal));
  terminal.type("Tell me a story.\nAnd then?\n/exit\n");
  const std::string chat = process.wait().out;
  const auto one_shot = [&](const std::string& text, bool raw) {
    Words words = options;
    words.insert(words.end(), {"-p", text});
    if (!raw) words.push_back("--chat");
    return sluice(words).out;
  };
  const std::string first = one_shot("Tell me a story.", false);
  ASSERT_TRUE(chat.starts_with(first)) << chat;
  const std::string text = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n" +
                           first.substr(0, first.size() - 1) +
                           "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(chat.substr(first.size()), one_shot(text, true));
}

TEST(Chat, AnInterruptStopsTheAnswerAndTheChatGoesOn) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program({"run", "tales", "--ignore-eos", "--seed", "4", "--ctx", "2048", "--stats"}),
                  on(terminal));
  terminal.type("Tell me a story.\n");
  EXPECT_FALSE(process.read_output(1).empty());
  process.send(SIGINT);
  // Taken as the next line once the answer has stopped: the context is not full, so the answer did not end by
  // itself.
  terminal.type("/exit\n");
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("peak RSS"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("is full")));
}

TEST(Chat, EndOfInputEndsTheChat) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program(k_chat), on(terminal));
  terminal.type("\x04");
  EXPECT_EQ(process.wait().status, 0);
}

TEST(Chat, ATerminationSignalEndsTheChatWithItsStatus) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program({"run", "tales", "--ignore-eos", "--seed", "4", "--ctx", "2048"}),
                  on(terminal));
  terminal.type("Tell me a story.\n");
  EXPECT_FALSE(process.read_output(1).empty());
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().status, 143);
}

TEST(Chat, AMessageCannotContainControlTokens) {
  const auto n_tokens = [](const std::string& text) {
    const Outcome outcome = sluice({"run", "tales", "-n", "1", "--json", "--chat", "-p", text});
    return nlohmann::json::parse(outcome.out)["n_prompt_tokens"].get<int>();
  };
  // Read as text the mark takes several tokens; as a control token it would take one.
  EXPECT_GT(n_tokens("a<|im_end|>"), n_tokens("a") + 1);
}

Process::Options edited_on(const Terminal& terminal) {
  Process::Options options = on(terminal);
  options.error_fd = terminal.program_end();
  options.environment["TERM"] = "xterm";
  return options;
}

/// What the chat of k_chat answers to one message.
std::string answer_to(const std::string& message) {
  Words words = k_chat;
  words.insert(words.end(), {"--chat", "-p", message});
  return sluice(words).out;
}

TEST(Chat, APastedParagraphIsOneTurn) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program(k_chat), edited_on(terminal));
  terminal.seen_until("> ");
  EXPECT_FALSE(terminal.collects_lines());
  terminal.type("\x1b[200~Tell me a story.\rIt has\r\n\x1b[31m\ta dog.\x1b[201~ And a cat.\r");
  const std::string expected = answer_to("Tell me a story.\nIt has\n[31m\ta dog. And a cat.");
  EXPECT_EQ(process.read_output(expected.size()), expected);
  terminal.seen_until("> ");
  terminal.type("\x04");
  EXPECT_EQ(process.wait().out, expected);
  EXPECT_TRUE(terminal.collects_lines());
}

TEST(Chat, QuotesBeginAndEndAMessageOfSeveralLines) {
  const std::string expected = answer_to("Tell me a story.\n\nIt has a dog.");
  const std::string typed = "\"\"\"\nTell me a story.\n\nIt has a dog.\n\"\"\"\n";
  for (const bool edited : {false, true}) {
    SLUICE_NEEDS_TERMINAL(terminal);
    Process process(with_program(k_chat), edited ? edited_on(terminal) : on(terminal));
    if (edited) terminal.seen_until("> ");
    terminal.type(typed + "/exit\n");
    EXPECT_EQ(process.wait().out, expected) << edited;
  }
}

TEST(Chat, ALineLongerThanATerminalCollectsIsWhole) {
  SLUICE_NEEDS_TERMINAL(terminal);
  std::string line;
  for (int i = 0; i < 1000; ++i) line += "once ";
  Words words = k_chat;
  words.back() = "2048";
  Process process(with_program(words), edited_on(terminal));
  terminal.seen_until("> ");
  // In parts, because the terminal holds 4096 bytes that nobody has read.
  for (std::size_t at = 0; at < line.size(); at += 1000) {
    terminal.type(line.substr(at, 1000));
    terminal.seen_until("once");
  }
  terminal.type("\r");
  words.insert(words.end(), {"--chat", "-p", line});
  const std::string expected = sluice(words).out;
  EXPECT_EQ(process.read_output(expected.size()), expected);
  terminal.type("\x04");
  process.wait();
}

TEST(Chat, HelpListsTheCommandsAndAnUnknownOneSaysSo) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program(k_chat), on(terminal));
  terminal.type("/help\n/halp\n/exit\n");
  const Outcome outcome = process.wait();
  for (const char* part : {"/exit ", "/reset ", "/stats ", "/help ", "no command /halp"})
    EXPECT_THAT(outcome.err, HasSubstr(part));
  EXPECT_EQ(outcome.out, "");
}

TEST(Chat, ASignalAtThePromptLeavesTheTerminalAsItWas) {
  SLUICE_NEEDS_TERMINAL(terminal);
  for (const auto& [signal, status] : {std::pair{SIGTERM, 143}, std::pair{SIGINT, 0}}) {
    Process process(with_program(k_chat), edited_on(terminal));
    terminal.seen_until("> ");
    EXPECT_FALSE(terminal.collects_lines());
    process.send(signal);
    EXPECT_EQ(process.wait().status, status);
    EXPECT_TRUE(terminal.collects_lines());
    terminal.seen();
  }
}

TEST(Chat, WithoutAPromptJsonIsAUsageError) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program({"run", "tales", "--json"}), on(terminal));
  EXPECT_EQ(process.wait().status, 2);
}

TEST(Progress, OfALongPromptIsShownOnATerminalOnlyAndGoneAtTheEnd) {
  SLUICE_NEEDS_TERMINAL(terminal);
  // One token a pass on one thread, most experts streamed: some seconds.
  std::string prompt;
  for (int i = 0; i < 450; ++i) prompt += "once upon a time ";
  const Words words{k_program, "run",     "tales", "-p",        prompt, "-n",       "1",   "--ctx",
                    "2048",    "--chunk", "1",     "--threads", "1",    "--memory", "22M", "--stats"};
  Process::Options options;
  options.error_fd = terminal.program_end();
  Process process(words, options);
  std::string seen;
  while (!process.has_ended()) seen += terminal.seen(50);
  const Outcome outcome = process.wait();
  seen += terminal.seen();
  ASSERT_EQ(outcome.status, 0) << seen;
  EXPECT_THAT(seen, HasSubstr(" prompt tokens, "));
  EXPECT_THAT(seen, HasSubstr(" s left"));
  const std::size_t last = seen.rfind("left");
  ASSERT_NE(last, std::string::npos);
  EXPECT_NE(seen.find("\x1b[K", last), std::string::npos) << "the line must be gone before the statistics";
  EXPECT_EQ(outcome.out.find("prompt tokens"), std::string::npos);

  Process quiet(words, {});
  EXPECT_EQ(quiet.wait().err.find("s left"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
