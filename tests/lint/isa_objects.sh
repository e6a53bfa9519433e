#!/usr/bin/env bash
# isa_objects.sh SOURCE_DIR NM OBJECT_DIR PROCESSOR SIMD: objects built with wider instruction sets define no weak
# symbol. The linker keeps one copy of each weak function (inline ones, templates of the standard library) and may
# keep theirs, which would then crash a machine without those instructions.
set -euo pipefail
nm=$2 objects=$3 processor=$4 simd=$5

case "$simd/$processor" in
  ON/x86_64 | ON/AMD64 | ON/amd64) folder=x86 ;;
  ON/aarch64 | ON/arm64) folder=arm ;;
  *) echo "skipped: no kernels of wider instruction sets in this build"; exit 77 ;;
esac

wrong=0 n_files=0
while IFS= read -r object; do
  n_files=$((n_files + 1))
  # W, V and u are defined weak or unique symbols; lower-case w and v are mere references. DW.ref.* is a pointer to
  # the exception handler, the same in every object.
  symbols=$("$nm" -C "$object")
  if weak=$(grep -E '^[0-9a-f]+ [WVu] ' <<<"$symbols" | grep -v ' V DW\.ref\.'); then
    printf '%s: defines weak symbols:\n%s\n' "$object" "$weak"
    wrong=1
  fi
done < <(find "$objects" -type f -name '*.o' -path "$objects/*/$folder/*" | LC_ALL=C sort)
if [ "$n_files" -eq 0 ]; then echo "no object of src/kernels/$folder in $objects; build first"; exit 1; fi
echo "$n_files objects"
exit $wrong
