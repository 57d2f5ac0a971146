#!/bin/sh
# gpu.sh [--small] [--seconds N] [-o DIR] [PART...]: what loam does on a card of NVIDIA's, and whether it was right.
# Run by `./do gpu`, from this tree or from a folder that `./do gpu pack` has filled (docs/cuda.md, "On a card").
#
# Parts: check answers tests limits kernels step prefill documents methods, in this order: what is right before what is
# quick.
# Without any, all of them.  All together end within --seconds (350), of which each has a share; what one leaves the next
# ones have, and none takes another one's.  DIR (build/gpu) gets gpu.csv, line by line, a log for each part, and gpu.txt,
# the table that is printed at the end, also where something ends the script.  Exit 0: every line says what was asserted,
# and it held.  LOAM_GPU_BUILD: another build folder.
#
# --small: shapes that take a processor seconds; as ever over the fake driver, of which no speed is told.
set -u
export LC_ALL=C # a comma in a number would be another field
root=$(cd "$(dirname "$0")/.." && pwd)
build=${LOAM_GPU_BUILD:-$root/build/release}
# The tests run in a folder of their own.
case ${LD_LIBRARY_PATH:-} in
  ''|/*) ;;
  *) LD_LIBRARY_PATH=$PWD/$LD_LIBRARY_PATH ;;
esac
[ -d "$root/lib" ] && export LD_LIBRARY_PATH="$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
loam=$build/loam card=$build/bench/device/bench_card
command_line="gpu.sh $*"
small=0 seconds=350 out=$root/build/gpu parts=

usage() { echo "gpu.sh: $1: expected [--small] [--seconds N] [-o DIR] [PART...]" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --small) small=1 ;;
    --seconds) seconds=${2:-}; shift ;;
    -o) out=${2:-}; shift ;;
    check|answers|tests|limits|kernels|step|prefill|documents|methods) parts="$parts $1" ;;
    *) usage "$1" ;;
  esac
  shift || usage "the end"
done
case $seconds in ''|*[!0-9]*) usage "--seconds $seconds" ;; esac
[ -n "$out" ] || usage "-o"
: "${parts:=check answers tests limits kernels step prefill documents methods}"

mkdir -p "$out" || exit 1
rows=$out/gpu.csv # there from the first line on, whatever ends the script
scratch=$(mktemp -d "${TMPDIR:-/tmp}/loam-gpu.XXXXXX") || exit 1
finish() { # in front of what is measured: nothing
  [ -z "${measures:-}" ] || awk -f "$root/tools/gpu_table.awk" "$root/bench/device/card/h100.csv" "$rows" | tee "$out/gpu.txt"
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' HUP INT TERM
# What the driver has compiled, for all programs of this run: the first one shows how long it takes.
export CUDA_CACHE_PATH="$scratch/compiled" CUDA_CACHE_MAXSIZE=1073741824 CUDA_CACHE_DISABLE=0
mkdir "$CUDA_CACHE_PATH"
began=$(date +%s)
part_ends=$((began + seconds))

# within SECONDS COMMAND...: neither longer than that nor than its part.
within() {
  left=$((part_ends - $(date +%s)))
  [ "$1" -ge "$left" ] || left=$1
  shift
  [ "$left" -gt 0 ] || return 124
  timeout -k 2 "$left" "$@"
}

row() { # part what unit value spread limit asserted
  printf '%s,%s,%s,%s,%s,%s,%s\n' "$@" >>"$rows"
}
# A reason in one field of the table.
failed() { # part what reason
  row "$1" "$2" "" "" "" "" "FAILED: $(printf %s "$3" | tr ',\n' ';;' | cut -c 1-240)"
}
left_out() { row "$1" "$2" "" "" "" "" "left out: $(printf %s "$3" | tr ',\n' ';;' | cut -c 1-200)"; }
reason_of() { # rc log: why a program failed
  case $1 in
    124|137) echo "it did not end in time" ;;
    *) echo "exit code $1: $(tail -n 1 "$2" 2>/dev/null)" ;;
  esac
}

# ---- the card ----

# Without its daemon the driver sets a card up anew whenever no program is left that has it open: seconds, for each of
# the many programs here.  So the script itself has it open.
for file in /dev/nvidia[0-9]*; do
  if [ -c "$file" ] && (exec 9<"$file") 2>/dev/null; then exec 9<"$file"; break; fi
done
about=$scratch/card
if ! within 60 "$card" card >"$about" 2>"$out/card.log"; then
  cat "$out/card.log" >&2
  exit 1
fi
fake=$(sed -n 's/^fake //p' "$about")
name=$(sed -n 's/^name //p' "$about")
[ "$fake" = 1 ] && small=1
free_mib=$(sed -n 's/^free_mib //p' "$about")
head_print() {
  echo "# $command_line"
  echo "# card: $name; $(sed -n 's/^more //p' "$about")"
  command -v nvidia-smi >/dev/null 2>&1 && echo "# driver: $(timeout 10 nvidia-smi \
    --query-gpu=driver_version,compute_mode,persistence_mode,clocks.max.sm,clocks.max.mem,power.limit,pcie.link.gen.max,pcie.link.width.max \
    --format=csv,noheader 2>&1 | head -n 1)"
  echo "# date: $(date -u +%Y-%m-%dT%H:%M:%SZ); loam $("$loam" version 2>/dev/null | head -n 1)"
  [ "$fake" = 1 ] && echo "# fake driver: no speeds"
  echo "part,what,unit,value,spread,limit,asserted"
}
head_print >"$rows"
measures=1

# ---- parts ----

small_flag=
[ $small = 1 ] && small_flag=--small

# The tests of the device, of the engine on it and of the kernels, with this machine's driver: no executor, no fake.  Side
# by side, each in a program of its own: most of their time is the processor's.
part_tests() {
  testers=
  for test in device/cuda/test_cuda_device device/cuda/test_cuda_graph engine/test_cuda_engine engine/test_cuda_tiers \
    device/cuda/card_rows device/cuda/card_matvec device/cuda/card_attention device/cuda/card_matmul \
    device/cuda/card_prefill device/cuda/card_layer device/cuda/card_choice device/cuda/card_scores \
    device/cuda/card_fetch; do
    test_run "$test" &
    [ "$free_mib" -ge 12000 ] || wait $! # too small a card for all of them
    testers="$testers $!"
  done
  for tester in $testers; do wait "$tester"; done
}
test_run() {
  name_of_test=${1##*/} log=$out/${1##*/}.log
  (cd "$scratch" && LOAM_TEST_DRIVER=libcuda.so.1 LOAM_TEST_SOURCE=$root within 999 "$build/tests/$1") >"$log" 2>&1
  rc=$?
  passed=$(grep -c '^\[       OK ' "$log")
  if [ $rc = 0 ] && [ "$passed" -gt 0 ]; then
    row tests "$name_of_test" tests "$passed" "" "" "ok: all passed"
  else
    failed tests "$name_of_test" "$passed passed; $(grep -m 1 -A 1 'ERROR' "$log"); $(reason_of $rc "$log")"
  fi
}

# Rows that bench_card prints itself, at once.  Where it did not come to its end, one more row says so.
bench_card() { # part, what of it, seconds
  log=$out/$2.log had=$(wc -l <"$rows")
  within "$3" "$card" $small_flag "$2" >>"$rows" 2>"$log"
  rc=$?
  case $rc in
    0) [ "$(wc -l <"$rows")" -gt "$had" ] || failed "$1" "$2" "it said nothing" ;;
    1) tail -n "+$((had + 1))" "$rows" | grep -q FAILED || failed "$1" "$2" "$(reason_of $rc "$log")" ;;
    *) failed "$1" "$2" "$(reason_of $rc "$log")" ;;
  esac
}
# Whether each kind of kernel is right at all: small shapes, in a second each, of which no speed is told.
kernels_check() {
  for what in launches matvec matmul attention fetch; do
    within 20 "$card" --small $what >"$scratch/made" 2>"$out/check-$what.log"
    rc=$?
    awk -F, '{ printf "check,small: %s,,,,,%s\n", $2, $7 }' "$scratch/made" >>"$rows"
    [ $rc = 0 ] || grep -q FAILED "$scratch/made" || failed check "small: $what" "$(reason_of $rc "$out/check-$what.log")"
  done
}
# The driver compiles each kernel when it is first used, by one thread; all processors together are done in seconds.  But
# 16 at most, and no more than the card has room for: each program takes some 500 MiB of it.
compile_all() {
  count=$(nproc) number=0 compilers=
  [ "$count" -le 16 ] || count=16
  [ "$count" -le $((free_mib / 600)) ] || count=$((free_mib / 600))
  [ "$count" -gt 0 ] || count=1
  while [ "$number" -lt "$count" ]; do
    within 60 "$card" check $number "$count" >/dev/null 2>&1 &
    compilers="$compilers $!" number=$((number + 1))
  done
  for compiler in $compilers; do wait "$compiler"; done
}
part_check() {
  compile_began=$(date +%s)
  compile_all
  echo "compiled in $(($(date +%s) - compile_began)) s" >&2
  bench_card check check 60
  kernels_check
  [ -n "${assembler:-}" ] || left_out check ptxas "small shapes only; or there is no ptxas of CUDA 13 or no PTX here"
}
# NVIDIA's assembler takes a minute of one processor: it runs beside the tests, and is waited for before times count.  One
# before 13 spills a few bytes of some kernels, which says nothing of this card.
ptxas_start() {
  [ $small = 0 ] && "${PTXAS:-ptxas}" --version 2>/dev/null | grep -q 'release 1[3-9]' && [ -d "$build/src/device/cuda" ] ||
    return 0
  timeout 90 sh "$root/tools/check_ptx.sh" "$build" >"$out/ptxas.log" 2>&1 &
  assembler=$!
}
ptxas_end() {
  [ -n "${assembler:-}" ] || return 0
  wait "$assembler"
  rc=$?
  assembler=
  case $rc in
    0) row check ptxas kernels "$(grep -c registers "$out/ptxas.log")" "" "" "ok: no spills and no warnings" ;;
    124|137) left_out check ptxas "it did not end in time" ;;
    *) failed check ptxas "$(grep -vE ' 0 spilled' "$out/ptxas.log" | tail -n 1)" ;;
  esac
}
part_limits() { bench_card limits limits 40; }
part_kernels() { # by programs of their own: after an error of the device nothing works in a program any more
  for what in launches matvec attention fetch matmul; do bench_card kernels $what 30; done
}

# One run of `loam bench`: its lines of JSON become rows, each at once.  Counts of the device say what has run: a step or
# a block of a prompt is several launches a layer, and without them a line has failed, however fast.
bench=$loam filled=--fill-random method= # the program, where the context comes from, and how rows name what is compared
bench_loam() { # part shape lines seconds arguments...
  part=$1 shape=$2 lines=$3 limit=$4
  shift 4
  model=$scratch/$shape.gguf log=$out/$part-$shape.log
  if [ ! -f "$model.made" ]; then
    failed "$part" "$shape" "there is no model: $(tail -n 1 "$out/$shape.log")"
    return
  fi
  grep -q 'compute 9\.0' "$about" && tuned=1 || tuned=0 # kernels for such a card alone
  had=$(wc -l <"$rows")
  {
    within "$limit" "$bench" bench -m "$model" --device cuda $filled -o jsonl -q "$@" 2>"$log"
    echo $? >"$scratch/rc"
  } | while read -r line; do
    printf '%s\n' "$line" | tee -a "$out/$part-$shape.jsonl" | bench_row >>"$rows"
  done
  rc=$(cat "$scratch/rc") found=$(($(wc -l <"$rows") - had))
  [ "$rc" = 0 ] && [ "$found" = "$lines" ] || failed "$part" "$shape $*" "$found of $lines lines: $(reason_of "$rc" "$log")"
}
bench_row() {
  awk -v part="$part" -v shape="$shape" -v fake="$fake" -v layers="$(layers_of "$shape")" -v tuned="$tuned" \
    -v method="${method:+ $method}" '
    function field(name,   at, text) {
      at = index($0, "\"" name "\":")
      if (at == 0) return ""
      text = substr($0, at + length(name) + 3)
      sub(/^"/, "", text)
      match(text, /^[^,"}\]]*/)
      return substr(text, 1, RLENGTH)
    }
    {
      text = substr($0, index($0, "\"samples_ts\":[") + 14)
      sub(/\].*/, "", text)
      n = split(text, rate, ",")
      for (i = 2; i <= n; i++) for (j = i; j > 1 && rate[j - 1] + 0 > rate[j] + 0; j--) {
        t = rate[j]; rate[j] = rate[j - 1]; rate[j - 1] = t
      }
      middle = n % 2 ? rate[(n + 1) / 2] : (rate[n / 2] + rate[n / 2 + 1]) / 2
      spread = middle > 0 ? (rate[n] - rate[1]) / middle * 100 : 0
      prompt = field("n_prompt") + 0; steps = field("n_gen") + 0
      what = shape method (prompt > 0 ? " prompt of " prompt : " decode") " behind " field("n_depth")
      launches = field("device_launches") + 0; replays = field("device_replays") + 0
      passes = (prompt > 0 ? 1 : steps) * n
      right = field("device") == "cuda" && middle > 0 && launches >= passes * layers * 5
      units = field("kv_unit_misses"); fetched = ""
      if (prompt > 0) {
        products = field("device_products") + 0; alone = field("device_tuned_products") + 0
        fetched = sprintf("; %d of %d products by kernels for this kind of card alone", alone, products)
        # of a layer q k v, attention, output, gate and up, down; of the last one q k v
        right = right && products >= passes * (layers * 5 - 4) && alone == (tuned ? products : 0)
      }
      if (units != "" && field("kv_chunks") == "") what = what " KV in RAM"
      if (units != "" && field("select") != "all") {
        fetched = fetched sprintf("; units: %d hits %d misses %d read in RAM", field("kv_unit_hits"), units, field("kv_unit_direct"))
        right = right && units > 0 && field("kv_unit_hits") > 0
      }
      if (units != "" && method == " leoam") { # above a disk, in 4 bits
        fetched = fetched sprintf("; chunks in 4 bits: %d hits %d misses %d read in RAM", field("kv_unit_chunk_hits"),
          field("kv_unit_chunk_misses"), field("kv_unit_chunk_direct"))
        right = right && field("kv_unit_chunk_hits") > 0
      }
      if (field("preset") == "hata" && part == "step") {
        # of a layer 11 kernels, 12 behind slots, and 2 that look for chunks where there are 64 times as many
        # tokens as picks, which are what the window and the sinks leave
        levels = (launches / passes - 3) / layers >= 13 + (units != "") ? 2 : 1
        fetched = fetched "; levels of index: " levels
        right = right && levels == (field("n_depth") + 0 > 64 * (field("keep") - 72) ? 2 : 1)
      }
      if (field("preset") == "clo") {
        fetched = fetched sprintf("; %d of %d lists kept", field("hits"), field("hits") + field("misses"))
        right = right && field("hits") > 0 && field("misses") > 0
      }
      if (field("preset") == "kvpr") {
        fetched = fetched sprintf("; %d of %d chunks computed again", field("rebuilt_chunks"), field("missing_chunks"))
        right = right && field("rebuilt_chunks") > 0
      }
      if (field("kv_chunks") != "") {
        what = what " KV on disk"
        fetched = fetched sprintf("; chunks: %d in RAM %d read from disk", field("kv_hits"), field("kv_misses"))
        right = right && field("kv_chunks") > 0
      }
      printf "%s,%s,t/s,%s,%s,,%s: %d launches and %d replays for %d %s of %d layers on %s%s\n", part, what,
        (fake ? "" : sprintf("%.1f", middle)), (fake ? "" : sprintf("%.1f%%", spread)), (right ? "ok" : "FAILED"),
        launches, replays, passes, (prompt > 0 ? "prompts" : "steps"), layers, field("device"), fetched
    }'
}
layers_of() { case $1 in tiny) echo 2 ;; 1B) echo 16 ;; 8B) echo 32 ;; mha) [ $small = 1 ] && echo 2 || echo 8 ;; esac; }

# A model of random weights in the background, so that it is there when the tests are over.
model_make() { # name shape
  timeout 90 "$build/make_model" "$2" Q4_0 "$scratch/$1.gguf" >"$out/$1.log" 2>&1 && : >"$scratch/$1.gguf.made"
}
models_start() {
  [ -z "${maker:-}" ] || return 0
  if [ $small = 1 ]; then (model_make tiny tiny; model_make mha mha-tiny) & else
    (model_make 1B llama-1b & model_make 8B llama-8b; model_make mha mha-7b-8; wait) &
  fi
  maker=$!
}
models_wait() { models_start; wait "$maker"; }

part_step() {
  models_wait
  if [ $small = 1 ]; then bench_loam step tiny 2 60 -p 0 -n 2 -r 2 -d 0,64; else
    if fits step "8B decode" 12000; then bench_loam step 8B 3 60 -p 0 -n 32 -r 5 -d 0,4096,32768; fi
    if fits step "8B decode behind 131072" 23000; then bench_loam step 8B 1 60 -p 0 -n 32 -r 5 -d 131072; fi
  fi
  choices_step
  if [ $small = 1 ]; then parts_step tiny 64 192; return; fi
  parts_step 8B 131072 131072
  bench_loam step 1B 3 60 -p 0 -n 64 -r 5 -d 0,4096,32768
  if fits step "1B decode behind 131072" 8000; then bench_loam step 1B 1 60 -p 0 -n 64 -r 5 -d 131072; fi
  if fits step "8B decode behind 262144" 45000; then bench_loam step 8B 1 60 -p 0 -n 16 -r 3 -d 262144; fi
  if fits step "8B KV in RAM behind 2 GiB" 9000 20000; then # an eighth of K and V
    method="2 GiB"
    bench_loam step 8B 1 60 $choice -d 131072 --kv-device 2824M
    method=
  fi
  if fits step "8B KV in RAM behind 262144" 9000 40000; then
    bench_loam step 8B 1 60 $choice -d 262144 --kv-device 2576M
    ratio_of step "KV in RAM: behind 262144 over behind 32768" "8B decode behind 262144 KV in RAM" "8B decode behind 32768 KV in RAM"
  fi
}
# A step by parts: what it takes beyond another one that lacks the part.
parts_step() { # shape, what full attention and what a choice lie behind
  difference "$1 step without a context" "$1 decode behind 0"
  difference "$1 attention to $2 tokens" "$1 decode behind $2" "$1 decode behind 0"
  difference "$1 choice and attention to its list behind $3" "$1 hata decode behind $3" "$1 decode behind 0"
  difference "$1 fetching what slots lack behind $3" "$1 decode behind $3 KV in RAM" "$1 hata decode behind $3"
}
difference() { # what, line [less line]
  awk -F, -v what="$1" -v one="$2" -v other="${3:-}" '$1 != "step" { next }
    $2 == one { rate = $4; verdict = $7 } $2 == other { base = $4; beside = $7 }
    END {
      took = rate > 0 && (other == "" || base > 0) ? sprintf("%.3f", 1000 / rate - (other == "" ? 0 : 1000 / base)) : ""
      if (verdict ~ /^ok/ && (other == "" || beside ~ /^ok/)) said = "ok: of the steps above"
      else said = verdict beside ~ /FAILED/ ? "FAILED: a step above failed" : "left out: a step above was"
      printf "step,%s,ms,%s,,,%s\n", what, took, said
    }' "$rows" >"$scratch/made"
  cat "$scratch/made" >>"$rows"
}
# Whether the card has that much memory, for weights and KV of the largest test, and the machine the RAM; if not, a row
# says so.
fits() { # part what MiB, of RAM
  ram_mib=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
  [ "$free_mib" -ge "$3" ] || { left_out "$1" "$2" "$free_mib MiB are free; it takes $3"; return 1; }
  [ "$ram_mib" -ge "${4:-0}" ] || { left_out "$1" "$2" "$ram_mib MiB of RAM are free; it takes $4"; return 1; }
}
# Selections: with all KV on the card, and with it in RAM behind 1 GiB of slots, beside which the key index has room.
choice="--preset hata --keep 2048 --set planes=1,page=8,dense=0 -p 0 -n 32 -r 5"
choices_step() {
  if [ $small = 1 ]; then
    set -- --preset hata --keep 80 --set planes=1,page=8,sinks=8,recent=8,dense=0 -p 0 -n 4 -r 2 -d
    method=hata
    bench_loam step tiny 1 60 "$@" 192
    bench_loam step tiny 1 60 "$@" 1658
    method=
    bench_loam step tiny 1 60 "$@" 192 --kv-device 96K
    return
  fi
  set -- $choice
  method=hata # else a row of `full` has the same name
  if fits step "8B selections behind 131072" 24000; then bench_loam step 8B 1 60 "$@" -d 131072; fi
  method=
  if fits step "8B KV in RAM" 9000 20000; then
    bench_loam step 8B 1 60 "$@" -d 32768 --kv-device 1240M
    bench_loam step 8B 1 60 "$@" -d 131072 --kv-device 1800M
  fi
}

part_prefill() {
  models_wait
  if [ $small = 1 ]; then bench_loam prefill tiny 2 60 -p 16 -n 0 -r 2 -d 0,64; else
    if fits prefill "8B prompts" 14000; then bench_loam prefill 8B 4 60 -p 512,2048 -n 0 -r 3 -ub 2048 -d 0,32768; fi
    bench_loam prefill 1B 4 40 -p 512,2048 -n 0 -r 5 -ub 2048 -d 0,32768
  fi
}

# ---- documents: the first token behind a saved one ----

# Requests by turns behind two texts, a byte of which is a token: with one place each opens its document anew.
requests_make() { # tokens of a text, requests
  awk -v size="$1" -v count="$2" -v answer=$answer 'BEGIN {
    for (n = 0; n < count; n++) {
      srand(n % 2 + 1)
      text = ""
      for (i = 0; i < size; i++) text = text sprintf("%c", 97 + int(rand() * 26))
      printf "{\"custom_id\":\"r%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"%s%d\",", n, text, n
      print "\"max_tokens\":" answer ",\"temperature\":0,\"ignore_eos\":true}}"
    }
  }' >"$scratch/requests.jsonl"
}
answers_make() { # shape, tokens, requests, arguments...: into $scratch/opened.jsonl
  model=$scratch/$1.gguf size=$2
  requests_make "$size" "$3"
  shift 3
  rm -f "$scratch/opened.jsonl"
  within 60 "$loam" batch -m "$model" --device cuda -q -i "$scratch/requests.jsonl" -o "$scratch/opened.jsonl" -np 1 \
    -c $((size + 256)) --kv-disk "$scratch/kv" --preset hata --set planes=1,page=8,dense=0 "$@" 2>"$out/documents.log"
}
FIRST_TOKEN=50 # ms, beside the upload of what it reads
part_documents() {
  models_wait
  shape=1B size=32768 keep=2048 host=2G rounds=8 answer=9
  [ $small = 1 ] && shape=tiny size=400 keep=64 host=64M rounds=4 answer=2
  answers_make $shape $size 2 --keep $keep --kv-host $host &&
    answers_make $shape $size $rounds --keep $keep --kv-host $host
  rc=$?
  [ $rc = 0 ] || { failed documents "$shape opened" "$(reason_of $rc "$out/documents.log")"; return; }
  index=$(cat "$scratch/kv/1.metadata" 2>/dev/null | wc -c) # bytes of its key index, all of which goes up
  link=$(awk -F, '$1 == "limits" && $2 == "host to device 1 MiB" && $7 ~ /^ok/ { print $4 + 0 }' "$rows")
  # The first one loads kernels, too.
  awk -v shape=$shape -v size=$size -v rounds=$rounds -v answer=$answer -v fake="$fake" -v limit=$FIRST_TOKEN \
    -v index_bytes="$index" -v link="${link:-0}" '
    function field(name,   at) {
      at = index($0, "\"" name "\":")
      return at == 0 ? -1 : substr($0, at + length(name) + 3) + 0
    }
    function sort(list,   i, j, t) {
      for (i = 1; i < n; i++) for (j = i; j > 0 && list[j - 1] > list[j]; j--) {
        t = list[j]; list[j] = list[j - 1]; list[j - 1] = t
      }
    }
    function row(what, unit, value, spread, bound, said) {
      if (fake) { value = ""; spread = "" }
      printf "documents,%s %s,%s,%s,%s,%s,%s\n", shape, what, unit, value, spread, fake ? "" : bound, said
    }
    field("cache_n") >= size - 1 { saved++ }
    field("predicted_n") == answer { answered++ }
    NR > 1 { first[n] = field("prompt_ms"); step[n++] = field("predicted_ms") / (answer - 1) }
    END {
      sort(first); sort(step)
      middle = first[int(n / 2)]; one = step[int(n / 2)]
      row("first token of an opened document of " size " tokens", "ms", sprintf("%.1f", middle),
        sprintf("%.1f%%", (first[n - 1] - first[0]) / middle * 100), "",
        sprintf("%s: %d of %d requests found theirs", saved == rounds && NR == rounds ? "ok" : "FAILED", saved, NR))
      row("step behind it", "ms", sprintf("%.2f", one), sprintf("%.1f%%", (step[n - 1] - step[0]) / one * 100), "",
        (answered == rounds ? "ok" : "FAILED") ": " answered " of " rounds " answers of " answer " tokens")
      upload = link > 0 ? index_bytes / link / 1e6 : 0
      row("first token beside the upload", "ms", sprintf("%.1f", middle - upload), "", limit,
        sprintf("%s: %.2f MiB of key index%s; %s ms of it are no step", index_bytes > 0 ? "ok" : "FAILED",
          index_bytes / 1048576, link > 0 && !fake ? sprintf(" take %.2f ms at %.1f GB/s", upload, link) : " and no rate of the link",
          fake ? "some" : sprintf("%.1f", middle - upload - one)))
    }' "$scratch/opened.jsonl" >>"$rows"
}

# ---- methods: what the papers' ways are beside the ones that they replace, K and V in RAM or on disk ----

# KVPR beside FlexGen, on OPT-6.7B's shape, 8 layers of 32: what a prompt's K and V take over the bus.
# CLO by its parts beside others at equal KL divergence, and LeoAM, with an eighth of 16K tokens of a 1B shape on the card, or in RAM above a disk; and what it
# costs to have slots where everything fits.  Keys, values and queries are recorded, as those of random weights are like
# no text's: so each step is launched kernel by kernel, in all rows alike.
HATA_KEEPS=456 TWO_PLANES_KEEP=416 LEAVES_KEEP=664 PAGES_KEEP=648 LEAST_KEEPS=504 # tokens; bench/results/2026-11-29-equal-kl.csv
part_methods() {
  models_wait
  depth=8192 behind=16384 near=200M eighth=72M host=96M ample=4G steps=24 keep=512 share=10% settings=
  [ $small = 1 ] && depth=600 behind=400 near=500K eighth=192K host=4M ample=64M steps=4 keep=64 share=200 settings=:sinks=8:recent=8
  set -- -p 0 -r "$([ $small = 1 ] && echo 1 || echo 3)" -n
  filled=
  for method in flexgen kvpr; do bench_loam methods mha 1 30 "$@" $steps -d $depth --kv-device $near --preset $method; done
  ratio "KVPR over flexgen" "mha kvpr decode behind $depth KV in RAM" "mha flexgen decode behind $depth KV in RAM"
  same_rebuilt $near
  recording_make || failed methods recording "$(reason_of $? "$out/recording.log")"
  bench=$loam-lab filled="--replay $scratch/recording"
  # Behind 8,000 tokens each of these loses what clo loses with 512 (docs/evaluation.md, "At equal loss on a card").
  kept_clo=$keep kept_planes=$((keep * TWO_PLANES_KEEP / 512)) kept_hata=$((keep * HATA_KEEPS / 512)) kept_leaves=$((keep * LEAVES_KEEP / 512))
  kept_pages=$((keep * PAGES_KEEP / 512)) kept_least=$((keep * LEAST_KEEPS / 512))
  units=dense=0:page=8$settings
  clo=$units:planes=1:reused=0
  for method in flexgen "hata $kept_hata:$units:planes=1" "hata-two-planes $kept_planes:$units:planes=2" "meanstd $kept_pages:$units" \
    "leoam-leaves $kept_leaves:dense=0:leaf=8$settings" "clo $kept_clo:$clo" \
    "clo-least $kept_least:$clo:similarity=minimum" "clo-whole $kept_clo:$clo:place=persistent"; do
    bench_method --kv-device $eighth "$@" $steps
  done
  units=$keep:$units
  # The same choice with all K and V on the card, and above a disk with slots that hold all of them.
  method="hata-on-card $units:planes=1"
  bench_method "$@" $steps
  method="hata-in-slots $units:planes=1"
  bench_method --kv-host $ample --kv-disk "$scratch/methods" "$@" $steps
  for method in flexgen "leoam-f16 $share:dense=0:codec=f16$settings" "leoam $share:dense=0$settings"; do
    bench_method --kv-host $host --kv-disk "$scratch/methods" "$@" $((steps / 2)) # of flexgen each reads all from the disk
  done
  bench=$loam filled=--fill-random method=
  over_best "CLO over the best other method at equal KL" clo "flexgen hata hata-two-planes meanstd leoam-leaves"
  for kind in "without lists that are kept:hata" "by the least likeness:clo-least" "with whole heads on the card:clo-whole"; do
    ratio "CLO over CLO ${kind%:*} at equal KL" "$recorded clo decode behind $behind KV in RAM" \
      "$recorded ${kind#*:} decode behind $behind KV in RAM"
  done
  ratio "slots for everything over KV on the card" "$recorded hata-in-slots decode behind $behind KV on disk" \
    "$recorded hata-on-card decode behind $behind"
  for kind in leoam-f16 leoam; do
    ratio "$kind over flexgen" "$recorded $kind decode behind $behind KV on disk" \
      "$recorded flexgen decode behind $behind KV on disk"
  done
}
# $method: a name, whose first word is the preset, and what it keeps.
bench_method() {
  preset=${method%%[- ]*} kept=${method#* }
  [ "$kept" = "$method" ] && kept= || kept=:$kept
  method=${method%% *}
  bench_loam methods $recorded 1 20 "$@" -d $behind --preset "$preset$kept"
}
# What a prompt's K and V that are computed again say: the tokens of those that cross the bus.
same_rebuilt() { # --kv-device
  length=4096 tokens=16
  [ $small = 1 ] && length=600 tokens=4
  awk -v size=$length 'BEGIN { srand(1); for (i = 0; i < size; i++) printf "%c", 97 + int(rand() * 26) }' >"$scratch/prompt"
  for method in flexgen kvpr; do
    within 30 "$loam" run -m "$scratch/mha.gguf" --device cuda -q --raw --temp 0 --top-logprobs 2 -n $tokens --ignore-eos \
      -c $((length + 64)) --kv-device "$1" --preset $method --json "$scratch/$method.json" -f "$scratch/prompt" \
      >"$scratch/$method.txt" 2>"$out/same.log"
    rc=$?
    [ $rc = 0 ] || { failed methods "KVPR says the same as flexgen" "$method: $(reason_of $rc "$out/same.log")"; return; }
    tokens_of "$scratch/$method.json" >"$scratch/$method.tokens"
  done
  rebuilt=$(sed -n 's/^ *"rebuilt_chunks": *\([0-9]*\).*/\1/p' "$scratch/kvpr.json")
  tokens_compare methods "KVPR says the same as flexgen" flexgen kvpr 0.01 "${rebuilt:-0} chunks computed again" |
    { [ "${rebuilt:-0}" -gt 0 ] && cat || sed 's/,ok: /,FAILED: /'; } >>"$rows"
}
recording_make() {
  recorded=1B length=2048 model=$root/models/SmolLM2-135M-Instruct.Q4_1.gguf
  [ $small = 1 ] && recorded=tiny length=512
  [ $small = 0 ] && [ -f "$model" ] || model=$root/models/loam-nano.gguf
  cat "$root"/tools/gpu.sh "$root"/tools/gpu_table.awk >"$scratch/recorded.txt"
  within 30 "$loam-lab" trace record -m "$model" -q -f "$scratch/recorded.txt" -c $length -o "$scratch/recording" \
    2>"$out/recording.log"
}
# How often one line's rate has another one's.
ratio() { ratio_of methods "$@"; }
ratio_of() { # part, what, line, line
  awk -F, -v part="$1" -v what="$2" -v one="$3" -v other="$4" '$1 != part { next }
    $2 == one { rate = $4; verdict = $7 } $2 == other { base = $4; beside = $7 }
    END {
      printf "%s,%s,x,%s,,,%s\n", part, what, (rate > 0 && base > 0) ? sprintf("%.2f", rate / base) : "",
        (verdict ~ /^ok/ && beside ~ /^ok/) ? "ok: both ran" : "FAILED: one of the two did not run"
    }' "$rows" >"$scratch/made"
  cat "$scratch/made" >>"$rows"
}

# The same of one method over whichever of others is the quickest; all must have run.
over_best() { # what, method, others
  awk -F, -v what="$1" -v one="$recorded $2 decode behind $behind KV in RAM" -v others="$3" -v shape="$recorded" \
    -v behind="$behind" '
    BEGIN {
      count = split(others, name, " ")
      for (i in name) other[shape " " name[i] " decode behind " behind " KV in RAM"] = name[i]
    }
    $1 != "methods" { next }
    $2 == one { rate = $4; ran = $7 ~ /^ok/ }
    $2 in other { if ($7 ~ /^ok/) well++; if ($4 + 0 > base) { base = $4 + 0; best = other[$2] } }
    END {
      said = sprintf("FAILED: %d of %d others ran", well, count) (ran ? "" : "; it did not")
      if (ran && well == count) said = "ok: all ran" (best == "" ? "" : "; the best other is " best)
      printf "methods,%s,x,%s,,,%s\n", what, (rate > 0 && base > 0) ? sprintf("%.2f", rate / base) : "", said
    }' "$rows" >"$scratch/made"
  cat "$scratch/made" >>"$rows"
}

# ---- answers: the same text by the card and by the processor ----

# The tokens of a run, by how much the likeliest was ahead of the next, and its log-probability, one a line.
tokens_of() {
  awk '/"output_tokens"/ { list = 1; next } list && /\]/ { list = 0 } list { gsub(/[ ,]/, ""); id[n++] = $0 }
    /"logprob"/ { gsub(/[^0-9.e-]/, ""); p[m++] = $0 }
    END { for (i = 0; i < n; i++) print id[i], p[2 * i] - p[2 * i + 1], p[2 * i] }' "$1"
}
TIE=0.05 # nats: a step of 8-bit inputs moves log-probabilities by about a hundredth

answer_compare() { # model, its name, tokens
  for device in cpu cuda; do
    within 999 "$loam" run -m "$1" --device $device -q --raw --temp 0 --top-logprobs 2 -n "$3" --ignore-eos \
      --json "$scratch/$device.json" -p "$text" >"$scratch/$device.txt" 2>"$out/answers.log"
    rc=$?
    [ $rc = 0 ] || { failed answers "$2 says the same" "$device: $(reason_of $rc "$out/answers.log")"; return; }
    tokens_of "$scratch/$device.json" >"$scratch/$device.tokens"
  done
  tokens_compare answers "$2 says the same" cpu cuda >>"$rows"
}
# A row: whether two runs gave the same tokens, up to a step in which the first was not sure, and log-probabilities no
# further apart than NATS.
tokens_compare() { # part, what, one, other, [NATS, more]
  awk -v tie=$TIE -v part="$1" -v what="$2" -v one="$3" -v limit="${5:-}" -v more="${6:+; $6}" '
    NR == FNR { id[FNR] = $1; gap[FNR] = $2; top[FNR] = $3; count = FNR; next }
    { seen = FNR; apart = $3 - top[FNR]; if (apart < 0) apart = -apart }
    at == 0 && !(apart <= worst) { worst = apart } $1 != id[FNR] && at == 0 { at = FNR }
    END {
      if (count == 0 || seen != count) verdict = "FAILED: " count " and " seen " tokens"
      else if (at == 0) verdict = "ok: all " count " tokens are the same"
      else verdict = (gap[at] <= tie ? "ok: a near-tie" : "FAILED: another token") " at " at "; the " one " was " gap[at] \
        " nats sure"
      if (limit != "") more = sprintf("; %.4f nats apart", worst) more
      if (limit != "" && worst > limit + 0) sub(/^ok/, "FAILED", verdict)
      printf "%s,%s,tokens,%d,,,%s%s\n", part, what, at == 0 ? count : at - 1, verdict, more
    }' "$scratch/$3.tokens" "$scratch/$4.tokens"
}
KL=0.002 # nats, on average: the cpu device takes inputs of prompts as 8 bits, the card as halves

distributions_compare() { # model, its name, tokens of a window
  base=$scratch/base
  printf '%s\n' "$text" "$text" "$text" "$text" >"$scratch/text"
  within 999 "$loam-lab" perplexity -m "$1" -q --device cpu -f "$scratch/text" -c "$3" --chunks 1 \
    --kl-divergence-base "$base" >/dev/null 2>"$out/answers.log" &&
    within 999 "$loam-lab" perplexity -m "$1" -q --device cuda -f "$scratch/text" -c "$3" --chunks 1 \
      --kl-divergence-base "$base" --kl-divergence >"$out/kl-$2.log" 2>"$out/answers.log"
  rc=$?
  [ $rc = 0 ] || { failed answers "$2 KL from the cpu" "$(reason_of $rc "$out/answers.log")"; return; }
  awk -v name="$2" -v limit=$KL '/^Mean +KLD:/ { kl = $3 } /^Maximum KLD:/ { worst = $3 } /^Same top p:/ { same = $4 }
    END {
      right = kl != "" && kl <= limit && kl >= 0
      printf "answers,%s KL from the cpu,nats,%s,,%s,%s: at most %s; the same first token in %s%%\n", name, kl, limit,
        right ? "ok" : "FAILED", worst, same
    }' "$out/kl-$2.log" >>"$rows"
}
text="The old lighthouse stood on a cliff above the sea. Every evening the keeper climbed the stairs and lit the lamp. \
One night in winter a ship came too near the rocks. The keeper saw it and rang the bell. The captain heard the bell and \
turned the ship away. In the morning the captain came to the lighthouse and said to the keeper"

part_answers() {
  nano=$root/models/loam-nano.gguf real=$root/models/SmolLM2-135M-Instruct.Q4_1.gguf
  tokens=48 window=256 # the text, four times, is 280 tokens of SmolLM2, 361 of the bundled model
  [ $small = 1 ] && tokens=4 window=48 text="The old lighthouse stood on a cliff above the sea."
  answer_compare "$nano" loam-nano $tokens
  distributions_compare "$nano" loam-nano $window
  if [ $small = 1 ]; then left_out answers SmolLM2 "small shapes only"
  elif [ ! -f "$real" ]; then left_out answers SmolLM2 "not here; ./do model brings it"
  else
    answer_compare "$real" SmolLM2 $tokens
    distributions_compare "$real" SmolLM2 $window
  fi
}

# ---- run ----

share_of() { # of a part, in seconds of the 350 for all
  case $1 in check|prefill) echo 35 ;; methods) echo 40 ;; answers) echo 30 ;; tests) echo 65 ;; limits) echo 15 ;;
    kernels) echo 45 ;; step) echo 65 ;; documents) echo 20 ;; esac
}
shares=0 due=0
for part in $parts; do shares=$((shares + $(share_of "$part"))); done
case "$parts" in *check*) ptxas_start ;; esac
case "$parts" in *step*|*prefill*|*documents*|*methods*) models_start ;; esac
for part in $parts; do
  # Nothing runs beside what is timed.
  case $part in check|answers|tests) ;; *) ptxas_end; [ -z "${maker:-}" ] || models_wait ;; esac
  part_began=$(date +%s)
  due=$((due + $(share_of "$part"))) part_ends=$((began + due * seconds / shares))
  before=$(wc -l <"$rows")
  "part_$part"
  [ "$(wc -l <"$rows")" -gt "$before" ] || failed "$part" "$part" "no result"
  echo "$part: $(($(date +%s) - part_began)) s" >&2
done

ptxas_end

! grep -q 'FAILED' "$rows"
