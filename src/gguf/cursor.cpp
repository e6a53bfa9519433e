#include "gguf/cursor.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "gguf/limits.hpp"
#include "gguf/text.hpp"

namespace sluice::gguf {

Cursor::Cursor(ByteSource& source) : source_(source), size_(source.size()) {}

void Cursor::set_context(const char* kind, std::uint64_t index, std::string_view name) noexcept {
  kind_ = kind;
  index_ = index;
  name_ = name;
}

void Cursor::require(std::uint64_t n_bytes, const char* what) const {
  if (n_bytes > remaining()) {
    fail_at(position_,
            "{} needs {} bytes here, but the file ends at byte {}, {} bytes too early: it is truncated (an "
            "incomplete download?) or damaged. Resume or repeat the download",
            what, n_bytes, size_, n_bytes - remaining());
  }
  if (n_bytes > k_max_header_bytes - std::min(position_, k_max_header_bytes)) {
    fail_at(position_, "{} would make the header larger than the limit of {} bytes: the file is damaged",
            what, k_max_header_bytes);
  }
}

std::string_view Cursor::view(std::size_t n_bytes, const char* what) {
  SLUICE_CHECK(n_bytes <= k_view_bytes);
  require(n_bytes, what);
  const std::uint64_t buffer_end = buffer_offset_ + buffer_.size();
  if (position_ < buffer_offset_ || position_ + n_bytes > buffer_end) {
    buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(k_view_bytes, remaining())));
    buffer_offset_ = position_;
    source_.read(buffer_offset_, buffer_);
  }
  const auto* data = reinterpret_cast<const char*>(buffer_.data()) + (position_ - buffer_offset_);
  position_ += n_bytes;
  return {data, n_bytes};
}

void Cursor::read(std::span<std::byte> out, const char* what) {
  require(out.size(), what);
  if (out.empty()) return;
  const std::uint64_t buffer_end = buffer_offset_ + buffer_.size();
  if (position_ >= buffer_offset_ && position_ < buffer_end) {
    const auto n_buffered =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), buffer_end - position_));
    std::memcpy(out.data(), buffer_.data() + (position_ - buffer_offset_), n_buffered);
    position_ += n_buffered;
    out = out.subspan(n_buffered);
  }
  if (out.empty()) return;
  source_.read(position_, out);
  position_ += out.size();
}

std::uint64_t Cursor::string_length(std::uint64_t max_bytes, const char* what) {
  const std::uint64_t length_offset = position_;
  const auto n_bytes = number<std::uint64_t>(what);
  if (n_bytes > max_bytes) {
    fail_at(length_offset, "{} has a length of {} bytes, more than the limit of {}: the file is damaged",
            what, n_bytes, max_bytes);
  }
  require(n_bytes, what);
  return n_bytes;
}

std::string Cursor::string(std::uint64_t max_bytes, const char* what) {
  const auto n_bytes = static_cast<std::size_t>(string_length(max_bytes, what));
  if (n_bytes <= k_view_bytes) return std::string(view(n_bytes, what));
  std::string text(n_bytes, '\0');
  read(std::as_writable_bytes(std::span(text)), what);
  return text;
}

void Cursor::fail_text(std::uint64_t offset, std::string_view text) const {
  std::string context;
  if (kind_ != nullptr) {
    context = fmt::format(" in {} {}", kind_, index_);
    if (!name_.empty()) context += fmt::format(" '{}'", printable(name_));
  }
  base::fail(ErrorCode::invalid_file, "{}: byte {}{}: {}", source_.name(), offset, context, text);
}

}  // namespace sluice::gguf
