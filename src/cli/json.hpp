#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench.hpp"
#include "cli/outlook.hpp"
#include "cli/profile.hpp"
#include "cli/replay.hpp"
#include "cli/verify.hpp"
#include "sluice/generate.hpp"
#include "sluice/inspect.hpp"
#include "sluice/model.hpp"
#include "sluice/perplexity.hpp"
#include "sluice/tokenizer.hpp"

namespace sluice::cli {

// One JSON object each, ending with a newline. Sizes in bytes, times in nanoseconds, rates per second. Bytes
// from a file that are not UTF-8 are replaced.

/// `error`: why the answer is not whole; empty when it is.
std::string run_json(const ModelInfo& info, const Generation& generation, const std::string& error,
                     std::uint64_t seed, const Plan& plan, const Stats& stats);
std::string perplexity_json(const ModelInfo& info, const PerplexityResult& result, std::uint32_t n_ctx,
                            const Plan& plan, const Stats& stats);
/// `with_texts`: of every token the bytes that it stands for, and how the vocabulary spells it.
std::string tokens_json(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens, bool with_texts);
std::string decoded_json(const std::vector<TokenId>& tokens, const std::string& text);
std::string verify_json(const ModelInfo& info, const VerifyReport& report, const Plan& plan,
                        const Stats& stats);
std::string replay_json(const ReplayReport& report);
std::string bench_json(const BenchReport& report);
std::string profile_json(const ProfileReport& report);
std::string plan_report_json(const PlanOutlook& outlook);
std::string doctor_json(const DoctorReport& report);
/// `with_tensors` includes the table of tensors.
std::string inspect_json(const Inspection& inspection, bool with_tensors);

}  // namespace sluice::cli
