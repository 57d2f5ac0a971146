#!/usr/bin/env python3
"""opened_document.py LOAM BENCH_REOPEN MODEL DIR: how long a question about a saved document waits for its first token.

A document of DEPTH (32768) tokens is made up and saved in DIR (bench_reopen; one that is there is used as it is).  Then
`loam serve` answers questions of QUESTION (8) tokens of their own behind it, by ids, ROUNDS (8) of each kind:

    cold      the first one of a fresh server
    next      another question; the sequences before it are in memory, without a request
    together  another question while one is being answered
    turn      the question goes on with the one before
    again     the same question once more, behind which an answer of 16 tokens was made
    fresh     a prompt of QUESTION + 1 tokens alone: what the weights cost

Medians in ms: until the client has the first token (client), and from admission to it (server).  tokenize: the text of
the whole document.  CSV on standard output.  THREADS (2), KEEP (2048), SLOTS (4), HOST (3G), SET: more of --set.  IDLE:
seconds without a request after the cold one (0), in which the server reads ahead."""
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time

DEPTH = int(os.environ.get("DEPTH", 32768))
QUESTION = int(os.environ.get("QUESTION", 8))
ROUNDS = int(os.environ.get("ROUNDS", 8))
SLOTS = int(os.environ.get("SLOTS", 4))
KEEP = os.environ.get("KEEP", "2048")


def ask(port, prompt, count=1, started=None):
    """Seconds to the first token at the client, ms from admission to it at the server, tokens reused, ids answered."""
    body = json.dumps({"prompt": prompt, "max_tokens": count, "temperature": 0, "stream": True, "ignore_eos": True,
                       "return_tokens": True, "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    connection.connect()
    began = time.monotonic()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    first, timings, usage = None, {}, {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if first is None and chunk.get("choices"):
            first = time.monotonic() - began
            if started:
                started.set()
        timings = chunk.get("timings") or timings
        usage = chunk.get("usage") or usage
    connection.close()
    return first * 1e3, timings.get("prompt_ms", float("nan")), usage["prompt_tokens_details"]["cached_tokens"]


def start(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    for line in process.stdout:
        match = re.search(r"http://[^:]+:(\d+)", line)
        if match:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, int(match.group(1))
    sys.exit("opened_document.py: the server ended")


def post(port, path, value):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    began = time.monotonic()
    connection.request("POST", path, json.dumps(value), {"Content-Type": "application/json"})
    reply = json.loads(connection.getresponse().read())
    return (time.monotonic() - began) * 1e3, reply


def main():
    loam, bench_reopen, model, folder = sys.argv[1:5]
    os.makedirs(folder, exist_ok=True)
    ids, kv = os.path.join(folder, f"ids-{DEPTH}.json"), os.path.join(folder, f"kv-{DEPTH}")
    if not os.path.exists(ids):
        subprocess.run([bench_reopen, model, kv, "-d", str(DEPTH), "-r", "0", "-m", "2048", "-i", ids], check=True)
    document = json.load(open(ids))
    settings = ",".join(filter(None, ("select=tree,leaf=64,dense=0", os.environ.get("SET"))))
    command = [loam, "serve", "-m", model, "--port", "0", "-np", str(SLOTS), "-c", str(DEPTH + 1024), "-t",
               os.environ.get("THREADS", "2"), "--preset", "full", "--set", settings, "--keep", KEEP, "--kv-host",
               os.environ.get("HOST", "3G"), "--kv-disk", kv]
    print("# " + " ".join(command))
    process, port = start(command)
    chance = random.Random(time.time_ns())

    def question():
        return [chance.randrange(1000, 29000) for _ in range(QUESTION)]

    ask(port, question())  # the weights are read, and threads are there
    found = {}

    def note(kind, result):
        found.setdefault(kind, []).append(result)
        print(f"# {kind}: client {result[0]:.1f} ms, server {result[1]:.1f} ms, {result[2]} tokens reused", flush=True)

    note("cold", ask(port, document + question()))
    time.sleep(float(os.environ.get("IDLE", 0)))
    for _ in range(ROUNDS):
        last = document + question()
        note("next", ask(port, last, 16))  # its sequence then has an answer behind it
        note("again", ask(port, last))
        note("turn", ask(port, last + question()))
        note("fresh", ask(port, question() + question()[:1]))
    for _ in range(ROUNDS):
        started = threading.Event()
        thread = threading.Thread(target=ask, args=(port, document + question(), 64, started))
        thread.start()
        started.wait()
        note("together", ask(port, document + question()))
        thread.join()
    text = post(port, "/detokenize", {"tokens": document})[1]["content"]
    tokenize = statistics.median(post(port, "/tokenize", {"content": text})[0] for _ in range(ROUNDS))
    print("depth,question,keep,kind,client_ms,server_ms,reused")
    for kind, results in found.items():
        client, server, reused = (statistics.median(column) for column in zip(*results))
        print(f"{DEPTH},{QUESTION},{KEEP},{kind},{client:.1f},{server:.1f},{reused:.0f}")
    print(f"{DEPTH},0,,tokenize,{tokenize:.1f},,{len(text)} bytes")
    process.terminate()
    process.wait()


if __name__ == "__main__":
    main()
