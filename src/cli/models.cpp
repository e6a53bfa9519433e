#include "cli/models.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.hpp"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

/// Anything but a folder: a model may be a link, or a device.
bool is_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_directory(status);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::vector<fs::path> model_folders() {
  std::vector<fs::path> folders;
  if (const char* variable = std::getenv("SLUICE_MODELS")) {
    std::string_view rest(variable);
    while (!rest.empty()) {
      const std::size_t colon = std::min(rest.find(':'), rest.size());
      if (colon != 0) folders.emplace_back(rest.substr(0, colon));
      rest.remove_prefix(std::min(colon + 1, rest.size()));
    }
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(program.parent_path().parent_path() / "share" / "sluice" / "models");
#ifdef SLUICE_BUILD_MODELS_DIR
  if (is_folder(SLUICE_BUILD_MODELS_DIR)) folders.emplace_back(SLUICE_BUILD_MODELS_DIR);
#endif
  return folders;
}

std::string builtin_names() {
  std::string names;
  for (const BuiltinModel& model : k_builtin_models)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  return names;
}

}  // namespace

fs::path find_model(const std::string& name) {
  if (is_file(name)) return name;
  const auto builtin = std::find_if(k_builtin_models.begin(), k_builtin_models.end(),
                                    [&name](const BuiltinModel& model) { return name == model.name; });
  const bool is_builtin = builtin != k_builtin_models.end();
  if (!is_builtin && is_folder(name))
    base::fail(ErrorCode::io, "{} is a folder; name a GGUF file in it", name);
  if (name.empty() || name.find('/') != std::string::npos) {
    base::fail(ErrorCode::io, "there is no file '{}'; built-in models are {}", name, builtin_names());
  }
  const std::vector<std::string> files =
      is_builtin ? std::vector<std::string>{builtin->file} : std::vector<std::string>{name, name + ".gguf"};
  const std::vector<fs::path> folders = model_folders();
  std::string searched;
  for (const fs::path& folder : folders) {
    for (const std::string& file : files) {
      if (is_file(folder / file)) return folder / file;
    }
    searched += fmt::format("{}{}", searched.empty() ? "" : ", ", folder.string());
  }
  if (is_builtin) {
    base::fail(ErrorCode::io,
               "the built-in model '{}' is not installed: no {} in {}; set SLUICE_MODELS to its folder", name,
               builtin->file, searched);
  }
  base::fail(ErrorCode::io, "there is no file or model '{}'; built-in models are {}", name, builtin_names());
}

}  // namespace sluice::cli
