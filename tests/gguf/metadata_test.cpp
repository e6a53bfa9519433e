// Goal: metadata keeps what the file said, and typed access refuses what does not fit, naming key and types.
#include "gguf/metadata.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gguf/limits.hpp"
#include "sluice/error.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::gguf {
namespace {

using test::array_value;
using test::bool_value;
using test::float_value;
using test::int_value;
using test::string_value;
using test::strings_value;
using test::uint_value;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_file);
    return error.what();
  }
  return "no error";
}

TEST(Metadata, KeepsFileOrderAndFindsEveryKey) {
  Metadata metadata;
  for (const char* key : {"m", "z", "a", "k"}) EXPECT_TRUE(metadata.add(key, string_value(key)));
  std::vector<std::string> order;
  for (const Metadata::Entry& entry : metadata.entries()) order.push_back(entry.key);
  EXPECT_THAT(order, ElementsAre("m", "z", "a", "k"));
  for (const char* key : {"m", "z", "a", "k"}) EXPECT_EQ(metadata.get_string(key), key);
  EXPECT_FALSE(metadata.contains("b"));
  EXPECT_FALSE(metadata.contains(""));
}

TEST(Metadata, AddRefusesASecondValueAndSetReplacesIt) {
  Metadata metadata;
  EXPECT_TRUE(metadata.add("key", uint_value(1)));
  EXPECT_FALSE(metadata.add("key", uint_value(2)));
  EXPECT_EQ(metadata.get_uint("key"), 1u);
  metadata.set("key", uint_value(3));
  metadata.set("other", uint_value(4));
  EXPECT_EQ(metadata.get_uint("key"), 3u);
  EXPECT_EQ(metadata.get_uint("other"), 4u);
  EXPECT_EQ(metadata.entries().size(), 2u);
}

TEST(Metadata, DropFreesTheValueAndKeepsTheKey) {
  Metadata metadata;
  metadata.add("tokens", strings_value({"a", "b"}));
  metadata.drop("tokens");
  metadata.drop("absent");
  EXPECT_TRUE(metadata.contains("tokens"));
  EXPECT_EQ(metadata.get_string("tokens"), "");
  EXPECT_EQ(metadata.entries().size(), 1u);
}

TEST(Metadata, CopiesAndMovesStayUsable) {
  Metadata metadata;
  metadata.add("b", uint_value(1));
  metadata.add("a", uint_value(2));
  Metadata copy = metadata;
  copy.set("a", uint_value(9));
  EXPECT_EQ(metadata.get_uint("a"), 2u);
  const Metadata moved = std::move(copy);
  EXPECT_EQ(moved.get_uint("a"), 9u);
  EXPECT_EQ(moved.get_uint("b"), 1u);
}

TEST(Metadata, TheLargestAllowedNumberOfKeysIsFoundAgain) {
  Metadata metadata;
  // A multiplicative step visits the keys in an order that is neither sorted nor reversed.
  constexpr std::uint64_t k_step = 40'503;
  for (std::uint64_t i = 0; i < k_max_metadata_entries; ++i) {
    ASSERT_TRUE(metadata.add(std::to_string(i * k_step % k_max_metadata_entries), uint_value(i)));
  }
  for (std::uint64_t i = 0; i < k_max_metadata_entries; i += 97) {
    EXPECT_EQ(metadata.get_uint(std::to_string(i * k_step % k_max_metadata_entries)), i);
  }
}

TEST(Metadata, IntegersOfEveryWidthAreReadAndRangesChecked) {
  Metadata metadata;
  metadata.source_name = "m.gguf";
  metadata.add("u8", uint_value(255, ValueType::u8));
  metadata.add("max", uint_value(std::numeric_limits<std::uint64_t>::max(), ValueType::u64));
  metadata.add("neg", int_value(-1, ValueType::i8));
  metadata.add("pos", int_value(7, ValueType::i64));
  metadata.add("real", float_value(1.0));
  EXPECT_EQ(metadata.get_uint("u8"), 255u);
  EXPECT_EQ(metadata.get_int("u8"), 255);
  EXPECT_EQ(metadata.get_uint("pos"), 7u);
  EXPECT_EQ(metadata.get_int("neg"), -1);
  EXPECT_EQ(metadata.get_uint("absent"), std::nullopt);
  EXPECT_EQ(metadata.get_int("absent"), std::nullopt);
  EXPECT_THAT(error_of([&] { metadata.get_uint("neg"); }),
              AllOf(HasSubstr("m.gguf"), HasSubstr("'neg'"), HasSubstr("i8"), HasSubstr("-1")));
  EXPECT_THAT(error_of([&] { metadata.get_int("max"); }),
              AllOf(HasSubstr("'max'"), HasSubstr("18446744073709551615")));
  EXPECT_THAT(error_of([&] { metadata.get_uint("real"); }), AllOf(HasSubstr("integer"), HasSubstr("f32")));
}

TEST(Metadata, OtherTypesAreReadAndMismatchesNamed) {
  Metadata metadata;
  metadata.add("f", float_value(0.5));
  metadata.add("d", float_value(0.1, ValueType::f64));
  metadata.add("b", bool_value(true));
  metadata.add("s", string_value("text"));
  metadata.add("a", strings_value({"x", "", "yz"}));
  EXPECT_EQ(metadata.get_float("f"), 0.5);
  EXPECT_EQ(metadata.get_float("d"), 0.1);
  EXPECT_EQ(metadata.get_bool("b"), true);
  EXPECT_EQ(metadata.get_string("s"), "text");
  const StringArray* strings = metadata.get_strings("a");
  ASSERT_NE(strings, nullptr);
  ASSERT_EQ(strings->size(), 3u);
  EXPECT_EQ((*strings)[0], "x");
  EXPECT_EQ((*strings)[1], "");
  EXPECT_EQ((*strings)[2], "yz");
  EXPECT_EQ(metadata.get_strings("absent"), nullptr);
  EXPECT_THAT(error_of([&] { metadata.get_float("s"); }), HasSubstr("float"));
  EXPECT_THAT(error_of([&] { metadata.get_bool("f"); }), HasSubstr("bool"));
  EXPECT_THAT(error_of([&] { metadata.get_string("b"); }), HasSubstr("string"));
  EXPECT_THAT(error_of([&] { metadata.get_strings("s"); }), HasSubstr("array of strings"));
  EXPECT_THAT(error_of([&] { metadata.get_string("a"); }), HasSubstr("array of 3 string"));
}

TEST(Metadata, IntegerArraysOfEveryKindAreWidened) {
  Metadata metadata;
  metadata.add("u8", array_value<std::uint8_t>(ValueType::u8, {0, 255}));
  metadata.add("i8", array_value<std::uint8_t>(ValueType::i8, {0, 255, 128}));
  metadata.add("bool", array_value<std::uint8_t>(ValueType::boolean, {0, 1}));
  metadata.add("i16", array_value<std::int32_t>(ValueType::i16, {-5, 5}));
  metadata.add("u32", array_value<std::uint32_t>(ValueType::u32, {4'000'000'000u}));
  metadata.add("i64", array_value<std::int64_t>(ValueType::i64, {std::numeric_limits<std::int64_t>::min()}));
  metadata.add("u64",
               array_value<std::uint64_t>(ValueType::u64, {std::numeric_limits<std::uint64_t>::max()}));
  metadata.add("none", array_value<std::int32_t>(ValueType::i32, {}));
  metadata.add("f", array_value<float>(ValueType::f32, {}));
  EXPECT_THAT(*metadata.get_ints("u8"), ElementsAre(0, 255));
  EXPECT_THAT(*metadata.get_ints("i8"), ElementsAre(0, -1, -128));
  EXPECT_THAT(*metadata.get_ints("bool"), ElementsAre(0, 1));
  EXPECT_THAT(*metadata.get_ints("i16"), ElementsAre(-5, 5));
  EXPECT_THAT(*metadata.get_ints("u32"), ElementsAre(4'000'000'000));
  EXPECT_THAT(*metadata.get_ints("i64"), ElementsAre(std::numeric_limits<std::int64_t>::min()));
  EXPECT_TRUE(metadata.get_ints("none")->empty());
  EXPECT_EQ(metadata.get_ints("absent"), std::nullopt);
  EXPECT_THAT(error_of([&] { metadata.get_ints("u64"); }), HasSubstr("'u64'"));
  EXPECT_THAT(error_of([&] { metadata.get_ints("f"); }), HasSubstr("f32"));
}

TEST(Metadata, FloatArraysAreReadAndOverflowIsRefused) {
  Metadata metadata;
  metadata.add("f", array_value<float>(ValueType::f32, {1.5f, -2.0f}));
  metadata.add("d", array_value<double>(ValueType::f64, {0.25, std::numeric_limits<double>::infinity()}));
  metadata.add("big", array_value<double>(ValueType::f64, {1e300}));
  metadata.add("i", array_value<std::int32_t>(ValueType::i32, {1}));
  EXPECT_THAT(*metadata.get_floats("f"), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(*metadata.get_floats("d"), ElementsAre(0.25f, std::numeric_limits<float>::infinity()));
  EXPECT_EQ(metadata.get_floats("absent"), std::nullopt);
  EXPECT_THAT(error_of([&] { metadata.get_floats("big"); }), HasSubstr("'big'"));
  EXPECT_THAT(error_of([&] { metadata.get_floats("i"); }), HasSubstr("i32"));
}

TEST(Metadata, PerLayerNumbersComeFromAScalarOrAnArray) {
  Metadata metadata;
  metadata.add("scalar", uint_value(8));
  metadata.add("array", array_value<std::int32_t>(ValueType::i32, {4, -1}));
  EXPECT_EQ(metadata.get_uint_at("scalar", 31), 8u);
  EXPECT_EQ(metadata.get_uint_at("array", 0), 4u);
  EXPECT_EQ(metadata.get_uint_at("absent", 0), std::nullopt);
  EXPECT_THAT(error_of([&] { metadata.get_uint_at("array", 1); }), HasSubstr("'array'"));
  EXPECT_THAT(error_of([&] { metadata.get_uint_at("array", 2); }),
              AllOf(HasSubstr("2 elements"), HasSubstr("element 2")));
}

TEST(Metadata, RequireNamesTheMissingKeyAndTheFile) {
  Metadata metadata;
  metadata.source_name = "m.gguf";
  metadata.add("u", uint_value(3));
  metadata.add("f", float_value(0.5));
  metadata.add("s", string_value("v"));
  EXPECT_EQ(metadata.require_uint("u"), 3u);
  EXPECT_EQ(metadata.require_float("f"), 0.5);
  EXPECT_EQ(metadata.require_string("s"), "v");
  for (const std::string& message :
       {error_of([&] { metadata.require_uint("x.y"); }), error_of([&] { metadata.require_float("x.y"); }),
        error_of([&] { metadata.require_string("x.y"); })}) {
    EXPECT_THAT(message, AllOf(HasSubstr("m.gguf"), HasSubstr("'x.y'"), HasSubstr("missing")));
  }
}

TEST(DescribeValue, ShowsScalarsAsPeopleWriteThem) {
  EXPECT_EQ(describe_value(uint_value(42)), "42");
  EXPECT_EQ(describe_value(int_value(-42)), "-42");
  EXPECT_EQ(describe_value(float_value(static_cast<double>(1e-5f))), "1e-05");
  EXPECT_EQ(describe_value(bool_value(false)), "false");
  EXPECT_EQ(describe_value(string_value("a\"b")), "\"a\\\"b\"");
}

TEST(DescribeValue, CutsArraysAndSaysHowLongTheyAre) {
  EXPECT_EQ(describe_value(array_value<std::int32_t>(ValueType::i32, {1, -2, 3})), "i32[3] {1, -2, 3}");
  EXPECT_EQ(describe_value(array_value<std::uint8_t>(ValueType::i8, {255})), "i8[1] {-1}");
  EXPECT_EQ(describe_value(array_value<std::uint8_t>(ValueType::boolean, {1, 0})), "bool[2] {true, false}");
  EXPECT_EQ(describe_value(strings_value({"a", "b"})), "string[2] {\"a\", \"b\"}");
  EXPECT_EQ(describe_value(array_value<std::uint8_t>(ValueType::u8, {})), "u8[0] {}");
  const std::vector<std::uint32_t> many(1'000'000, 7);
  const std::string shown = describe_value(array_value(ValueType::u32, many), 40);
  EXPECT_THAT(shown, AllOf(HasSubstr("u32[1000000] {7, 7"), HasSubstr("...}")));
  EXPECT_LE(shown.size(), 40u);
  // The limit is a wish when not even the length fits, but it stays short.
  EXPECT_LE(describe_value(array_value(ValueType::u32, many), 0).size(), 24u);
}

}  // namespace
}  // namespace sluice::gguf
