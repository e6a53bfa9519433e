#include "engine/model/heat_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string_view>
#include <system_error>

#include "base/atomic_file.hpp"
#include "base/check.hpp"
#include "base/descriptor.hpp"
#include "base/json_reader.hpp"
#include "base/log.hpp"

namespace sluice::engine {
namespace {

constexpr std::string_view k_magic = "{\"format\": \"sluice-heat\"";
constexpr std::uint64_t k_max_count = 1'000'000'000;

/// How long to wait for another process that writes the same file; it takes milliseconds.
constexpr std::uint64_t k_patience_ns = 1'000'000'000;

/// The text of a regular file of at most k_max_heat_bytes; otherwise why not, with 0 when there is no file.
std::optional<std::string> read_small_file(const std::filesystem::path& path, std::string* why_not) {
  // A pipe of that name must not make the program wait.
  const base::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status = {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) *why_not = std::strerror(errno);
    return std::nullopt;
  }
  if (!S_ISREG(status.st_mode)) {
    *why_not = "it is not a regular file";
    return std::nullopt;
  }
  std::string text;
  for (;;) {
    constexpr std::size_t k_block_bytes = 64 * 1024;
    const std::size_t old_size = text.size();
    text.resize(old_size + k_block_bytes);
    const ssize_t n = read(file.get(), text.data() + old_size, k_block_bytes);
    const int error = errno;
    text.resize(old_size + static_cast<std::size_t>(n > 0 ? n : 0));
    if (n == 0) return text;
    if (n < 0 && error != EINTR) {
      *why_not = std::strerror(error);
      return std::nullopt;
    }
    if (text.size() > k_max_heat_bytes) {
      *why_not = fmt::format("it is larger than {} bytes", k_max_heat_bytes);
      return std::nullopt;
    }
  }
}

std::string hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

}  // namespace

HeatCounts merge_heat(const HeatCounts& old, const HeatCounts& run) {
  SLUICE_CHECK(old.uses.size() == run.uses.size());
  const double keep = std::exp2(-run.n_tokens / k_heat_half_life_tokens);
  HeatCounts merged{old.n_tokens * keep + run.n_tokens, run.uses};
  for (std::size_t i = 0; i < merged.uses.size(); ++i) merged.uses[i] += old.uses[i] * keep;
  return merged;
}

std::string format_heat(const HeatKey& key, const HeatCounts& counts) {
  SLUICE_CHECK(counts.uses.size() == std::size_t{key.n_layers} * key.n_experts);
  std::string name;
  for (const char c : key.model.substr(0, 256)) {
    // Only for people: what would need an escape is left out.
    if (static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\') name += c;
  }
  std::string text = fmt::format(
      "{}, \"version\": 1, \"model\": \"{}\", \"fingerprint\": \"{}\", \"tokens\": {:.0f}, \"layers\": [",
      k_magic, name, hex(key.fingerprint), std::min(std::ceil(counts.n_tokens), double{k_max_count}));
  const auto out = std::back_inserter(text);
  for (std::uint32_t layer = 0; layer < key.n_layers; ++layer) {
    text += layer == 0 ? "\n[" : ",\n[";
    for (std::uint32_t expert = 0; expert < key.n_experts; ++expert) {
      const double uses = counts.uses[std::size_t{layer} * key.n_experts + expert];
      fmt::format_to(out, "{}{:.0f}", expert == 0 ? "" : ",", std::min(uses, double{k_max_count}));
    }
    text += ']';
  }
  return text += "]}\n";
}

ParsedHeat parse_heat(const std::string& text, const HeatKey& key) {
  if (!text.starts_with(k_magic)) return {std::nullopt, "it is no heat file"};
  HeatCounts counts;
  std::uint32_t n_layers = 0;
  std::uint64_t version = 0;
  std::string name, fingerprint;
  try {
    base::JsonReader reader(text);
    reader.begin_object();
    while (reader.next_key(name)) {
      if (name == "version") {
        version = reader.number(k_max_count);
        if (version != 1) return {std::nullopt, fmt::format("it has version {}, expected 1", version)};
      } else if (name == "fingerprint") {
        fingerprint = reader.string(64);
        if (fingerprint != hex(key.fingerprint)) return {std::nullopt, "it belongs to another model"};
      } else if (name == "tokens") {
        counts.n_tokens = static_cast<double>(reader.number(k_max_count));
      } else if (name == "layers") {
        if (n_layers != 0) return {std::nullopt, "it has two sets of layers"};
        reader.begin_array();
        for (; reader.next_element(); ++n_layers) {
          if (n_layers == key.n_layers) return {std::nullopt, "it has more layers than the model"};
          reader.begin_array();
          while (reader.next_element()) {
            counts.uses.push_back(static_cast<double>(reader.number(k_max_count)));
            if (counts.uses.size() > (std::size_t{n_layers} + 1) * key.n_experts)
              return {std::nullopt, "it has more experts than the model"};
          }
          if (counts.uses.size() != (std::size_t{n_layers} + 1) * key.n_experts)
            return {std::nullopt, "it has fewer experts than the model"};
        }
      } else {
        reader.skip_value();
      }
    }
    reader.end();
  } catch (const base::JsonError& error) {
    return {std::nullopt, fmt::format("byte {}: {}", error.offset + 1, error.what())};
  }
  if (version == 0 || fingerprint.empty() || n_layers != key.n_layers || counts.n_tokens == 0)
    return {std::nullopt, "it is incomplete"};
  return {std::move(counts), {}};
}

std::optional<HeatCounts> load_heat(const std::filesystem::path& path, const HeatKey& key) {
  std::string why_not;
  const std::optional<std::string> text = read_small_file(path, &why_not);
  if (text) {
    ParsedHeat parsed = parse_heat(*text, key);
    if (parsed.counts) return std::move(parsed.counts);
    why_not = parsed.why_not;
  }
  if (!why_not.empty()) base::warn("the heat file {} is not used: {}", path.string(), why_not);
  return std::nullopt;
}

namespace {

/// Returns why nothing was written, or an empty text.
std::string try_to_add(const std::filesystem::path& path, const HeatKey& key, const HeatCounts& run) {
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) return error.message();
  }
  base::AtomicFile file;
  int error = file.open(path, {".tmp", 0600, /*may_take_over=*/true, k_patience_ns});
  if (error == EBUSY) return "another process is writing it";
  if (error == EINVAL) return file.partial().string() + " is not a regular file";
  if (error != 0) return std::strerror(error);
  // From here on no other process adds to it.
  std::string why_not;
  const std::optional<std::string> text = read_small_file(path, &why_not);
  if (!why_not.empty()) return why_not;
  std::optional<HeatCounts> old;
  // An empty file is what a power failure can leave of one.
  if (text && !text->empty()) {
    if (!text->starts_with(k_magic)) return "it is no heat file and is left as it is";
    ParsedHeat parsed = parse_heat(*text, key);
    if (!parsed.counts) base::warn("the heat file {} is not used: {}", path.string(), parsed.why_not);
    old = std::move(parsed.counts);
  }
  error = file.append(format_heat(key, old ? merge_heat(*old, run) : run));
  if (error == 0) error = file.commit(/*may_replace=*/true);
  return error == 0 ? std::string() : std::strerror(error);
}

}  // namespace

bool add_heat(const std::filesystem::path& path, const HeatKey& key, const HeatCounts& run) {
  const std::string why_not = try_to_add(path, key, run);
  if (!why_not.empty()) base::warn("the heat file {} is not written: {}", path.string(), why_not);
  return why_not.empty();
}

}  // namespace sluice::engine
