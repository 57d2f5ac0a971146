#!/usr/bin/env python3
"""Writes tests/golden/smollm2/peer.json: what llama.cpp says with SmolLM2-135M-Instruct in five types.

Usage: make_smollm2.py LLAMA_BIN LOAM MODEL.Q4_1.gguf TEXT SCRATCH OUTPUT.json
LLAMA_BIN: llama.cpp's build/bin with llama-completion and llama-perplexity (made with d32676d, -DGGML_NATIVE=ON).
`loam-lab quantize` makes the other types of the same weights in SCRATCH, so that both programs read the same files.

texts: greedy, 32 tokens, raw (-no-cnv) and by the chat template with a system prompt.
distributions: llama-perplexity's of the first window of 512 tokens of TEXT, of every 16th scored position the likeliest
eight tokens.  Printed besides: loam's divergence from llama-perplexity's distributions over 8 windows, type by type.
"""

import json
import os
import re
import struct
import subprocess
import sys

TYPES = ["Q4_1", "F32", "F16", "Q8_0", "Q4_K_M"]
TOKENS = 32
RAW = ["The capital of France is", "Once upon a time, there was a little girl who", "def fibonacci(n):\n",
       "Water boils at a temperature of", "To be, or not to be, that is the", "1, 2, 3, 4, 5,"]
CHAT = [("You are a helpful assistant.", "What is the capital of France?"),
        ("You are a helpful assistant.", "Write a sentence about the sea."),
        ("You answer in one sentence.", "Why is the sky blue?"),
        ("You answer in one sentence.", "Who wrote Romeo and Juliet?"),
        ("You are a teacher.", "Explain what a verb is to a child."),
        ("You are a cook.", "How do I boil an egg?")]
WINDOW, STEP, TOP = 512, 16, 8


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.decode(errors='replace')[-500:]}")
    return done


def complete(binaries, model, *arguments):
    """llama-completion ends with " [end of text]" where the model ended its answer, and with two line ends."""
    out = run(os.path.join(binaries, "llama-completion"), "-m", model, "-n", str(TOKENS), "--temp", "0", "-t", "1",
              "-c", "512", "--no-display-prompt", *arguments).stdout.decode()
    text, ends, _ = out.partition(" [end of text]")
    return {"text": text.removesuffix("\n\n"), "ends": bool(ends)}


def texts(binaries, model):
    made = []
    for prompt in RAW:
        made.append({"prompt": prompt, **complete(binaries, model, "-no-cnv", "-p", prompt)})
    for system, prompt in CHAT:
        made.append({"system": system, "prompt": prompt,
                     **complete(binaries, model, "-st", "-sys", system, "-p", prompt)})
    return made


def distributions(path):
    """Of llama-perplexity's file: header, tokens, then per scored position a scale, a least value and 16-bit steps."""
    with open(path, "rb") as file:
        if file.read(8) != b"_logits_":
            sys.exit(f"{path}: no base")
        window, vocabulary, chunks = struct.unpack("<iii", file.read(12))
        tokens = struct.unpack(f"<{window * chunks}i", file.read(4 * window * chunks))
        entry = 2 * (2 * ((vocabulary + 1) // 2) + 4)
        first, rows = window // 2, window - 1 - window // 2
        positions = []
        for row in range(rows):
            raw = file.read(entry)
            if row % STEP != 0:
                continue
            scale, least = struct.unpack("<ff", raw[:8])
            steps = struct.unpack(f"<{vocabulary}H", raw[8:8 + 2 * vocabulary])
            best = sorted(range(vocabulary), key=lambda i: -steps[i])[:TOP]
            positions.append({"row": row, "ids": best, "logprobs": [round(least + scale * steps[i], 4) for i in best]})
    return {"window": window, "first": first, "tokens": list(tokens[:window]), "positions": positions}


def divergence(binaries, loam, model, text, scratch):
    base = os.path.join(scratch, "base.kld")
    run(os.path.join(binaries, "llama-perplexity"), "-m", model, "-f", text, "-c", str(WINDOW), "-b", str(WINDOW),
        "--chunks", "8", "-t", "1", "--kl-divergence-base", base)
    said = run(loam + "-lab", "perplexity", "-m", model, "-f", text, "-c", str(WINDOW), "-t", "1", "--kl-divergence-base", base,
               "--kl-divergence")
    own = run(os.path.join(binaries, "llama-perplexity"), "-m", model, "-t", "1", "-fa", "off", "-b", str(WINDOW),
              "-c", str(WINDOW), "--kl-divergence-base", base, "--kl-divergence")
    print((said.stdout + said.stderr).decode(), flush=True)
    print("llama.cpp with itself, flash attention off:", flush=True)
    print("\n".join(line for line in own.stdout.decode().splitlines() if re.match(r"Mean +KLD|Same top|Mean PPL", line)),
          flush=True)
    return base


def main():
    binaries, loam, source, text, scratch, output = sys.argv[1:]
    made = {"model": os.path.basename(source), "peer": "llama.cpp d32676d", "types": {}}
    for kind in TYPES:
        model = source if kind == "Q4_1" else os.path.join(scratch, kind + ".gguf")
        if not os.path.exists(model):
            run(loam + "-lab", "quantize", source, model, kind)
        print(f"== {kind}", flush=True)
        item = {"texts": texts(binaries, model)}
        base = divergence(binaries, loam, model, text, scratch)
        item["distributions"] = distributions(base)
        os.remove(base)
        if kind != TYPES[0]:
            item["distributions"].pop("tokens")  # the same
        made["types"][kind] = item
        with open(output, "w", encoding="utf-8") as file:
            json.dump(made, file, ensure_ascii=False, separators=(",", ":"))
            file.write("\n")


if __name__ == "__main__":
    main()
