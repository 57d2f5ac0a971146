#!/bin/sh
# clo.sh MODE MODEL.gguf FILE...: CLO's ablation and its comparison
# (decision 0035).
# MODEL.calib.gguf beside the model, by
#   loam-lab calibrate MODEL.gguf BOOK -c 4096 --windows 6 --bits 128 --epochs 1
#
#   kl      FILE...: texts, a window each.  KL divergence and lists reused, all KV in RAM
#   disk    FILE...: texts.  The same from disk, an eighth of the KV in RAM: bytes a token, hits
#   equal   FILE...: texts of more than LENGTHS (8000) tokens.  KLD and bytes from disk of lists of single tokens, beside
#           caches of exact selections
#   speed   FILE: a text of 8,000 tokens.  Tokens a second from disk, an eighth in RAM
#   replay  FILE: of `loam-lab trace record`.  Tokens a second of a 1B shape at 32K and 128K, an eighth in RAM.  It has no
#           calibration: every head is held to eta 0.8 (reused=0)
#
# LOAM: the program; OUT: folder for lines and tables; DISK: folder for the KV; LENGTHS: of kl and disk (4096), of equal
# (8000); ROUNDS: of speed and replay
# (3), which want a quiet machine; PAGES: of both, beside lists of single tokens (16 64).
set -eu
[ $# -ge 3 ] || { sed -n '2,17p' "$0"; exit 2; }
mode=$1 model=$2
shift 2
loam=${LOAM:-build/release/loam-lab} out=${OUT:-.} disk=${DISK:-kv}
mkdir -p "$out" "$disk"
fixed=clo:512:reused=0:power=0
hata=hata:512:bits=256
one() { # PRESETS TEXT OPTION...
  presets=$1 text=$2
  shift 2
  "$loam" eval kl -m "$model" -f "$text" --chunks 1 --lengths "${LENGTHS:-4096}" --stretch 64 --preset "$presets" -q \
    --jsonl "$out/$mode-$(basename "$text" .txt).jsonl" "$@"
}
rates() { # PRESETS OPTION...
  presets=$1
  shift
  bench/tiers.py decode --loam "$loam" --model "$model" --depth "$depth" --kv-host "$host" --folder "$disk" \
    --rounds "${ROUNDS:-3}" --csv "$out/$mode.csv" --presets "$presets" "$@"
}
tiers() { # DEPTH BUDGET OPTION...: every way reads the same selection
  depth=$1 host=$2
  shift 2
  own=
  [ "$mode" != replay ] || own=:reused=0
  lists="$hata,$hata:reuse=lru,$hata:reuse=lfu,clo:512$own"
  [ "$mode" = replay ] || lists="$lists,infinigen:512,$fixed:similarity=minimum,clo:512:reused=0:similarity=minimum,\
clo:512:reused=0,clo:512:reused=0:place=persistent" # the ablation: fixed, + T, + G, + P
  rates "$lists" "$@"
  ways="hata:10%:bits=256:page=P,hata:10%:bits=256:page=P:reuse=lru,hata:10%:bits=256:page=P:reuse=lfu"
  ways="$ways,clo:10%:page=P$own,clo:10%:page=P$own:place=persistent"
  [ "$mode" = replay ] || ways="$ways,infinigen:10%" # which needs a calibration
  for page in ${PAGES-16 64}; do rates "$(echo "$ways" | sed "s/page=P/page=$page/g")" "$@"; done
}
case $mode in
kl)
  for text; do
    one "$hata,clo:512:reused=0.3,clo:512,clo:512:reused=0.6,clo:512:reused=0.7,clo:512:reused=0.5:labels=speculated,\
$fixed,$fixed:eta=0.9,$fixed:similarity=minimum,$fixed:similarity=minimum:labels=speculated,\
clo:512:reused=0:similarity=minimum,clo:512:reused=0,clo:512:reused=0:labels=speculated" "$text"
  done
  tools/kl_windows.py table "$out"/kl-*.jsonl --against "$hata" --csv "$out/kl.csv" ;;
disk)
  for text; do
    one "$hata,$hata:page=16,$hata:page=16:reuse=lru,$hata:page=16:reuse=lfu,$hata:page=64,$hata:page=64:reuse=lru,\
$hata:page=64:reuse=lfu,clo:512,clo:512:reused=0:labels=speculated,clo:512:page=16,clo:512:page=64,\
clo:512:page=64:reused=0.7,clo:512:page=64:place=persistent,clo:512:page=16:speculate=none,\
clo:512:page=64:speculate=none,infinigen:512,$hata:list_buffer=0,clo:512:list_buffer=0,\
clo:512:speculate=none,infinigen:512:list_buffer=0" "$text" --kv-disk "$disk" --kv-host 1/8
  done
  tools/kl_windows.py table "$out"/disk-*.jsonl --against "$hata" --csv "$out/disk.csv" ;;
equal)
  for text; do
    "$loam" eval kl -m "$model" -f "$text" --chunks 1 --lengths "${LENGTHS:-8000}" --stretch 40 -q --kv-disk "$disk" \
      --kv-host 1/8 --jsonl "$out/equal-$(basename "$text" .txt).jsonl" \
      --preset "$hata,$hata:reuse=lru,$hata:reuse=lfu,clo:512,clo:512:reused=0.6,clo:512:reused=0.7,infinigen:512"
  done
  tools/kl_windows.py table "$out"/equal-*.jsonl --against "$hata" --csv "$out/equal.csv" ;;
speed) tiers 8000 1/8 --rows text --text "$1" ;;
replay)
  tiers 32768 128M --rows recorded --recording "$1" --steps 24
  tiers 131072 512M --rows recorded --recording "$1" --steps 16 ;;
*) sed -n '2,17p' "$0"; exit 2 ;;
esac
