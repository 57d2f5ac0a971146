#!/bin/sh
# presets.sh MODE MODEL.gguf [ARGUMENT...]: every preset's row (docs/evaluation.md, "Every preset in one table").
# infinigen needs MODEL.calib.gguf beside the model, by
#   loam calibrate MODEL.gguf BOOK -c 4096 --windows 6 --bits 128 --epochs 1
#
#   kl      FILE...: texts of more than 8,000 tokens, a window each.  KL divergence in RAM
#   disk    FILE...: the same from disk, an eighth of the KV in RAM: KL divergence, bytes a step, hits
#   needles [ESSAY]: of 8,000 tokens, found in RAM, and from disk by the presets that choose otherwise there
#   bytes   KV and key index that a step behind 8,000 tokens reads in RAM
#   speed   FILE: tokens a second behind 8,000 tokens: in RAM, and from disk on the text
#   replay  FILE DEPTH: of `loam trace record`.  Tokens a second of a 1B shape at 32K or 128K, in RAM and from disk
#   table   what the others left in OUT as one table: OUT/presets.csv
#
# LOAM: the program; OUT: folder for lines and tables; DISK: folder for the KV; WINDOW: tokens of a window (40); LENGTHS:
# of kl and disk (8000; the table is of 8000 alone); SAMPLES: of needles (8).  speed and replay want a quiet machine.
set -eu
[ $# -ge 2 ] || { sed -n '2,15p' "$0"; exit 2; }
mode=$1 model=$2
shift 2
loam=${LOAM:-build/release/loam} out=${OUT:-.} disk=${DISK:-kv} length=8000
mkdir -p "$out" "$disk"
calibrated="infinigen infinigen-published"
selecting="streaming quest hata leoam clo retroinfer pqcache"
[ "$mode" = replay ] || selecting="$selecting $calibrated"
list() { echo "$@" | tr ' ' ,; }
kl() { # PRESETS TEXT OPTION...
  presets=$1 text=$2
  shift 2
  "$loam" eval kl -m "$model" -f "$text" --chunks 1 --lengths "${LENGTHS:-$length}" --stretch "${WINDOW:-40}" --preset "$presets" -q \
    --jsonl "$out/$mode-$(basename "$text" .txt).jsonl" "$@"
}
needles() { # NAME PRESETS OPTION...
  name=$1 presets=$2
  shift 2
  "$loam" eval ruler -m "$model" --tasks niah_single_2,niah_multikey_1,niah_multivalue --shared-text niah \
    --lengths $length --samples "${SAMPLES:-8}" --seed 11 --preset "$presets" -q --json "$out/$name.json" "$@"
}
tiers() { # ROWS PRESETS OPTION...
  rows=$1 presets=$2
  shift 2
  bench/tiers.py decode --loam "$loam" --model "$model" --folder "$disk" --csv "$out/$mode.csv" --rows "$rows" \
    --presets "$presets" "$@"
}
case $mode in
kl)
  for text; do kl "$(list $selecting h2o)" "$text"; done
  tools/kl_windows.py table "$out"/kl-*.jsonl --csv "$out/kl.csv" ;;
disk)
  for text; do kl "$(list $selecting flexgen)" "$text" --kv-disk "$disk" --kv-host 1/8; done
  tools/kl_windows.py table "$out"/disk-*.jsonl --csv "$out/disk.csv" ;;
needles)
  needles needles "$(list full $selecting h2o)" ${1:+-f "$1"}
  needles needles-disk leoam ${1:+-f "$1"} --kv-disk "$disk" --kv-host 1/8 ;;
bytes)
  for preset in full $selecting h2o; do
    "$loam" bench -m "$model" -p 0 -n 1 -d $length -r 1 --no-warmup --fill-random -q -o jsonl --preset "$preset"
  done >"$out/bytes.jsonl" ;;
speed)
  tiers memory "$(list full $selecting h2o)" --depth $length
  tiers text "$(list $selecting flexgen)" --depth $length --kv-host 1/8 --text "$1" ;;
replay)
  host=$(($2 * 6 / 1024))M # 3/16 of 32 KiB a token, for KV and key index
  tiers recorded-memory "$(list full@4 $selecting h2o)" --depth "$2" --recording "$1" --steps 16 --rounds 1
  tiers recorded "$(list $selecting flexgen@4)" --depth "$2" --recording "$1" --steps 16 --rounds 1 --kv-host "$host" ;;
table) tools/preset_table.py "$out" ;;
*) sed -n '2,15p' "$0"; exit 2 ;;
esac
