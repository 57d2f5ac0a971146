#!/bin/sh
# demo.sh BINARY: loam's main job on real input, as `./do demo` shows it.
set -eu
loam=$1
model=models/loam-nano.gguf
real=models/SmolLM2-135M-Instruct.Q4_1.gguf
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
. tools/demo_run.sh

# The first pulled model for long contexts: its name.
long=$("$loam" models --json | python3 -c 'import json, sys
found = json.load(sys.stdin)
here = {model["name"] for model in found["models"]}
print(next((model["name"] for model in found["known"] if {model["name"], model["file"]} & here), ""))')
if [ -n "$long" ]; then
  title "A book larger than the RAM it gets: the manual of loam itself, read once by $long"
  set -- -m "$long" -f docs/command_line.md -f docs/server.md --kv-disk "$place/kv" --kv-host 256M --temp 0 -n 64
  run loam run "$@" -p "Which option lets a model run that is larger than RAM?"
  title "Another question: the manual is opened, not read again"
  run loam run "$@" -p "Which command says what settings are the quickest?"
fi
if [ -r "$real" ]; then
  sh tools/demo_model.sh "$loam" "$real" "$place"
elif [ -z "$long" ]; then
  title "Without a real language model (./do model brings one): what follows is the bundled one and needs no network"
fi

title "The bundled model"
run loam inspect -m "$model" | head -n 14

title "A logbook of 280 days, made from a seed; five questions about numbers noted in it, answered from all of it (full)"
echo "   and from 1,024 of its tokens, chosen at each step by their hash codes (hata:1024)"
run python3 tools/make_logbook.py --days 280 --seed 7 "$place/logbook.txt" "$place/questions.jsonl"
run loam-lab eval ask -m "$model" -f "$place/logbook.txt" --questions "$place/questions.jsonl" --preset full,hata:1024 \
    --jsonl "$place/answers.jsonl"

title "The same logbook with an eighth of its KV in RAM and the rest on disk: killed while it is read, run again, opened again"
python3 tools/demo_documents.py "$loam" "$model" "$place/logbook.txt" "$place/questions.jsonl" "$place/answers.jsonl" "$place"

title "How fast"
run loam bench -m "$model" -p 512 -n 64 -r 3

chat=" -m $real" && [ -r "$real" ] || { real=$model chat=" -m $model --chat-template llama2"; }
title "What to try next"
cat <<END
   ./do install                                        loam, its manual page and completions
   loam pull llama3.2-1b                               a model for 128K tokens; loam models lists others;
                                                       ./do demo asks it a book of 38,000 tokens
   loam run -m llama3.2-1b -f YOUR.txt -p "..." --kv-disk kv
   loam chat$chat -f YOUR.txt
   loam serve -m $real --kv-disk kv     then http://127.0.0.1:8080, and OpenAI's and Anthropic's clients
   loam plan -m $real -c 8K             which settings are the quickest here
END
