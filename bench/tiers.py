#!/usr/bin/env python3
"""Decode and prefill with KV on disk: tokens a second, bytes read, hits; on text, on recorded rows, on random rows.

    bench/tiers.py decode --model SmolLM2.gguf --text PIECE.txt --rows text --depth 8000 --folder DIR --csv FILE
    bench/tiers.py decode --model 1b-Q4_0.gguf --recording FILE --rows recorded,random --depth 32768 --kv-host 128M ...
    bench/tiers.py prefill --model 1b-Q4_0.gguf --depth 28672 --tokens 4096 --kv-host 128M --folder DIR --csv FILE
    bench/tiers.py report FILE...

A preset is written as for `loam-lab eval`: NAME:KEEP:AXIS=METHOD:...; @N behind it gives it N steps of its own on recorded
and random rows, for those that read nearly everything.  Presets take turns, --rounds times; each run appends
a line to FILE.  The column `state` says which keys a row was measured on and what RAM held when counting began:

    text      `loam-lab eval kl` decodes the tokens of a real text behind the prefilled prompt, which was written to disk just
              before; the first quarter of the steps, which finds RAM empty, is not counted
    recorded  `loam bench --replay`: keys and queries of `loam-lab trace record`, tiled to the model's shape and depth
    random    `loam bench --fill-random`: independent normal rows; of both every step is counted, from empty RAM on
    memory    the same as random, with all KV in RAM (give presets what they choose on disk: leoam:20%:leaf=64)
    recorded-memory  the same as recorded, with all KV in RAM

DIR is on the disk to be measured; what is put there is removed.
"""
import argparse
import collections
import csv
import datetime
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys

PRESETS = "flexgen:100%@8,quest:10%:dense=0,leoam:codec=f16,leoam,hata:10%:dense=0@8"
STATES = {
    "text": "text, after a quarter of the steps",
    "recorded": "recorded rows, from empty RAM",
    "random": "random rows, from empty RAM",
    "memory": "all KV in RAM, random rows",
    "recorded-memory": "all KV in RAM, recorded rows",
    "ram": "all KV in RAM",
    "disk": "history on disk, random rows",
}
COLUMNS = [
    "date", "commit", "processor", "model", "threads", "test", "depth", "state", "preset", "kv_host", "round", "tokens",
    "tokens_per_second", "disk_mb_per_token", "hits", "prefetched_per_token", "prefetched_used_per_token",
    "wait_ms_per_token", "host_mb", "kld",
]  # fmt: skip


def presets(arguments):
    """(preset, steps) of the list."""
    for text in arguments.presets.split(","):
        preset, _, steps = text.partition("@")
        yield preset, int(steps or getattr(arguments, "steps", 0))


def flags(preset):
    """NAME:KEEP:AXIS=METHOD:... as options of `loam bench`."""
    name, *rest = preset.split(":")
    axes = [part for part in rest if "=" in part]
    keep = [part for part in rest if "=" not in part]
    line = ["--preset", name]
    line += ["--keep", keep[0]] if keep else []
    return line + (["--set", ",".join(axes)] if axes else [])


def loam(arguments, *line):
    command = [arguments.loam, *line, "-t", str(arguments.threads), "-q"]
    if arguments.verbose:
        print(shlex.join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        print(f"tiers.py: {shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return []
    return [json.loads(text) for text in done.stdout.splitlines()]


def store(arguments):
    folder = os.path.join(arguments.folder, "tiers")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def bench_row(arguments, row, tokens):
    """The columns of a line of `loam bench -o jsonl`."""
    return {
        "threads": row["n_threads"],
        "tokens": tokens,
        "tokens_per_second": round(row["avg_ts"], 3),
        "disk_mb_per_token": round(row.get("kv_read_bytes", 0) / tokens * 1e-6, 3),
        "hits": round(row["kv_hit_ratio"], 4) if "kv_hit_ratio" in row else "",
        "prefetched_per_token": round(row.get("kv_prefetched", 0) / tokens, 1),
        "prefetched_used_per_token": round(row.get("kv_prefetch_hits", 0) / tokens, 1),
        "wait_ms_per_token": round(row.get("kv_wait_seconds", 0) / tokens * 1e3, 2),
        "host_mb": round(row["kv_host_bytes"] * 1e-6) if "kv_host_bytes" in row else "",
    }


def text_rows(arguments, number):
    """All presets from one prefill of the text."""
    lines = loam(arguments, "eval", "kl", "-m", arguments.model, "-f", arguments.text, "--chunks", "1", "--lengths",
                 str(arguments.depth), "--stretch", str(arguments.steps), "--preset", ",".join(p for p, _ in presets(arguments)),
                 "--kv-host", arguments.kv_host, "--kv-disk", store(arguments), "-o", "jsonl")
    for line in lines:
        tokens = line["decoded_tokens"]
        yield {
            "state": STATES["text"],
            "preset": line["preset"],
            "round": number,
            "threads": arguments.threads,
            "tokens": tokens,
            "tokens_per_second": round(tokens / line["decode_seconds"], 3),
            "disk_mb_per_token": round(line["disk_bytes"] / tokens * 1e-6, 3),
            "hits": round(line["hits"] / max(1, line["hits"] + line["misses"]), 4),
            "prefetched_per_token": round(line["prefetched"] / tokens, 1),
            "prefetched_used_per_token": round(line["prefetched_used"] / tokens, 1),
            "kld": round(line["kld"], 5),
        }


def made_rows(arguments, number, rows):
    for preset, steps in presets(arguments):
        line = ["bench", "-m", arguments.model, "-p", "0", "-n", str(steps), "-d", str(arguments.depth), "-r", "1",
                "--no-warmup", "-o", "jsonl", *flags(preset)]
        line += ["--kv-disk", store(arguments), "--kv-host", arguments.kv_host] if "memory" not in rows else []
        line += ["--replay", arguments.recording] if "recorded" in rows else ["--fill-random"]
        for row in loam(arguments, *line):
            yield {"state": STATES[rows], "preset": preset, "round": number, **bench_row(arguments, row, steps)}


def decode(arguments):
    for number in range(1, arguments.rounds + 1):
        for rows in arguments.rows.split(","):
            yield from text_rows(arguments, number) if rows == "text" else made_rows(arguments, number, rows)


def prefill(arguments):
    for number in range(1, arguments.rounds + 1):
        for preset, _ in presets(arguments):
            for where in ("ram", "disk"):
                line = ["bench", "-m", arguments.model, "-p", str(arguments.tokens), "-n", "0", "-d", str(arguments.depth),
                        "-r", "1", "--no-warmup", "-o", "jsonl", "--fill-random", *flags(preset)]
                line += ["--kv-disk", store(arguments), "--kv-host", arguments.kv_host] if where == "disk" else []
                for row in loam(arguments, *line):
                    yield {"state": STATES[where], "preset": preset, "round": number,
                           **bench_row(arguments, row, arguments.tokens)}


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return ""


def measure(arguments):
    made = subprocess.run([arguments.loam, "--version"], capture_output=True, text=True, check=True).stdout
    fixed = {
        "date": datetime.date.today().isoformat(),
        "commit": made.split("(")[-1].split(")")[0],
        "processor": processor(),
        "model": os.path.basename(arguments.model),
        "test": "decode" if arguments.command == "decode" else f"prefill {arguments.tokens}",
        "depth": arguments.depth,
        "kv_host": arguments.kv_host,
    }
    fresh = not os.path.exists(arguments.csv) or os.path.getsize(arguments.csv) == 0
    with open(arguments.csv, "a", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        for row in (decode if arguments.command == "decode" else prefill)(arguments):
            whole = {**fixed, **row}
            if whole["state"] in (STATES["ram"], STATES["memory"], STATES["recorded-memory"]):
                whole["kv_host"] = ""
            writer.writerow(whole)
            out.flush()
    shutil.rmtree(os.path.join(arguments.folder, "tiers"), ignore_errors=True)


def report(arguments):
    groups = collections.defaultdict(list)
    for path in arguments.csv:
        with open(path, newline="") as file:
            for row in csv.DictReader(line for line in file if not line.startswith("#")):
                groups[row["model"], row["test"], int(row["depth"]), row["state"], row["preset"]].append(row)
    print("| model, test, depth | keys, state | preset | t/s | min to max | MB a token | hits % | used of prefetched | rounds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (model, test, depth, state, preset), rows in groups.items():
        def median(column):
            values = [float(row[column]) for row in rows if row[column] != ""]
            return statistics.median(values) if values else None

        speeds = [float(row["tokens_per_second"]) for row in rows]
        hits = median("hits")
        print(f"| {model}, {test}, {depth:,} | {state} | `{preset}` | {statistics.median(speeds):.1f} "
              f"| {min(speeds):.1f} to {max(speeds):.1f} | {median('disk_mb_per_token'):.2f} "
              f"| {'' if hits is None else f'{100 * hits:.1f}'} "
              f"| {median('prefetched_used_per_token'):.0f} of {median('prefetched_per_token'):.0f} | {len(rows)} |")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("decode", "prefill"):
        one = commands.add_parser(name)
        one.add_argument("--loam", default="build/release/loam-lab")
        one.add_argument("--model", required=True)
        one.add_argument("--folder", required=True)
        one.add_argument("--csv", required=True)
        one.add_argument("--depth", type=int, required=True, help="tokens of context; text: steps included")
        one.add_argument("--kv-host", default="1/8", help="RAM for KV; a share (1/8) for --rows text alone")
        one.add_argument("--presets", default=PRESETS if name == "decode" else "full,leoam")
        one.add_argument("--rounds", type=int, default=3)
        one.add_argument("--threads", type=int, default=2)
        one.add_argument("--verbose", action="store_true", help="print the commands")
        if name == "decode":
            one.add_argument("--rows", default="text", help="of text,recorded,random,memory,recorded-memory")
            one.add_argument("--text", help="for --rows text")
            one.add_argument("--recording", help="for --rows recorded")
            one.add_argument("--steps", type=int, default=64)
        else:
            one.add_argument("--tokens", type=int, default=4096, help="prefilled behind the depth")
    one = commands.add_parser("report")
    one.add_argument("csv", nargs="+")
    arguments = parser.parse_args()
    report(arguments) if arguments.command == "report" else measure(arguments)


main()
