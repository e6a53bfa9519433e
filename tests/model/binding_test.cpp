// Goal: a file that lacks tensors, or whose tensors do not fit its metadata, is refused by name, and so
// are tensors that nothing uses.
#include "model/binding.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "model/architecture.hpp"
#include "model/graph.hpp"
#include "sluice/error.hpp"
#include "support/tiny_gguf.hpp"
#include "support/tiny_model.hpp"

namespace sluice::model {
namespace {

BoundTensors bind_file(const gguf::ModelFile& file) {
  ModelSpec spec = read_spec(file.metadata);
  spec.n_vocab = vocabulary_rows(file);
  return bind(file, Graph(std::move(spec)).declare());
}

std::string refusal(const gguf::ModelFile& file, ErrorCode code = ErrorCode::invalid_file) {
  try {
    bind_file(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
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
  const BoundTensors tensors = bind_file(file);
  EXPECT_EQ(vocabulary_rows(file), 260u);
  EXPECT_NE(tensors.output, tensors.token_embd);
  // 3 outside the blocks; per block 2 norms, 4 projections with biases, 2 head norms and a router.
  EXPECT_EQ(tensors.pinned().size(), 3u + 3 * 13);
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
  const BoundTensors tensors = bind_file(file);
  EXPECT_EQ(tensors.output, tensors.token_embd);
}

TEST(Binding, LeavesOutLayersThatGuessFurtherTokens) {
  gguf::ModelFile file = parse(test::tiny_model_of("glm4moe"));
  const BoundTensors tensors = bind_file(file);
  const gguf::TensorInfo* const unused = file.find_tensor("blk.3.nextn.enorm.weight");
  ASSERT_NE(unused, nullptr);
  for (const auto* pinned : tensors.pinned()) EXPECT_NE(pinned, unused);
  tensor(file, "blk.3.nextn.enorm.weight").name = "blk.4.nextn.enorm.weight";
  file.index_tensors();
  EXPECT_NE(refusal(file, ErrorCode::unsupported).find("blk.4.nextn.enorm"), std::string::npos);
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
  EXPECT_THROW(bind_file(file), Error);
}

TEST(Binding, BlocksAreInTheOrderOfUse) {
  const gguf::ModelFile file = parse();
  const BoundTensors tensors = bind_file(file);
  ASSERT_EQ(tensors.blocks.size(), 3u);
  std::vector<std::string> names;
  for (const auto* matrix : tensors.blocks[1].tensors) names.push_back(matrix->name);
  EXPECT_EQ(names, (std::vector<std::string>{"blk.1.attn_q.weight", "blk.1.attn_k.weight",
                                             "blk.1.attn_v.weight", "blk.1.attn_output.weight"}));
}

TEST(Binding, RefusesTensorsNobodyUses) {
  for (const char* name : {"blk.0.extra.weight", "blk.1.ffn_gate_exps.bias", "blk.3.attn_q.weight"}) {
    gguf::ModelFile file = parse();
    gguf::TensorInfo extra = *file.find_tensor("output_norm.weight");
    extra.name = name;
    file.tensors.push_back(extra);
    file.index_tensors();
    const std::string message = refusal(file, ErrorCode::unsupported);
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
}

TEST(Binding, KnowsWhichTensorsMayStayUnused) {
  for (const char* name : {"v.patch_embd.weight", "mm.0.weight", "blk.0.attn_rot_embd"}) {
    gguf::ModelFile file = parse();
    gguf::TensorInfo extra = *file.find_tensor("output_norm.weight");
    extra.name = name;
    file.tensors.push_back(extra);
    file.index_tensors();
    EXPECT_NO_THROW(bind_file(file)) << name;
  }
}

}  // namespace
}  // namespace sluice::model
