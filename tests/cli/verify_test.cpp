// Goal: `sluice verify` says in words, JSON and its status whether a model computes what a reference holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "support/reference_bytes.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class VerifyCommand : public ::testing::Test {
 protected:
  VerifyCommand() {
    OpenOptions options;
    options.n_ctx = 32;
    Model model = Model::open(builtin_model("tales-draft-3.7m-Q8_0.gguf"), options);
    std::string story;
    for (int i = 0; i < 6; ++i) story += "Once upon a time there was a little fox who lived in a wood. ";
    bytes = make_reference(model, model.tokenizer().encode(story), 32, 2).bytes;
    write();
  }
  void write() { write_bytes(folder / "x.kld", bytes.data(), bytes.size()); }
  Outcome verify(const Words& more = {}, const std::string& model = "tales-draft") {
    Words words{"verify", model, "--reference", (folder / "x.kld").string()};
    words.insert(words.end(), more.begin(), more.end());
    return sluice(words);
  }

  TempDir folder;
  std::vector<std::byte> bytes;
};

TEST_F(VerifyCommand, EndsWithStatusZeroWithinTheLimits) {
  const Outcome outcome = verify();
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("30 tokens in 2 windows of 32"));
  EXPECT_THAT(outcome.out, HasSubstr("parts first   nowhere"));
  EXPECT_THAT(outcome.out, HasSubstr("verdict         within the limits"));
  EXPECT_THAT(outcome.err, HasSubstr("window 2 of 2"));
}

TEST_F(VerifyCommand, EndsWithStatusOneBeyondThemAndSaysWhich) {
  // Another model with the same vocabulary.
  const Outcome other = verify({"--min-same-top", "0"}, "tales");
  EXPECT_EQ(other.status, 1) << other.out << other.err;
  EXPECT_THAT(other.out, HasSubstr("not within the limits: mean divergence "));
  EXPECT_THAT(other.out, HasSubstr("the model prefers"));
  const Outcome top = verify({"--max-kl", "100", "--min-same-top", "100"}, "tales");
  EXPECT_EQ(top.status, 1) << top.out << top.err;
  EXPECT_THAT(top.out, HasSubstr("not within the limits: same likeliest token"));
  EXPECT_EQ(verify({"--max-kl", "100", "--min-same-top", "0"}, "tales").status, 0);
}

TEST_F(VerifyCommand, JsonHoldsTheSameFigures) {
  const Outcome outcome = verify({"--json", "--chunks", "1", "--memory", "64M"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_TRUE(json["within_limits"].get<bool>());
  EXPECT_EQ(json["n_scored"], 15);
  EXPECT_EQ(json["same_top_percent"], 100.0);
  EXPECT_NEAR(json["mean_kl"].get<double>(), 0, 1e-4);
  EXPECT_TRUE(json["first_parting"].is_null());
  EXPECT_EQ(json["limits"]["max_kl"], 0.01);
}

TEST_F(VerifyCommand, DamagedAndForeignFilesAreErrors) {
  bytes.resize(bytes.size() / 2);
  write();
  const Outcome cut = verify();
  EXPECT_EQ(cut.status, 1);
  EXPECT_THAT(cut.err, HasSubstr("not whole"));
  bytes.assign(1000, std::byte{'x'});
  write();
  EXPECT_THAT(verify().err, HasSubstr("this is no reference"));
}

}  // namespace
}  // namespace sluice::test
