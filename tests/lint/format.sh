#!/usr/bin/env bash
# format.sh SOURCE_DIR: every C++ file is as clang-format 14 writes it. Other versions format differently, so only
# this one, Debian 12's, decides; without it the test is skipped.
set -euo pipefail
cd "$1"

formatter=""
for name in clang-format-14 clang-format; do
  if command -v "$name" >/dev/null 2>&1 && "$name" --version | grep -qE 'version 14\.'; then formatter=$name; break; fi
done
if [ -z "$formatter" ]; then
  echo "skipped: clang-format 14 is not installed"
  exit 77
fi

mapfile -d '' -t files < <(find include src tests bench fuzz examples -type f \( -name '*.hpp' -o -name '*.cpp' \) \
  -print0 2>/dev/null | LC_ALL=C sort -z)
if [ ${#files[@]} -eq 0 ]; then echo "no C++ file found"; exit 1; fi

wrong=0
for file in "${files[@]}"; do
  if ! "$formatter" "$file" | cmp -s - "$file"; then echo "$file: run scripts/format"; wrong=1; fi
done
echo "${#files[@]} files"
exit $wrong
