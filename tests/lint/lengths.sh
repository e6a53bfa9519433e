#!/usr/bin/env bash
# lengths.sh SOURCE_DIR: no C++ file has more than 600 lines; no function has more than 60, in tests 100. A function's
# lines are those from its name's declaration to its closing brace. Functions are found by counting braces in the text
# without comments, literals and preprocessor lines: a brace that follows neither `namespace`, `class`, `struct`,
# `union`, `enum`, `extern` nor `=` opens a function, when nothing but those encloses it. Tables may be long.
set -euo pipefail
cd "$1"

mapfile -t files < <(find include src tests fuzz bench examples -type f \( -name '*.hpp' -o -name '*.cpp' \) 2>/dev/null |
  LC_ALL=C sort)
if [ ${#files[@]} -eq 0 ]; then echo "no source file found"; exit 1; fi

LC_ALL=C awk -v max_file=600 -v max_function=60 -v max_test_function=100 '
  function wrong(line, what) { printf "%s:%d: %s\n", file, line, what; n_wrong++ }
  function end_file() {
    if (file == "") return
    if (last_line > max_file) wrong(1, last_line " lines; at most " max_file ", find the second module in it")
    if (depth != 0) wrong(last_line, "the braces do not match")
  }
  function begin_file() {
    end_file()
    file = FILENAME
    limit = file ~ /^tests\// ? max_test_function : max_function
    depth = 0; n_conditions = 0; head = ""; start = 0; open_function = 0
    in_comment = 0; raw_end = ""; in_directive = 0
  }
  # The line without comments, and with empty literals.
  function code_of(line,   out, at, c, pair, text) {
    out = ""
    while (line != "") {
      if (in_comment) {
        at = index(line, "*/")
        if (at == 0) return out
        line = substr(line, at + 2); in_comment = 0
      } else if (raw_end != "") {
        at = index(line, raw_end)
        if (at == 0) return out
        line = substr(line, at + length(raw_end)); raw_end = ""
        out = out "\"\""
      } else {
        at = match(line, /["\047]|\/\/|\/\*/)
        if (at == 0) return out line
        c = substr(line, at, 1); pair = substr(line, at, 2)
        out = out substr(line, 1, at - 1)
        line = substr(line, at + 1)
        if (pair == "//") return out
        if (pair == "/*") { in_comment = 1; line = substr(line, 2); out = out " "; continue }
        if (c == "\"" && out ~ /(^|[^A-Za-z0-9_])(u8|u|U|L)?R$/) {
          at = index(line, "(")
          raw_end = ")" substr(line, 1, at - 1) "\""
          line = substr(line, at + 1)
        } else if (c == "\"") {
          if (match(line, /^([^"\\]|\\.)*"/)) line = substr(line, RLENGTH + 1); else line = ""
          out = out "\"\""
        } else if (out !~ /[0-9A-Fa-f]$/ || out ~ /(^|[^A-Za-z0-9_])(u8|u|U|L)$/) {
          if (match(line, /^([^\047\\]|\\.)*\047/)) line = substr(line, RLENGTH + 1)
          out = out "0"
        }  # else it separates digits.
      }
    }
    return out
  }
  # What a brace after the text `head` opens.
  function kind_of(head) {
    if (head ~ /(^|[^A-Za-z0-9_])(namespace|extern)([^A-Za-z0-9_]|$)/ && head !~ /\(/) return "scope"
    if (head ~ /(^|[^=!<>])=$/ || head ~ /^[^(]*[^=!<>]=[^=]/) return "value"
    if (head ~ /(^|[^A-Za-z0-9_])enum([^A-Za-z0-9_]|$)/ && head !~ /\)/) return "value"
    if (head ~ /(^|[^A-Za-z0-9_<,])(class|struct|union) / && head !~ /\)[^:]*$/) return "scope"
    return "function"
  }
  function open_brace(   kind) {
    depth++
    kind = open_function || (depth > 1 && kinds[depth - 1] == "value") ? "inner" : kind_of(head)
    kinds[depth] = kind
    if (kind == "function") { open_function = depth; starts = start }
    if (kind != "inner") { head = ""; start = 0 }
  }
  function close_brace(   length_) {
    if (depth == 0) { wrong(FNR, "a closing brace too many"); return }
    if (open_function == depth) {
      length_ = FNR - starts + 1
      n_functions++
      if (length_ > limit) wrong(starts, "a function of " length_ " lines; at most " limit)
      open_function = 0
      # Braces in a list of initializers belong to the function whose body follows.
      closed_start = starts
      head = ""; start = 0
      after_function = 1
    } else if (kinds[depth] != "inner") { head = ""; start = 0 }
    depth--
  }
  function scan(code,   at, c, text) {
    while (code != "") {
      at = match(code, /[{};]/)
      text = at == 0 ? code : substr(code, 1, at - 1)
      gsub(/[ \t]+/, " ", text)
      if (!open_function && text !~ /^ ?$/) {
        if (start == 0) start = after_function && text ~ /^ ?[,]/ ? closed_start : FNR
        after_function = 0
        head = head text " "
        sub(/ +$/, "", head)
        if (length(head) > 2000) head = substr(head, length(head) - 2000)
      }
      if (at == 0) return
      c = substr(code, at, 1)
      code = substr(code, at + 1)
      if (c == "{") {
        # `a_(1), b_{2} {`: the body follows a brace.
        if (start == 0) start = after_function ? closed_start : FNR
        after_function = 0
        open_brace()
      } else if (c == "}") close_brace()
      else if (!open_function) { head = ""; start = 0; after_function = 0 }
    }
  }
  # Both branches of a condition may open the same brace: each begins with what was open before the first.
  function directive(line,   i) {
    if (line ~ /^[ \t]*#[ \t]*if/) {
      n_conditions++
      saved_depth[n_conditions] = depth; saved_open[n_conditions] = open_function
      for (i = 1; i <= depth; i++) saved_kind[n_conditions, i] = kinds[i]
    } else if (line ~ /^[ \t]*#[ \t]*el/ && n_conditions > 0) {
      depth = saved_depth[n_conditions]; open_function = saved_open[n_conditions]
      for (i = 1; i <= depth; i++) kinds[i] = saved_kind[n_conditions, i]
    } else if (line ~ /^[ \t]*#[ \t]*endif/ && n_conditions > 0) n_conditions--
  }
  FNR == 1 { begin_file() }
  {
    last_line = FNR
    if (in_directive) { in_directive = $0 ~ /\\$/; next }
    if (!in_comment && raw_end == "" && $0 ~ /^[ \t]*#/) { directive($0); in_directive = $0 ~ /\\$/; next }
    scan(code_of($0))
  }
  END {
    end_file()
    if (n_functions == 0) { print "no function found"; n_wrong++ }
    printf "%d functions, %d wrong\n", n_functions, n_wrong
    exit n_wrong > 0
  }' "${files[@]}"
