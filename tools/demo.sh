#!/bin/sh
# demo.sh BINARY: loam's main job on real input, as `./do demo` shows it.
set -eu
loam=$1
model=models/loam-tiny.gguf
chapter=tests/data/a-scandal-in-bohemia.txt
title() { printf '\n== %s\n' "$*"; }

title "The model: loam inspect $model"
"$loam" inspect -m "$model" | head -n 34

title "A chapter of a book, 15,716 tokens, read in, and 32 tokens more: loam run -m $model -f $chapter -c 16K -n 32"
echo "(The model has 3 million parameters and saw windows of 256 tokens for minutes: expect nonsense, far beyond them most.)"
"$loam" run -m "$model" -f "$chapter" -c 16K -n 32 --temp 0
echo

title "A sentence continued: loam run -m $model -p 'My dear Watson, I' -n 48 --seed 7"
"$loam" run -m "$model" -p "My dear Watson, I" -n 48 --seed 7
echo

title "How fast: loam bench -m $model -p 512 -n 64 -r 3"
"$loam" bench -m "$model" -p 512 -n 64 -r 3
