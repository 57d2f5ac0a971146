#!/usr/bin/env python3
"""serve.py LOAM MODEL [LLAMA_SERVER]: what continuous batching gains.

CLIENTS (8) requests, each of a prompt of its own of PROMPT (200) tokens and ANSWER (64) greedy tokens, to the same
server: one after the other, then all at once.  Tokens a second of all answers, prefill included, and the time to the first
token.  In turns with llama-server on the same file, ROUNDS (3) times.  CSV on standard output."""
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time

CLIENTS = int(os.environ.get("CLIENTS", 8))
PROMPT = int(os.environ.get("PROMPT", 200))
ANSWER = int(os.environ.get("ANSWER", 64))
ROUNDS = int(os.environ.get("ROUNDS", 3))


def prompt(index):
    """Token ids, another sequence for each index from the first on; of a vocabulary of 30,000 or more."""
    return [1000 + (i * 7919 + index * 104729 + i * i * index) % 28000 for i in range(PROMPT)]


def has_text(line):
    choices = json.loads(line[6:]).get("choices") or [{}]
    return bool(choices[0].get("text"))


def ask(port, index, found):
    body = {"prompt": prompt(index), "max_tokens": ANSWER, "temperature": 0, "stream": True, "ignore_eos": True}
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    first = None
    for line in response:
        if first is None and line.startswith(b"data: {") and has_text(line): # a beat has none
            first = time.monotonic() - began
    connection.close()
    found.append((first, time.monotonic() - began))


def measure(port, seed, together):
    found, began = [], time.monotonic()
    threads = [threading.Thread(target=ask, args=(port, seed + i, found)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
        if not together:
            thread.join()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    return CLIENTS * ANSWER / seconds, sorted(first for first, _ in found)


def start(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    for line in process.stdout:
        match = re.search(r"http://[^:]+:(\d+)", line)
        if match and ("requests at once" in line or "listening" in line):
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, int(match.group(1))
    raise SystemExit("the server did not start: " + " ".join(command))


def main():
    loam, model, peer = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
    threads, context = str(os.cpu_count()), PROMPT * 2 + ANSWER
    programs = [("loam", [loam, "serve", "-m", model, "--port", "0", "-np", str(CLIENTS), "-c", str(context), "-t", threads])]
    if peer:
        programs.append(("llama.cpp", [peer, "-m", model, "--port", "18099", "-np", str(CLIENTS),
                                       "-c", str(context * CLIENTS), "-t", threads]))
    print(f"# CLIENTS={CLIENTS} PROMPT={PROMPT} ANSWER={ANSWER} bench/serve.py LOAM {os.path.basename(model)} LLAMA_SERVER")
    print("program,how,round,tokens_per_second,first_token_median,first_token_max")
    seed = 0
    for round_ in range(1, ROUNDS + 1):
        for name, command in programs:
            process, port = start(command)
            try:
                measure(port, seed, True)
                for how in ("in turns", "together"):
                    seed += CLIENTS
                    rate, firsts = measure(port, seed, how == "together")
                    print(f"{name},{how},{round_},{rate:.2f},{firsts[len(firsts) // 2]:.3f},{firsts[-1]:.3f}", flush=True)
            finally:
                process.terminate()
                process.wait()


main()
