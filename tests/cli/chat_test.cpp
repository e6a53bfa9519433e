#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <termios.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

/// A terminal whose other end the test holds.
class Terminal {
 public:
  Terminal() {
    user_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (user_ < 0 || grantpt(user_) != 0 || unlockpt(user_) != 0) return;
    program_ = open(ptsname(user_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    termios mode = {};
    if (program_ < 0 || tcgetattr(program_, &mode) != 0) return;
    mode.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    ready_ = tcsetattr(program_, TCSANOW, &mode) == 0;
  }
  ~Terminal() {
    if (program_ >= 0) close(program_);
    if (user_ >= 0) close(user_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// What the program has written to it and nobody has read; waits up to `ms` for the first of it.
  std::string seen(int ms = 0) const {
    std::string text;
    std::array<char, 4096> block;
    pollfd wait{user_, POLLIN, 0};
    while (poll(&wait, 1, text.empty() ? ms : 0) == 1) {
      const ssize_t n = read(user_, block.data(), block.size());
      if (n <= 0) break;
      text.append(block.data(), static_cast<std::size_t>(n));
    }
    return text;
  }

  bool ready() const noexcept { return ready_; }
  int program_end() const noexcept { return program_; }
  void type(const std::string& text) const {
    ASSERT_EQ(write(user_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

 private:
  int user_ = -1;
  int program_ = -1;
  bool ready_ = false;
};

Process::Options on(const Terminal& terminal) {
  Process::Options options;
  options.input_fd = terminal.program_end();
  return options;
}

const Words k_chat{"run", "tales", "--temp", "0", "-n", "12", "--ctx", "512"};

#define SLUICE_NEEDS_TERMINAL(name) \
  const Terminal name;              \
  if (!name.ready()) GTEST_SKIP() << "needs a pseudo-terminal"

TEST(Chat, AnswersEachLineUntilExit) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process process(with_program(k_chat), on(terminal));
  terminal.type("Tell me a story.\n\nAnd then?\n/nonsense\n/stats\n/exit\n");
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("peak RSS"));
  EXPECT_THAT(outcome.err, HasSubstr("commands are"));
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
