#!/usr/bin/env bash
# public_headers.sh SOURCE_DIR COMPILER: each public header compiles on its own, without warnings, in a program that
# sees nothing but include/; sluice.hpp includes them all.
set -euo pipefail
cd "$1"
compiler=$2

wrong=0 n_files=0
for header in include/sluice/*.hpp; do
  name=${header#include/}
  n_files=$((n_files + 1))
  if ! printf '#include "%s"\n#include "%s"\n' "$name" "$name" |
    "$compiler" -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only -I include -x c++ -; then
    echo "$header: does not compile on its own"
    wrong=1
  fi
  if [ "$name" != sluice/sluice.hpp ] && ! grep -qF "#include \"$name\"" include/sluice/sluice.hpp; then
    echo "include/sluice/sluice.hpp: lacks $name"
    wrong=1
  fi
done
if [ "$n_files" -lt 2 ]; then echo "no public header found"; exit 1; fi
echo "$n_files headers"
exit $wrong
