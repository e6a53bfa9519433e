// Goal: what is typed and pasted becomes the line that is submitted, and the screen shows it.
#include "cli/line_editor.hpp"

#include <gtest/gtest.h>

#include <string>

namespace sluice::cli {
namespace {

using State = LineEditor::State;

State type(LineEditor& editor, const std::string& bytes) {
  State state = State::editing;
  for (const char byte : bytes) {
    state = editor.feed(byte);
    if (state != State::editing) break;
  }
  return state;
}

std::string line_of(const std::string& bytes) {
  LineEditor editor("> ");
  EXPECT_EQ(type(editor, bytes), State::submitted) << bytes;
  return editor.take();
}

TEST(LineEditor, EditsWhereTheCursorIs) {
  EXPECT_EQ(line_of("abc\r"), "abc");
  EXPECT_EQ(line_of("ac\x1b[Db\r"), "abc");
  EXPECT_EQ(line_of("bc\x01"
                    "a\r"),
            "abc");
  EXPECT_EQ(line_of("abx\x7f"
                    "c\n"),
            "abc");
  EXPECT_EQ(line_of("xabc\x1b[H\x1b[3~\r"), "abc");
  EXPECT_EQ(line_of("some words\x17\x17"
                    "abc\r"),
            "abc");
  EXPECT_EQ(line_of("junk\x15"
                    "abcjunk\x02\x02\x02\x02\x0b\r"),
            "abc");
}

TEST(LineEditor, MovesAndErasesWholeCharacters) {
  EXPECT_EQ(line_of("caf\xc3\xa9\x7f"
                    "e\r"),
            "cafe");
  EXPECT_EQ(line_of("\xf0\x9f\x91\xa9x\x1b[D\x7f\r"), "x");
  EXPECT_EQ(line_of("\xe2\x82\xac"
                    "1\x02\x02"
                    "a\r"),
            "a\xe2\x82\xac"
            "1");
}

TEST(LineEditor, APasteKeepsItsLinesAndLosesItsControlCharacters) {
  EXPECT_EQ(line_of("a \x1b[200~one\r\ntwo\rthree\n\x1b[1mfour\x07\x1b[201~!\r"),
            "a one\ntwo\nthree\n[1mfour!");
  EXPECT_EQ(line_of("one\x1b\rtwo\r"), "one\ntwo");
}

TEST(LineEditor, EndsOnAnEmptyLineOnly) {
  LineEditor editor("> ");
  EXPECT_EQ(type(editor, "ab\x04"), State::editing);
  EXPECT_EQ(editor.text(), "ab");
  EXPECT_EQ(type(editor, "\x7f\x7f\x04"), State::ended);
}

TEST(LineEditor, OlderLinesComeBackAndTheNewOneIsKept) {
  LineEditor editor("> ");
  for (const char* line : {"first\r", "second\r"}) {
    type(editor, line);
    editor.take();
  }
  type(editor, "new\x1b[A");
  EXPECT_EQ(editor.text(), "second");
  type(editor, "\x1b[A\x1b[A\x1b[A");
  EXPECT_EQ(editor.text(), "first");
  type(editor, "\x1b[B\x1b[B\x1b[B");
  EXPECT_EQ(editor.text(), "new");
}

TEST(LineEditor, KeysThatItDoesNotKnowDoNothing) {
  EXPECT_EQ(line_of("a\x1b[15~\x1b[1;5P\x1bOPb\r"), "ab");
  std::string endless = "\x1b[";
  endless.append(100, '1');
  LineEditor editor("> ");
  type(editor, endless);
  EXPECT_FALSE(editor.in_sequence());
}

TEST(LineEditor, ShowsWideAndControlCharactersAndWrapsBeforeTheEdge) {
  LineEditor editor("> ");
  // Two columns each: three of them and the prompt fill 8 of 9.
  type(editor, "\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad");
  EXPECT_EQ(editor.draw(9, 24), "\r\x1b[J> \xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\r\n  \xe4\xb8\xad");
}

TEST(LineEditor, AnEmptyLineEndsWithTheBarePrompt) {
  LineEditor editor("> ");
  EXPECT_EQ(editor.draw(80, 24), "\r\x1b[J> ");
}

TEST(LineEditor, DrawsOnlyALetterThatIsAddedAtTheEnd) {
  LineEditor editor("> ");
  type(editor, "ab");
  EXPECT_EQ(editor.draw(80, 24), "\r\x1b[J> ab");
  type(editor, "c");
  EXPECT_EQ(editor.draw(80, 24), "c");
  type(editor, "\x7f");
  EXPECT_EQ(editor.draw(80, 24), "\r\x1b[J> ab");
}

TEST(LineEditor, ALineHigherThanTheScreenIsShownAroundTheCursor) {
  LineEditor editor("> ");
  type(editor, "\x1b[200~1\n2\n3\n4\x1b[201~");
  EXPECT_EQ(editor.draw(80, 3), "\r\x1b[J  3\r\n  4");
  // One row up again, whatever is above.
  type(editor, "\x01");
  EXPECT_EQ(editor.draw(80, 3), "\r\x1b[1A\x1b[J  3\r\n  4\r\x1b[2C");
}

}  // namespace
}  // namespace sluice::cli
