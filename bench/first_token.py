#!/usr/bin/env python3
"""How long a fresh process takes to its first token, and how much memory at most: `loam run` with a warm page cache.

    bench/first_token.py --loam build/release/loam --csv bench/results/FILE.csv MODEL.gguf...

Each run generates one token behind a short prompt with room for --ctx-size tokens and ends; the time is that of the
whole process, the memory its peak resident set, pages of the mapped file included.  Medians of --rounds runs, after one
that is not counted.  The bounds (1 s for a file of 1 GB; file + KV + 200 MB) stand beside them."""
import argparse
import csv
import datetime
import json
import os
import statistics
import subprocess
import time


def run(command):
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    message = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"first_token.py: {' '.join(command)}: {message.strip()}")
    return time.monotonic() - began, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loam", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx-size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--csv", required=True)
    parser.add_argument("models", nargs="+")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    rows = []
    for model in arguments.models:
        inspected = json.loads(subprocess.run([arguments.loam, "inspect", model, "--json"], capture_output=True, text=True,
                                              check=True).stdout)
        kv = inspected["model"]["kv_bytes_per_token"]["f16"] * arguments.ctx_size
        command = [arguments.loam, "run", "-m", model, "-t", str(arguments.threads), "-c", str(arguments.ctx_size), "-n", "1",
                   "-p", "Once upon a time", "-q"]
        samples = [run(command) for _ in range(arguments.rounds + 1)][1:]
        seconds = sorted(s for s, _ in samples)
        file = os.path.getsize(model)
        rows.append([datetime.date.today().isoformat(), commit, arguments.threads, os.path.basename(model), arguments.rounds,
                     f"{statistics.median(seconds):.3f}", f"{seconds[0]:.3f}", f"{seconds[-1]:.3f}", "1.000",
                     f"{statistics.median(r for _, r in samples) / 1e6:.0f}", f"{(file + kv) / 1e6 + 200:.0f}"])
        print(dict(zip(("seconds", "MB", "MB allowed"), (rows[-1][5], rows[-1][9], rows[-1][10]))), model)
    with open(arguments.csv, "w", newline="") as out:
        out.write("# bench/first_token.py --rounds %d --ctx-size %d\n" % (arguments.rounds, arguments.ctx_size))
        writer = csv.writer(out)
        writer.writerow(["date", "commit", "threads", "model", "rounds", "median_seconds", "least_seconds", "most_seconds",
                         "aim_seconds", "peak_rss_mb", "aim_rss_mb"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
