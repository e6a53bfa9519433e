// Goal: a stop signal ends every command in every phase with 128 + its number, as process 1 of a container
// too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "cli/program.hpp"

namespace sluice::test {
namespace {

using ::testing::Not;
using Words = std::vector<std::string>;

/// A pipe with a name: opening its other end waits until the program has opened it.
class Fifo {
 public:
  explicit Fifo(const std::filesystem::path& path) : path_(path.string()) {
    if (mkfifo(path_.c_str(), 0600) != 0) throw std::runtime_error("mkfifo");
  }
  ~Fifo() {
    if (fd_ >= 0) close(fd_);
  }
  Fifo(const Fifo&) = delete;
  Fifo& operator=(const Fifo&) = delete;
  const std::string& path() const { return path_; }
  void wait_for_reader() { fd_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC); }

 private:
  std::string path_;
  int fd_ = -1;
};

TEST(Signals, EndACommandThatWaitsForItsInput) {
  for (const auto& [signal, status] :
       {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}, std::pair{SIGHUP, 129}}) {
    const TempDir folder;
    Fifo fifo(folder / "input");
    for (const Words& words :
         {Words{"run", "tales", "-f", fifo.path()}, Words{"perplexity", "tales", "-f", fifo.path()},
          Words{"tokenize", "tales", "-f", fifo.path()}, Words{"replay", fifo.path()}}) {
      Process process(with_program(words), {});
      fifo.wait_for_reader();
      process.send(signal);
      EXPECT_EQ(process.wait().status, status) << words.front();
    }
  }
}

TEST(Signals, EndAMeasurement) {
  for (const Words& words : {Words{"profile", "--seconds", "600"},
                             Words{"bench", "tales", "-p", "8", "-n", "2000", "-r", "1000"}}) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    Process::Options options;
    options.error_fd = ends[1];
    Process process(with_program(words), options);
    close(ends[1]);
    // It says what it measures, or the first result.
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    process.send(SIGTERM);
    EXPECT_EQ(process.wait().status, 143) << words.front();
    close(ends[0]);
  }
}

TEST(Signals, ASecondOneEndsTheProgramAtOnce) {
  // The statistics behind the answer go to a pipe that is full and that nobody reads, so the first signal
  // alone would never end it.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const std::string block(4096, 'x');
  while (write(ends[1], block.data(), block.size()) > 0) {
  }
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);
  Process::Options options;
  options.error_fd = ends[1];
  Process process(with_program({"run", "tales", "-p", "Once", "--ignore-eos", "--ctx", "2048", "--stats"}),
                  options);
  EXPECT_FALSE(process.read_output(1).empty());
  process.send(SIGINT);
  process.send(SIGTERM);
  const int status = process.wait().status;
  EXPECT_TRUE(status == 130 || status == 143) << status;
  close(ends[0]);
  close(ends[1]);
}

TEST(Signals, EndProcessOneOfAContainer) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root for a PID namespace";
  const Words unshare{"/usr/bin/unshare", "--pid", "--fork", "--kill-child"};
  Words probe = unshare;
  probe.push_back("/bin/true");
  if (access(unshare.front().c_str(), X_OK) != 0 || Process(probe, {}).wait().status != 0)
    GTEST_SKIP() << "needs unshare(1) and the right to make a PID namespace";
  const TempDir folder;
  Fifo fifo(folder / "input");
  // unshare(1) ignores the signals; its child is process 1 and says its number outside.
  Words words = unshare;
  words.insert(words.end(), {k_program, "run", "tales", "-f", fifo.path()});
  Process process(words, {});
  fifo.wait_for_reader();
  const std::string children = read_text("/proc/" + std::to_string(process.pid()) + "/task/" +
                                         std::to_string(process.pid()) + "/children");
  if (children.empty()) GTEST_SKIP() << "the kernel does not list children";
  kill(std::stoi(children), SIGINT);
  EXPECT_EQ(process.wait().status, 130);
}

}  // namespace
}  // namespace sluice::test
