#!/bin/sh
# demo_model.sh BINARY MODEL FOLDER: a chapter of a book and questions about it, asked of a real language model.
set -eu
loam=$1 model=$2 place=$3
title() { printf '\n== %s\n' "$*"; }

# Greedy, so that it can be repeated; progress is left out, the last line of each has the figures.
ask() {
  printf '\n-- loam run -m %s -f chapter.txt -p "%s" --kv-disk kv%s\n' "$(basename "$model")" "$1" "${2:+ $2}"
  # shellcheck disable=SC2086  # options, several words
  "$loam" run -m "$model" -f "$place/chapter.txt" -p "$1" --kv-disk "$place/kv" --temp 0 -n 28 ${2:-} 2>"$place/said"
  printf '\n'
  grep '^loam: prompt' "$place/said"
}

sed '/^I$/,/^II$/!d; /^II\{0,1\}$/d' tests/data/a-scandal-in-bohemia.txt >"$place/chapter.txt"
title "A real language model of 135M parameters reads a chapter (A Scandal in Bohemia, I: $(wc -w <"$place/chapter.txt") words)"
ask "Why does the King wear a mask?"
title "Another question: the chapter is opened, not read again"
ask "Describe Sherlock Holmes in one sentence."
title "The first question again, each step reading 512 tokens by their hash codes, then a tenth by LeoAM's tree"
ask "Why does the King wear a mask?" "--preset hata --keep 512"
ask "Why does the King wear a mask?" "--preset leoam --set codec=f16"
