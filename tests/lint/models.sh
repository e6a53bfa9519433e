#!/usr/bin/env bash
# models.sh SOURCE_DIR: the table of docs/models.md has a row for every architecture that can be run, each once and in
# order, and no other; README names all of them, too.
set -euo pipefail
cd "$1"

wrong=0
say() { echo "$*"; wrong=1; }
known=$(find src/model/arch -name '*.cpp' -printf '%f\n' | sed 's/\.cpp$//' | LC_ALL=C sort)
if [ -z "$known" ]; then echo "no architecture found in src/model/arch"; exit 1; fi
# The rows behind the head "| architecture |", until a line that is no row.
listed=$(awk '/^\| architecture \|/ { inside = 1; next } inside && !/^\|/ { exit } inside && /^\| `/ { print }' docs/models.md |
  sed 's/^| `\([^`]*\)`.*/\1/')

while IFS= read -r name; do
  case $(grep -cxF -- "$name" <<<"$listed" || true) in
    0) say "docs/models.md: no row for $name, which src/model/arch/$name.cpp runs; add one" ;;
    1) ;;
    *) say "docs/models.md: more than one row for $name" ;;
  esac
  if ! grep -qF -- "\`$name\`" README.md; then say "README.md: does not name the architecture $name"; fi
done <<<"$known"
while IFS= read -r name; do
  if ! grep -qxF -- "$name" <<<"$known"; then say "docs/models.md: has a row for $name, but no src/model/arch/$name.cpp"; fi
done <<<"$listed"
if [ "$listed" != "$(LC_ALL=C sort <<<"$listed")" ]; then say "docs/models.md: the rows are not in the order of names"; fi
echo "$(wc -l <<<"$known") architectures"
exit $wrong
