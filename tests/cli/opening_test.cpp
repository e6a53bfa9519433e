// Goal: while a model opens a terminal shows how far that is, signals end it cleanly, and what the header is
// enough to refuse is refused before any weight is read.
#include "cli/opening.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <chrono>

#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "support/edited_model.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;
using std::chrono::milliseconds;

TEST(Opening, ProgressNamesStageShareBytesAndRate) {
  const std::uint64_t gib = std::uint64_t{1} << 30;
  EXPECT_EQ(cli::open_progress({OpenStage::weights, gib, 4 * gib}, gib, milliseconds(500)),
            "reading weights: 25 % of 4.00 GiB, 2.15 GB/s");
  EXPECT_EQ(cli::open_progress({OpenStage::experts, 3 * gib, 4 * gib}, gib, milliseconds(1000)),
            "reading experts: 75 % of 4.00 GiB, 1.07 GB/s");
  EXPECT_EQ(cli::open_progress({OpenStage::memory, gib, 4 * gib}, gib, milliseconds(500)),
            "taking memory for experts: 25 % of 4.00 GiB");
  // Nothing is divided by nothing.
  EXPECT_EQ(cli::open_progress({OpenStage::weights, 0, 0}, 0, milliseconds(0)),
            "reading weights: 100 % of 0 B");
}

/// Standard error is the terminal while it lives.
class ErrorsTo {
 public:
  explicit ErrorsTo(const Terminal& terminal) : saved_(dup(STDERR_FILENO)) {
    dup2(terminal.program_end(), STDERR_FILENO);
  }
  ~ErrorsTo() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
  }
  ErrorsTo(const ErrorsTo&) = delete;
  ErrorsTo& operator=(const ErrorsTo&) = delete;

 private:
  int saved_;
};

TEST(Opening, TheLineComesAfterHalfASecondAndIsCleared) {
  SLUICE_NEEDS_TERMINAL(terminal);
  const ErrorsTo errors(terminal);
  std::string seen;
  const auto start = std::chrono::steady_clock::now();
  {
    cli::OpenProgressLine line;
    while (seen.empty() && std::chrono::steady_clock::now() - start < std::chrono::minutes(1)) {
      line.show({OpenStage::weights, 1 << 20, 4 << 20});
      seen = terminal.seen();
    }
    EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(500));
    EXPECT_THAT(seen, HasSubstr("reading weights: 25 % of 4.00 MiB"));
  }
  EXPECT_EQ(terminal.seen(1000), "\r\x1b[K");
}

TEST(Opening, AModelThatOpensAtOnceShowsNothing) {
  SLUICE_NEEDS_TERMINAL(terminal);
  Process::Options options;
  options.error_fd = terminal.program_end();
  Process process(with_program({"run", "tales-draft", "-p", "Once", "-n", "1"}), options);
  EXPECT_EQ(process.wait().status, 0);
  EXPECT_THAT(terminal.seen(), Not(HasSubstr("reading weights")));
}

TEST(Opening, ASignalInItEndsTheProgramWithoutAMessage) {
  const TempDir folder;
  const std::string model = (folder / "m.gguf").string();
  ASSERT_EQ(sluice({"synth", "tiny-moe", model}).status, 0);
  // Wherever the signal finds it, from the first moment after the prompt was read.
  for (const int signal : {SIGINT, SIGTERM}) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    Process::Options options;
    options.input_fd = ends[0];
    Process process(with_program({"run", model, "-f", "-", "--ignore-eos", "--heat", "off"}), options);
    close(ends[0]);
    ASSERT_EQ(write(ends[1], "Once", 4), 4);
    // A full read of the pipe shows that the handlers are set.
    int waiting = 4;
    while (waiting != 0 && !process.has_ended()) ioctl(ends[1], FIONREAD, &waiting);
    close(ends[1]);
    process.send(signal);
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.status, 128 + signal);
    EXPECT_THAT(outcome.err, Not(HasSubstr("error")));
  }
}

/// The small built-in model with zeros where only loading looks, so that loading it is an error.
class Unloadable {
 public:
  Unloadable() : model_(builtin_model("tales-draft-3.7m-Q8_0.gguf")) {
    // Reads before loading look at the middle.
    auto& bytes = model_.tensor("blk.0.ffn_up.weight").bytes;
    std::fill(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() * 2 / 5), std::byte{0});
  }
  EditedModel& model() { return model_; }
  std::string write() {
    model_.write(folder_ / "m.gguf");
    return (folder_ / "m.gguf").string();
  }
  std::string text_file() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "Once upon a time there was a dog. ";
    write_bytes(folder_ / "text", text.data(), text.size());
    return (folder_ / "text").string();
  }

 private:
  TempDir folder_;
  EditedModel model_;
};

std::string error_of(Words words, const Process::Options& options = {}) {
  const Outcome outcome = sluice(std::move(words), options);
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  return outcome.err;
}

TEST(BeforeLoading, APromptThatDoesNotFitIsRefused) {
  Unloadable unloadable;
  const std::string model = unloadable.write();
  const Words run{"run", model, "--heat", "off", "--ctx", "16"};
  const auto with = [&run](Words more) {
    more.insert(more.begin(), run.begin(), run.end());
    return error_of(more);
  };
  const std::string longer = "One two three four five six seven eight nine ten eleven twelve thirteen more.";
  EXPECT_THAT(with({"-p", "Hi"}), HasSubstr("are all zero")) << "loading it must fail";
  EXPECT_THAT(with({"-p", longer}), HasSubstr("the prompt has "));
  EXPECT_THAT(with({"-p", "Hi", "--system", longer}), HasSubstr("the prompt has "));
  EXPECT_THAT(with({"-p", ""}), HasSubstr("no tokens"));
}

TEST(BeforeLoading, ATextWithoutTwoWindowsIsRefused) {
  Unloadable unloadable;
  const std::string model = unloadable.write(), text = unloadable.text_file();
  EXPECT_THAT(error_of({"perplexity", model, "-f", text, "--ctx", "64"}), HasSubstr("are all zero"));
  EXPECT_THAT(error_of({"perplexity", model, "-f", text, "--ctx", "2000"}), HasSubstr("two windows"));
}

TEST(BeforeLoading, AFileWithoutAVocabularyIsRefused) {
  Unloadable unloadable;
  unloadable.model().metadata.set("tokenizer.ggml.model", {gguf::ValueType::string, std::string("no_vocab")});
  const std::string model = unloadable.write(), text = unloadable.text_file();
  const std::string error = model + ": the file has no vocabulary";
  EXPECT_THAT(error_of({"run", model, "-p", "Hi", "--heat", "off"}), HasSubstr(error));
  EXPECT_THAT(error_of({"perplexity", model, "-f", text, "--ctx", "64"}), HasSubstr(error));
  SLUICE_NEEDS_TERMINAL(terminal);
  Process::Options options;
  options.input_fd = terminal.program_end();
  EXPECT_THAT(error_of({"run", model, "--heat", "off"}, options), HasSubstr(error));
  // Random tokens need none: loading begins.
  EXPECT_THAT(error_of({"bench", model, "-p", "4", "-n", "1", "-r", "1"}), HasSubstr("are all zero"));
}

TEST(BeforeLoading, AnUnknownPreTokenizerIsRefused) {
  Unloadable unloadable;
  EXPECT_THAT(error_of({"run", unloadable.write(), "-p", "Hi", "--pre-tokenizer", "what"}),
              HasSubstr("\"what\""));
}

TEST(BeforeLoading, AnotherVocabularyThanTheDraftsIsRefused) {
  Unloadable unloadable;
  gguf::Value tokens = *unloadable.model().metadata.find("tokenizer.ggml.tokens");
  auto& strings = std::get<gguf::StringArray>(std::get<gguf::Array>(tokens.data).data);
  gguf::StringArray renamed;
  for (std::size_t i = 0; i < strings.size(); ++i) renamed.push_back(i == 0 ? "<other>" : strings[i]);
  strings = renamed;
  unloadable.model().metadata.set("tokenizer.ggml.tokens", std::move(tokens));
  EXPECT_THAT(error_of({"run", unloadable.write(), "-p", "Hi", "--draft", "tales-draft", "--heat", "off"}),
              HasSubstr("<other>"));
}

TEST(BeforeLoading, AChatWithoutAFormIsNoted) {
  Unloadable unloadable;
  gguf::Value tokens = *unloadable.model().metadata.find("tokenizer.ggml.tokens");
  auto& strings = std::get<gguf::StringArray>(std::get<gguf::Array>(tokens.data).data);
  gguf::StringArray renamed;
  for (std::size_t i = 0; i < strings.size(); ++i)
    renamed.push_back(strings[i] == "<|im_start|>" ? "<mark>" : strings[i]);
  strings = renamed;
  unloadable.model().metadata.set("tokenizer.ggml.tokens", std::move(tokens));
  unloadable.model().metadata.set("tokenizer.chat_template", {gguf::ValueType::string, std::string()});
  const std::string errors = error_of({"run", unloadable.write(), "--chat", "-p", "Hi", "--heat", "off"});
  EXPECT_THAT(errors, StartsWith("sluice: note: the file names no form of chat"));
  EXPECT_THAT(errors, HasSubstr("are all zero"));
}

}  // namespace
}  // namespace sluice::test
