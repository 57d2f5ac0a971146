#!/bin/sh
# gpu_pack.sh BUILD_DIR DIR: what tools/gpu.sh needs, for a machine with a card and nothing else: no compiler, no
# libraries, no network.  DIR gets loam-gpu.tar.gz, below 60 MiB, and gpu.sh, which unpacks it and runs it.
# Of libraries all but the C library's own, which belongs to the loader there and must be no older than here, and the
# driver.  Run by `./do gpu pack DIR`.
set -eu
[ $# = 2 ] || { echo "gpu_pack.sh: expected BUILD_DIR DIR" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
build=$1
mkdir -p "$2"
target=$(cd "$2" && pwd)
tree=$(mktemp -d "${TMPDIR:-/tmp}/loam-pack.XXXXXX")
trap 'rm -rf "$tree"' EXIT
trap 'exit 130' HUP INT TERM

programs="loam loam-lab make_model bench/device/bench_card tests/device/cuda/test_cuda_device tests/device/cuda/test_cuda_graph
  tests/engine/test_cuda_engine tests/engine/test_cuda_tiers"
mkdir -p "$tree/lib"
for program in $programs $(cd "$build" && find tests/device/cuda -name 'card_*' -type f -perm -u+x); do
  mkdir -p "$tree/build/release/$(dirname "$program")"
  strip -o "$tree/build/release/$program" "$build/$program"
  chmod 755 "$tree/build/release/$program"
  ldd "$build/$program" | awk '/=> \// { print $3 }'
done | sort -u | grep -vE '/(libc|libm|libdl|libpthread|librt|libcuda|ld-linux[^/]*)\.so[^/]*$' >"$tree/libraries"
while read -r library; do
  cp -L "$library" "$tree/lib/"
done <"$tree/libraries"
rm "$tree/libraries"
mkdir -p "$tree/models" "$tree/tools" "$tree/bench/device/card"
cp "$root/models/loam-nano.gguf" "$tree/models/"
cp "$root/tools/gpu.sh" "$root/tools/gpu_table.awk" "$tree/tools/"
cp "$root/bench/device/card/h100.csv" "$tree/bench/device/card/"

tar -C "$tree" -czf "$target/loam-gpu.tar.gz" .
cat >"$target/gpu.sh" <<'END'
#!/bin/sh
# gpu.sh [--small] [--seconds N] [-o DIR] [PART...]: what loam does on this machine's card (docs/cuda.md, "On a card").
# The archive beside it is unpacked once.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ ! -f "$here/tree/complete" ]; then
  mkdir -p "$here/tree"
  tar -xzf "$here/loam-gpu.tar.gz" -C "$here/tree"
  : >"$here/tree/complete"
fi
exec sh "$here/tree/tools/gpu.sh" "$@"
END
size=$(du -sk "$target/loam-gpu.tar.gz" | cut -f 1)
echo "$target: $((size / 1024)) MiB; there: sh gpu.sh" >&2
[ "$size" -lt $((60 * 1024)) ] || { echo "gpu_pack.sh: more than 60 MiB" >&2; exit 1; }
