// Goal: a valid file is read exactly, a damaged one is refused with file, offset and reason.
#include "gguf/reader.hpp"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "gguf/limits.hpp"
#include "support/test_data.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::gguf {
namespace {

using test::parse_bytes;
using test::parse_error;
using test::RawBytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t k_f32 = 0, k_q8_0 = 8;
constexpr std::uint32_t k_type_u32 = 4, k_type_bool = 7, k_type_string = 8, k_type_array = 9;

/// Two f32 tensors of 8 elements, 32 bytes each, at `second_offset` and 0: stored out of order.
RawBytes two_tensors(std::uint64_t second_offset, std::size_t data_bytes,
                     std::string_view second_name = "b") {
  RawBytes file;
  file.header(2, 0).tensor(second_name, {8}, k_f32, second_offset).tensor("a", {4, 2}, k_f32, 0).pad_to(32);
  return file.zeros(data_bytes);
}

TEST(Reader, ReadsEveryValueTypeAtItsLimits) {
  RawBytes file;
  file.header(0, 13);
  file.string("u8").u32(0).number<std::uint8_t>(255).string("i8").u32(1).number<std::int8_t>(-128);
  file.string("u16").u32(2).number<std::uint16_t>(65535).string("i16").u32(3).number<std::int16_t>(-32768);
  file.string("u32")
      .u32(4)
      .number<std::uint32_t>(0xffffffff)
      .string("i32")
      .u32(5)
      .number<std::int32_t>(-2147483647 - 1);
  file.string("f32").u32(6).number(std::numeric_limits<float>::max()).string("bool").u32(7).u8(1);
  file.string("string").u32(8).string("text").string("u64").u32(10).u64(~0ull);
  file.string("i64").u32(11).number(std::numeric_limits<std::int64_t>::min());
  file.string("f64").u32(12).number(std::numeric_limits<double>::denorm_min());
  file.string("array").u32(9).u32(3).u64(2).number<std::int16_t>(-1).number<std::int16_t>(2);
  const ModelFile model = parse_bytes(file.bytes());
  const Metadata& metadata = model.metadata;
  EXPECT_EQ(metadata.get_uint("u8"), 255u);
  EXPECT_EQ(metadata.get_int("i8"), -128);
  EXPECT_EQ(metadata.get_uint("u16"), 65535u);
  EXPECT_EQ(metadata.get_int("i16"), -32768);
  EXPECT_EQ(metadata.get_uint("u32"), 0xffffffffu);
  EXPECT_EQ(metadata.get_int("i32"), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(metadata.get_float("f32"), std::numeric_limits<float>::max());
  EXPECT_EQ(metadata.get_bool("bool"), true);
  EXPECT_EQ(metadata.get_string("string"), "text");
  EXPECT_EQ(metadata.get_uint("u64"), ~0ull);
  EXPECT_EQ(metadata.get_int("i64"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(metadata.get_float("f64"), std::numeric_limits<double>::denorm_min());
  EXPECT_THAT(*metadata.get_ints("array"), ElementsAre(-1, 2));
  EXPECT_EQ(metadata.source_name, "tiny.gguf");
  EXPECT_EQ(metadata.find("i8")->type, ValueType::i8);
}

TEST(Reader, ReadsArraysOfEveryElementType) {
  RawBytes file;
  file.header(0, 13);
  const auto array = [&file](std::string_view key, std::uint32_t type, std::uint64_t count) -> RawBytes& {
    return file.string(key).u32(k_type_array).u32(type).u64(count);
  };
  array("u8", 0, 3).u8(1).u8(2).u8(255);
  array("i8", 1, 1).number<std::int8_t>(-7);
  array("u16", 2, 1).number<std::uint16_t>(65535);
  array("i16", 3, 1).number<std::int16_t>(-300);
  array("u32", 4, 1).u32(0xffffffff);
  array("i32", 5, 1).number<std::int32_t>(-70000);
  array("f32", 6, 1).number(1.5f);
  array("bool", 7, 2).u8(1).u8(0);
  array("string", 8, 2).string("ab").string("");
  array("nested", 9, 2).u32(5).u64(1).number<std::int32_t>(9).u32(8).u64(1).string("x");
  array("u64", 10, 1).u64(1ull << 40);
  array("i64", 11, 1).number<std::int64_t>(-(1ll << 40));
  array("f64", 12, 1).number(0.1);
  const Metadata metadata = parse_bytes(file.bytes()).metadata;
  EXPECT_THAT(*metadata.get_ints("u8"), ElementsAre(1, 2, 255));
  EXPECT_THAT(*metadata.get_ints("i8"), ElementsAre(-7));
  EXPECT_THAT(*metadata.get_ints("u16"), ElementsAre(65535));
  EXPECT_THAT(*metadata.get_ints("i16"), ElementsAre(-300));
  EXPECT_THAT(*metadata.get_ints("u32"), ElementsAre(0xffffffffll));
  EXPECT_THAT(*metadata.get_ints("i32"), ElementsAre(-70000));
  EXPECT_THAT(*metadata.get_floats("f32"), ElementsAre(1.5f));
  EXPECT_THAT(*metadata.get_ints("bool"), ElementsAre(1, 0));
  ASSERT_NE(metadata.get_strings("string"), nullptr);
  EXPECT_EQ((*metadata.get_strings("string"))[0], "ab");
  EXPECT_EQ((*metadata.get_strings("string"))[1], "");
  EXPECT_EQ(describe_value(*metadata.find("nested")), "array[2] {i32[1] {9}, string[1] {\"x\"}}");
  EXPECT_THAT(*metadata.get_ints("u64"), ElementsAre(1ll << 40));
  EXPECT_THAT(*metadata.get_ints("i64"), ElementsAre(-(1ll << 40)));
  EXPECT_THAT(*metadata.get_floats("f64"), ElementsAre(0.1f));
}

TEST(Reader, StringsLargerThanItsBufferAndEmptyArraysAreRead) {
  const std::string large(300'000, 'x');
  RawBytes file;
  file.header(0, 4).string("large").u32(k_type_string).string(large);
  file.string("list").u32(k_type_array).u32(k_type_string).u64(3).string("a").string(large).string("b");
  file.string("none").u32(k_type_array).u32(k_type_array).u64(0);
  file.string("last").u32(k_type_array).u32(k_type_u32).u64(0);
  const Metadata metadata = parse_bytes(file.bytes()).metadata;
  EXPECT_EQ(metadata.get_string("large"), large);
  ASSERT_EQ(metadata.get_strings("list")->size(), 3u);
  EXPECT_EQ((*metadata.get_strings("list"))[1], large);
  EXPECT_EQ((*metadata.get_strings("list"))[2], "b");
  EXPECT_TRUE(metadata.get_ints("last")->empty());
}

TEST(Reader, TensorsComeSortedWithAbsoluteOffsets) {
  const ModelFile model = parse_bytes(two_tensors(32, 64).bytes());
  ASSERT_EQ(model.tensors.size(), 2u);
  const std::uint64_t data_offset = model.shards.at(0).data_offset_bytes;
  EXPECT_EQ(data_offset % 32, 0u);
  EXPECT_EQ(data_offset + 64, model.shards[0].file_bytes);
  EXPECT_EQ(model.tensors[0].name, "a");
  EXPECT_EQ(model.tensors[0].n_dims, 2u);
  EXPECT_THAT(model.tensors[0].dims, ElementsAre(4, 2, 1, 1));
  EXPECT_EQ(model.tensors[0].offset_bytes, data_offset);
  EXPECT_EQ(model.tensors[1].offset_bytes, data_offset + 32);
  EXPECT_EQ(model.find_tensor("b"), &model.tensors[1]);
  EXPECT_EQ(model.find_tensor("c"), nullptr);
  EXPECT_EQ(model.find_tensor(""), nullptr);
  EXPECT_EQ(model.tensor_bytes(), 64u);
}

TEST(Reader, GapsAndTrailingBytesAreFine) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(parse_error(two_tensors(4096, 4096 + 32 + 100).bytes()), "");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("100 bytes behind the last tensor are not used"));
}

TEST(Reader, ADownloadThatBeganAnewBehindItsPartIsRefused) {
  for (const std::size_t padding : {0u, 24u}) {
    // The last tensor ends 24 bytes before a multiple of the alignment.
    RawBytes file;
    file.header(1, 0).tensor("t", {1026}, k_f32, 0).pad_to(32).zeros(4 * 1026 + padding);
    const std::vector<std::byte> whole = file.bytes();
    for (const std::size_t n_part : {128u, 1000u, 4096u}) {
      std::vector<std::byte> glued(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n_part));
      glued.insert(glued.end(), whole.begin(), whole.end());
      EXPECT_THAT(parse_error(glued), AllOf(HasSubstr("another GGUF file begins"),
                                            HasSubstr(fmt::format("tail -c +{} ", n_part + 1))));
    }
    // Two whole ones: the first is used.
    std::vector<std::byte> two = whole;
    two.insert(two.end(), whole.begin(), whole.end());
    testing::internal::CaptureStderr();
    EXPECT_EQ(parse_error(two), "");
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("another GGUF file begins there"));
  }
}

TEST(Reader, OverlappingTensorsAreRefused) {
  EXPECT_THAT(parse_error(two_tensors(0, 64).bytes()),
              AllOf(HasSubstr("overlaps"), HasSubstr("'a'"), HasSubstr("'b'")));
  RawBytes file;
  file.header(2, 0).tensor("long", {9}, k_f32, 0).tensor("next", {8}, k_f32, 32).pad_to(32).zeros(96);
  EXPECT_THAT(parse_error(file.bytes()),
              AllOf(HasSubstr("tiny.gguf: byte"), HasSubstr("'next' overlaps tensor 'long'")));
}

TEST(Reader, DuplicateTensorsAndKeysAreRefused) {
  EXPECT_THAT(parse_error(two_tensors(32, 64, "a").bytes()),
              AllOf(HasSubstr("'a'"), HasSubstr("second time")));
  RawBytes file;
  file.header(0, 2).string("k").u32(k_type_bool).u8(0).string("k").u32(k_type_bool).u8(1);
  EXPECT_THAT(parse_error(file.bytes()),
              AllOf(HasSubstr("byte 38"), HasSubstr("'k'"), HasSubstr("second time")));
}

TEST(Reader, APartialDownloadSaysWhatIsMissing) {
  const RawBytes whole = two_tensors(32, 64);
  std::vector<std::byte> cut = whole.bytes();
  cut.resize(cut.size() - 5);
  EXPECT_THAT(parse_error(cut),
              AllOf(HasSubstr("5 bytes are missing"), HasSubstr("first incomplete tensor is 'b'")));
  cut.resize(cut.size() - 28);
  EXPECT_THAT(parse_error(cut),
              AllOf(HasSubstr("33 bytes are missing"), HasSubstr("first incomplete tensor is 'a'")));
  const ModelFile header_only = parse_bytes(cut, {.allow_missing_data = true});
  EXPECT_EQ(header_only.tensors.size(), 2u);
  EXPECT_LT(header_only.shards[0].file_bytes, header_only.tensors[1].offset_bytes + 32);
}

TEST(Reader, ATruncatedHeaderSaysWhereTheFileEnds) {
  const RawBytes whole = two_tensors(32, 64);
  std::vector<std::byte> cut = whole.bytes();
  cut.resize(70);
  EXPECT_THAT(parse_error(cut, {.allow_missing_data = true}),
              AllOf(HasSubstr("tiny.gguf: byte"), HasSubstr("ends at byte 70"), HasSubstr("download")));
}

TEST(Reader, AlignmentIsHonoured) {
  const auto with_alignment = [](std::uint32_t alignment, std::uint32_t type = k_type_u32) {
    RawBytes file;
    file.header(1, 1).string("general.alignment").u32(type).u32(alignment).tensor("t", {1}, k_f32, 0);
    return file.pad_to(std::max<std::size_t>(alignment % 4096, 1)).zeros(8192);
  };
  for (const std::uint32_t alignment : {8u, 24u, 40u, 64u, 96u, 2048u}) {
    const ModelFile model = parse_bytes(with_alignment(alignment).bytes());
    EXPECT_EQ(model.alignment_bytes, alignment);
    EXPECT_EQ(model.tensors[0].offset_bytes % alignment, 0u);
  }
  for (const std::uint32_t alignment : {0u, 1u, 3u, 4u, 12u, 1u << 31}) {
    EXPECT_THAT(
        parse_error(with_alignment(alignment).bytes()),
        AllOf(HasSubstr("alignment"), HasSubstr("multiple of 8"), HasSubstr(std::to_string(alignment))));
  }
  EXPECT_THAT(parse_error(with_alignment(32, 6).bytes()), HasSubstr("alignment"));
}

struct TensorFault {
  const char* what;
  std::vector<std::uint64_t> dims;
  std::uint32_t type_id;
  std::uint64_t offset;
  const char* expected;
};

TEST(Reader, ImpossibleTensorsAreRefusedWithTheirNameAndOffset) {
  constexpr std::uint64_t k_huge = 1ull << 42;
  const std::vector<TensorFault> faults{
      {"no dimensions", {}, k_f32, 0, "0 dimensions"},
      {"five dimensions", {1, 1, 1, 1, 1}, k_f32, 0, "5 dimensions"},
      {"zero dimension", {8, 0}, k_f32, 0, "dimension 1 of the tensor is 0"},
      {"element overflow", {k_huge, k_huge}, k_f32, 0, "too large"},
      {"byte overflow", {1ull << 62}, k_f32, 0, "too large"},
      {"block", {33}, k_q8_0, 0, "blocks have 32"},
      {"removed type", {32}, 4, 0, "type 4 (Q4_2) was removed"},
      {"unknown type", {32}, 0xffffffff, 0, "type 4294967295"},
      {"unaligned", {8}, k_f32, 1, "not a multiple of the alignment 32"},
      {"wrapping offset", {8}, k_f32, ~0ull - 31, "beyond any possible file"},
      {"far offset", {8}, k_f32, 1ull << 60, "bytes are missing"},
  };
  for (const TensorFault& fault : faults) {
    RawBytes file;
    file.header(1, 0).tensor("weight", fault.dims, fault.type_id, fault.offset).pad_to(32).zeros(64);
    EXPECT_THAT(parse_error(file.bytes()), AllOf(HasSubstr("tiny.gguf"), HasSubstr("byte"),
                                                 HasSubstr("'weight'"), HasSubstr(fault.expected)))
        << fault.what;
  }
}

/// Two matrices of the type id 42 with 256 rows of 128 elements, `first_bytes` from each other, and what lies
/// behind the second.
std::vector<std::byte> two_bit_file(std::uint64_t first_bytes, std::uint64_t last_bytes) {
  RawBytes file;
  file.header(2, 0).tensor("a", {128, 256}, 42, 0).tensor("b", {128, 256}, 42, first_bytes);
  return file.pad_to(32).zeros(first_bytes + last_bytes).bytes();
}

TEST(Reader, TwoBlockShapesUnderOneTypeIdAreToldApartBySize) {
  constexpr std::uint64_t k_usual = 256 * 2 * 18, k_fork = 256 * 34;
  const ModelFile usual = parse_bytes(two_bit_file(k_usual, k_usual));
  const ModelFile fork = parse_bytes(two_bit_file(k_fork, k_fork));
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(usual.find_tensor(name)->type, TensorType::q2_0);
    EXPECT_EQ(usual.find_tensor(name)->size_bytes, k_usual);
    EXPECT_EQ(fork.find_tensor(name)->type, TensorType::q2_0_g128);
    EXPECT_EQ(fork.find_tensor(name)->size_bytes, k_fork);
  }
  // Sizes of neither, and of each once.
  for (const std::uint64_t bytes : {std::uint64_t{0}, k_fork - 32, k_usual - 32, k_usual + 32}) {
    EXPECT_THAT(parse_error(two_bit_file(bytes, k_usual)),
                AllOf(HasSubstr("tiny.gguf"), HasSubstr("'a'"), HasSubstr("64 elements in 18 bytes"),
                      HasSubstr("128 in 34")))
        << bytes;
  }
}

TEST(Reader, TheOnlyTwoBitMatrixEndsWithTheFile) {
  const auto parse = [](std::uint64_t row, std::uint64_t n_bytes) {
    RawBytes file;
    return file.header(1, 0).tensor("a", {row, 512}, 42, 0).pad_to(32).zeros(n_bytes).bytes();
  };
  EXPECT_EQ(parse_bytes(parse(128, 512 * 36)).tensors[0].type, TensorType::q2_0);
  EXPECT_EQ(parse_bytes(parse(128, 512 * 34)).tensors[0].type, TensorType::q2_0_g128);
  // Rows of 64 cannot be the fork's.
  EXPECT_EQ(parse_bytes(parse(64, 512 * 18)).tensors[0].type, TensorType::q2_0);
  EXPECT_THAT(parse_error(parse(128, 512 * 37)), HasSubstr("fit neither"));
  // An incomplete file is one of the format.
  EXPECT_THAT(parse_error(parse(128, 512 * 35)), HasSubstr("bytes are missing"));
  EXPECT_THAT(parse_error(parse(64, 512 * 17)), HasSubstr("bytes are missing"));
  EXPECT_THAT(parse_error(parse(128, 512 * 33)), HasSubstr("bytes are missing"));
  EXPECT_THAT(parse_error(parse(96, 512 * 27)), HasSubstr("blocks have 64"));
}

TEST(Reader, BadNamesAreRefused) {
  const auto tensor_named = [](std::string_view name) {
    RawBytes file;
    file.header(1, 0).tensor(name, {8}, k_f32, 0).pad_to(32).zeros(32);
    return parse_error(file.bytes());
  };
  EXPECT_EQ(tensor_named(std::string(63, 'n')), "");
  EXPECT_THAT(tensor_named(std::string(64, 'n')), HasSubstr("limit of 63"));
  EXPECT_THAT(tensor_named(""), HasSubstr("empty"));
  EXPECT_THAT(tensor_named("\xff"), HasSubstr("UTF-8"));
  const auto key_named = [](std::string_view key) {
    RawBytes file;
    return parse_error(file.header(0, 1).string(key).u32(k_type_u32).u32(0).bytes());
  };
  EXPECT_EQ(key_named(std::string(65535, 'k')), "");
  EXPECT_THAT(key_named(std::string(65536, 'k')), HasSubstr("limit of 65535"));
  EXPECT_THAT(key_named(""), HasSubstr("empty"));
  EXPECT_THAT(key_named("a\xc0"), AllOf(HasSubstr("UTF-8"), HasSubstr("\\xc0")));
}

TEST(Reader, BadValuesAreRefused) {
  const auto value = [](auto&& append) {
    RawBytes file;
    file.header(0, 1).string("key");
    append(file);
    return parse_error(file.zeros(64).bytes());
  };
  EXPECT_THAT(value([](RawBytes& f) { f.u32(13); }),
              AllOf(HasSubstr("'key'"), HasSubstr("13 is no value type")));
  EXPECT_THAT(value([](RawBytes& f) { f.u32(k_type_bool).u8(2); }), HasSubstr("must be 0 or 1"));
  EXPECT_THAT(value([](RawBytes& f) { f.u32(k_type_array).u32(k_type_bool).u64(2).u8(1).u8(7); }),
              HasSubstr("must be 0 or 1"));
  EXPECT_THAT(value([](RawBytes& f) { f.u32(k_type_string).u64(~0ull); }), HasSubstr("limit of 67108864"));
  EXPECT_THAT(value([](RawBytes& f) { f.u32(k_type_string).u64(1000); }), HasSubstr("ends at byte"));
  EXPECT_THAT(value([](RawBytes& f) { f.u32(k_type_array).u32(99).u64(0); }),
              HasSubstr("99 is no value type"));
  EXPECT_THAT(value([](RawBytes& f) { f.u32(k_type_array).u32(0).u64(~0ull); }),
              HasSubstr("limit of 67108864"));
  EXPECT_THAT(value([](RawBytes& f) { f.u32(k_type_array).u32(12).u64(1000); }),
              HasSubstr("needs 8000 bytes"));
  EXPECT_THAT(value([](RawBytes& f) { f.u32(k_type_array).u32(k_type_string).u64(1u << 20); }),
              HasSubstr("ends at byte"));
}

TEST(Reader, NestingIsBounded) {
  const auto nested = [](std::size_t depth) {
    RawBytes file;
    file.header(0, 1).string("key").u32(k_type_array);
    for (std::size_t level = 1; level < depth; ++level) file.u32(k_type_array).u64(1);
    return parse_error(file.u32(k_type_u32).u64(1).u32(7).bytes());
  };
  EXPECT_EQ(nested(k_max_array_depth), "");
  EXPECT_THAT(nested(k_max_array_depth + 1), HasSubstr("nested deeper"));
  EXPECT_THAT(nested(100'000), HasSubstr("nested deeper"));

  RawBytes wide;
  wide.header(0, 1).string("key").u32(k_type_array).u32(k_type_array).u64(k_max_nested_arrays + 1);
  for (std::uint64_t i = 0; i <= k_max_nested_arrays; ++i) wide.u32(0).u64(0);
  EXPECT_THAT(parse_error(wide.bytes()), HasSubstr("limit of 65536"));
}

TEST(Reader, CountsBeyondTheFileAreRefusedAtOnce) {
  const auto counts = [](std::uint64_t n_tensors, std::uint64_t n_entries) {
    return parse_error(RawBytes().header(n_tensors, n_entries).bytes());
  };
  EXPECT_THAT(counts(~0ull, 0), AllOf(HasSubstr("byte 8"), HasSubstr("tensors"), HasSubstr("limit")));
  EXPECT_THAT(counts(0, ~0ull),
              AllOf(HasSubstr("byte 16"), HasSubstr("metadata entries"), HasSubstr("limit")));
  EXPECT_THAT(counts(1000, 1000), AllOf(HasSubstr("byte 24"), HasSubstr("ends at byte 24")));
}

TEST(Reader, ReadsTheModelsOfTheCheckout) {
  for (const char* file_name : {"tales-29m-moe-Q4_K_M.gguf", "tales-draft-3.7m-Q8_0.gguf"}) {
    const std::filesystem::path path = test::builtin_model(file_name);
    ASSERT_TRUE(std::filesystem::exists(path)) << path;
    const ModelFile model = parse_bytes(test::read_bytes(path), {}, path.string());
    EXPECT_TRUE(model.metadata.get_string("general.architecture"));
    EXPECT_NE(model.find_tensor("token_embd.weight"), nullptr);
    EXPECT_LE(model.tensor_bytes(), model.shards[0].file_bytes);
    EXPECT_EQ(model.tensors.back().offset_bytes + model.tensors.back().size_bytes,
              model.shards[0].file_bytes);
  }
}

TEST(Reader, ReadsRealVocabularies) {
  SLUICE_NEEDS_DATA(folder, "vocab");
  std::size_t n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    const ModelFile model = parse_bytes(test::read_bytes(entry.path()), {}, entry.path().string());
    const StringArray* tokens = model.metadata.get_strings("tokenizer.ggml.tokens");
    ASSERT_NE(tokens, nullptr) << entry.path();
    EXPECT_GT(tokens->size(), 1000u);
    EXPECT_EQ(model.metadata.get_ints("tokenizer.ggml.token_type")->size(), tokens->size());
    ++n_files;
  }
  EXPECT_GT(n_files, 0u);
}

}  // namespace
}  // namespace sluice::gguf
