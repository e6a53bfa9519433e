// Goal: a file that lacks tensors, or whose tensors do not fit its metadata, is refused by name; extra
// tensors are not.
#include "model/binding.hpp"

#include <gtest/gtest.h>

#include "model/architecture.hpp"
#include "sluice/error.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::model {
namespace {

std::string refusal(const gguf::ModelFile& file) {
  HyperParams params = read_hyper_params(file.metadata);
  try {
    bind_tensors(file, params);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_file);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

gguf::ModelFile parse(const test::TinyModel& model = {}) {
  return test::parse_bytes(test::make_tiny_model(model));
}

gguf::TensorInfo& tensor(gguf::ModelFile& file, const std::string& name) {
  return const_cast<gguf::TensorInfo&>(*file.find_tensor(name));
}

TEST(Binding, FindsEverythingOnce) {
  const gguf::ModelFile file = parse();
  HyperParams params = read_hyper_params(file.metadata);
  const ModelTensors tensors = bind_tensors(file, params);
  EXPECT_EQ(params.n_vocab, 260u);
  EXPECT_NE(tensors.output, tensors.token_embd);
  // 3 outside the blocks; per block 2 norms, 4 projections, 2 head norms and a router.
  EXPECT_EQ(tensors.pinned().size(), 3u + 3 * 9);
  std::uint64_t last = 0;
  for (const auto* pinned : tensors.pinned()) {
    EXPECT_GE(pinned->offset_bytes, last);
    last = pinned->offset_bytes;
  }
}

TEST(Binding, TiesTheOutputToTheEmbedding) {
  test::TinyModel model;
  model.tied_output = true;
  const gguf::ModelFile file = parse(model);
  HyperParams params = read_hyper_params(file.metadata);
  const ModelTensors tensors = bind_tensors(file, params);
  EXPECT_EQ(tensors.output, tensors.token_embd);
}

TEST(Binding, NamesEveryMissingTensor) {
  gguf::ModelFile file = parse();
  tensor(file, "blk.1.attn_k.weight").name = "blk.1.something.weight";
  tensor(file, "output_norm.weight").name = "other.weight";
  file.index_tensors();
  const std::string message = refusal(file);
  EXPECT_NE(message.find("blk.1.attn_k.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("output_norm.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("2 required"), std::string::npos) << message;
}

TEST(Binding, NamesShapesThatDisagree) {
  gguf::ModelFile file = parse();
  tensor(file, "blk.2.ffn_gate_inp.weight").dims[1] = 9;
  const std::string message = refusal(file);
  EXPECT_NE(message.find("blk.2.ffn_gate_inp.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("[64, 8]"), std::string::npos) << message;
}

TEST(Binding, RefusesTypesThatAreNoWeights) {
  gguf::ModelFile file = parse();
  tensor(file, "blk.0.attn_q.weight").type = gguf::TensorType::i32;
  HyperParams params = read_hyper_params(file.metadata);
  EXPECT_THROW(bind_tensors(file, params), Error);
}

TEST(Binding, IgnoresTensorsNobodyUses) {
  gguf::ModelFile file = parse();
  gguf::TensorInfo extra = *file.find_tensor("output_norm.weight");
  extra.name = "blk.0.extra.weight";
  file.tensors.push_back(extra);
  file.index_tensors();
  HyperParams params = read_hyper_params(file.metadata);
  EXPECT_NO_THROW(bind_tensors(file, params));
}

}  // namespace
}  // namespace sluice::model
