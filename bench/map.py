#!/usr/bin/env python3
"""Measures what reading the map costs those who decode: `loam serve` answers the same prompt with nobody looking and with
maps read at --hertz, in turn, and the figure is the median over rounds of the ratio of tokens a second.

    bench/map.py build/release/loam MODEL.gguf [--tokens 16000] [--answer 128] [--rounds 5] [--hertz 4] [-- SERVE-OPTIONS]
"""
import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    reply = connection.getresponse().read()
    connection.close()
    return reply


def watch(port, hertz, stops, seen):
    number = 0
    while not stops.wait(1 / hertz):
        reply = ask(port, "GET", f"/v1/loam/map?since={number}")
        number = json.loads(reply).get("number", 0)
        seen.append(len(reply))


def rate(port, prompt, answer):
    reply = json.loads(ask(port, "POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": prompt}], "max_tokens": answer, "temperature": 0, "ignore_eos": True,
        "timings_per_token": True}))
    return reply["timings"]["predicted_per_second"]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("loam")
    parser.add_argument("model")
    for name, default in (("tokens", 16000), ("answer", 128), ("rounds", 5), ("hertz", 4)):
        parser.add_argument("--" + name, type=int, default=default)
    own, rest = (sys.argv[1:], []) if "--" not in sys.argv else (
        sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:])
    options = parser.parse_args(own)
    context = options.tokens + options.answer + 512
    server = subprocess.Popen([options.loam, "serve", "-m", options.model, "--port", "0", "-np", "1", "-c", str(context), *rest],
                              stderr=subprocess.PIPE, text=True)
    port = next(int(found[1]) for found in (re.search(r"on http://\S+:(\d+),", line) for line in server.stderr) if found)
    words = "The gate of the garden is painted green. Nobody knows who painted it. "
    count = len(json.loads(ask(port, "POST", "/tokenize", {"content": words * 20}))["tokens"]) / 20
    prompt = words * int(options.tokens / count)
    try:
        rate(port, prompt, 8)  # read once
        ratios, sizes = [], []
        for round_number in range(options.rounds):
            rates = {}
            for watched in ((False, True) if round_number % 2 == 0 else (True, False)):
                stops = threading.Event()
                watcher = threading.Thread(target=watch, args=(port, options.hertz, stops, sizes))
                if watched:
                    watcher.start()
                rates[watched] = rate(port, prompt, options.answer)
                stops.set()
                if watched:
                    watcher.join()
            ratios.append(rates[True] / rates[False])
            print(f"round {round_number + 1}: {rates[False]:.2f} tokens/s, {rates[True]:.2f} with the map, {ratios[-1]:.4f}")
        print(f"median {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f}); a map's reply: median "
              f"{statistics.median(sizes):.0f} bytes, most {max(sizes)}")
    finally:
        server.terminate()
        server.wait()


main()
