#include "sluice/inspect.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/json.hpp"
#include "cli/models.hpp"
#include "cli/stats_table.hpp"

namespace sluice::cli {
namespace {

using base::format_bytes;

std::string summary(const Inspection& file) {
  std::string text = fmt::format("{}\n", base::printable(file.path));
  const auto line = [&text](const char* label, const std::string& value) {
    text += fmt::format("  {:<13} {}\n", label, value);
  };
  line("name", base::printable(file.name));
  line("architecture",
       fmt::format("{} (GGUF version {})", base::printable(file.architecture), file.gguf_version));
  line("size", fmt::format("{}, {} parameters in {} tensors", format_bytes(file.file_bytes),
                           format_count(file.n_parameters), file.tensors.size()));
  if (file.shards.size() > 1) {
    for (const std::string& shard : file.shards) line("shard", base::printable(shard));
  }
  line("runnable", file.runnable ? "yes" : "no: " + base::printable(file.why_not));
  return text;
}

std::string metadata(const Inspection& file) {
  std::string text = "metadata\n";
  std::size_t width = 0;
  for (const MetadataFact& fact : file.metadata) width = std::max(width, base::printable(fact.key).size());
  width = std::min<std::size_t>(width, 48);
  for (const MetadataFact& fact : file.metadata) {
    text += fmt::format("  {:<{}}  {}  ({})\n", base::printable(fact.key), width, base::printable(fact.value),
                        fact.type);
  }
  return text;
}

std::string roles(const Inspection& file) {
  std::vector<std::pair<std::string, std::uint64_t>> sorted(file.bytes_by_role.begin(),
                                                            file.bytes_by_role.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::uint64_t total = 0;
  for (const auto& [role, bytes] : sorted) total += bytes;
  Table table;
  for (const auto& [role, bytes] : sorted) {
    if (bytes == 0) continue;
    table.row(role, format_bytes(bytes),
              fmt::format("{:4.1f} %", 100.0 * static_cast<double>(bytes) / static_cast<double>(total)));
  }
  return "bytes by role\n" + table.text();
}

std::string placement(const Inspection& file) {
  if (!file.runnable) return {};
  if (!file.plan_error.empty())
    return fmt::format("placement\n  none: {}\n", base::printable(file.plan_error));
  return "placement\n" + plan_table(file.plan);
}

std::string tensors(const Inspection& file) {
  std::string text = "tensors (name, type, dimensions, bytes, role, shard:offset)\n";
  std::size_t width = 0;
  for (const TensorFact& tensor : file.tensors) width = std::max(width, base::printable(tensor.name).size());
  width = std::min<std::size_t>(width, 64);
  for (const TensorFact& tensor : file.tensors) {
    std::string dims;
    for (const std::uint64_t dim : tensor.dims) dims += fmt::format("{}{}", dims.empty() ? "" : " x ", dim);
    text +=
        fmt::format("  {:<{}}  {:<7}  {:<20}  {:>12}  {:<15}  {}:{}\n", base::printable(tensor.name), width,
                    tensor.type, dims, tensor.bytes, role_name(tensor.role), tensor.shard, tensor.offset);
  }
  return text;
}

}  // namespace

int inspect(const InspectCommand& command, Output& output) {
  const Inspection file = sluice::inspect(find_model(command.model), command.open);
  if (command.json) {
    output.write(inspect_json(file, command.tensors));
  } else {
    output.print(summary(file) + metadata(file) + roles(file) + placement(file));
    if (command.tensors) output.print(tensors(file));
  }
  return exit_status(output);
}

}  // namespace sluice::cli
