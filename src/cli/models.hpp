#pragma once

#include <array>
#include <filesystem>
#include <string>

namespace sluice::cli {

/// A model that comes with the program.
struct BuiltinModel {
  const char* name;
  const char* file;
};

inline constexpr std::array<BuiltinModel, 2> k_builtin_models{{
    {"tales", "tales-29m-moe-Q4_K_M.gguf"},
    {"tales-draft", "tales-draft-3.7m-Q8_0.gguf"},
}};

/// The file that MODEL means: a path that exists; else a built-in name, or the name of a file with or without
/// ".gguf", in the folders of $SLUICE_MODELS, then in those that belong to the program.
/// Throws Error(io) that lists the built-in names, or the folders searched.
std::filesystem::path find_model(const std::string& name);

}  // namespace sluice::cli
