// Goal: all three formats give what they say; everything else is refused with its line, without a wild
// allocation. Method: hand-made texts, and cuts and changed bytes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "replay/trace_support.hpp"

namespace sluice {
namespace {

using test::read_text_trace;
using test::trace_error;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string k_header =
    R"({"format": "sluice-trace", "version": 1, "model": "m", "architecture": "a", "layers": 2, "experts": 4, )"
    R"("experts_used": 2, "prompt_chunk": 8, "expert_bytes": [10, 20]})"
    "\n";
const std::string k_ours = k_header +
                           R"({"tok": 1, "phase": "prompt", "layers": [[0, 1], [2, 3]]})"
                           "\n"
                           R"({"tok": 2, "phase": "decode", "layers": [[3, 0], []], "more": {"x": [1]}})"
                           "\n";
const std::string k_plain =
    "{\"tok\": 1, \"layers\": [[0, 1], [2, 3]]}\r\n"
    "\n"
    "{\"tok\": 2, \"layers\": [[3, 0], [1, 2]]}";
const std::string k_csv =
    "# route_trace v1\n"
    "# model=/some/where.gguf arch=moe n_layer=2 n_expert=4 n_expert_used=2\n"
    "# layer=0 expert_bytes=10 dense_bytes=5\n"
    "# layer=1 expert_bytes=20 dense_bytes=5\n"
    "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
    "0,0,0,0,0,1,0.5,0,10\n0,0,0,0,1,2,0.5,0,10\n"
    "0,0,1,0,0,3,0.5,0,10\n0,0,1,0,1,0,0.5,0,10\n"
    "0,0,1,1,0,0,0.5,0,10\n0,0,1,1,1,1,0.5,0,10\n"
    "0,1,0,0,0,2,0.5,0,10\n0,1,0,0,1,3,0.5,0,10\n"
    "0,1,0,1,1,2,0.5,0,10\n0,1,0,1,0,3,0.5,0,10\n";

constexpr std::uint16_t k_none = RoutingTrace::k_not_recorded;

TEST(ReadTrace, ReadsOurOwn) {
  const RoutingTrace trace = read_text_trace(k_ours);
  EXPECT_EQ(trace.format, "sluice-trace 1");
  EXPECT_EQ(trace.model, "m");
  EXPECT_EQ(trace.architecture, "a");
  EXPECT_EQ(trace.n_layers, 2u);
  EXPECT_EQ(trace.n_experts, 4u);
  EXPECT_EQ(trace.n_used, 2u);
  EXPECT_EQ(trace.prompt_chunk, 8u);
  EXPECT_EQ(trace.expert_bytes, (std::vector<std::uint64_t>{10, 20}));
  EXPECT_EQ(trace.is_prompt, (std::vector<bool>{true, false}));
  EXPECT_EQ(trace.experts, (std::vector<std::uint16_t>{0, 1, 2, 3, 3, 0, k_none, k_none}));
}

TEST(ReadTrace, ReadsPlainJsonLines) {
  const RoutingTrace trace = read_text_trace(k_plain);
  EXPECT_EQ(trace.n_layers, 2u);
  EXPECT_EQ(trace.n_experts, 4u) << "the largest id and one";
  EXPECT_EQ(trace.n_used, 2u);
  EXPECT_EQ(trace.is_prompt, (std::vector<bool>{false, false}));
  EXPECT_EQ(trace.experts, (std::vector<std::uint16_t>{0, 1, 2, 3, 3, 0, 1, 2}));
  EXPECT_EQ(read_text_trace(k_plain, 16).n_experts, 16u);
}

TEST(ReadTrace, ReadsRouteCsvRecordedLayerByLayer) {
  const RoutingTrace trace = read_text_trace(k_csv);
  EXPECT_EQ(trace.model, "/some/where.gguf");
  EXPECT_EQ(trace.n_experts, 4u);
  EXPECT_EQ(trace.expert_bytes, (std::vector<std::uint64_t>{10, 20}));
  EXPECT_EQ(trace.is_prompt, (std::vector<bool>{true, true, false}));
  EXPECT_EQ(trace.experts, (std::vector<std::uint16_t>{1, 2, k_none, k_none, 3, 0, 0, 1, 2, 3, 3, 2}));
}

TEST(ReadTrace, NamesTheLineOfWhatIsWrong) {
  EXPECT_EQ(trace_error(""), "the file is empty; expected a routing trace");
  EXPECT_THAT(trace_error("hello\n"), StartsWith("line 1: expected a JSON object"));
  EXPECT_THAT(trace_error(k_plain + "\n{\"tok\": 3, \"layers\": [[0, 1], [2, 3]}\n"),
              StartsWith("line 4: byte 37"));
  EXPECT_THAT(trace_error(k_plain + "\n{\"tok\": 3, \"layers\": [[0, 1], [2]]}\n"),
              StartsWith("line 4: layer 1 has 1 experts, expected 2"));
  EXPECT_THAT(trace_error(k_plain + "\n{\"tok\": 3, \"layers\": [[0, 1]]}\n"),
              StartsWith("line 4: 1 layers, expected 2"));
  EXPECT_THAT(trace_error(k_plain + "\n{\"tok\": 3}\n"), StartsWith("line 4: a token without"));
  EXPECT_THAT(trace_error("{\"layers\": [[1, 1]]}"), StartsWith("line 1: layer 0 has expert 1 twice"));
  EXPECT_THAT(trace_error("{\"layers\": [[1, -1]]}"), HasSubstr("expected an integer from 0 to 65534"));
  EXPECT_THAT(trace_error("{\"layers\": [[65535]]}"), HasSubstr("expected an integer"));
  EXPECT_THAT(trace_error("{\"layers\": [[1.5]]}"), HasSubstr("expected an integer"));
  EXPECT_THAT(trace_error("{\"layers\": []}"), HasSubstr("0 layers"));
  EXPECT_THAT(trace_error("{\"layers\": [[]]}"), HasSubstr("no layer has experts"));
  EXPECT_THAT(trace_error(k_header), HasSubstr("the trace has no tokens"));
  EXPECT_THAT(trace_error(k_ours + k_header), StartsWith("line 4: a second header"));
  EXPECT_THAT(trace_error(k_header + "{\"layers\": [[0, 4], [1, 2]]}"), StartsWith("line 2: byte"));
  EXPECT_THAT(trace_error(k_header + "{\"phase\": \"x\", \"layers\": [[0, 1], [1, 2]]}"),
              StartsWith("line 2: phase 'x'"));
  EXPECT_THAT(trace_error(k_plain, 3), HasSubstr("3 experts were given"));
}

TEST(ReadTrace, RefusesHeadersThatClaimNonsense) {
  const auto header = [](const std::string& from, const std::string& to) {
    std::string text = k_ours;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_THAT(trace_error(header("\"version\": 1", "\"version\": 2")), StartsWith("line 1: version 2"));
  EXPECT_THAT(trace_error(header("\"version\": 1, ", "")), StartsWith("line 1: the header has no version"));
  EXPECT_THAT(trace_error(header("\"layers\": 2", "\"layers\": 0")), StartsWith("line 1: the header claims"));
  EXPECT_THAT(trace_error(header("\"layers\": 2", "\"layers\": 5000")), HasSubstr("from 0 to 4096"));
  EXPECT_THAT(trace_error(header("\"experts_used\": 2", "\"experts_used\": 5")),
              StartsWith("line 1: the header claims"));
  EXPECT_THAT(trace_error(header("\"experts_used\": 2", "\"experts_used\": 3")),
              StartsWith("line 2: layer 0 has 2"));
  EXPECT_THAT(trace_error(header("[10, 20]", "[10]")), HasSubstr("sizes of 1 layers"));
  EXPECT_THAT(trace_error(header("\"prompt_chunk\": 8", "\"prompt_chunk\": 0")),
              StartsWith("line 1: the header claims"));
  EXPECT_THAT(trace_error(header("sluice-trace", "other")), StartsWith("line 1: the format is not"));
}

TEST(ReadTrace, RefusesCsvThatContradictsItself) {
  EXPECT_THAT(trace_error("# route_trace v2\n"), StartsWith("line 1: expected version v1"));
  EXPECT_THAT(trace_error("# route_trace v1\n"), HasSubstr("no line of column names"));
  EXPECT_THAT(trace_error("# route_trace v1\nturn,phase,step,layer,slot,expert\n"),
              StartsWith("line 2: the lines before"));
  EXPECT_THAT(trace_error("# route_trace v1\n# n_layer=2 n_expert=4 n_expert_used=2\nturn,phase\n"),
              StartsWith("line 3: there is no column 'step'"));
  EXPECT_THAT(trace_error("# route_trace v1\n# n_layer=99999999999999999999\n"),
              StartsWith("line 2: n_layer="));
  EXPECT_THAT(trace_error(k_csv + "0,1,1,0,0,4,\n"),
              StartsWith("line 16: expert is not a number from 0 to 3"));
  EXPECT_THAT(trace_error(k_csv + "0,1,1,2,0,1,\n"), StartsWith("line 16: layer is not"));
  EXPECT_THAT(trace_error(k_csv + "0,2,1,0,0,1,\n"), StartsWith("line 16: phase is not"));
  EXPECT_THAT(trace_error(k_csv + "0,1\n"), StartsWith("line 16: step is not"));
  EXPECT_THAT(trace_error(k_csv + "0,1,0,1,0,1,\n"), StartsWith("line 16: slot 0 of layer 1 a second time"));
  EXPECT_THAT(trace_error(k_csv + "0,1,1,0,0,1,\n0,1,1,0,1,1,\n"),
              StartsWith("line 17: layer 0 has expert 1 twice"));
  EXPECT_THAT(trace_error(k_csv + "0,1,1,0,0,1,\n"),
              HasSubstr("token 3 has 1 experts in layer 0, expected 2"));
}

TEST(ReadTrace, LongLinesAndHugeClaimsEndAtTheirLimits) {
  EXPECT_THAT(trace_error(std::string(5u << 20, '{')), HasSubstr("line 1 is longer than 4194304 bytes"));
  EXPECT_THAT(trace_error("{\"layers\": [[" + std::string(100, '[') + "]]}"), StartsWith("line 1: byte"));
  // 4096 layers of 1024 ids: 32 tokens reach the limit of 2^27 ids, whatever few bytes their lines have.
  std::string csv =
      "# route_trace v1\n# n_layer=4096 n_expert=65535 "
      "n_expert_used=1024\nturn,phase,step,layer,slot,expert\n";
  for (int step = 0; step < 40; ++step) csv += "0,1," + std::to_string(step) + ",0,0,0\n";
  EXPECT_THAT(trace_error(csv), StartsWith("line 36: token 33 "));
}

TEST(ReadTrace, NoCutAndNoChangedByteCrashes) {
  for (const std::string& text : {k_ours, k_plain, k_csv}) {
    for (std::size_t n = 0; n <= text.size(); n += 3) trace_error(text.substr(0, n));
    for (std::size_t i = 0; i < text.size(); i += 3) {
      for (const char byte : {'\0', '9', ',', ']', '"'}) {
        std::string changed = text;
        changed[i] = byte;
        trace_error(changed);
      }
    }
  }
}

TEST(ReadTrace, AMissingFileIsNamed) {
  try {
    read_trace("/nowhere/at/all.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/at/all.jsonl"));
  }
}

}  // namespace
}  // namespace sluice
