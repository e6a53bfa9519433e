// Goal: the tensors of every shape whose architecture can be run are those that the graph of its own metadata
// declares: none is missing, none is left over, all have the declared shape. The two lists are kept apart, so
// this compares them.
#include <gtest/gtest.h>

#include <string>

#include "model/architecture.hpp"
#include "model/binding.hpp"
#include "model/graph.hpp"
#include "residency/unit_map.hpp"
#include "synth/header.hpp"

namespace sluice::synth {
namespace {

bool can_be_run(const char* architecture) {
  for (const model::Architecture& known : model::known_architectures()) {
    if (std::string(known.name) == architecture) return true;
  }
  return false;
}

TEST(SynthDeclaration, ShapesHaveTheTensorsThatTheirGraphsDeclare) {
  std::size_t n_compared = 0;
  for (const ShapeSpec& shape : shape_specs()) {
    if (!can_be_run(architecture_name(shape))) continue;
    ++n_compared;
    const gguf::ModelFile file = parse_shape(shape.name, "Q4_K_M");
    model::ModelSpec spec = model::read_spec(file.metadata);
    spec.n_vocab = model::vocabulary_rows(file);
    EXPECT_EQ(spec.n_vocab, shape.n_vocab) << shape.name;
    const model::Declaration declaration = model::Graph(spec).declare();
    EXPECT_NO_THROW(model::bind(file, declaration)) << shape.name;
    EXPECT_NO_THROW(residency::map_units(file, spec.n_layers(), declaration.experts, 4096)) << shape.name;
    EXPECT_EQ(declaration.experts.empty(), shape.n_experts == 0) << shape.name;
  }
  EXPECT_GE(n_compared, 13u);
}

}  // namespace
}  // namespace sluice::synth
