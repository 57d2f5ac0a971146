#!/usr/bin/env python3
"""stream_rate.py: how fast loam reads weights that RAM does not hold, beside fio on the same file, in turns.

    bench/stream_rate.py --model 3b-q8.gguf --weights-host 600M --csv rate.csv

loam's rate is what a decode step reads over the seconds of the whole step, its computing and waiting included.  Of a
mixture of experts only what a step misses counts, not what is read ahead in vain; its answers are sampled, since
random weights that answer greedily repeat themselves and miss nothing.  fio reads as many bytes of the same file,
without the page cache, one request behind the other (1 MiB, 32 in flight, io_uring).  fio comes from the distribution
(Debian: apt install fio); without it nothing is measured.  Wants a quiet machine."""
import argparse
import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.returncode}: {done.stderr.strip()}")
    return done


EXPERTS = ("expert_hits", "expert_misses", "expert_ahead", "expert_ahead_used")
FIRST_STEPS = 16  # of a mixture: they fill its slots


def expert_run(options, tokens):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        output([options.loam, "run", "-q", "-m", options.model, "-p", "a", "-n", str(tokens), "--temp", "1000",
                "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1", "--draft-max", "0",
                "--weights-host", options.weights_host, "--json", path])
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def expert_step(options):
    """Bytes of experts that a step misses, its seconds, and what steps count."""
    few, many = expert_run(options, FIRST_STEPS), expert_run(options, FIRST_STEPS + options.steps)
    weights = many["weights"]
    counts = {name: (weights[name] - few["weights"][name]) / options.steps for name in EXPERTS}
    seconds = (many["decode"]["seconds"] - few["decode"]["seconds"]) / options.steps
    expert = weights["slot_bytes"] / weights["expert_slots"]
    return (counts["expert_misses"] + counts["expert_ahead_used"]) * expert, seconds, counts


def loam_step(options):
    """Bytes that a step reads, its seconds, and what steps count."""
    done = output([options.loam, "bench", "-m", options.model, "-p", "0", "-n", str(options.steps), "-d", "16", "-r", "1",
                   "--weights-host", options.weights_host, "-o", "jsonl"])
    read = re.search(r"([0-9.]+) of [0-9.]+ MiB of weights are read for each pass", done.stderr)
    if "experts fit into RAM" in done.stderr:
        return expert_step(options)
    if read is None:
        sys.exit(f"{options.model}: --weights-host {options.weights_host} holds all weights: nothing is read")
    if "through the page cache" in done.stderr:
        sys.exit(f"{options.model}: its file system has no O_DIRECT")
    rate = json.loads(done.stdout.splitlines()[-1])["samples_ts"][0]
    return float(read[1]) * (1 << 20), 1 / rate, {}


def fio_rate(options, size):
    done = output(["fio", "--name=weights", "--readonly", f"--filename={options.model}", "--rw=read", "--bs=1M",
                   "--direct=1", "--ioengine=io_uring", "--iodepth=32", f"--size={max(int(size) >> 20, 256)}M",
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
        heading = ["round", "step_bytes", "step_seconds", "loam_bytes_per_second", "fio_bytes_per_second", "ratio"]
        for number in range(1, options.rounds + 1):
            size, seconds, counts = loam_step(options)
            if number == 1:
                writer.writerow(heading + list(counts))
            rate = fio_rate(options, size)
            ratios.append(size / seconds / rate)
            row = [number, int(size), f"{seconds:.3f}", f"{size / seconds:.0f}", f"{rate:.0f}", f"{ratios[-1]:.2f}"]
            row += [f"{count:.1f}" for count in counts.values()]
            writer.writerow(row)
            print("  ".join(str(cell) for cell in row), flush=True)
    print(f"loam streams weights at {statistics.median(ratios):.2f} of what fio reads (median of {options.rounds})")


if __name__ == "__main__":
    main()
