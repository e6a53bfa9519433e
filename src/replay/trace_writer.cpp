#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "base/atomic_file.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "sluice/model.hpp"
#include "sluice/routing.hpp"

namespace sluice {
namespace {

constexpr std::size_t k_flush_bytes = 64 * 1024;
constexpr std::string_view k_magic = "{\"format\": \"sluice-trace\"";

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}",
                     static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  out += '"';
}

/// Whether a file may be replaced: it is empty or an earlier trace.
bool is_trace(int fd) {
  std::array<char, k_magic.size()> start;
  const ssize_t n = pread(fd, start.data(), start.size(), 0);
  return n == 0 ||
         (n == static_cast<ssize_t>(start.size()) && std::string_view(start.data(), start.size()) == k_magic);
}

}  // namespace

struct TraceWriter::Impl {
  std::string path;
  int fd = -1;  ///< -1 after a failure: the trace has ended.
  bool is_regular = false;
  std::string lines;  ///< Whole lines that are not written yet.
  std::uint64_t written_bytes = 0;
  std::uint64_t n_tokens = 0;

  void give_up(int error) {
    base::warn("the routing trace {} ends after {} bytes: {}", path, written_bytes, std::strerror(error));
    // What the failed write left of a line would make the file unreadable.
    if (is_regular && ftruncate(fd, static_cast<off_t>(written_bytes)) != 0) errno = 0;
    close(fd);
    fd = -1;
    lines = {};
  }

  void flush() {
    if (fd < 0 || lines.empty()) return;
    // Writing beyond this limit would end the process by a signal.
    if (const auto limit = base::file_bytes_limit();
        is_regular && limit && written_bytes + lines.size() > *limit)
      return give_up(EFBIG);
    std::string_view rest = lines;
    while (!rest.empty()) {
      const ssize_t n = write(fd, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return give_up(n < 0 ? errno : EIO);
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
    written_bytes += lines.size();
    lines.clear();
  }

  void add(const RoutedPass& pass) {
    if (fd < 0) return;
    const auto out = std::back_inserter(lines);
    for (std::uint32_t token = 0; token < pass.n_tokens; ++token) {
      fmt::format_to(out, "{{\"tok\": {}, \"phase\": \"{}\", \"layers\": [", ++n_tokens,
                     pass.is_decode ? "decode" : "prompt");
      for (std::uint32_t layer = 0; layer < pass.n_layers; ++layer) {
        const auto ids =
            pass.experts.subspan((std::size_t{layer} * pass.n_tokens + token) * pass.n_used, pass.n_used);
        fmt::format_to(out, "{}[{}]", layer == 0 ? "" : ", ", fmt::join(ids, ", "));
      }
      lines += "]}\n";
      if (lines.size() >= k_flush_bytes) flush();
    }
  }
};

TraceWriter::TraceWriter(const std::filesystem::path& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path.string();
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  impl_->fd = fd >= 0 || errno != EACCES ? fd : open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (impl_->fd < 0)
    base::fail(ErrorCode::io, "cannot write the routing trace {}: {}", impl_->path, std::strerror(errno));
  struct stat status = {};
  impl_->is_regular = fstat(impl_->fd, &status) == 0 && S_ISREG(status.st_mode);
  if (!impl_->is_regular) return;
  const bool may_replace = is_trace(impl_->fd);
  if (may_replace && ftruncate(impl_->fd, 0) == 0) return;
  const int error = errno;
  close(impl_->fd);
  impl_->fd = -1;
  if (may_replace)
    base::fail(ErrorCode::io, "cannot write the routing trace {}: {}", impl_->path, std::strerror(error));
  base::fail(ErrorCode::invalid_argument,
             "{} exists and is no routing trace, so it is not replaced; give another name", impl_->path);
}

TraceWriter::~TraceWriter() {
  impl_->flush();
  // Network file systems report a full disk only here.
  if (impl_->fd >= 0 && close(impl_->fd) != 0)
    base::warn("the routing trace {} may be incomplete: {}", impl_->path, std::strerror(errno));
}

RoutingObserver TraceWriter::observer() {
  return [impl = impl_.get()](const RoutedPass& pass) { impl->add(pass); };
}

void TraceWriter::begin(const ModelInfo& info, std::uint32_t prefill_chunk) {
  if (info.n_experts == 0) {
    base::fail(ErrorCode::invalid_argument,
               "{} has no experts, so there is no routing to trace; leave out --trace", info.path);
  }
  std::string& lines = impl_->lines;
  lines.reserve(k_flush_bytes + k_flush_bytes / 4);
  lines += k_magic;
  lines += ", \"version\": 1, \"model\": ";
  append_json_string(lines, info.name);
  lines += ", \"architecture\": ";
  append_json_string(lines, info.architecture);
  fmt::format_to(std::back_inserter(lines),
                 ", \"layers\": {}, \"experts\": {}, \"experts_used\": {}, \"prompt_chunk\": {}, "
                 "\"expert_bytes\": [{}]}}\n",
                 info.expert_bytes.size(), info.n_experts, info.n_experts_used, prefill_chunk,
                 fmt::join(info.expert_bytes, ", "));
}

}  // namespace sluice
