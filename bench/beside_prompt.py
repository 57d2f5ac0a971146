#!/usr/bin/env python3
"""beside_prompt.py LOAM MODEL: what a long prompt does to others at the same server.

STREAMS (4) clients decode.  Then one prompt of LENGTH (32000) tokens comes, and SHORT (7) prompts of 64 tokens behind it.
READERS (1): so many clients ask at once, each a question of its own behind the same LENGTH tokens.
ms between two tokens of the streams before and while the long prompt is read, and ms to the first token of the short
ones, alone and behind it.  SECONDS (0): the long prompt's client leaves so long after the last short one has its first
token; 0: it stays.  The time from a client that closes its connection until its slot is free, as /metrics has it,
CLIENTS_LEAVING (10) times while it decodes and as often while its prompt of 2,048 tokens is read.  CSV on standard
output; MODEL's vocabulary has 30,000 tokens or more."""
import http.client
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time

STREAMS = int(os.environ.get("STREAMS", 4))
LENGTH = int(os.environ.get("LENGTH", 32000))
SHORT = int(os.environ.get("SHORT", 7))
READERS = int(os.environ.get("READERS", 1))
QUESTION = 16  # tokens
LEAVING = int(os.environ.get("CLIENTS_LEAVING", 10))
SECONDS = float(os.environ.get("SECONDS", 0))
TOKEN = os.environ.get("TOKEN", "1000")  # any that is a whole character
IDLE_SECONDS = 10


def prompt(index, length):
    return [1000 + (i * 7919 + index * 104729 + i * i * index) % 28000 for i in range(length)]


def has_text(line):
    return line.startswith(b"data: {") and bool((json.loads(line[6:]).get("choices") or [{}])[0].get("text"))


class Client(threading.Thread):
    """Streams an answer; times[] are when its tokens came."""

    def __init__(self, port, tokens, answer):
        super().__init__(daemon=True)
        self.times, self.began, self.leaves = [], time.monotonic(), threading.Event()
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
        # Always the same token, a whole character: one whose bytes wait for the next token would be a gap of two.
        self.body = {"prompt": tokens, "max_tokens": answer, "temperature": 0, "stream": True, "ignore_eos": True,
                     "logit_bias": {TOKEN: 100}}
        self.start()

    def run(self):
        self.connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
        self.socket = self.connection.sock
        response = self.connection.getresponse()
        assert response.status == 200, response.read()
        try:
            for line in response:
                if has_text(line):
                    self.times.append(time.monotonic())
        except (OSError, ValueError, http.client.HTTPException):
            assert self.leaves.is_set()
        self.connection.close()

    def leave(self):
        """The connection is closed at once, not behind the next token."""
        self.leaves.set()
        self.socket.shutdown(socket.SHUT_RDWR)

    def first(self):
        self.join()
        return (self.times[0] - self.began) * 1e3


def gaps(clients, begin, end):
    """ms between tokens that both came in [begin, end)."""
    return [(b - a) * 1e3 for c in clients for a, b in zip(c.times, c.times[1:]) if a >= begin and b < end]


def p99(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def metric(port, name):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return int(re.search(rf"^{name} (\d+)", text, re.M).group(1))


def running(port):
    return metric(port, "loam_requests_prefilling") + metric(port, "loam_requests_decoding")


def leave(port, length, is_time):
    """ms until the slot is free of a client that leaves when it is time, which is once it has a slot."""
    before = running(port)
    client = Client(port, prompt(time.monotonic_ns() % 20000, length), 4000)
    while running(port) == before or not is_time(client):
        time.sleep(0.01)
    time.sleep(random.random())
    client.leave()
    left = time.monotonic()
    while running(port) > before:
        time.sleep(0.005)
    return (time.monotonic() - left) * 1e3


def main():
    loam, model = sys.argv[1:3]
    slots = STREAMS + SHORT + 1
    command = [loam, "serve", "-m", model, "--port", "0", "-np", str(slots), "-c", str(LENGTH + 8192), "-t", str(os.cpu_count())]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    for line in server.stderr:
        match = re.search(r"on http://[^:]+:(\d+)", line)
        if match:
            break
    port = int(match.group(1))
    threading.Thread(target=server.stderr.read, daemon=True).start()
    try:
        alone = [Client(port, prompt(100 + i, 64), 2).first() for i in range(SHORT)]
        streams = [Client(port, prompt(i, 32), 8000) for i in range(STREAMS)]
        while any(len(c.times) < 2 for c in streams):
            time.sleep(0.05)
        begin = time.monotonic()
        time.sleep(IDLE_SECONDS)
        middle = time.monotonic()
        read = metric(port, "llamacpp:prompt_tokens_total")
        readers = [Client(port, prompt(50, LENGTH) + (prompt(300 + i, QUESTION) if READERS > 1 else []), 2)
                   for i in range(READERS)]
        time.sleep(0.5)
        behind = [Client(port, prompt(200 + i, 64), 2) for i in range(SHORT)]
        firsts = [c.first() for c in behind]
        if SECONDS > 0:
            time.sleep(SECONDS)
            for client in readers:
                client.leave()
        firsts_long = [client.first() for client in readers] if SECONDS == 0 else [float("nan")]
        end = time.monotonic()
        read = metric(port, "llamacpp:prompt_tokens_total") - read
        while running(port) > STREAMS:
            time.sleep(0.05)
        free = [leave(port, 64, lambda client: client.times) for _ in range(LEAVING)]
        free_reading = [leave(port, 2048, lambda _: True) for _ in range(LEAVING)]
        idle, beside = gaps(streams, begin, middle), gaps(streams, middle, end)
    finally:
        server.kill()
        server.wait()
    print(f"# STREAMS={STREAMS} LENGTH={LENGTH} READERS={READERS} SHORT={SHORT} SECONDS={SECONDS:g} CLIENTS_LEAVING={LEAVING} "
          f"bench/beside_prompt.py LOAM {os.path.basename(model)}: {read} tokens of prompts were computed")
    print("what,count,median_ms,p99_ms,max_ms")
    for name, values in (("gap idle", idle), ("gap beside the prompt", beside), ("first token of short, alone", alone),
                         ("first token of short, behind it", firsts), ("first token of long", firsts_long),
                         ("until a slot is free, decoding", free), ("until a slot is free, reading", free_reading)):
        print(f"{name},{len(values)},{statistics.median(values):.1f},{p99(values):.1f},{max(values):.1f}")


main()
