#!/bin/sh
# bench.sh BUILD_DIR: the kernels beside this machine's measured limits, then the engine on a random model of
# Llama-3.2-1B's shape (made once, 2.5 GB at most, under the build folder).  TYPES overrides the weight types.
set -eu
build=$1
"$build/bench/kernels/bench_kernels"
for type in ${TYPES:-Q4_0 Q8_0}; do
  model=$build/llama-1b-$type.gguf
  [ -f "$model" ] || "$build/bench/make_model" llama-1b "$type" "$model"
  "$build/loam" bench -m "$model" -p 512 -n 32 -r 3 --floor
done
