#!/bin/sh
# presets.sh MODE MODEL.gguf [ARGUMENT...]: every preset's row (docs/evaluation.md, "Every preset in one table").
# infinigen needs MODEL.calib.gguf beside the model, by
#   loam-lab calibrate MODEL.gguf BOOK -c 4096 --windows 6 --bits 128 --epochs 1
#
#   kl      FILE...: texts of more than 8,000 tokens, a window each.  KL divergence in RAM
#   disk    FILE...: the same from disk, an eighth of the KV in RAM: KL divergence, bytes a step, hits
#   needles [ESSAY]: found in RAM, and from disk by the presets that choose otherwise there.  Goes on where it stopped
#   bytes   KV and key index that a step behind 8,000 tokens reads in RAM
#   speed   FILE: tokens a second behind 8,000 tokens: in RAM, and from disk on the text
#   replay  FILE DEPTH: of `loam-lab trace record`.  Tokens a second of a 1B shape at 32K or 128K, in RAM and from disk
#   table   what the others left in OUT as one table: OUT/presets.csv
#
# LOAM: the program; OUT: folder for lines and tables; DISK: folder for the KV; WINDOW: tokens of a window (40); LENGTHS:
# of kl and disk (8000; the table is of 8000 alone); NEEDLES: lengths of needles (4096; the table has 8000 too);
# SAMPLES: of needles (8); PRESETS: only these of a mode's presets ("leoam clo"); TIERS: "ram" or "disk": only that half
# of needles, speed and replay; THREADS: of needles and kl.  speed and replay want a quiet machine.
set -eu
usage() { sed -n '2,18p' "$0"; exit 2; }
[ $# -ge 2 ] || usage
mode=$1 model=$2
shift 2
loam=${LOAM:-build/release/loam-lab} out=${OUT:-.} disk=${DISK:-kv} length=8000
mkdir -p "$out" "$disk"
calibrated="clo infinigen infinigen-published"
selecting="streaming quest hata leoam retroinfer pqcache"
[ "$mode" = replay ] || selecting="$selecting $calibrated"
list() { # PRESET...: by comma, those of PRESETS; one may have @STEPS behind its name
  chosen=
  for preset; do
    case " ${PRESETS:-${preset%@*}} " in *" ${preset%@*} "*) chosen="$chosen${chosen:+,}$preset" ;; esac
  done
  echo "$chosen"
}
in_tiers() { case " ${TIERS:-ram disk} " in *" $1 "*) true ;; *) false ;; esac; }
kl() { # PRESETS TEXT OPTION...
  presets=$1 text=$2
  shift 2
  [ -z "$presets" ] || "$loam" eval kl -m "$model" -f "$text" --chunks 1 --lengths "${LENGTHS:-$length}" \
    --stretch "${WINDOW:-40}" -t "${THREADS:-0}" --preset "$presets" -q \
    --jsonl "$out/$mode-$(basename "$text" .txt).jsonl" "$@"
}
needles() { # NAME PRESETS OPTION...
  name=$1 presets=$2
  shift 2
  [ -z "$presets" ] || "$loam" eval ruler -m "$model" --tasks niah_single_1,niah_single_2,niah_multikey_1 \
    --lengths "${NEEDLES:-4096}" --samples "${SAMPLES:-8}" --seed 11 -t "${THREADS:-0}" --preset "$presets" -q \
    --jsonl "$out/$name.jsonl" --resume "$@"
}
tiers() { # ROWS PRESETS OPTION...
  rows=$1 presets=$2
  shift 2
  [ -z "$presets" ] || bench/tiers.py decode --loam "$loam" --model "$model" --folder "$disk" --csv "$out/$mode.csv" \
    --rows "$rows" --presets "$presets" "$@"
}
case $mode in
kl)
  for text; do kl "$(list $selecting h2o)" "$text"; done
  tools/kl_windows.py table "$out"/kl-*.jsonl --csv "$out/kl.csv" ;;
disk)
  for text; do kl "$(list $selecting flexgen kvpr)" "$text" --kv-disk "$disk" --kv-host 1/8; done
  tools/kl_windows.py table "$out"/disk-*.jsonl --csv "$out/disk.csv" ;;
needles)
  if in_tiers ram; then needles needles "$(list full $selecting h2o)" ${1:+-f "$1"}; fi
  if in_tiers disk; then needles needles-disk "$(list leoam)" ${1:+-f "$1"} --kv-disk "$disk" --kv-host 1/8; fi
  tools/plot_keep.py "$out/needles.jsonl" --csv "$out/needles.csv"
  [ ! -f "$out/needles-disk.jsonl" ] || { # with full's lines, to be compared on the same texts
    { grep '"preset": *"full"' "$out/needles.jsonl"; cat "$out/needles-disk.jsonl"; } >"$out/with-full.jsonl"
    tools/plot_keep.py "$out/with-full.jsonl" --csv "$out/needles-disk.csv"
  } ;;
bytes)
  for preset in $(list full $selecting h2o | tr , ' '); do
    "$loam" bench -m "$model" -p 0 -n 1 -d $length -r 1 --no-warmup --fill-random -q -o jsonl --preset "$preset"
  done >"$out/bytes.jsonl" ;;
speed)
  if in_tiers ram; then tiers memory "$(list full $selecting h2o)" --depth $length; fi
  if in_tiers disk; then tiers text "$(list $selecting flexgen kvpr)" --depth $length --kv-host 1/8 --text "$1"; fi ;;
replay)
  host=$(($2 * 6 / 1024))M # 3/16 of 32 KiB a token, for KV and key index
  set -- --depth "$2" --recording "$1" --steps 16 --rounds 1
  if in_tiers ram; then tiers recorded-memory "$(list full@4 $selecting h2o)" "$@"; fi
  if in_tiers disk; then tiers recorded "$(list $selecting flexgen@4 kvpr@4)" "$@" --kv-host "$host"; fi ;;
table) tools/preset_table.py "$out" ;;
*) usage ;;
esac
