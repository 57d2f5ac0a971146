#!/bin/sh
# demo_model.sh BINARY MODEL FOLDER: a chapter of a book and questions about it, asked of a real language model.
set -eu
loam=$1 model=$2 place=$3
. "$(dirname "$0")/demo_run.sh"

sed '/^I$/,/^II$/!d; /^II\{0,1\}$/d' tests/data/a-scandal-in-bohemia.txt >"$place/chapter.txt"
words=$(wc -w <"$place/chapter.txt")
ln -s "$(realpath "$model")" "$place/$(basename "$model")"
model=$(basename "$model")
cd "$place"

# Greedy, so that it can be repeated.
ask() {
  question=$1
  shift
  run loam run -m "$model" -f chapter.txt -p "$question" --kv-disk kv --temp 0 -n 28 "$@"
}

title "A real language model of 135M parameters reads a chapter (A Scandal in Bohemia, I: $words words)"
ask "Why does the King wear a mask?"
title "Another question: the chapter is opened, not read again"
ask "Describe Sherlock Holmes in one sentence."
title "The first question again, each step reading 512 tokens by their hash codes, then a tenth by LeoAM's tree"
ask "Why does the King wear a mask?" --preset hata --keep 512
ask "Why does the King wear a mask?" --preset leoam --set codec=f16
