#!/usr/bin/env python3
"""LeoAM's comparison (6.2 and 6.3 of the paper), rebuilt with `loam bench`: what a decode step costs when KV lies on a
disk and RAM holds an eighth of it, as LeoAM's parts are added to H2O-like offloading.

    bench_leoam.py --model 1b-Q4_0.gguf --folder DIR [--csv FILE] [--depth 16384] [--batches 1,4,8] [--rounds 3] [--only a,b]
    bench_leoam.py --report FILE

Each run appends a line to FILE (default: standard output); --report prints the tables of README.md, medians over rounds.
DIR is on the disk to be measured; a folder `leoam-bench` is made there and removed.  KV is generated (--fill-random): its
keys are independent normal rows, in which nothing clusters.
"""
import argparse
import csv
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys

# name: (settings, steps at batch 1, what the paper calls it)
WAYS = {
    "tokens": (["--set", "select=exact,dense=0"], 3, "H2O-like"),
    "chunks": (["--set", "select=quest,page=64,dense=0,scan=1"], 3, "H2O-like-chunked"),
    "tokens+prefetch": (["--set", "select=exact,dense=0,speculate=next-layer"], 3, "Prefetch-based"),
    "chunks+prefetch": (["--set", "select=quest,page=64,dense=0,scan=1,speculate=next-layer"], 3, "both"),
    "all-4bit": (["--preset", "flexgen", "--keep", "100%", "--set", "codec=q4"], 6, "FlexGen-like, 4 bits"),
    "all-4bit+prefetch": (
        ["--preset", "flexgen", "--keep", "100%", "--set", "codec=q4,speculate=next-layer"], 6, "the same, prefetched"),
    "abstracts": (["--set", "select=quest,page=64,dense=0"], 24, "+LKA"),
    "tree": (["--set", "select=tree,leaf=32,dense=0"], 24, "+LKA +IAKM"),
    "exact": (["--preset", "leoam", "--set", "select=tree,codec=f16"], 24, "ALL without compression"),
    "all": (["--preset", "leoam", "--set", "select=tree,codec=q4"], 24, "ALL"),
}
BASELINES = ["tokens", "chunks", "tokens+prefetch", "chunks+prefetch"]
BASELINES_4_BITS = ["all-4bit", "all-4bit+prefetch"]
# Of the report: a way, the baselines it is set beside, and what that says.
COMPARISONS = [
    ("all", BASELINES, "`all` (4 bits) over the better f16 baseline (paper: 3.46; at batch 8 5.47)"),
    ("all", BASELINES_4_BITS, "`all` (4 bits) over the better 4-bit baseline"),
    ("exact", BASELINES, "`exact` (f16) over the better f16 baseline"),
]
COLUMNS = [
    "date", "commit", "processor", "model", "depth", "batch", "keep", "way", "round", "steps", "ms_per_step", "tokens_per_second",
    "read_mb_per_step", "hit_ratio", "wait_ms_per_step", "evaluated_per_step", "host_mb", "settings",
]  # fmt: skip


def measure(arguments, way, batch, number, store):
    settings, steps, _ = WAYS[way]
    steps = max(2, steps // batch) if way in BASELINES + BASELINES_4_BITS else max(12, steps // batch)
    kv = arguments.kv_bytes * arguments.depth * batch
    command = [arguments.loam, "bench", "-m", arguments.model, "-p", "0", "-n", str(steps), "-d", str(arguments.depth), "-r", "1"]
    command += ["-t", str(arguments.threads)] if arguments.threads else []
    command += ["--fill-random", "-o", "jsonl", "-q", "--keep", arguments.keep, *settings]
    command += ["--kv-disk", store, "--kv-host", str(kv // 8)]
    if batch > 1:
        command += ["-npl", str(batch)]  # the same test with one sequence comes first
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    row = next(r for r in rows if r["n_parallel"] == batch)
    ms = row["avg_ns"] / steps * 1e-6
    return {
        "date": datetime.date.today().isoformat(),
        "commit": row["build_commit"],
        "processor": row["cpu_info"],
        "model": os.path.basename(arguments.model),
        "depth": arguments.depth,
        "batch": batch,
        "keep": arguments.keep,
        "way": way,
        "round": number,
        "steps": steps,
        "ms_per_step": round(ms, 2),
        "tokens_per_second": round(row["avg_ts"], 3),
        "read_mb_per_step": round(row["kv_read_bytes"] / steps * 1e-6, 1),
        "hit_ratio": round(row["kv_hit_ratio"], 3),
        "wait_ms_per_step": round(row["kv_wait_seconds"] / steps * 1e3, 1),
        "evaluated_per_step": round(row["select_evaluated"] / steps),
        "host_mb": round(row["kv_host_bytes"] * 1e-6),
        "settings": " ".join(settings),
    }


def run(arguments):
    store = os.path.join(arguments.folder, "leoam-bench")
    out = open(arguments.csv, "a", newline="") if arguments.csv else sys.stdout
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    if not arguments.csv or out.tell() == 0:
        writer.writeheader()
    ways = arguments.only.split(",") if arguments.only else list(WAYS)
    for number in range(arguments.rounds):
        for batch in [int(b) for b in arguments.batches.split(",")]:
            for way in ways:
                shutil.rmtree(store, ignore_errors=True)
                writer.writerow(measure(arguments, way, batch, number, store))
                out.flush()
    shutil.rmtree(store, ignore_errors=True)


def report(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    for depth in sorted({int(r["depth"]) for r in rows}):
        speedups = {}  # comparison -> batch -> ratio
        for batch in sorted({int(r["batch"]) for r in rows if int(r["depth"]) == depth}):
            here = {}
            for way in WAYS:
                runs = [r for r in rows if (int(r["depth"]), int(r["batch"]), r["way"]) == (depth, batch, way)]
                if runs:
                    here[way] = {c: statistics.median(float(r[c]) for r in runs) for c in COLUMNS[10:17]}
                    here[way]["rounds"] = len(runs)
            best = min((here[w]["ms_per_step"] for w in BASELINES if w in here), default=None)
            best_4 = min((here[w]["ms_per_step"] for w in BASELINES_4_BITS if w in here), default=None)
            print(f"\n{depth} tokens, batch {batch}\n")
            print("| way | paper | ms a step | of `tokens` | over the better f16 baseline | over the better 4-bit baseline | MB read | GB/s | hits | evaluations | rounds |")
            print("|---|---|---|---|---|---|---|---|---|---|---|")
            for way, r in here.items():
                share = f"{r['ms_per_step'] / here['tokens']['ms_per_step']:.0%}" if "tokens" in here else ""
                measured = way not in BASELINES + BASELINES_4_BITS
                gain = f"{best / r['ms_per_step']:.2f}" if best and measured else ""
                gain_4 = f"{best_4 / r['ms_per_step']:.2f}" if best_4 and way == "all" else ""
                rate = r["read_mb_per_step"] / r["ms_per_step"]
                print(f"| `{way}` | {WAYS[way][2]} | {r['ms_per_step']:.0f} | {share} | {gain} | {gain_4} | {r['read_mb_per_step']:.0f} "
                      f"| {rate:.2f} | {r['hit_ratio']:.0%} | {r['evaluated_per_step']:,.0f} | {r['rounds']} |")  # fmt: skip
            for way, baselines, said in COMPARISONS:
                beside = [here[w]["ms_per_step"] for w in baselines if w in here]
                if beside and way in here:
                    speedups.setdefault(said, {})[batch] = min(beside) / here[way]["ms_per_step"]
        for said, ratios in speedups.items():
            each = ", ".join(f"{ratio:.2f} at batch {batch}" for batch, ratio in ratios.items())
            print(f"\n{said}: {each}; mean {statistics.mean(ratios.values()):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loam", default="build/release/loam-lab")
    parser.add_argument("--model")
    parser.add_argument("--folder")
    parser.add_argument("--csv")
    parser.add_argument("--depth", type=int, default=16384)
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--keep", default="10%")
    parser.add_argument("--only", help="of " + ",".join(WAYS))
    parser.add_argument("--kv-bytes", type=int, default=32768, help="of a token: 32 KiB in f16 for the 1B shape")
    parser.add_argument("--report", metavar="CSV")
    arguments = parser.parse_args()
    if arguments.report:
        report(arguments.report)
    elif arguments.model and arguments.folder:
        run(arguments)
    else:
        parser.error("--model and --folder, or --report")


main()
