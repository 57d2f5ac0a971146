#!/bin/sh
# check_gpu.sh SOURCE BUILD FAKE_FOLDER: ./do gpu over the fake driver: every line holds and no speed is told; a kernel
# that does nothing is a line that failed, and so is one that never ends, which does not keep the next part waiting.
# Exit 77: there are no kernels.
set -u
source=$1 build=$2 fake=$3
export LD_LIBRARY_PATH="$fake" LOAM_GPU_BUILD="$build"
why=$("$build/bench/device/bench_card" card 2>&1) || case $why in
  *"no kernels"*) echo "skipped: $why"; exit 77 ;;
esac
out=$(mktemp -d "${TMPDIR:-/tmp}/loam-gpu-check.XXXXXX") || exit 1
trap 'rm -rf "$out"' EXIT
failures=0
complain() { echo "check_gpu: $*" >&2; failures=$((failures + 1)); }
# expect PATTERN FILE: some line of the file is like this.
expect() { grep -qE "$1" "$2" || { complain "no line '$1' in:"; cat "$2" >&2; }; }

export FAKE_CUDA=capability=90
if ! sh "$source/tools/gpu.sh" --seconds 3500 -o "$out/all" check answers limits step prefill documents methods >"$out/table" 2>"$out/log"; then
  complain "a line failed, or the script did:"
  cat "$out/table" "$out/log" >&2
fi
csv=$out/all/gpu.csv
expect '^# fake driver: no speeds' "$csv"
for line in 'check,compiling all kernels' 'check,small: matmul Q4_0' 'check,small: fetch of units of 8 tokens' 'limits,copy within device memory' 'limits,device to host 1 MiB' \
  'check,small: launch in a graph starting early' 'check,small: launch in a graph and a turn of the host' \
  'check,small: matvec IQ4_XS' 'check,small: matmul IQ4_XS' \
  'check,small: decode attention at 300' 'check,small: prompt attention of 24 behind 150' \
  'step,tiny decode behind 64' 'step,tiny hata decode behind 192' 'step,tiny decode behind 192 KV in RAM' 'step,tiny step without a context' \
  'step,tiny attention to 64 tokens' 'step,tiny choice and attention to its list behind 192' 'step,tiny fetching what slots lack behind 192' 'prefill,tiny prompt of 16 behind 64' \
  'methods,mha kvpr decode behind 600 KV in RAM' 'methods,KVPR says the same as flexgen' 'methods,tiny clo decode behind 400 KV in RAM' 'methods,tiny meanstd decode behind 400 KV in RAM' 'methods,tiny leoam-leaves decode behind 400 KV in RAM' \
  'methods,CLO over the best other method at equal KL' 'methods,CLO over CLO without lists that are kept at equal KL' \
  'methods,CLO over CLO by the least likeness at equal KL' 'methods,CLO over CLO with whole heads on the card at equal KL' \
  'methods,tiny hata-in-slots decode behind 400 KV on disk' 'methods,slots for everything over KV on the card' \
  'methods,tiny leoam decode behind 400 KV on disk' 'documents,tiny first token of an opened document of 400 tokens' \
  'documents,tiny step behind it' 'documents,tiny first token beside the upload' 'answers,loam-nano says the same' \
  'answers,loam-nano KL from the cpu'; do
  expect "^$line,.*,ok: " "$csv"
done
speeds=$(grep -E ',(GB/s|TFLOP/s|us|ms|s|t/s),[0-9]' "$csv") && complain "a speed of the fake driver: $speeds"

# dropped KERNELS LINES: with these kernels doing nothing, these lines fail, and a line of another kernel does not.
dropped() {
  for what in launches matvec attention fetch matmul; do
    FAKE_CUDA=capability=90$(printf ',drop=%s' $1) "$build/bench/device/bench_card" --small $what
  done >"$out/dropped" 2>&1
  printf '%s\n' "$2" | while read -r line; do echo "^kernels,$line,.*,FAILED: "; done >"$out/patterns"
  while read -r pattern; do expect "$pattern" "$out/dropped"; done <"$out/patterns"
  expect "^kernels,$3,.*,ok: " "$out/dropped"
}
dropped 'add matvec_q4_k_1 matmul_wgmma_f16_128 attention_merge attention_prefill_wgmma_128 unit_fetch' \
  'launch on a stream
launch in a graph starting early
matvec Q4_K
matmul F16
decode attention at 100
prompt attention of 24 behind 0
slots for units of 8 tokens
fetch of units of 8 tokens
fetch and attention of 6% misses' 'matvec Q4_0'
dropped 'quantize_rows halve_rows attention_decode_16_4_f16 attention_list_16_4_f16' \
  'matvec Q4_0
matmul Q4_0
decode attention at 300
attention over a list of hits
fetch of units of 8 tokens
fetch and attention of 6% misses' 'slots for units of 8 tokens'

# goals NAME: what the table says of these lines of a card of that name.
goals() {
  printf '# card: %s\npart,what,unit,value,spread,limit,asserted\n' "$1"
  cat <<'END'
kernels,matvec Q4_0,GB/s,2600.0,1%,3000.0,ok: right
kernels,matvec Q4_K,GB/s,2500.0,1%,3000.0,ok: right
kernels,fetch and attention of 6% misses,us,108.0,1%,100.0,ok: right
step,8B decode behind 0,t/s,546.0,1%,,ok: right
step,8B decode behind 32768,t/s,300.0,1%,,FAILED: wrong
methods,KVPR over flexgen,x,1.46,,,ok: both ran
documents,1B first token beside the upload,ms,51.0,,50,ok: right
END
}
for name in 'NVIDIA H100 PCIe' 'NVIDIA H200'; do
  goals "$name" >"$out/goals.csv"
  awk -f "$source/tools/gpu_table.awk" "$source/bench/device/card/h100.csv" "$out/goals.csv" >"$out/goals-${name#NVIDIA }"
done
for line in 'met +kernels,matvec Q4_0: 2600\.0 of 2550 GB/s' 'MISSED +kernels,matvec Q4_K: ' 'met +kernels,fetch and attention' \
  'MISSED +step,8B decode behind 0: ' 'not measured +step,8B decode behind 32768' 'met +methods,KVPR over flexgen: ' \
  'MISSED +documents,1B first token beside the upload: 51\.0 of 50 ms' '3 goals met, 3 missed, [1-9][0-9]* not measured'; do
  expect "^$line" "$out/goals-H100 PCIe"
done
grep -E '^MISSED|^met |goals met' "$out/goals-H200" && complain "a goal of an H100 is claimed of another card"

# A step whose matrices are never multiplied says other things than the cpu.
FAKE_CUDA=capability=90,drop=matvec_q8_0_1 sh "$source/tools/gpu.sh" --seconds 3500 -o "$out/answers" answers >"$out/table" 2>&1 &&
  complain "answers without products: expected a failure"
expect '^answers,.*,FAILED: ' "$out/answers/gpu.csv"

FAKE_CUDA=stuck=3 sh "$source/tools/gpu.sh" --seconds 24 -o "$out/stuck" kernels limits >"$out/table" 2>&1 &&
  complain "a kernel that never ends: expected a failure"
expect '^kernels,launches,.*,FAILED: it did not end in time' "$out/stuck/gpu.csv"
expect '^limits,copy within device memory,.*,ok: ' "$out/stuck/gpu.csv"

# Packed, and run where there is nothing of this tree.
sh "$source/tools/gpu_pack.sh" "$build" "$out/pack" 2>"$out/log" || complain "packing: $(cat "$out/log")"
(cd "$out" && unset LOAM_GPU_BUILD && sh pack/gpu.sh -o packed limits) >"$out/table" 2>&1 || complain "packed: $(cat "$out/table")"
expect '^limits,copy within device memory,.*,ok: ' "$out/packed/gpu.csv"

[ $failures = 0 ]
