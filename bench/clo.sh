#!/bin/sh
# clo.sh MODE MODEL.gguf TEXT...: CLO's ablation and its comparison.  MODEL.calib.gguf beside the model, by
#   loam calibrate MODEL.gguf BOOK -c 4096 --windows 6 --bits 128 --epochs 1
#
#   kl      KL divergence and lists reused, all KV in RAM; each TEXT is one window
#   disk    the same from disk, an eighth of the KV in RAM: bytes per token, hits, tokens per second
#   speed   TEXT: a recording (loam bench --record); replayed at 32K and 128K from disk, an eighth in RAM
#
# LOAM: the program; OUT: folder for lines and tables; DISK: folder for the KV.
set -eu
mode=$1 model=$2
shift 2
loam=${LOAM:-build/release/loam} out=${OUT:-.} disk=${DISK:-kv}
mkdir -p "$out" "$disk"
fixed='clo:512:reused=0:power=0'
case $mode in
kl)
  presets="hata:512:bits=256,clo:512:reused=0.3,clo:512,clo:512:reused=0.6,clo:512:reused=0.7"
  presets="$presets,clo:512:reused=0.5:labels=speculated,$fixed,$fixed:eta=0.9,$fixed:similarity=minimum"
  presets="$presets,$fixed:similarity=minimum:labels=speculated,clo:512:reused=0:similarity=minimum"
  presets="$presets,clo:512:reused=0,clo:512:reused=0:labels=speculated" ;;
disk)
  presets="hata:512:bits=256:page=64,hata:512:bits=256:page=64:reuse=lru,hata:512:bits=256:page=64:reuse=lfu"
  presets="$presets,clo:512:page=64,clo:512:page=64:reused=0.7,clo:512:page=64:place=persistent,infinigen:512" ;;
speed) ;;
*) sed -n '2,10p' "$0"; exit 2 ;;
esac
for text; do
  name=$(basename "$text" .txt)
  case $mode in
  kl) "$loam" eval kl -m "$model" -f "$text" --chunks 1 --lengths 4096 --stretch 64 --preset "$presets" -q \
    --jsonl "$out/$name.jsonl" ;;
  disk) "$loam" eval kl -m "$model" -f "$text" --chunks 1 --lengths 4096 --stretch 64 --preset "$presets" -q \
    --kv-disk "$disk" --kv-host 1/8 --jsonl "$out/$name.jsonl" ;;
  esac
done
