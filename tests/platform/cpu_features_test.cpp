// Goal: the instruction set can be chosen by name, and an impossible choice is refused with a message that
// helps.
#include "platform/cpu_features.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <optional>

#include "sluice/error.hpp"

namespace sluice::platform {
namespace {

using ::testing::HasSubstr;

class IsaVariable {
 public:
  explicit IsaVariable(const char* value) {
    if (const char* old = std::getenv("SLUICE_ISA")) before_ = old;
    value != nullptr ? setenv("SLUICE_ISA", value, 1) : unsetenv("SLUICE_ISA");
  }
  ~IsaVariable() { before_ ? setenv("SLUICE_ISA", before_->c_str(), 1) : unsetenv("SLUICE_ISA"); }

 private:
  std::optional<std::string> before_;
};

TEST(Isa, NamesAreParsedBack) {
  for (Isa isa : all_isas()) EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  for (const char* name : {"", "AVX2", "avx", "avx2 ", "unknown"})
    EXPECT_EQ(parse_isa(name), std::nullopt) << name;
}

TEST(Isa, ScalarIsAlwaysSupportedAndFirst) {
  const auto isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::scalar);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
}

TEST(Isa, TheBestIsChosenUnlessTheVariableNamesAnother) {
  {
    IsaVariable unset(nullptr);
    EXPECT_EQ(choose_isa(), supported_isas().back());
  }
  {
    IsaVariable empty("");
    EXPECT_EQ(choose_isa(), supported_isas().back());
  }
  for (Isa isa : supported_isas()) {
    IsaVariable set(isa_name(isa));
    EXPECT_EQ(choose_isa(), isa);
  }
}

TEST(Isa, AnUnknownOrUnsupportedChoiceIsRefusedWithTheSupportedOnes) {
  const auto supported = supported_isas();
  std::vector<std::string> refused = {"sse9"};
  for (Isa isa : {Isa::neon, Isa::avx2, Isa::avx512}) {
    if (std::find(supported.begin(), supported.end(), isa) == supported.end())
      refused.push_back(isa_name(isa));
  }
  for (const std::string& name : refused) {
    IsaVariable set(name.c_str());
    try {
      choose_isa();
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("SLUICE_ISA"));
      EXPECT_THAT(error.what(), HasSubstr(name));
      EXPECT_THAT(error.what(), HasSubstr("scalar"));
    }
  }
}

TEST(UsableCpus, FollowsTheAffinityMask) {
  cpu_set_t before;
  if (sched_getaffinity(0, sizeof before, &before) != 0) GTEST_SKIP() << "more CPUs than a plain mask holds";
  const int n_before = usable_cpus();
  EXPECT_GE(n_before, 1);
  EXPECT_LE(n_before, CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cpus(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(usable_cpus(), n_before);
}

TEST(UsableCpus, AreNearestToTheQuota) {
  EXPECT_EQ(threads_for_quota(0, 8), 8) << "no quota";
  EXPECT_EQ(threads_for_quota(16, 8), 8);
  EXPECT_EQ(threads_for_quota(0.1, 8), 1);
  EXPECT_EQ(threads_for_quota(1.2, 8), 1);
  EXPECT_EQ(threads_for_quota(1.5, 8), 2);
  EXPECT_EQ(threads_for_quota(7.4, 8), 7);
}

TEST(CpuModelName, IsNeverEmpty) {
  EXPECT_FALSE(cpu_model_name().empty());
}

}  // namespace
}  // namespace sluice::platform
