#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

/// A line that is typed at a terminal: bytes of the keyboard in, what the screen shows out. Knows no
/// descriptors.
///
/// A paste that the terminal brackets (ESC [200~ ... ESC [201~), and Alt-Enter, put newlines into the line;
/// Enter submits it.
class LineEditor {
 public:
  enum class State {
    editing,
    submitted,  ///< take() has the line.
    ended,      ///< Ctrl-D on an empty line.
    suspended,  ///< Ctrl-Z; editing goes on with the next byte.
  };

  /// `prompt` is short, printable ASCII.
  explicit LineEditor(std::string prompt) : prompt_(std::move(prompt)) {}

  State feed(char byte);
  /// Between the brackets of a paste, or inside a key's sequence: what follows belongs to it.
  bool in_sequence() const noexcept { return pasting_ || !sequence_.empty(); }

  const std::string& text() const noexcept { return text_; }
  std::size_t cursor() const noexcept { return cursor_; }  ///< In bytes.

  /// What brings a screen of this size from what the last call showed to what is to be seen now. A line that
  /// is higher than the screen is shown in part, around the cursor.
  std::string draw(std::size_t n_columns, std::size_t n_rows);
  /// The screen was written to by others: the next draw() begins where the cursor is.
  void forget_screen();
  /// Moves below the line.
  std::string leave();

  /// The line that was submitted, which goes to the history; the editor begins anew.
  std::string take();

 private:
  State control(char byte);
  void sequence(char byte);
  void key(std::string_view sequence);
  void insert(char byte);
  void erase(std::size_t begin, std::size_t end);
  void recall(std::size_t index);
  std::size_t before(std::size_t position) const;
  std::size_t behind(std::size_t position) const;
  std::size_t line_begin() const;
  std::size_t line_end() const;

  std::string prompt_;
  std::string text_;
  std::size_t cursor_ = 0;
  std::string sequence_;  ///< Of a key, as far as it has come.
  bool pasting_ = false;
  bool after_return_ = false;  ///< The last pasted byte: \r\n is one newline.

  std::vector<std::string> history_;
  std::size_t recalled_ = 0;  ///< history_.size(): the line that is new.
  std::string unsent_;        ///< That line, while an older one is shown.

  std::string shown_;  ///< The text that the screen shows with the cursor at its end; empty: draw all.
  std::size_t shown_width_ = 0, screen_row_ = 0, n_screen_rows_ = 0;
};

}  // namespace sluice::cli
