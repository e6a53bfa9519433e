// Goal: what is written can be read back, and neither a foreign file nor a full disk costs anything but the
// trace. Method: files in temporary folders, /dev/full, and a child with a limit on file sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "replay/trace_support.hpp"
#include "sluice/model.hpp"
#include "sluice/routing.hpp"

namespace sluice {
namespace {

using ::testing::HasSubstr;

ModelInfo some_info() {
  ModelInfo info;
  info.name = "odd \"name\" \\ \n";
  info.architecture = "qwen3moe";
  info.n_experts = 4;
  info.n_experts_used = 2;
  info.expert_bytes = {10, 20};
  return info;
}

const std::vector<std::uint16_t> k_prompt{0, 1, 2, 3, 1, 0, 3, 2, 0, 2, 1, 3};  // 2 layers of 3 tokens
const std::vector<std::uint16_t> k_decoded{3, 1, 0, 2};

void write_some(const std::filesystem::path& path, int n_decoded = 1) {
  TraceWriter writer(path);
  const RoutingObserver observer = writer.observer();
  writer.begin(some_info(), 16);
  observer({false, 3, 2, 2, k_prompt});
  for (int i = 0; i < n_decoded; ++i) observer({true, 1, 2, 2, k_decoded});
}

TEST(TraceWriter, WritesWhatTheReaderReads) {
  const test::TempDir dir;
  write_some(dir / "trace");
  const RoutingTrace trace = read_trace(dir / "trace");
  EXPECT_EQ(trace.format, "sluice-trace 1");
  EXPECT_EQ(trace.model, some_info().name);
  EXPECT_EQ(trace.architecture, "qwen3moe");
  EXPECT_EQ(trace.prompt_chunk, 16u);
  EXPECT_EQ(trace.expert_bytes, some_info().expert_bytes);
  EXPECT_EQ(trace.is_prompt, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(trace.experts, (std::vector<std::uint16_t>{0, 1, 3, 2, 2, 3, 0, 2, 1, 0, 1, 3, 3, 1, 0, 2}));
  const std::string text = test::read_text(dir / "trace");
  EXPECT_THAT(text, HasSubstr("{\"tok\": 4, \"phase\": \"decode\", \"layers\": [[3, 1], [0, 2]]}\n"));
}

TEST(TraceWriter, ReplacesAnEarlierTraceAndNothingElse) {
  const test::TempDir dir;
  write_some(dir / "trace", 100);
  write_some(dir / "trace", 1);
  EXPECT_EQ(read_trace(dir / "trace").n_tokens(), 4u);
  const std::string text = "GGUF, or a letter to my mother";
  test::write_bytes(dir / "letter", text.data(), text.size());
  try {
    TraceWriter writer(dir / "letter");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr((dir / "letter").string()));
  }
  EXPECT_EQ(test::read_text(dir / "letter"), text);
}

TEST(TraceWriter, AFileThatCannotBeCreatedIsAnErrorWithItsPath) {
  try {
    TraceWriter writer("/nowhere/at/all/trace");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/at/all/trace"));
  }
}

TEST(TraceWriter, RefusesModelsWithoutExperts) {
  const test::TempDir dir;
  TraceWriter writer(dir / "trace");
  EXPECT_THROW(writer.begin({}, 16), Error);
}

TEST(TraceWriter, AFullDeviceIsOneWarningAndNoError) {
  ::testing::internal::CaptureStderr();
  write_some("/dev/full", 10'000);
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, HasSubstr("/dev/full"));
  EXPECT_THAT(warnings, HasSubstr("No space left"));
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
}

TEST(TraceWriter, ATraceThatIsCutShortCanStillBeRead) {
  const test::TempDir dir;
  // The limit on file sizes stands for the full disk; a child, because it cannot be raised again.
  const pid_t child = fork();
  if (child == 0) {
    const struct rlimit limit = {100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    close(STDERR_FILENO);
    write_some(dir / "trace", 10'000);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  const std::uint32_t n_tokens = read_trace(dir / "trace").n_tokens();
  EXPECT_GT(n_tokens, 500u);
  EXPECT_LT(n_tokens, 10'000u);
}

}  // namespace
}  // namespace sluice
