#include "cli/line_editor.hpp"

#include <fmt/core.h>
#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "base/text.hpp"

namespace sluice::cli {
namespace {

constexpr std::size_t k_max_sequence_bytes = 16;
constexpr std::size_t k_max_history = 1000;
constexpr std::string_view k_paste_begin = "\x1b[200~", k_paste_end = "\x1b[201~";

/// Columns of the character at the start of the text.
std::size_t width_of(std::string_view character) {
  utf8proc_int32_t code_point = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(character.data());
  if (utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(character.size()), &code_point) <= 0) return 1;
  return static_cast<std::size_t>(std::max(utf8proc_charwidth(code_point), 0));
}

/// Rows of a screen, and where the cursor stands in them.
struct Layout {
  std::vector<std::string> rows{1};
  std::size_t row = 0, column = 0;
};

/// The last column stays empty, so that no terminal wraps by itself.
Layout lay_out(const std::string& prompt, const std::string& text, std::size_t cursor,
               std::size_t n_columns) {
  const std::size_t room = std::max<std::size_t>(n_columns, prompt.size() + 4) - 1;
  Layout layout;
  layout.rows.front() = prompt;
  std::size_t column = prompt.size();
  const auto new_row = [&] {
    // Below the prompt, not below its text.
    layout.rows.emplace_back(prompt.size(), ' ');
    column = prompt.size();
  };
  for (std::size_t at = 0;;) {
    std::string_view rest = std::string_view(text).substr(at);
    const bool is_newline = rest.starts_with('\n');
    std::string shown;
    std::size_t n_bytes = 1;
    if (rest.starts_with('\t')) {
      shown.append(2, ' ');
    } else if (!rest.empty() && !is_newline) {
      std::string_view after = rest;
      base::append_printable(shown, after);
      n_bytes = rest.size() - after.size();
    }
    const std::size_t width = shown.size() <= 1 || n_bytes == 1 ? shown.size() : width_of(shown);
    if (column + width > room) new_row();
    if (at == cursor) {
      layout.row = layout.rows.size() - 1;
      layout.column = column;
    }
    if (rest.empty()) return layout;
    layout.rows.back() += shown;
    column += width;
    at += n_bytes;
    if (is_newline) new_row();
  }
}

bool is_blank(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\t';
}

}  // namespace

LineEditor::State LineEditor::feed(char byte) {
  if (!sequence_.empty() || byte == '\x1b') {
    sequence(byte);
    return State::editing;
  }
  if (pasting_) {
    // Terminals send the end of a pasted line as that of a typed one.
    if (byte == '\r' || (byte == '\n' && !after_return_)) insert('\n');
    after_return_ = byte == '\r';
    const auto code = static_cast<unsigned char>(byte);
    if (byte == '\t' || (code >= 0x20 && code != 0x7f)) insert(byte);
    return State::editing;
  }
  return control(byte);
}

LineEditor::State LineEditor::control(char byte) {
  constexpr auto key_of = [](char letter) { return static_cast<char>(letter - 'A' + 1); };
  switch (byte) {
    case '\r':
    case '\n':
      return State::submitted;
    case '\0':  // What Linux makes of a Ctrl-D that was typed before the line was read.
    case key_of('D'):
      if (text_.empty()) return State::ended;
      if (byte != '\0') erase(cursor_, behind(cursor_));
      break;
    case key_of('Z'):
      return State::suspended;
    case '\x7f':
    case '\b':
      erase(before(cursor_), cursor_);
      break;
    case key_of('A'):
      cursor_ = line_begin();
      break;
    case key_of('E'):
      cursor_ = line_end();
      break;
    case key_of('B'):
      cursor_ = before(cursor_);
      break;
    case key_of('F'):
      cursor_ = behind(cursor_);
      break;
    case key_of('U'):
      erase(line_begin(), cursor_);
      break;
    case key_of('K'):
      erase(cursor_, line_end());
      break;
    case key_of('W'): {
      std::size_t begin = cursor_;
      while (begin > 0 && is_blank(text_[begin - 1])) --begin;
      while (begin > 0 && !is_blank(text_[begin - 1])) --begin;
      erase(begin, cursor_);
      break;
    }
    case key_of('P'):
      recall(recalled_ - 1);
      break;
    case key_of('N'):
      recall(recalled_ + 1);
      break;
    default:
      if (byte == '\t' || static_cast<unsigned char>(byte) >= 0x20) insert(byte);
  }
  return State::editing;
}

void LineEditor::sequence(char byte) {
  sequence_ += byte;
  if (sequence_ == "\x1b") return;
  const char second = sequence_[1];
  const bool is_long = second == '[' || second == 'O';
  // A sequence ends with a letter or ~; parameters stand before it.
  if (is_long && (sequence_.size() == 2 || (byte >= 0x20 && byte < 0x40))) {
    if (sequence_.size() < k_max_sequence_bytes) return;
  }
  const std::string whole = std::exchange(sequence_, {});
  if (pasting_ && whole != k_paste_end) {
    // No key: what was pasted holds an escape character. That goes, the rest is text.
    for (const char rest : whole.substr(1)) feed(rest);
    return;
  }
  key(whole);
}

void LineEditor::key(std::string_view sequence) {
  if (sequence == k_paste_begin) {
    pasting_ = true;
    after_return_ = false;
  } else if (sequence == k_paste_end) {
    pasting_ = false;
  } else if (sequence == "\x1b\r" || sequence == "\x1b\n") {
    insert('\n');
  } else if (sequence == "\x1b[D" || sequence == "\x1bOD") {
    cursor_ = before(cursor_);
  } else if (sequence == "\x1b[C" || sequence == "\x1bOC") {
    cursor_ = behind(cursor_);
  } else if (sequence == "\x1b[A" || sequence == "\x1bOA") {
    recall(recalled_ - 1);
  } else if (sequence == "\x1b[B" || sequence == "\x1bOB") {
    recall(recalled_ + 1);
  } else if (sequence == "\x1b[H" || sequence == "\x1bOH" || sequence == "\x1b[1~") {
    cursor_ = line_begin();
  } else if (sequence == "\x1b[F" || sequence == "\x1bOF" || sequence == "\x1b[4~") {
    cursor_ = line_end();
  } else if (sequence == "\x1b[3~") {
    erase(cursor_, behind(cursor_));
  }
}

void LineEditor::insert(char byte) {
  text_.insert(cursor_, 1, byte);
  ++cursor_;
}

void LineEditor::erase(std::size_t begin, std::size_t end) {
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

void LineEditor::recall(std::size_t index) {
  // One below the first wraps around to a large number.
  if (index > history_.size() || index == recalled_) return;
  if (recalled_ == history_.size()) unsent_ = text_;
  recalled_ = index;
  text_ = index == history_.size() ? unsent_ : history_[index];
  cursor_ = text_.size();
}

std::size_t LineEditor::before(std::size_t position) const {
  if (position == 0) return 0;
  for (std::size_t n_bytes = 1; n_bytes <= 4 && n_bytes <= position; ++n_bytes) {
    if (base::utf8_char_bytes(std::string_view(text_).substr(position - n_bytes)) == n_bytes)
      return position - n_bytes;
  }
  return position - 1;
}

std::size_t LineEditor::behind(std::size_t position) const {
  if (position == text_.size()) return position;
  return position + std::max<std::size_t>(base::utf8_char_bytes(std::string_view(text_).substr(position)), 1);
}

std::size_t LineEditor::line_begin() const {
  if (cursor_ == 0) return 0;
  const std::size_t newline = text_.rfind('\n', cursor_ - 1);
  return newline == std::string::npos ? 0 : newline + 1;
}

std::size_t LineEditor::line_end() const {
  return std::min(text_.find('\n', cursor_), text_.size());
}

std::string LineEditor::draw(std::size_t n_columns, std::size_t n_rows) {
  // A letter typed at the end is all that changes on the screen.
  const bool is_appended = n_screen_rows_ != 0 && cursor_ == text_.size() &&
                           text_.size() == shown_.size() + 1 && text_.starts_with(shown_) &&
                           static_cast<unsigned char>(text_.back()) >= 0x20 &&
                           static_cast<unsigned char>(text_.back()) < 0x7f && shown_width_ + 2 < n_columns;
  if (is_appended && !shown_.empty()) {
    shown_ = text_;
    ++shown_width_;
    return text_.substr(text_.size() - 1);
  }
  const Layout layout = lay_out(prompt_, text_, cursor_, n_columns);
  const std::size_t height = std::max<std::size_t>(n_rows, 2) - 1;
  const std::size_t first = layout.row < height ? 0 : layout.row - height + 1;
  const std::size_t last = std::min(first + height, layout.rows.size());
  std::string out = "\r";
  if (screen_row_ != 0) out += fmt::format("\x1b[{}A", screen_row_);
  out += "\x1b[J";
  for (std::size_t row = first; row < last; ++row) {
    if (row != first) out += "\r\n";
    out += layout.rows[row];
  }
  screen_row_ = layout.row - first;
  n_screen_rows_ = last - first;
  // At the end of the text the cursor is there already: programs that drive a chat look for the bare prompt.
  if (cursor_ != text_.size()) {
    const std::size_t up = n_screen_rows_ - 1 - screen_row_;
    if (up != 0) out += fmt::format("\x1b[{}A", up);
    out += "\r";
    if (layout.column != 0) out += fmt::format("\x1b[{}C", layout.column);
  }
  shown_ = cursor_ == text_.size() ? text_ : std::string();
  shown_width_ = layout.column;
  return out;
}

void LineEditor::forget_screen() {
  shown_.clear();
  screen_row_ = n_screen_rows_ = 0;
}

std::string LineEditor::leave() {
  std::string out;
  if (n_screen_rows_ > screen_row_ + 1) out = fmt::format("\x1b[{}B", n_screen_rows_ - 1 - screen_row_);
  forget_screen();
  return out + "\r\n";
}

std::string LineEditor::take() {
  std::string line = std::exchange(text_, {});
  cursor_ = 0;
  unsent_.clear();
  if (!line.empty() && (history_.empty() || history_.back() != line)) history_.push_back(line);
  if (history_.size() > k_max_history) history_.erase(history_.begin());
  recalled_ = history_.size();
  return line;
}

}  // namespace sluice::cli
