# Shared by the scripts of this folder; sourced, never run. Sets `root` and goes there, so that every script works
# from any current directory.
# shellcheck shell=bash
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf 'sluice: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Compile jobs: one per core, but no more than there are GiB of free memory, because one compiler takes about one.
n_jobs() {
  local cores free_gib
  cores=$(nproc 2>/dev/null || echo 1)
  free_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null || echo "$cores")
  if [ "${free_gib:-0}" -lt 1 ]; then free_gib=1; fi
  if [ "$cores" -lt "$free_gib" ]; then echo "$cores"; else echo "$free_gib"; fi
}

# Shows the newest "[n/m]" of ninja in place on a terminal, nothing elsewhere.
show_progress() {
  local line
  if [ ! -t 2 ]; then cat >/dev/null; return; fi
  while IFS= read -r line; do
    case "$line" in '['*/*']'*) printf '\rsluice: %s: %s ' "$1" "${line%%]*}]" >&2 ;; esac
  done
  printf '\r\033[K' >&2
}

# quietly LABEL LOG COMMAND...: runs a command with its output in LOG, which is shown only when it fails.
quietly() {
  local label=$1 log=$2
  shift 2
  if ! "$@" </dev/null 2>&1 | tee "$log" | show_progress "$label"; then
    say "$label failed; its output (also in $log):"
    cat "$log" >&2
    return 1
  fi
}

# configure PRESET [OPTION...]: makes build/PRESET ready. A build folder that no longer fits (copied, another
# generator) is configured afresh.
configure() {
  local preset=$1 log="build/$1/configure.log"
  shift
  local options=("$@")
  if command -v ccache >/dev/null 2>&1; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  mkdir -p "build/$preset"
  if cmake --preset "$preset" "${options[@]}" </dev/null >"$log" 2>&1; then return 0; fi
  quietly "configuring $preset" "$log" cmake --fresh --preset "$preset" "${options[@]}"
}

# build PRESET [TARGET...]: all targets when none is named.
build() {
  local preset=$1
  shift
  local targets=()
  if [ $# -gt 0 ]; then targets=(--target "$@"); fi
  quietly "building $preset" "build/$preset/build.log" \
    cmake --build --preset "$preset" --parallel "$(n_jobs)" "${targets[@]}"
}
