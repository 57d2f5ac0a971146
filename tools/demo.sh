#!/bin/sh
# demo.sh BINARY: loam's main job on real input, as `./do demo` shows it.
set -eu
loam=$1
model=models/loam-tiny.gguf
chapter=tests/data/a-scandal-in-bohemia.txt
title() { printf '\n== %s\n' "$*"; }

title "The model: loam inspect $model"
"$loam" inspect -m "$model" | head -n 40

title "A chapter of a book read in, and 48 tokens more: loam run -m $model -f $chapter -n 48 --temp 0"
echo "(The model has 3 million parameters and was trained for minutes: expect English-looking nonsense.)"
"$loam" run -m "$model" -f "$chapter" -n 48 --temp 0

title "How fast: loam bench -m $model -p 512 -n 64 -r 3"
"$loam" bench -m "$model" -p 512 -n 64 -r 3
