#!/usr/bin/env python3
"""stream_rate.py: how fast loam reads weights that RAM does not hold, beside fio on the same file, in turns.

    bench/stream_rate.py --model 3b-q8.gguf --weights-host 600M --csv rate.csv

loam's rate is what a decode step reads over the seconds of the whole step, its computing and waiting included.  fio
reads as many bytes of the same file, without the page cache, one request behind the other (1 MiB, 32 in flight,
io_uring).  fio comes from the distribution (Debian: apt install fio); without it nothing is measured.  Wants a quiet
machine."""
import argparse
import csv
import json
import re
import shutil
import statistics
import subprocess
import sys


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.returncode}: {done.stderr.strip()}")
    return done


def loam_step(options):
    """Bytes that a step reads, and its seconds."""
    done = output([options.loam, "bench", "-m", options.model, "-p", "0", "-n", str(options.steps), "-d", "16", "-r", "1",
                   "--weights-host", options.weights_host, "-o", "jsonl"])
    read = re.search(r"([0-9.]+) of [0-9.]+ MiB of weights are read for each pass", done.stderr)
    if read is None:
        sys.exit(f"{options.model}: --weights-host {options.weights_host} holds all weights: nothing is read")
    if "through the page cache" in done.stderr:
        sys.exit(f"{options.model}: its file system has no O_DIRECT")
    return float(read[1]) * (1 << 20), 1 / json.loads(done.stdout.splitlines()[-1])["samples_ts"][0]


def fio_rate(options, size):
    done = output(["fio", "--name=weights", "--readonly", f"--filename={options.model}", "--rw=read", "--bs=1M",
                   "--direct=1", "--ioengine=io_uring", "--iodepth=32", f"--size={int(size) >> 20}M",
                   "--output-format=json"])
    return json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loam", default="build/release/loam")
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights-host", required=True, help="RAM for weights")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--csv", required=True)
    options = parser.parse_args()
    if shutil.which("fio") is None:
        sys.exit("fio is not installed (Debian: apt install fio): nothing to compare with")
    version = output([options.loam, "version"]).stdout.splitlines()[0]
    fio = output(["fio", "--version"]).stdout.strip()
    ratios = []
    with open(options.csv, "w", newline="") as file:
        file.write(f"# {version}; {fio}\n# {' '.join(sys.argv)}\n")
        writer = csv.writer(file)
        writer.writerow(["round", "step_bytes", "step_seconds", "loam_bytes_per_second", "fio_bytes_per_second", "ratio"])
        for number in range(1, options.rounds + 1):
            size, seconds = loam_step(options)
            rate = fio_rate(options, size)
            ratios.append(size / seconds / rate)
            row = [number, int(size), f"{seconds:.3f}", f"{size / seconds:.0f}", f"{rate:.0f}", f"{ratios[-1]:.2f}"]
            writer.writerow(row)
            print("  ".join(str(cell) for cell in row), flush=True)
    print(f"loam streams weights at {statistics.median(ratios):.2f} of what fio reads (median of {options.rounds})")


if __name__ == "__main__":
    main()
