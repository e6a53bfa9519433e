// Goal: no damage to a file makes the parser crash, read outside it, or claim memory that the file does not
// justify.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "gguf/cursor.hpp"
#include "gguf/limits.hpp"
#include "support/tiny_gguf.hpp"

namespace {

// Counts what this process holds, so that a test can bound the memory of one call.
std::atomic<std::size_t> g_held_bytes{0};
std::atomic<std::size_t> g_peak_bytes{0};

void* counted_alloc(std::size_t n_bytes) {
  void* block = std::malloc(n_bytes);
  if (block == nullptr) throw std::bad_alloc();
  const std::size_t held = g_held_bytes += malloc_usable_size(block);
  std::size_t peak = g_peak_bytes;
  while (held > peak && !g_peak_bytes.compare_exchange_weak(peak, held)) {
  }
  return block;
}

void counted_free(void* block) noexcept {
  if (block != nullptr) g_held_bytes -= malloc_usable_size(block);
  std::free(block);
}

}  // namespace

void* operator new(std::size_t n_bytes) {
  return counted_alloc(n_bytes);
}
void* operator new[](std::size_t n_bytes) {
  return counted_alloc(n_bytes);
}
void operator delete(void* block) noexcept {
  counted_free(block);
}
void operator delete[](void* block) noexcept {
  counted_free(block);
}
void operator delete(void* block, std::size_t) noexcept {
  counted_free(block);
}
void operator delete[](void* block, std::size_t) noexcept {
  counted_free(block);
}

namespace sluice::gguf {
namespace {

using ::testing::HasSubstr;

// The read buffer, the exception and its message; measured at about 140 KiB.
constexpr std::size_t k_fixed_bytes = 256 * 1024;
// The worst ratio of the format: an empty nested array is 12 bytes in the file and one Value (88 bytes) in
// memory, and a list of entries that grows holds its old and its new copy for a moment.
constexpr std::size_t k_max_ratio = 32;

/// Peak of what parsing holds beyond what was held before.
std::size_t parse_peak_bytes(ByteSource& source, const ParseOptions& options = {},
                             std::string* message = nullptr) {
  const std::size_t before = g_held_bytes;
  g_peak_bytes = before;
  try {
    parse_file(source, options);
  } catch (const Error& error) {
    const std::size_t peak = g_peak_bytes;
    if (message != nullptr) *message = error.what();
    return peak - before;
  }
  return g_peak_bytes - before;
}

/// A file with every feature of the format in a few hundred bytes.
std::vector<std::byte> make_sample() {
  Writer writer;
  Metadata& metadata = writer.metadata();
  metadata.add("general.architecture", test::string_value("llama"));
  metadata.add("general.alignment", test::uint_value(64));
  metadata.add("flag", test::bool_value(true));
  metadata.add("scale", test::float_value(0.5));
  metadata.add("words", test::strings_value({"one", "", "three"}));
  metadata.add("heads", test::array_value<std::int32_t>(ValueType::i32, {1, 2, 3}));
  metadata.add("nested",
               test::array_value<Value>(ValueType::array, {test::strings_value({"x"}),
                                                           test::array_value<float>(ValueType::f32, {1})}));
  metadata.add("split.no", test::uint_value(0, ValueType::u16));
  metadata.add("split.count", test::uint_value(1, ValueType::u16));
  writer.add_tensor("token_embd.weight", TensorType::q8_0, {32, 2});
  writer.add_tensor("ffn.weight", TensorType::q2_0, {128, 2});
  writer.add_tensor("norm.weight", TensorType::f32, {7});
  return test::write_with_pattern(writer);
}

TEST(Damage, TruncationAtEveryByteIsRefused) {
  const std::vector<std::byte> sample = make_sample();
  const ModelFile whole = test::parse_bytes(sample);
  const std::uint64_t data_end = whole.tensors.back().offset_bytes + whole.tensors.back().size_bytes;
  ASSERT_LT(data_end, sample.size()) << "the sample should end with padding";
  for (std::size_t n_bytes = 0; n_bytes < sample.size(); ++n_bytes) {
    test::MemorySource source("cut.gguf",
                              {sample.begin(), sample.begin() + static_cast<std::ptrdiff_t>(n_bytes)});
    std::string message;
    EXPECT_LE(parse_peak_bytes(source, {}, &message), k_fixed_bytes + k_max_ratio * n_bytes);
    if (n_bytes >= data_end) {
      EXPECT_EQ(message, "") << "only padding is lost at " << n_bytes;
    } else {
      EXPECT_THAT(message, HasSubstr("cut.gguf")) << n_bytes;
    }
    // Without its data the file is good from the last tensor entry on.
    message.clear();
    parse_peak_bytes(source, {.allow_missing_data = true}, &message);
    if (n_bytes >= whole.shards[0].data_offset_bytes) {
      EXPECT_EQ(message, "") << n_bytes;
    }
  }
}

TEST(Damage, NoFlippedByteCrashesOrClaimsMemory) {
  const std::vector<std::byte> sample = make_sample();
  const std::size_t limit = k_fixed_bytes + k_max_ratio * sample.size();
  std::size_t n_refused = 0;
  for (std::size_t at = 0; at < sample.size(); ++at) {
    for (const unsigned value : {0x00u, 0x01u, 0x7fu, 0x80u, 0xffu, 0x20u}) {
      std::vector<std::byte> damaged = sample;
      // The last pattern flips one bit, the others replace the byte.
      damaged[at] = value == 0x20u ? damaged[at] ^ std::byte{0x20} : std::byte(value);
      test::MemorySource source("flip.gguf", std::move(damaged));
      std::string message;
      EXPECT_LE(parse_peak_bytes(source, {}, &message), limit) << "byte " << at << " value " << value;
      if (!message.empty()) {
        ++n_refused;
        EXPECT_THAT(message, HasSubstr("flip.gguf")) << "byte " << at;
      }
      parse_peak_bytes(source, {.allow_missing_data = true});
    }
  }
  EXPECT_GT(n_refused, sample.size() / 2);
}

TEST(Damage, EveryEightBytesMayClaimTheMostWithoutMemory) {
  const std::vector<std::byte> sample = make_sample();
  for (std::size_t at = 0; at + 8 <= sample.size(); ++at) {
    for (const std::uint64_t claim :
         {UINT64_MAX, UINT64_MAX / 2, std::uint64_t{1} << 40, k_max_array_elements, std::uint64_t{1} << 20}) {
      std::vector<std::byte> damaged = sample;
      std::memcpy(damaged.data() + at, &claim, sizeof claim);
      test::MemorySource source("claim.gguf", std::move(damaged));
      EXPECT_LE(parse_peak_bytes(source), k_fixed_bytes + k_max_ratio * sample.size()) << "byte " << at;
    }
  }
}

/// Claims to be huge and full of zeros, like a sparse file.
class SparseSource : public ByteSource {
 public:
  SparseSource(std::vector<std::byte> head, std::uint64_t size) : head_(std::move(head)), size_(size) {}
  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t offset, std::span<std::byte> out) override {
    ASSERT_LE(offset + out.size(), size_);
    n_read_ += out.size();
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = offset + i < head_.size() ? head_[offset + i] : std::byte{0};
  }
  std::uint64_t n_read() const { return n_read_; }

 private:
  std::string name_ = "sparse.gguf";
  std::vector<std::byte> head_;
  std::uint64_t size_;
  std::uint64_t n_read_ = 0;
};

TEST(Damage, AHugeSparseFileCostsOnlyWhatWasRead) {
  // A million empty strings, all of zeros: eight bytes each in the file.
  test::RawBytes strings;
  strings.header(0, 1).string("k").u32(9).u32(8).u64(1'000'000);
  SparseSource string_source(strings.bytes(), 1ull << 40);
  const std::size_t string_peak = parse_peak_bytes(string_source);
  EXPECT_LE(string_peak, k_fixed_bytes + 4 * string_source.n_read());

  test::RawBytes nested;
  nested.header(0, 1).string("k").u32(9).u32(9).u64(k_max_nested_arrays);
  SparseSource nested_source(nested.bytes(), 1ull << 40);
  const std::size_t nested_peak = parse_peak_bytes(nested_source);
  EXPECT_LE(nested_peak, k_fixed_bytes + k_max_ratio * nested_source.n_read());

  // A damaged count in a large file: the first string shows it, before the 64 million could cost anything.
  // What the reader trusts a count for is 262,144 strings: 4 bytes of index and 8 of text each.
  test::RawBytes claimed;
  claimed.header(0, 1).string("k").u32(9).u32(8).u64(k_max_array_elements).u64(~0ull);
  SparseSource claimed_source(claimed.bytes(), 1ull << 40);
  EXPECT_LE(parse_peak_bytes(claimed_source), k_fixed_bytes + 262'144 * 12);

  // Each of these keys is empty after the first: refused at once, however many there are.
  test::RawBytes entries;
  entries.header(k_max_tensors, k_max_metadata_entries);
  SparseSource entry_source(entries.bytes(), 1ull << 40);
  std::string message;
  EXPECT_LE(parse_peak_bytes(entry_source, {}, &message), k_fixed_bytes);
  EXPECT_THAT(message, HasSubstr("empty"));
}

TEST(Damage, HeadersThatNeverEndHitTheirLimit) {
  SparseSource source({}, 1ull << 40);
  const Cursor cursor(source);
  EXPECT_NO_THROW(cursor.require(k_max_header_bytes, "a header"));
  try {
    cursor.require(k_max_header_bytes + 1, "a header");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("limit of 1073741824 bytes"));
  }
}

TEST(Damage, AVocabularyIsHeldOnce) {
  Writer writer;
  std::vector<std::string> tokens;
  for (int i = 0; i < 150'000; ++i) tokens.push_back("token" + std::to_string(i * 7919 % 150'000));
  writer.metadata().add("tokenizer.ggml.tokens", test::strings_value(tokens));
  std::vector<float> scores(tokens.size(), 1.0f);
  writer.metadata().add("tokenizer.ggml.scores", test::array_value(ValueType::f32, scores));
  test::MemorySource source("vocab.gguf", writer.write_all({}));
  // The text (10.8 bytes a token here) is collected in a buffer that doubles and is then cut to size, so two
  // copies of it may live for a moment; the file adds eight bytes a token, the index four. Twice the file
  // would mean a copy.
  EXPECT_LE(parse_peak_bytes(source), k_fixed_bytes + source.size() * 3 / 2);
}

TEST(Damage, ManyDuplicatesAreFoundFast) {
  // Quadratic work on this many names would take hours, so the test's time limit is the assertion.
  test::RawBytes file;
  constexpr std::uint64_t k_n_tensors = 200'000;
  file.header(k_n_tensors, 0);
  for (std::uint64_t i = 0; i < k_n_tensors; ++i) {
    file.tensor("tensor_" + std::to_string(i == k_n_tensors - 1 ? 0 : i), {8}, 0, (k_n_tensors - 1 - i) * 32);
  }
  file.pad_to(32).zeros(k_n_tensors * 32);
  EXPECT_THAT(test::parse_error(file.bytes()), HasSubstr("'tensor_0' appears a second time"));
}

}  // namespace
}  // namespace sluice::gguf
