// Goal: who opens a piece of a file that was cut at some byte learns that, and how to join the pieces.
#include "gguf/raw_pieces.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/tiny_gguf.hpp"

namespace sluice::gguf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t k_tensor_floats = 4096;

std::vector<std::byte> whole_model() {
  Writer writer;
  writer.metadata().add("general.name", test::string_value("tiny"));
  writer.add_tensor("a", TensorType::f32, {k_tensor_floats});
  writer.add_tensor("b", TensorType::f32, {k_tensor_floats});
  return test::write_with_pattern(writer);
}

/// Cuts the model into as many pieces as there are names.
test::MemoryFolder cut(const std::vector<std::string>& names) {
  const std::vector<std::byte> whole = whole_model();
  test::MemoryFolder folder;
  for (std::size_t i = 0; i < names.size(); ++i) {
    folder["/m/" + names[i]].assign(
        whole.begin() + static_cast<std::ptrdiff_t>(whole.size() * i / names.size()),
        whole.begin() + static_cast<std::ptrdiff_t>(whole.size() * (i + 1) / names.size()));
  }
  return folder;
}

std::string error_of(const test::MemoryFolder& folder, const std::string& name) {
  try {
    parse_model("/m/" + name, folder.opener());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_file);
    return error.what();
  }
  return "no error";
}

struct Naming {
  std::vector<std::string> names;
  std::string joined;
};

TEST(RawPieces, EachOfThemSaysHowToJoinThem) {
  const std::vector<Naming> namings = {
      {{"x.gguf.part1of2", "x.gguf.part2of2"}, "x.gguf"},
      {{"x.gguf.part01of03", "x.gguf.part02of03", "x.gguf.part03of03"}, "x.gguf"},
      {{"x.gguf-split-a", "x.gguf-split-b", "x.gguf-split-c"}, "x.gguf"},
      {{"x.gguf.00", "x.gguf.01", "x.gguf.02"}, "x.gguf"},
      {{"x.gguf.1", "x.gguf.2"}, "x.gguf"},
      {{"x.gguf.001", "x.gguf.002"}, "x.gguf"},
      {{"x.gguf.aa", "x.gguf.ab"}, "x.gguf"},
      {{"x.ggufaa", "x.ggufab"}, "x.gguf"},
      {{"x.gguf.part-aa", "x.gguf.part-ab"}, "x.gguf"},
      {{"x-part1.gguf", "x-part2.gguf", "x-part3.gguf"}, "x.gguf"},
      {{"x.Q4_K_M-part-1-of-2.gguf", "x.Q4_K_M-part-2-of-2.gguf"}, "x.Q4_K_M.gguf"},
      {{"x.part1.gguf", "x.part2.gguf"}, "x.gguf"},
      {{"x.001", "x.002"}, "x.gguf"},
      {{"xaa", "xab"}, "model.gguf"},
      {{"x.gguf_part_00", "x.gguf_part_01"}, "x.gguf"},
      {{"x.gguf.partaa", "x.gguf.partab"}, "x.gguf"},
      {{"x.gguf-00001-of-00002", "x.gguf-00002-of-00002"}, "x.gguf"},
      {{"x-00001-of-00002.gguf", "x-00002-of-00002.gguf"}, "x.gguf"},
  };
  for (const Naming& naming : namings) {
    const test::MemoryFolder folder = cut(naming.names);
    std::string command = "cat";
    for (const std::string& name : naming.names) command += " /m/" + name;
    command += " > /m/" + naming.joined;
    for (std::size_t i = 0; i < naming.names.size(); ++i) {
      EXPECT_THAT(error_of(folder, naming.names[i]),
                  AllOf(HasSubstr("/m/" + naming.names[i]), HasSubstr("piece " + std::to_string(i + 1)),
                        HasSubstr(command), Not(HasSubstr("missing"))));
    }
  }
}

TEST(RawPieces, MoreThanNineCountOn) {
  std::vector<std::string> names;
  for (int i = 1; i <= 12; ++i) names.push_back("x.gguf.part" + std::to_string(i) + "of12");
  EXPECT_THAT(error_of(cut(names), "x.gguf.part11of12"),
              AllOf(HasSubstr("piece 11 of 12"), HasSubstr("part9of12 /m/x.gguf.part10of12")));
}

TEST(RawPieces, MissingOnesAreNamed) {
  test::MemoryFolder folder = cut({"x.gguf.part1of3", "x.gguf.part2of3", "x.gguf.part3of3"});
  folder.erase("/m/x.gguf.part2of3");
  for (const char* name : {"x.gguf.part1of3", "x.gguf.part3of3"}) {
    EXPECT_THAT(error_of(folder, name), AllOf(HasSubstr("/m/x.gguf.part2of3 is missing"),
                                              HasSubstr("part1of3 /m/x.gguf.part2of3 /m/")));
  }
  test::MemoryFolder alone = cut({"x-part1.gguf", "x-part2.gguf"});
  alone.erase("/m/x-part2.gguf");
  EXPECT_THAT(error_of(alone, "x-part1.gguf"),
              AllOf(HasSubstr("piece 1 "), HasSubstr("not beside it"), HasSubstr("> /m/x.gguf")));
  test::MemoryFolder last = cut({"x-part1.gguf", "x-part2.gguf"});
  last.erase("/m/x-part1.gguf");
  EXPECT_THAT(error_of(last, "x-part2.gguf"), HasSubstr("/m/x-part1.gguf is missing"));
}

TEST(RawPieces, NamesThatAShellWouldReadAreQuoted) {
  const test::MemoryFolder folder = cut({"it's (1).gguf.00", "it's (1).gguf.01"});
  EXPECT_THAT(error_of(folder, "it's (1).gguf.00"), HasSubstr("cat '/m/it'\\''s (1).gguf.00' '"));
}

TEST(RawPieces, APieceThatEndsWithinTheHeaderIsOne) {
  test::MemoryFolder folder = cut({"x.gguf.00", "x.gguf.01"});
  folder["/m/x.gguf.00"].resize(40);
  EXPECT_THAT(error_of(folder, "x.gguf.00"), HasSubstr("piece 1"));
}

TEST(RawPieces, NameAndContentsMustAgree) {
  test::MemoryFolder folder;
  // A whole model under the name of a piece runs.
  folder["/m/x-part1.gguf"] = whole_model();
  EXPECT_EQ(parse_model("/m/x-part1.gguf", folder.opener()).tensors.size(), 2u);
  // An incomplete download is one.
  folder["/m/y.gguf"] = whole_model();
  folder["/m/y.gguf"].resize(folder["/m/y.gguf"].size() / 2);
  EXPECT_THAT(error_of(folder, "y.gguf"), HasSubstr("download is incomplete"));
  // So is a broken file of a split model.
  const test::MemoryFolder whole = cut({"z-00001-of-00002.gguf", "z-00002-of-00002.gguf"});
  test::MemoryFolder other = whole;
  other.erase("/m/z-00001-of-00002.gguf");
  EXPECT_THAT(error_of(other, "z-00002-of-00002.gguf"), HasSubstr("not a GGUF file"));
  // Something else under such a name is what it is.
  const std::string zip = "PK\x03\x04 some archive";
  for (const char byte : zip) folder["/m/w.gguf.02"].push_back(static_cast<std::byte>(byte));
  EXPECT_THAT(error_of(folder, "w.gguf.02"), HasSubstr("ZIP"));
}

}  // namespace
}  // namespace sluice::gguf
