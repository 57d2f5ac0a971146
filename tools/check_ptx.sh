#!/bin/sh
# check_ptx.sh BUILD_DIR: assembles the PTX that a build has made (cmake/cuda.cmake) by ptxas, for the card that it is made
# for and for sm_90a, on all processors.  Prints registers, stack and spills of each kernel, and fails on spills and on
# warnings (C7512, C7518, C7519 and the like: products that wait for each other).  Exit 77: there is no ptxas (PTXAS names
# it), or no PTX.
set -eu
ptxas=${PTXAS:-ptxas}

# check_ptx.sh --one ARCH PTX: one of them.
if [ "$1" = --one ]; then
  arch=$2 ptx=$3
  log=$(mktemp) made=$(mktemp)
  trap 'rm -f "$log" "$made"' EXIT
  # as module.c loads it on newer cards
  newer='s/^\.version 7\.5/.version 7.8/; s/^\.target sm_80/.target sm_90/; s#//griddepcontrol#  griddepcontrol#'
  [ "$arch" != sm_80 ] || newer=
  sed "$newer" "$ptx" >"$made"
  "$ptxas" -v -arch="$arch" "$made" -o /dev/null >"$log" 2>&1 || { cat "$log"; exit 1; }
  awk -v arch="$arch" -v file="$(basename "$ptx" .ptx)" '
    /Compiling entry function/ { split($0, part, "\x27"); kernel = part[2] }
    /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
    /Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") registers = $(i + 1)
      printf "%-8s %-34s %4d registers %4d stack %4d spilled\n", arch, kernel, registers, stack, stores + loads
      if (stores + loads > 0) bad = 1 }
    /warning|C75[0-9][0-9]/ { print file ": " $0; bad = 1 }
    END { exit bad }' "$log"
  exit
fi

folder=$1/src/device/cuda
command -v "$ptxas" >/dev/null 2>&1 || { echo "check_ptx: no $ptxas" >&2; exit 77; }
[ -n "$(ls "$folder"/*.ptx 2>/dev/null)" ] || { echo "check_ptx: no PTX in $folder" >&2; exit 77; }
for ptx in "$folder"/*.ptx; do
  for arch in $(sed -n 's/^\.target \(sm_[0-9a]*\).*/\1/p' "$ptx" | sed 's/^sm_80$/sm_80 sm_90a/'); do
    printf '%s\n%s\n' "$arch" "$ptx"
  done
done | xargs -n 2 -P "$(nproc)" sh "$0" --one
