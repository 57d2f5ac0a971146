#!/bin/sh
# check_ptx.sh SOURCE_DIR [OUT_DIR]: makes PTX of every kernel file of src/device/cuda for sm_80 and sm_90a, by clang
# without a CUDA toolkit.  Where ptxas is on the PATH (or PTXAS names it), also assembles it for sm_80 and sm_90a, prints
# registers, stack and spills of each kernel, and fails on spills and on warnings (C7512, C7518, C7519 and the like:
# products that wait for each other).  Exit 77: there is no clang that can.
set -eu
source=$1 out=${2:-$(mktemp -d)}
mkdir -p "$out"
clang=${CLANG_CUDA:-clang-19}
command -v "$clang" >/dev/null 2>&1 || { echo "check_ptx: no $clang" >&2; exit 77; }
ptxas=${PTXAS:-$(command -v ptxas || true)}
failed=0
for file in "$source"/src/device/cuda/kernels/*.cu; do
  name=$(basename "$file" .cu)
  for arch in sm_80:ptx75 sm_90a:ptx80; do
    version=${arch#*:} arch=${arch%:*} ptx=$out/$name.${arch%:*}.ptx
    "$clang" -x cuda --cuda-device-only -S -O3 -std=c++17 -nocudainc -nocudalib --cuda-path=/nonexistent \
      --cuda-gpu-arch="$arch" -Xclang -target-feature -Xclang "+$version" -ffp-contract=off -Wall -Wextra -Werror \
      -Wno-unused-function -I"$source/src" "$file" -o "$ptx" || { failed=1; continue; }
    [ -n "$ptxas" ] || continue
    if ! "$ptxas" -v -arch="$arch" "$ptx" -o /dev/null >"$ptx.log" 2>&1; then cat "$ptx.log"; failed=1; continue; fi
    awk -v arch="$arch" -v file="$name" '
      /Compiling entry function/ { split($0, part, "\x27"); kernel = part[2] }
      /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
      /Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") registers = $(i + 1)
        printf "%-8s %-34s %4d registers %4d stack %4d spilled\n", arch, kernel, registers, stack, stores + loads
        if (stores + loads > 0) bad = 1 }
      /warning|C75[0-9][0-9]/ { print file ": " $0; bad = 1 }
      END { exit bad }' "$ptx.log" || failed=1
  done
done
exit $failed
