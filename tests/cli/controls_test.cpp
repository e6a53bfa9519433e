// Goal: no control character of a file, a path, an argument or a model reaches a terminal or JSON as it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/output.hpp"
#include "cli/program.hpp"
#include "cli/terminal.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

/// A link, the clipboard, U+009B, DEL, and a byte that is no UTF-8.
const std::string k_hostile =
    "m\x1b]8;;x\x1b\\y\x1b]52;c;aGk=\x07\xc2\x9b"
    "31m\x7f\x9b\r.gguf";

bool has_controls(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 && byte != '\n') || byte == 0x7f) return true;
    // U+0080 to U+009F, and a lone byte of that range.
    if (byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0) return true;
    if (byte >= 0x80 && byte < 0xa0 && (i == 0 || static_cast<unsigned char>(text[i - 1]) < 0x80))
      return true;
  }
  return false;
}

TEST(Controls, OfAPathReachNeitherOutputNorErrorsOfAnyCommand) {
  const TempDir folder;
  const std::string model = (folder / k_hostile).string();
  std::filesystem::create_symlink(builtin_model("tales-draft-3.7m-Q8_0.gguf"), model);
  const std::string missing = (folder / ("no" + k_hostile)).string();
  for (const Words& words : std::vector<Words>{
           {"inspect", model, "--tensors"},
           {"inspect", model, "--tensors", "--json"},
           {"tokenize", model, "-p", k_hostile},
           {"tokenize", model, "-p", k_hostile, "--json"},
           {"tokenize", model, "-p", k_hostile, "--decode"},
           {"tokenize", missing, "-p", "x"},
           {"plan", model},
           {"plan", model, "--json"},
           {"doctor", model},
           {"doctor", model, "--json"},
           {"run", model, "-p", "Once", "-n", "2", "-v", "--stats=full"},
           {"run", model, "-p", "Once", "-n", "2", "--json"},
           {"run", model, "-p", "Once", "-n", "1", "--heat", model},
           {"run", "tales", "-p", "Once", "-n", "1", "--second-copy", model},
           {"bench", model, "-p", "4", "-n", "2", "-r", "1"},
           {"run", missing, "-p", "x"},
           {"run", k_hostile, "-p", "x"},
           {"run", model, "-f", missing},
           {"run", model, "-n", k_hostile},
           {"run", model, "--" + k_hostile},
           {"replay", model},
           {"synth", "tiny-moe", missing + "/x"},
           {"synth", k_hostile, "x"},
           {"completion", k_hostile},
           {k_hostile},
       }) {
    const Outcome outcome = sluice(words);
    EXPECT_FALSE(has_controls(outcome.out)) << words.front() << ": " << outcome.out;
    EXPECT_FALSE(has_controls(outcome.err)) << words.front() << ": " << outcome.err;
    EXPECT_FALSE(outcome.out.empty() && outcome.err.empty()) << words.front();
  }
}

TEST(Controls, OfJsonComeBackFromIt) {
  const TempDir folder;
  const std::string name =
      "a\x1b\x7f\xc2\x9b"
      "b.gguf";
  std::filesystem::create_symlink(builtin_model("tales-draft-3.7m-Q8_0.gguf"), folder / name);
  const Outcome outcome = sluice({"inspect", (folder / name).string(), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_FALSE(has_controls(outcome.out));
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["path"], (folder / name).string());
}

/// What `descriptor` gets when it is standard output.
void write_answer_to(int descriptor, const std::string& text) {
  const int before = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  ASSERT_GE(before, 0);
  ASSERT_EQ(dup2(descriptor, STDOUT_FILENO), STDOUT_FILENO);
  {
    cli::Output output;
    output.write_answer(text);
  }
  ASSERT_EQ(dup2(before, STDOUT_FILENO), STDOUT_FILENO);
  close(before);
}

TEST(Controls, OfAnAnswerAreShownOnATerminalAndKeptInAPipe) {
  SLUICE_NEEDS_TERMINAL(terminal);
  const std::string answer = "a\x1b[2J\r\n\tb\xc2\x9b\xc3\xa9";
  write_answer_to(terminal.program_end(), answer);
  const std::string seen = terminal.seen_until("\xc3\xa9");
  EXPECT_THAT(seen, HasSubstr("a\\x1b[2J"));
  EXPECT_THAT(seen, HasSubstr("b\\xc2\\x9b\xc3\xa9"));
  EXPECT_EQ(seen.find('\x1b'), std::string::npos);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  write_answer_to(ends[1], answer);
  std::string piped(answer.size(), '\0');
  EXPECT_EQ(read(ends[0], piped.data(), piped.size()), static_cast<ssize_t>(piped.size()));
  EXPECT_EQ(piped, answer);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace sluice::test
