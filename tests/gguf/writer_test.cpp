// Goal: what the writer writes, the reader reads back; what cannot be a file is refused before a byte is
// written.
#include "gguf/writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "support/tiny_gguf.hpp"

namespace sluice::gguf {
namespace {

using test::array_value;
using ::testing::HasSubstr;

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

std::string header_error(Value value) {
  Writer writer;
  writer.metadata().add("key", std::move(value));
  return error_of([&] { writer.write_all({}); });
}

TEST(Writer, ProducesExactlyTheBytesOfTheFormat) {
  Writer writer;
  writer.metadata().add("general.architecture", test::string_value("x"));
  writer.metadata().add("n", test::array_value<std::int32_t>(ValueType::i16, {-1, 2}));
  writer.add_tensor("t", TensorType::f32, {3, 2});
  const std::vector<std::byte> data = test::pattern_bytes(24, 1);
  test::RawBytes expected;
  expected.header(1, 2).string("general.architecture").u32(8).string("x");
  expected.string("n").u32(9).u32(3).u64(2).number<std::int16_t>(-1).number<std::int16_t>(2);
  expected.tensor("t", {3, 2}, 0, 0).pad_to(32);
  std::vector<std::byte> bytes = expected.bytes();
  bytes.insert(bytes.end(), data.begin(), data.end());
  bytes.resize(bytes.size() + 8);
  EXPECT_EQ(writer.write_all({data}), bytes);
  EXPECT_EQ(writer.tensors()[0].offset_bytes, expected.size());
}

TEST(Writer, EveryValueComesBack) {
  Writer writer;
  Metadata& metadata = writer.metadata();
  metadata.add("u8", test::uint_value(255, ValueType::u8));
  metadata.add("i64", test::int_value(std::numeric_limits<std::int64_t>::min(), ValueType::i64));
  // Builders may hold a small number as a signed one.
  metadata.add("u16", test::int_value(65535, ValueType::u16));
  metadata.add("f32", test::float_value(-std::numeric_limits<double>::infinity()));
  metadata.add("f64", test::float_value(0.1, ValueType::f64));
  metadata.add("bool", test::bool_value(true));
  metadata.add("text", test::string_value(std::string("a\0b", 3)));
  metadata.add("strings", test::strings_value({"", "x", std::string(200'000, 'y')}));
  metadata.add("flags", array_value<std::uint8_t>(ValueType::boolean, {1, 0}));
  metadata.add("bytes", array_value<std::uint8_t>(ValueType::i8, {255, 1}));
  metadata.add("f32s", array_value<float>(ValueType::f32, {1.0f, -0.0f}));
  metadata.add("f64s", array_value<double>(ValueType::f64, {1e300}));
  metadata.add("u64s", array_value<std::uint64_t>(ValueType::u64, {~0ull}));
  metadata.add("nested",
               array_value<Value>(ValueType::array, {test::strings_value({"p"}),
                                                     array_value<std::int32_t>(ValueType::i32, {-3})}));
  std::vector<std::string> written;
  for (const Metadata::Entry& entry : metadata.entries())
    written.push_back(entry.key + "=" + describe_value(entry.value));
  const ModelFile model = test::parse_bytes(writer.write_all({}));
  std::vector<std::string> read;
  for (const Metadata::Entry& entry : model.metadata.entries())
    read.push_back(entry.key + "=" + describe_value(entry.value));
  EXPECT_EQ(read, written);
  EXPECT_EQ(model.metadata.get_string("text"), std::string_view("a\0b", 3));
  EXPECT_EQ((*model.metadata.get_strings("strings"))[2].size(), 200'000u);
  EXPECT_EQ(model.metadata.find("u16")->type, ValueType::u16);
  EXPECT_EQ(model.version, 3u);
}

TEST(Writer, TensorsOfEveryTypeComeBackWithTheirBytes) {
  Writer writer;
  writer.metadata().add("general.alignment", test::uint_value(128));
  std::vector<TensorType> types;
  for (const TypeTraits& traits : all_types()) {
    if (traits.type == TensorType::q2_0_g128) continue;  // No file has it beside Q2_0.
    types.push_back(traits.type);
    writer.add_tensor(traits.name, traits.type, {traits.block_elements * 2, 3, 1, 2});
  }
  const std::vector<std::byte> file = test::write_with_pattern(writer);
  const ModelFile model = test::parse_bytes(file);
  ASSERT_EQ(model.tensors.size(), types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    const TensorInfo* tensor = model.find_tensor(type_name(types[i]));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->type, types[i]);
    EXPECT_EQ(tensor->n_dims, 4u);
    EXPECT_EQ(tensor->size_bytes, 12u * type_traits(types[i]).block_bytes);
    EXPECT_EQ(tensor->offset_bytes % 128, 0u);
    EXPECT_EQ(tensor->offset_bytes, writer.tensors()[i].offset_bytes);
    const auto begin = file.begin() + static_cast<std::ptrdiff_t>(tensor->offset_bytes);
    const std::vector<std::byte> data(begin, begin + static_cast<std::ptrdiff_t>(tensor->size_bytes));
    EXPECT_EQ(data, test::pattern_bytes(tensor->size_bytes, static_cast<std::uint32_t>(i)));
  }
}

TEST(Writer, PartsOfAnySizeGiveTheSameFileAsWholeTensors) {
  const auto declare = [](Writer& writer) {
    writer.metadata().add("general.alignment", test::uint_value(64));
    writer.add_tensor("a", TensorType::f32, {100});
    writer.add_tensor("b", TensorType::q8_0, {64, 3});
    writer.add_tensor("c", TensorType::f32, {16});  // Ends aligned.
  };
  Writer whole;
  declare(whole);
  const std::vector<std::byte> expected = test::write_with_pattern(whole);
  for (const std::size_t part_bytes : {1u, 7u, 64u, 1000u}) {
    Writer writer;
    declare(writer);
    std::vector<std::byte> file;
    const ByteSink sink = [&file](std::span<const std::byte> bytes) {
      file.insert(file.end(), bytes.begin(), bytes.end());
    };
    writer.write_header(sink);
    std::uint32_t seed = 0;
    for (const TensorInfo& tensor : writer.tensors()) {
      const std::vector<std::byte> data = test::pattern_bytes(tensor.size_bytes, seed++);
      for (std::size_t at = 0; at < data.size(); at += part_bytes)
        writer.append_tensor(std::span(data).subspan(at, std::min(part_bytes, data.size() - at)), sink);
    }
    EXPECT_EQ(file, expected) << part_bytes;
  }
}

TEST(Writer, APartThatReachesBeyondItsTensorIsRefused) {
  Writer writer;
  writer.add_tensor("a", TensorType::f32, {4});
  writer.add_tensor("b", TensorType::f32, {4});
  const ByteSink sink = [](std::span<const std::byte>) {};
  writer.write_header(sink);
  const std::vector<std::byte> data(16);
  writer.append_tensor(std::span(data).first(10), sink);
  EXPECT_THAT(error_of([&] { writer.append_tensor(std::span(data).first(7), sink); }),
              HasSubstr("'a' takes 6 more bytes"));
  writer.append_tensor(std::span(data).first(6), sink);
  writer.append_tensor(data, sink);
}

TEST(Writer, WrongTensorsAreRefused) {
  Writer writer;
  EXPECT_THAT(error_of([&] { writer.add_tensor("w", TensorType::q4_k, {255}); }),
              HasSubstr("blocks have 256"));
  EXPECT_THAT(error_of([&] { writer.add_tensor("w", TensorType::f32, {}); }), HasSubstr("0 dimensions"));
  EXPECT_THAT(error_of([&] {
                writer.add_tensor("w", TensorType::f32, {1, 1, 1, 1, 1});
              }),
              HasSubstr("5 dimensions"));
  EXPECT_THAT(error_of([&] {
                writer.add_tensor("w", TensorType::f32, {4, 0});
              }),
              HasSubstr("dimension 1 is 0"));
  EXPECT_THAT(error_of([&] {
                writer.add_tensor("w", TensorType::f32, {1ull << 40, 1ull << 40});
              }),
              HasSubstr("size"));
  EXPECT_THAT(error_of([&] { writer.add_tensor("w", TensorType::f64, {1ull << 62}); }),
              HasSubstr("too large"));
  EXPECT_THAT(error_of([&] { writer.add_tensor("", TensorType::f32, {1}); }), HasSubstr("name"));
  EXPECT_THAT(error_of([&] { writer.add_tensor(std::string(64, 'n'), TensorType::f32, {1}); }),
              HasSubstr("63"));
  EXPECT_TRUE(writer.tensors().empty());
  writer.add_tensor("w", TensorType::f32, {1});
  writer.add_tensor("w", TensorType::f32, {1});
  EXPECT_THAT(error_of([&] { test::write_with_pattern(writer); }), HasSubstr("declared twice"));
}

TEST(Writer, WrongDataSizeIsRefused) {
  Writer writer;
  writer.add_tensor("w", TensorType::f32, {2});
  EXPECT_THAT(error_of([&] { writer.write_all({std::vector<std::byte>(7)}); }), HasSubstr("takes 8 bytes"));
}

TEST(Writer, ValuesThatTheirTypeCannotHoldAreRefused) {
  EXPECT_THAT(header_error(test::uint_value(256, ValueType::u8)), HasSubstr("does not fit"));
  EXPECT_THAT(header_error(test::int_value(-1, ValueType::u64)), HasSubstr("does not fit"));
  EXPECT_THAT(header_error(test::uint_value(1, ValueType::f32)), HasSubstr("integer"));
  EXPECT_THAT(header_error(test::float_value(1e300)), HasSubstr("does not fit"));
  EXPECT_THAT(header_error(test::float_value(1, ValueType::u8)), HasSubstr("float"));
  EXPECT_THAT(header_error({ValueType::u8, std::string("x")}), HasSubstr("string"));
  EXPECT_THAT(header_error({ValueType::u8, true}), HasSubstr("bool"));
  EXPECT_THAT(header_error({ValueType::u8, Array{}}), HasSubstr("array"));
  EXPECT_THAT(header_error(array_value<std::uint32_t>(ValueType::u16, {65536})), HasSubstr("does not fit"));
  EXPECT_THAT(header_error(array_value<std::uint8_t>(ValueType::boolean, {2})), HasSubstr("0 or 1"));
  EXPECT_THAT(header_error(array_value<Value>(ValueType::array, {test::uint_value(1)})),
              HasSubstr("mixes types"));
  Value deep = array_value<std::uint8_t>(ValueType::u8, {1});
  for (int level = 0; level < 4; ++level) deep = array_value<Value>(ValueType::array, {deep});
  EXPECT_THAT(header_error(deep), HasSubstr("too deep"));
}

TEST(Writer, LargeHeadersReachTheSinkInPieces) {
  Writer writer;
  std::vector<std::string> words;
  for (int i = 0; i < 300'000; ++i) words.push_back(std::to_string(i));
  writer.metadata().add("words", test::strings_value(words));
  std::size_t largest = 0;
  std::vector<std::byte> file;
  writer.write_header([&](std::span<const std::byte> piece) {
    largest = std::max(largest, piece.size());
    file.insert(file.end(), piece.begin(), piece.end());
  });
  EXPECT_GT(file.size(), 3u << 20);
  EXPECT_LT(largest, 2u << 20);
  EXPECT_EQ(test::parse_bytes(file).metadata.get_strings("words")->size(), words.size());
}

}  // namespace
}  // namespace sluice::gguf
