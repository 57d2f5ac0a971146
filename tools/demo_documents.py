#!/usr/bin/env python3
"""The second half of `./do demo`: a document under a RAM budget of an eighth of its KV, killed while it is read, gone on
with, and opened again for each question.

    tools/demo_documents.py LOAM MODEL LOGBOOK.txt QUESTIONS.jsonl ANSWERS.jsonl FOLDER

ANSWERS is what `loam-lab eval ask --jsonl` answered with everything in RAM.  Ends with 1 when an answer differs."""
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

KILL_TOKENS = 8192  # saved before the first run is killed
SEGMENT = "4096"


def command(loam, model, prompt, store, budget, report):
    return [loam, "run", "-q", "-m", model, "-f", prompt, "-n", "24", "--temp", "0", "--segment", SEGMENT, "--preset",
            "full", "--kv-host", str(budget), "--kv-disk", store, "--json", report]


def show(arguments):
    """As it can be typed: the demo's PATH has the program."""
    print("$ " + shlex.join(["loam", *arguments[1:]]), flush=True)


def saved_tokens(loam, store):
    listed = subprocess.run([loam, "ls", "--json", "--kv-disk", store], capture_output=True, text=True, check=False)
    return max([entry["tokens"] for entry in json.loads(listed.stdout)] or [0]) if listed.returncode == 0 else 0


def bytes_per_token(loam, model):
    """Of K and V in f16, all layers."""
    inspected = subprocess.run([loam, "inspect", "-m", model, "--json"], capture_output=True, text=True, check=True)
    figures = json.loads(inspected.stdout)["metadata"]
    return 2 * figures["llama.block_count"] * figures["llama.attention.head_count_kv"] * (
        figures["llama.attention.key_length"] + figures["llama.attention.value_length"])


def row(what, seconds, figures, answer):
    read, written = figures["io"]["read_bytes"], figures["io"]["write_bytes"]
    print(f"| {what:<28} | {seconds:7.1f} | {figures['prefill']['reused_tokens']:6} | {figures['prefill']['tokens']:8} "
          f"| {figures['kv']['host_bytes_peak'] / 2**20:6.1f} | {read / 2**20:8.1f} | {written / 2**20:8.1f} | {answer}",
          flush=True)


def same_numbers(found, expected):
    """The last number of an answer may be cut off where the answer ends."""
    pairs = list(zip(found, expected))
    return bool(pairs) and found[:len(pairs) - 1] == expected[:len(pairs) - 1] and (
        pairs[-1][0].startswith(pairs[-1][1]) or pairs[-1][1].startswith(pairs[-1][0]))


def main():
    loam, model, logbook, questions, answers, folder = sys.argv[1:]
    questions = [json.loads(line) for line in open(questions, encoding="utf-8")]
    in_memory = [re.findall(r"\d{4,}", line["answer"]) for line in map(json.loads, open(answers, encoding="utf-8"))
                 if line["preset"] == "full"]
    text = open(logbook, encoding="utf-8").read()
    store, report = os.path.join(folder, "store"), os.path.join(folder, "report.json")
    prompts = []
    for i, question in enumerate(questions):
        prompts.append(os.path.join(folder, f"prompt.{i}.txt"))
        with open(prompts[i], "w", encoding="utf-8") as file:
            file.write(text + question["question"])
    counted = subprocess.run([loam, "tokenize", "-m", model, "-f", prompts[0]], capture_output=True, text=True, check=True)
    tokens = len(counted.stdout.splitlines())
    kv = tokens * bytes_per_token(loam, model)
    budget = kv // 8
    print(f"   {tokens} tokens, {kv / 2**20:.1f} MiB of KV; --kv-host {budget} ({budget / 2**20:.1f} MiB)\n")
    show(command(loam, model, prompts[0], store, budget, report))
    print(f"   (and then with {', '.join(os.path.basename(prompt) for prompt in prompts[1:])}, each a question behind the logbook)\n")
    print("| run                          | seconds | opened | computed | RAM MiB | read MiB | disk MiB | answer")
    print("|------------------------------|--------:|-------:|---------:|--------:|---------:|---------:|-------")
    began = time.monotonic()
    first = subprocess.Popen(command(loam, model, prompts[0], store, budget, report), stdout=subprocess.DEVNULL)
    while first.poll() is None and saved_tokens(loam, store) < KILL_TOKENS:
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    print(f"| {'killed (kill -9)':<28} | {time.monotonic() - began:7.1f} | {0:6} | {'':8} | {'':7} | {'':8} | {'':8} | "
          f"{saved_tokens(loam, store)} tokens saved")
    same = True
    for i, prompt in enumerate([prompts[0]] + prompts):
        began = time.monotonic()
        answered = subprocess.run(command(loam, model, prompt, store, budget, report), capture_output=True, check=True)
        seconds = time.monotonic() - began
        found = re.findall(r"\d{4,}", answered.stdout.decode("utf-8", "replace"))
        expected = in_memory[max(i - 1, 0)]
        equal = same_numbers(found, expected)
        same = same and equal
        what = "run again: goes on" if i == 0 else f"opened again, question {i}"
        row(what, seconds, json.load(open(report, encoding="utf-8")),
            " ".join(expected) + (", as in RAM" if equal else f" in RAM, here {' '.join(found)}"))
    sys.exit(0 if same else 1)


main()
