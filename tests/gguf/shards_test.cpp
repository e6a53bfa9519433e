// Goal: a split model opens from any of its files, and every way its files can fail to belong together is
// named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "gguf/reader.hpp"
#include "gguf/shards.hpp"
#include "support/tiny_gguf.hpp"

namespace sluice::gguf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct ShardOptions {
  std::uint64_t shard_idx = 0;
  std::uint64_t n_shards = 3;
  std::optional<std::int64_t> n_tensors = 6;
  std::optional<std::string> arch = std::nullopt;
  std::string tensor_prefix = "t";
};

/// Two tensors per shard, named prefix<idx>.a and .b.
std::vector<std::byte> make_shard(const ShardOptions& options) {
  Writer writer;
  if (options.arch) writer.metadata().add("general.architecture", test::string_value(*options.arch));
  if (options.shard_idx == 0) writer.metadata().add("general.name", test::string_value("tiny"));
  writer.metadata().add("split.no", test::uint_value(options.shard_idx, ValueType::u16));
  writer.metadata().add("split.count", test::uint_value(options.n_shards, ValueType::u16));
  if (options.n_tensors) writer.metadata().add("split.tensors.count", test::int_value(*options.n_tensors));
  const std::string stem = options.tensor_prefix + std::to_string(options.shard_idx);
  writer.add_tensor(stem + ".b", TensorType::f32, {8});
  writer.add_tensor(stem + ".a", TensorType::q8_0, {32, 2});
  return test::write_with_pattern(writer);
}

std::string shard_path(std::uint64_t number, std::uint64_t count = 3) {
  return fmt::format("/models/tiny-{:05}-of-{:05}.gguf", number, count);
}

test::MemoryFolder make_folder() {
  test::MemoryFolder folder;
  folder[shard_path(1)] = make_shard({.shard_idx = 0, .arch = "llama"});
  folder[shard_path(2)] = make_shard({.shard_idx = 1});
  folder[shard_path(3)] = make_shard({.shard_idx = 2});
  return folder;
}

/// The message parsing ends with, from whichever shard: all of them must name the same fault.
std::string error_from(const test::MemoryFolder& folder, const std::string& path,
                       ErrorCode code = ErrorCode::invalid_file) {
  try {
    parse_model(path, folder.opener());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(Shards, AnyShardOpensTheWholeModel) {
  const test::MemoryFolder folder = make_folder();
  for (std::uint64_t number = 1; number <= 3; ++number) {
    const ModelFile model = parse_model(shard_path(number), folder.opener());
    ASSERT_EQ(model.shards.size(), 3u);
    ASSERT_EQ(model.tensors.size(), 6u);
    EXPECT_EQ(model.metadata.get_string("general.name"), "tiny");
    EXPECT_EQ(model.metadata.source_name, shard_path(1));
    for (std::uint32_t shard_idx = 0; shard_idx < 3; ++shard_idx) {
      EXPECT_EQ(model.shards[shard_idx].path, shard_path(shard_idx + 1));
      const TensorInfo* tensor = model.find_tensor("t" + std::to_string(shard_idx) + ".a");
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->shard_idx, shard_idx);
      EXPECT_EQ(tensor, &model.tensors[shard_idx * 2 + 1]);
      EXPECT_EQ(tensor->offset_bytes, model.shards[shard_idx].data_offset_bytes + 32);
    }
  }
}

TEST(Shards, AWholeModelNeedsNoSiblings) {
  test::MemoryFolder folder;
  Writer writer;
  writer.add_tensor("t", TensorType::f32, {1});
  folder["plain.gguf"] = test::write_with_pattern(writer);
  EXPECT_EQ(parse_model("plain.gguf", folder.opener()).tensors.size(), 1u);
  // Merging tools leave the keys of the split behind, with a count of zero; other tools write one of one.
  for (const std::uint64_t n_shards : {0u, 1u}) {
    folder["merged.gguf"] = make_shard({.n_shards = n_shards, .n_tensors = 2});
    EXPECT_EQ(parse_model("merged.gguf", folder.opener()).tensors.size(), 2u);
  }
}

TEST(Shards, AWholeModelMayHaveAnyName) {
  EXPECT_EQ(shard_paths("/models/k-00001-of-00013.gguf", 1),
            std::vector<std::string>{"/models/k-00001-of-00013.gguf"});
  EXPECT_EQ(shard_paths(shard_path(2), 3).front(), shard_path(1));
  EXPECT_THROW(shard_paths(shard_path(2), 2), Error);
  EXPECT_THROW(shard_paths("/models/k.gguf", 2), Error);
}

TEST(Shards, MissingShardsAreAllListed) {
  test::MemoryFolder folder = make_folder();
  folder.erase(shard_path(1));
  folder.erase(shard_path(3));
  EXPECT_THAT(error_from(folder, shard_path(2), ErrorCode::io),
              AllOf(HasSubstr("2 of the 3 shards"), HasSubstr(shard_path(1)), HasSubstr(shard_path(3)),
                    HasSubstr("no such file"), Not(HasSubstr(shard_path(2)))));
  const SourceOpener null_opener = [&folder](const std::string& path) -> std::unique_ptr<ByteSource> {
    if (path == shard_path(2)) return folder.opener()(path);
    return nullptr;
  };
  EXPECT_THROW(parse_model(shard_path(2), null_opener), Error);
  EXPECT_THROW(parse_model(shard_path(1), null_opener), Error);
}

TEST(Shards, TheListOfMissingShardsStaysReadable) {
  test::MemoryFolder folder;
  folder[shard_path(1, 9999)] = make_shard({.n_shards = 9999, .n_tensors = 20000});
  const std::string message = error_from(folder, shard_path(1, 9999), ErrorCode::io);
  EXPECT_THAT(message, AllOf(HasSubstr("9998 of the 9999"), HasSubstr("and 9990 more")));
  EXPECT_LT(message.size(), 1000u);
}

TEST(Shards, ADuplicatedShardIsNamedFromEverySide) {
  for (std::uint64_t copy = 1; copy <= 3; ++copy) {
    for (std::uint64_t original = 1; original <= 3; ++original) {
      if (copy == original) continue;
      test::MemoryFolder folder = make_folder();
      folder[shard_path(copy)] = folder[shard_path(original)];
      for (std::uint64_t given = 1; given <= 3; ++given) {
        EXPECT_THAT(
            error_from(folder, shard_path(given)),
            AllOf(HasSubstr(shard_path(copy)), HasSubstr(shard_path(original)),
                  HasSubstr(fmt::format("shard {} is duplicated and shard {} is missing", original, copy))));
      }
    }
  }
}

TEST(Shards, ReorderedShardsAreMisnumbered) {
  test::MemoryFolder folder = make_folder();
  std::swap(folder[shard_path(2)], folder[shard_path(3)]);
  for (std::uint64_t given = 1; given <= 3; ++given) {
    EXPECT_THAT(error_from(folder, shard_path(given)),
                AllOf(HasSubstr(shard_path(2)), HasSubstr("misnumbered"), HasSubstr("says shard 2"),
                      HasSubstr("shard 3")));
  }
}

TEST(Shards, ForeignShardsAreNamed) {
  const std::vector<std::pair<ShardOptions, std::string>> foreigners{
      {{.shard_idx = 1, .n_shards = 4, .n_tensors = 6}, "split.count"},
      {{.shard_idx = 1, .n_tensors = 7}, "split.tensors.count"},
      {{.shard_idx = 1, .n_tensors = std::nullopt}, "split.tensors.count"},
      {{.shard_idx = 1, .arch = "qwen3moe"}, "architecture is 'qwen3moe', but 'llama'"},
  };
  for (const auto& [options, expected] : foreigners) {
    test::MemoryFolder folder = make_folder();
    folder[shard_path(2)] = make_shard(options);
    EXPECT_THAT(error_from(folder, shard_path(1)),
                AllOf(HasSubstr(shard_path(2)), HasSubstr("foreign"), HasSubstr(expected)));
  }
  test::MemoryFolder folder = make_folder();
  Writer whole;
  folder[shard_path(2)] = test::write_with_pattern(whole);
  EXPECT_THAT(error_from(folder, shard_path(3)), AllOf(HasSubstr(shard_path(2)), HasSubstr("foreign")));
}

TEST(Shards, TensorTotalsAndNamesMustAgree) {
  test::MemoryFolder folder = make_folder();
  folder[shard_path(2)] = make_shard({.shard_idx = 1, .tensor_prefix = "t0_"});
  EXPECT_EQ(error_from(folder, shard_path(1)), "no error");
  for (std::uint64_t shard_idx = 0; shard_idx < 3; ++shard_idx) {
    folder[shard_path(shard_idx + 1)] = make_shard({.shard_idx = shard_idx, .n_tensors = 9});
  }
  EXPECT_THAT(error_from(folder, shard_path(1)),
              AllOf(HasSubstr("is 9"), HasSubstr("hold 6 tensors together")));

  Writer twin;
  twin.metadata().add("split.no", test::uint_value(1));
  twin.metadata().add("split.count", test::uint_value(3));
  twin.metadata().add("split.tensors.count", test::uint_value(6));
  twin.add_tensor("t0.a", TensorType::f32, {8});
  twin.add_tensor("t1.b", TensorType::f32, {8});
  folder = make_folder();
  folder[shard_path(2)] = test::write_with_pattern(twin);
  EXPECT_THAT(error_from(folder, shard_path(1)), AllOf(HasSubstr("'t0.a'"), HasSubstr("second time"),
                                                       HasSubstr(shard_path(1)), HasSubstr(shard_path(2))));
}

TEST(Shards, ADamagedSiblingIsNamed) {
  test::MemoryFolder folder = make_folder();
  folder[shard_path(3)].resize(folder[shard_path(3)].size() - 40);
  EXPECT_THAT(error_from(folder, shard_path(1)),
              AllOf(HasSubstr(shard_path(3)), HasSubstr("bytes are missing"), HasSubstr("'t2.a'")));
  EXPECT_EQ(parse_model(shard_path(1), folder.opener(), {.allow_missing_data = true}).tensors.size(), 6u);
  folder[shard_path(3)].clear();
  EXPECT_THAT(error_from(folder, shard_path(1)), AllOf(HasSubstr(shard_path(3)), HasSubstr("empty")));
}

TEST(Shards, NamesThatDoNotFollowThePatternAreExplained) {
  test::MemoryFolder folder;
  for (const char* path : {"tiny.gguf", "tiny-00001-of-00003.bin", "tiny-of-00003.gguf",
                           "tiny-00001-of-.gguf", "tiny00001-of-00003.gguf", "-1-of-1111111111.gguf"}) {
    folder[path] = make_shard({});
    EXPECT_THAT(error_from(folder, path), AllOf(HasSubstr(path), HasSubstr("-00001-of-00003.gguf"))) << path;
  }
  for (const char* path :
       {"tiny-00001-of-00004.gguf", "tiny-00000-of-00003.gguf", "tiny-00004-of-00003.gguf"}) {
    folder[path] = make_shard({});
    EXPECT_THAT(error_from(folder, path), AllOf(HasSubstr(path), HasSubstr("misnumbered"))) << path;
  }
}

TEST(Shards, ContradictorySplitKeysAreRefused) {
  const auto error_of = [](std::uint64_t shard_idx, std::uint64_t n_shards,
                           std::optional<std::int64_t> n_tensors) {
    return test::parse_error(
        make_shard({.shard_idx = shard_idx, .n_shards = n_shards, .n_tensors = n_tensors}));
  };
  EXPECT_EQ(error_of(2, 3, 6), "");
  EXPECT_EQ(error_of(2, 3, std::nullopt), "");
  EXPECT_THAT(error_of(3, 3, 6), AllOf(HasSubstr("split.no is 3"), HasSubstr("split.count is 3")));
  EXPECT_THAT(error_of(1, 1, 6), HasSubstr("split.no is 1"));
  EXPECT_THAT(error_of(0, 65535, 6), HasSubstr("limit of 10000"));
  EXPECT_THAT(error_of(0, 3, -1), HasSubstr("split.tensors.count"));
  EXPECT_THAT(error_of(0, 3, 1), AllOf(HasSubstr("split.tensors.count is 1"), HasSubstr("holds 2")));
  Writer writer;
  writer.metadata().add("split.count", test::uint_value(3));
  EXPECT_THAT(test::parse_error(test::write_with_pattern(writer)), HasSubstr("split.no is missing"));
}

}  // namespace
}  // namespace sluice::gguf
