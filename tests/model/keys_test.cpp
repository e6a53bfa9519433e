// Goal: keys are read with their limits, what is wrong with one is said with its name, and none is ignored
// quietly.
#include "model/keys.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/function_ref.hpp"
#include "sluice/error.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::model {
namespace {

class KeysTest : public ::testing::Test {
 protected:
  KeysTest() { metadata_.set("general.architecture", test::string_value("toy")); }
  void set(const char* name, gguf::Value value) {
    metadata_.set(std::string("toy.") + name, std::move(value));
  }
  /// What reading is refused with.
  std::string refusal(base::FunctionRef<void(Keys&)> read, ErrorCode code = ErrorCode::invalid_file) const {
    Keys keys(metadata_);
    try {
      read(keys);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "accepted";
    return {};
  }
  gguf::Metadata metadata_;
};

void expect_names(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST_F(KeysTest, IntegersAreFromOneToTheirLimit) {
  set("width", test::uint_value(8));
  set("nothing", test::uint_value(0));
  Keys keys(metadata_);
  EXPECT_EQ(keys.require("width", 8), 8u);
  EXPECT_EQ(keys.get_or("width", 5, 8), 8u);
  EXPECT_EQ(keys.get_or("missing", 5, 8), 5u);
  EXPECT_EQ(keys.count("nothing", 8), 0u);
  EXPECT_EQ(keys.count("missing", 8), 0u);
  EXPECT_EQ(keys.count("width", 8), 8u);
  expect_names(refusal([](Keys& k) { k.require("width", 7); }), "toy.width is 8, expected 1 to 7");
  expect_names(refusal([](Keys& k) { k.get_or("width", 5, 7); }), "toy.width");
  expect_names(refusal([](Keys& k) { k.count("width", 7); }), "toy.width");
  expect_names(refusal([](Keys& k) { k.require("nothing", 8); }), "toy.nothing");
  expect_names(refusal([](Keys& k) { k.get_or("nothing", 5, 8); }), "toy.nothing");
  expect_names(refusal([](Keys& k) { k.require("missing", 8); }), "toy.missing");
}

TEST_F(KeysTest, ListsOfLayersMustAgree) {
  set("one", test::uint_value(4));
  set("alike", test::array_value(gguf::ValueType::u32, std::vector<std::uint32_t>{4, 4, 4}));
  set("short", test::array_value(gguf::ValueType::u32, std::vector<std::uint32_t>{4, 4}));
  set("mixed", test::array_value(gguf::ValueType::u32, std::vector<std::uint32_t>{4, 4, 2}));
  Keys keys(metadata_);
  EXPECT_EQ(keys.require_uniform("one", 3, 8), 4u);
  EXPECT_EQ(keys.require_uniform("alike", 3, 8), 4u);
  EXPECT_EQ(keys.require_uniform("mixed", 2, 8), 4u);
  EXPECT_EQ(keys.require_uniform("missing", 3, 8, 6), 6u);
  expect_names(refusal([](Keys& k) { k.require_uniform("mixed", 3, 8); }, ErrorCode::unsupported),
               "toy.mixed differs between layers (4 in layer 0, 2 in layer 2)");
  expect_names(refusal([](Keys& k) { k.require_uniform("short", 3, 8); }), "toy.short");
  expect_names(refusal([](Keys& k) { k.require_uniform("alike", 3, 3); }), "toy.alike");
  expect_names(refusal([](Keys& k) { k.require_uniform("missing", 3, 8); }), "toy.missing");
}

TEST_F(KeysTest, NumbersAreFinite) {
  set("half", test::float_value(0.5));
  set("zero", test::float_value(0.0));
  set("nan", test::float_value(std::numeric_limits<double>::quiet_NaN()));
  Keys keys(metadata_);
  EXPECT_EQ(keys.get_float_or("half", 1.0f), 0.5f);
  EXPECT_EQ(keys.get_float_or("zero", 1.0f), 0.0f);
  EXPECT_EQ(keys.get_float_or("missing", 1.0f), 1.0f);
  EXPECT_EQ(keys.get_positive_or("half", 1.0f), 0.5f);
  expect_names(refusal([](Keys& k) { k.get_float_or("nan", 1.0f); }), "toy.nan");
  expect_names(refusal([](Keys& k) { k.get_positive_or("zero", 1.0f); }), "toy.zero is 0");
}

TEST_F(KeysTest, EveryKeyThatNobodyAskedForIsNamed) {
  set("read", test::uint_value(1));
  set("ignored", test::uint_value(1));
  set("seen", test::uint_value(1));
  set("unread", test::bool_value(true));
  set("vocab_size", test::uint_value(1));
  metadata_.set("other.key", test::uint_value(1));
  const std::string message = refusal(
      [](Keys& keys) {
        keys.require("read", 8);
        keys.ignore("ignored");
        EXPECT_TRUE(keys.has("seen"));  // Looking whether it is there is not reading it.
        keys.refuse_unread();
      },
      ErrorCode::unsupported);
  expect_names(message, "toy.unread");
  expect_names(message, "toy.seen");
  for (const char* known : {"toy.read", "ignored", "vocab_size", "other"})
    EXPECT_EQ(message.find(known), std::string::npos) << message;
  Keys keys(metadata_);
  for (const char* name : {"read", "ignored", "seen", "unread"}) keys.ignore(name);
  EXPECT_NO_THROW(keys.refuse_unread());
}

}  // namespace
}  // namespace sluice::model
