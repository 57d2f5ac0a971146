#!/bin/sh
# key_index_on_disk.sh RECORDING [DEPTH]: a context of a million tokens (or DEPTH) with a 64th of its KV in RAM, which
# does not hold the key index (decision 0038).  The smallest shape of which a 64th is enough:
# the KV of llama-1b, 16 layers of 8 KV heads of 64, and hardly any weights.  RECORDING: of `loam-lab trace record`, heads of
# 64.  Depths below a million have the same shape, and no 64th is enough below about 400,000 tokens: give HOST.
#
set -eu
[ $# -ge 1 ] || { sed -n '2,11p' "$0"; exit 2; }
loam=${LOAM:-build/release/loam-lab} make_model=${MAKE_MODEL:-build/release/make_model} disk=${DISK:-kv}
depth=${2:-1048576}
mkdir -p "$disk"
[ -f "$disk/kv-1b.gguf" ] || "$make_model" kv-1b Q4_0 "$disk/kv-1b.gguf"
for set in ${SETS:-codec=q4}; do
  "$loam" bench -m "$disk/kv-1b.gguf" --replay "$1" -d "$depth" -p 0 -n "${STEPS:-8}" -r 1 --no-warmup \
    --preset leoam --keep 2048 --set "$set" --kv-disk "$disk" --kv-host "${HOST:-512M}" -o json
done
