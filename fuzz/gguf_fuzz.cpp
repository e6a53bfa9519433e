// Feeds arbitrary bytes to the GGUF parser, then asks the result everything that callers may ask. Any outcome
// but a result or sluice::Error(invalid_file) is a bug: a crash, a sanitizer report, another exception, too
// much memory.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "gguf/byte_source.hpp"
#include "gguf/metadata.hpp"
#include "gguf/reader.hpp"
#include "sluice/error.hpp"

namespace {

using namespace sluice;

class InputSource : public gguf::ByteSource {
 public:
  explicit InputSource(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) std::abort();
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::string name_ = "fuzz.gguf";
  std::span<const std::uint8_t> bytes_;
};

template <typename Call>
void expect_result_or_error(Call call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_file || *error.what() == '\0') std::abort();
  }
}

void ask_everything(const gguf::Metadata& metadata) {
  for (const gguf::Metadata::Entry& entry : metadata.entries()) {
    const std::string& key = entry.key;
    if (metadata.find(key) != &entry.value) std::abort();
    expect_result_or_error([&] { metadata.get_uint(key); });
    expect_result_or_error([&] { metadata.get_int(key); });
    expect_result_or_error([&] { metadata.get_float(key); });
    expect_result_or_error([&] { metadata.get_bool(key); });
    expect_result_or_error([&] { metadata.get_string(key); });
    expect_result_or_error([&] { metadata.get_ints(key); });
    expect_result_or_error([&] { metadata.get_floats(key); });
    expect_result_or_error([&] { metadata.get_uint_at(key, 3); });
    expect_result_or_error([&] { metadata.require_uint(key); });
    expect_result_or_error([&] { metadata.require_float(key); });
    expect_result_or_error([&] { metadata.require_string(key); });
    expect_result_or_error([&] {
      const gguf::StringArray* strings = metadata.get_strings(key);
      std::size_t n_bytes = 0;
      for (std::size_t i = 0; strings != nullptr && i < strings->size(); ++i) n_bytes += (*strings)[i].size();
      if (strings != nullptr && n_bytes != strings->text_bytes()) std::abort();
    });
    for (const std::size_t max_chars : {0u, 5u, 80u}) {
      if (gguf::describe_value(entry.value, max_chars).size() > max_chars + 64) std::abort();
    }
  }
}

void check_tensors(const gguf::ModelFile& model, bool allow_missing_data) {
  std::uint64_t end = model.shards.at(0).data_offset_bytes;
  for (const gguf::TensorInfo& tensor : model.tensors) {
    if (model.find_tensor(tensor.name) != &tensor) std::abort();
    if (tensor.offset_bytes % model.alignment_bytes != 0 || tensor.offset_bytes < end) std::abort();
    end = tensor.offset_bytes + tensor.size_bytes;
    if (end <= tensor.offset_bytes) std::abort();
    if (tensor.size_bytes != gguf::row_bytes(tensor.type, tensor.n_elements())) std::abort();
  }
  if (!allow_missing_data && !model.tensors.empty() && end > model.shards[0].file_bytes) std::abort();
  (void)model.tensor_bytes();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const bool allow_missing_data : {false, true}) {
    expect_result_or_error([&] {
      InputSource source({data, size});
      gguf::ModelFile model = gguf::parse_file(source, {.allow_missing_data = allow_missing_data});
      ask_everything(model.metadata);
      check_tensors(model, allow_missing_data);
      if (!model.metadata.entries().empty()) {
        const std::string key = model.metadata.entries().front().key;
        model.metadata.drop(key);
        if (model.metadata.get_string(key) != "") std::abort();
      }
    });
  }
  return 0;
}
