#!/usr/bin/env bash
# find_package.sh SOURCE_DIR BUILD_DIR CMAKE GENERATOR COMPILER: what a user of the installed package relies on.
# The installed tree is moved before it is used, so nothing in it may remember where it was built or installed.
set -euo pipefail
source_dir=$1 build_dir=$2 cmake=$3 generator=$4 compiler=$5
unset SLUICE_TEST_DATA

work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-package.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

"$cmake" --install "$build_dir" --prefix "$work/installed" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
mv "$work/installed" "$work/moved"
prefix=$work/moved
share=$prefix/share

for file in bin/sluice include/sluice/sluice.hpp share/sluice/models/tales-29m-moe-Q4_K_M.gguf \
  share/sluice/models/tales-draft-3.7m-Q8_0.gguf share/bash-completion/completions/sluice share/doc/sluice/LICENSE; do
  [ -s "$prefix/$file" ] || fail "$file is not installed"
done
config=$(find "$prefix" -name sluiceConfig.cmake)
pc=$(find "$prefix" -name sluice.pc)
if [ -z "$config" ] || [ -z "$pc" ]; then fail "the CMake or pkg-config file is not installed"; fi
if grep -nF -e "$source_dir" -e "$build_dir" -e "$work/installed" "$(dirname "$config")"/* "$pc"; then
  fail "a package file names the folder it was built in"
fi
bash -n "$share/bash-completion/completions/sluice" || fail "the bash completion is not bash"

echo "-- a CMake project with find_package"
"$cmake" -S "$source_dir/tests/package/consumer" -B "$work/consumer" -G "$generator" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$prefix" -DEXAMPLES_DIR="$source_dir/examples" \
  >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; fail "the consumer does not configure"; }
"$cmake" --build "$work/consumer" >"$work/build.log" 2>&1 || { cat "$work/build.log"; fail "the consumer does not build"; }
model=$share/sluice/models/tales-29m-moe-Q4_K_M.gguf
"$work/consumer/consumer" "$model"
"$work/consumer/minimal" "$model"

echo "-- a compiler with pkg-config"
flags=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --cflags --libs sluice)
# shellcheck disable=SC2086  # the flags are words
"$compiler" -std=c++20 "$source_dir/examples/minimal.cpp" -o "$work/minimal" $flags || fail "pkg-config's flags do not link"

echo "-- the installed program"
"$prefix/bin/sluice" --version
cd "$work"
# A program from a build tree knows the checkout's models too: the installed one must take those beside it.
"$prefix/bin/sluice" inspect tales --json | grep -qF "$share/sluice/models/" || fail "the installed model is not found"
text=$("$prefix/bin/sluice" run tales -p "Once upon a time" -n 20 --seed 7 --memory 24M --ctx 256)
[ -n "$text" ] || fail "the installed program printed no story"
echo "$text"
