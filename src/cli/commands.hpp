#pragma once

#include "cli/options.hpp"
#include "cli/output.hpp"

namespace sluice::cli {

// Exit statuses.
inline constexpr int k_exit_ok = 0;
inline constexpr int k_exit_error = 1;
inline constexpr int k_exit_usage = 2;
/// As a shell reports a program that died of SIGPIPE, which is what the end of the output's reader means.
inline constexpr int k_exit_closed_output = 141;

// Each command returns its exit status, and throws sluice::Error or UsageError.
int run(const RunCommand& command, Output& output);
int inspect(const InspectCommand& command, Output& output);
int perplexity(const PerplexityCommand& command, Output& output);
int verify(const VerifyCommand& command, Output& output);
int tokenize(const TokenizeCommand& command, Output& output);
int synth(const SynthCommand& command, Output& output);
int replay(const ReplayCommand& command, Output& output);
int bench(const BenchCommand& command, Output& output);
int profile(const ProfileCommand& command, Output& output);
int plan(const PlanCommand& command, Output& output);
int doctor(const DoctorCommand& command, Output& output);

/// The status of a command that did what it was asked: a stop signal or a closed output still count. Throws
/// Error(io) if the output failed.
int exit_status(const Output& output);

}  // namespace sluice::cli
