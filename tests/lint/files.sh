#!/usr/bin/env bash
# files.sh SOURCE_DIR: every source belongs to the build, every test file is registered, every module has tests, and
# headers are guarded.
set -euo pipefail
cd "$1"

wrong=0
say() { echo "$*"; wrong=1; }
n_files=0

while IFS= read -r file; do
  n_files=$((n_files + 1))
  case "$file" in
    *-inl.hpp) ;;  # Included once per instruction set on purpose.
    *.hpp) if ! grep -q '^#pragma once$' "$file"; then say "$file: lacks #pragma once"; fi ;;
  esac
  case "$file" in
    src/*.cpp)
      module=${file#src/} module=${module%%/*}
      in_module=${file#src/"$module"/}
      # By its name, or by a pattern for its folder.
      if ! grep -qF -e "${in_module##*/}" -e "${in_module%/*}/*.cpp" "src/$module/CMakeLists.txt" 2>/dev/null; then
        say "$file: src/$module/CMakeLists.txt does not build it"
      fi ;;
    tests/*_test.cpp)
      module=${file#tests/} list=tests/${module%%/*}/CMakeLists.txt
      if ! grep -qw -- "$(basename "$file" .cpp)" "$list" 2>/dev/null; then
        say "$file: $list does not register it, so it never runs"
      fi ;;
  esac
done < <(find include src tests fuzz bench examples -type f \( -name '*.hpp' -o -name '*.cpp' \) 2>/dev/null |
  LC_ALL=C sort)

for folder in src/*/; do
  module=$(basename "$folder")
  if [ ! -f "src/$module/CMakeLists.txt" ]; then say "src/$module: has no CMakeLists.txt"; fi
  if [ -z "$(find "tests/$module" -name '*_test.cpp' -o -name '*.sh' 2>/dev/null)" ]; then
    say "src/$module: tests/$module has no test"
  fi
done

while IFS= read -r file; do
  if [ ! -x "$file" ]; then say "$file: starts with #! but is not executable"; fi
done < <(grep -lE '^#!' scripts/* .ci/* 2>/dev/null)

if [ "$n_files" -eq 0 ]; then say "no source file found"; fi
echo "$n_files C++ files"
exit $wrong
