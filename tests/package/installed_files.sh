#!/usr/bin/env bash
# installed_files.sh BUILD_DIR NINJA: whoever has built the program alone, as scripts/demo does, can install. So
# building it must write every file that the install rules take from the build folder.
set -euo pipefail
build_dir=$1 ninja=$2

steps=$("$ninja" -C "$build_dir" -t commands src/cli/sluice)
mapfile -t files < <(grep -oE "\"$build_dir/[^\"]+\"" "$build_dir/cmake_install.cmake" | tr -d '"' | LC_ALL=C sort -u)

wrong=0 n_built=0
for file in "${files[@]}"; do
  case "$file" in
    "$build_dir"/package/* | "$build_dir"/CMakeFiles/* | "$build_dir"/'${'*) continue ;;  # CMake's own
    *.cmake) continue ;;
  esac
  n_built=$((n_built + 1))
  if ! grep -qF -- "${file#"$build_dir"/}" <<<"$steps"; then
    echo "$file: is installed, but building the program does not write it"
    wrong=1
  fi
done
# The program, the library and three completions.
if [ "$n_built" -lt 5 ]; then echo "found $n_built files that are built and installed, expected at least 5"; wrong=1; fi
echo "$n_built files"
exit $wrong
