#!/usr/bin/env bash
# layers.sh SOURCE_DIR LAYERS_FILE: every #include "..." below src/ names the module itself, a module its
# CMakeLists.txt declares, or the public interface; the command line program sees only base and the public
# interface; public headers see only each other and the standard library.
set -euo pipefail
cd "$1"
layers_file=$2

mapfile -t files < <(find include src -type f \( -name '*.hpp' -o -name '*.cpp' -o -name '*.inc' \) | LC_ALL=C sort)
awk -v layers_file="$layers_file" '
  BEGIN {
    while ((getline line < layers_file) > 0) {
      n = split(line, word, " ")
      known[word[1]] = 1
      allowed[word[1], word[1]] = 1
      for (i = 2; i <= n; i++) allowed[word[1], word[i]] = 1
    }
    known["cli"] = 1
    for (m in known) if (m != "cli" && m != "base") delete allowed["cli", m]
    allowed["cli", "cli"] = 1
    allowed["cli", "base"] = 1
  }
  function wrong(what) { printf "%s:%d: %s\n", FILENAME, FNR, what; n_wrong++ }
  FNR == 1 {
    split(FILENAME, part, "/")
    module = part[1] == "include" ? "public" : part[2]
    n_files++
    if (module != "public" && !(module in known)) wrong("folder src/" module " is not a declared module")
  }
  /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    quoted = $0 ~ /include[ \t]*"/
    name = $0
    sub(/^[^<"]*[<"]/, "", name)
    sub(/[>"].*$/, "", name)
    top = name
    sub(/\/.*$/, "", top)
    n_includes++
    if (module == "public") {
      if (quoted ? top != "sluice" : index(name, "/") > 0 || name ~ /\.h(pp)?$/)
        wrong("a public header may not include " name)
    } else if (!quoted) {
      if (top in known || top == "sluice") wrong("write the project'\''s own headers in quotes: " name)
    } else if (index(name, "/") == 0) {
      wrong("write headers with their module'\''s folder: " name)
    } else if (top != "sluice" && !((module, top) in allowed)) {
      wrong(top in known ? module " may not include " name ": it does not declare " top \
                         : name " is no header of this project; write others in angle brackets")
    }
  }
  END {
    if (n_files == 0 || n_includes == 0) { print "no source file found"; n_wrong++ }
    printf "%d includes in %d files, %d wrong\n", n_includes, n_files, n_wrong
    exit n_wrong > 0
  }' "${files[@]}" /dev/null
