#pragma once

#include <string>

#include "cli/options.hpp"

namespace sluice::cli {

/// A script that completes commands, options, listed values, files and model names; made from the command
/// line's own definition, so it cannot fall behind. `shell` is bash, zsh or fish; anything else throws
/// UsageError.
std::string completion_script(const std::string& shell, const CommandDescription& program);

}  // namespace sluice::cli
