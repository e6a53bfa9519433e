#!/usr/bin/env bash
# text.sh SOURCE_DIR: no text of the tree names a path of somebody's machine, a package registry's host or a numbered
# issue, and no source has marks of unfinished work. Patterns carry a bracket so that this file does not match itself.
set -euo pipefail
cd "$1"

everywhere=(
  '(^|[^A-Za-z0-9_.])/[w]ork/' '/[h]ome/[a-z]' '/tmp/[r]esearch' '/tmp/bash_[j]obs' '\.\./[s]hared' '\.[l]ibrary/'
  'deb\.debian[.]org' 'registry\.npmjs[.]org' 'pypi[.]org' 'proxy\.golang[.]org' 'crates[.]io'
)
in_sources=(
  '(^|[^A-Za-z0-9_])(T[O]DO|F[I]XME|X[X]X)([^A-Za-z0-9_]|$)' '(^|[^A-Za-z0-9_])[Ss]t[u]b(s|bed)?([^A-Za-z0-9_]|$)'
  '[Pp]laceh[o]lder' '[Nn]ot (yet )?[i]mplemented' '[Ii]ssue #?[0-9]'
)

wrong=0
report() {  # report WHY PATTERN FILES...
  local why=$1 pattern=$2
  shift 2
  if grep -nIE -e "$pattern" /dev/null "$@"; then
    echo "  ^ $why"
    wrong=1
  fi
}

mapfile -t all < <(find . -type f -not -path './.git/*' -not -path './.git' -not -path './build/*' -not -path './.cache/*' -not -name '*.gguf' |
  LC_ALL=C sort)
mapfile -t sources < <(printf '%s\n' "${all[@]}" |
  grep -E '\.(cpp|hpp|cu|inc|cmake|sh|txt)$|^\./(scripts|\.ci)/|/Makefile$' || true)
if [ ${#sources[@]} -eq 0 ]; then echo "no source file found"; exit 1; fi

for pattern in "${everywhere[@]}"; do report "a path or host that only some machines have" "$pattern" "${all[@]}"; done
for pattern in "${in_sources[@]}"; do report "a mark of unfinished work" "$pattern" "${sources[@]}"; done
echo "${#all[@]} files, ${#sources[@]} of them sources"
exit $wrong
