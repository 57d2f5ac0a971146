#!/bin/sh
# weights.sh LOAM MODEL SIZE [LLAMA_BATCHED_BENCH]: decode with SIZE of RAM for the weights, beside llama.cpp by mmap under
# the same limit of memory, for 1, 16 and 64 sequences with 16 tokens each; in turns, ROUNDS times (3).
#
# LIMIT is a command that runs another one with little memory, such as
#   LIMIT="systemd-run --quiet --scope -p MemoryMax=3G -p MemorySwapMax=0"
# so that the page cache cannot hold what the weights do not.  CSV: program, sequences, tokens a second of all together.
set -eu
loam=$1 model=$2 size=$3 peer=${4-}
echo "# LIMIT=\"...\" bench/weights.sh LOAM MODEL $size LLAMA_BATCHED_BENCH; $("$loam" inspect "$model" | head -1 | sed 's/.*: //')"
echo program,sequences,round,tokens_per_second
for round in $(seq "${ROUNDS:-3}"); do
  for sequences in 1 16 64; do
    ${LIMIT-} "$loam" bench -q -m "$model" -p 0 -n 4 -d 16 -npl "$sequences" -r 1 --no-warmup --weights-host "$size" -o csv |
      python3 -c 'import csv, sys; rows = list(csv.DictReader(sys.stdin)); print("loam,%s,%s,%.3f" % (sys.argv[1], sys.argv[2], float(rows[-1]["avg_ts"])))' "$sequences" "$round"
    [ -z "$peer" ] || ${LIMIT-} "$peer" -m "$model" -c 2048 -b 2048 -ub 512 -npp 16 -ntg 4 -npl "$sequences" -t "$(nproc)" 2>/dev/null |
      awk -F'|' -v s="$sequences" -v r="$round" '$4 + 0 == s && $2 + 0 == 16 { gsub(/ /, "", $9); print "llama.cpp," s "," r "," $9 }'
  done
done
