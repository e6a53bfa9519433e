// Goal: where a sandbox, a container or a file system refuses fast ways to read, the program reads in a
// slower one, says so and writes the same text. Method: the program runs under filters of system calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <cerrno>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "support/refused_calls.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> run_words(const std::string& io) {
  return {"run", "tales", "-p", "Once upon a time", "-n", "12", "--temp", "0", "--heat", "off", "--memory",
          "24M", "--io",  io,   "--stats"};
}

std::string backend_line(const std::string& stats) {
  const std::size_t at = stats.find("backend");
  return at == std::string::npos ? stats : stats.substr(at, stats.find('\n', at) - at);
}

struct Refusal {
  std::string name;
  std::vector<RefusedCall> calls;
  std::string said;  ///< In the line of the backend.
};

class Sandbox : public ::testing::TestWithParam<Refusal> {};

TEST_P(Sandbox, WritesTheSameTextAndSaysHowItReads) {
  const Outcome free = sluice(run_words("auto"));
  ASSERT_EQ(free.status, 0) << free.err;
  Outcome refused;
  if (!with_refused_calls(GetParam().calls, [&] { refused = sluice(run_words("auto")); }))
    GTEST_SKIP() << "this system has no filters of system calls";
  EXPECT_EQ(refused.status, 0) << refused.err;
  EXPECT_EQ(refused.out, free.out);
  EXPECT_THAT(backend_line(refused.err), HasSubstr(GetParam().said));
}

RefusedCall refuse(long number, int error) {
  return {number, error};
}

INSTANTIATE_TEST_SUITE_P(
    Calls, Sandbox,
    ::testing::Values(
        Refusal{"AllOfUringForbidden",
                {refuse(SYS_io_uring_setup, EPERM), refuse(SYS_io_uring_enter, EPERM),
                 refuse(SYS_io_uring_register, EPERM)},
                "pread (io_uring: "},
        Refusal{"NoUringInTheKernel", {refuse(SYS_io_uring_setup, ENOSYS)}, "pread (io_uring: "},
        Refusal{"NoMemoryForARing", {refuse(SYS_io_uring_setup, ENOMEM)}, "pread (io_uring: "},
        Refusal{"OnlyEnterForbidden", {refuse(SYS_io_uring_enter, EPERM)}, "pread (io_uring: "},
        Refusal{"OnlyRegisterForbidden", {refuse(SYS_io_uring_register, EPERM)}, "pread (io_uring: "},
        Refusal{"NoDirectReads", {{SYS_openat, EINVAL, 2, O_DIRECT, O_DIRECT}}, "buffered ("}),
    [](const auto& test) { return test.param.name; });

TEST(Sandbox, AskingForAForbiddenRingIsAnError) {
  for (const long number : {SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register}) {
    const RefusedCall calls[] = {refuse(number, EPERM)};
    Outcome outcome;
    if (!with_refused_calls(calls, [&] { outcome = sluice(run_words("uring")); }))
      GTEST_SKIP() << "this system has no filters of system calls";
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("io_uring"));
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace sluice::test
