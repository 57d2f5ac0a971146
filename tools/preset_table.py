#!/usr/bin/env python3
"""One table of all presets from what `bench/presets.sh` measured: FOLDER/presets.csv, and the same as Markdown.

    tools/preset_table.py FOLDER

Columns without a measurement in the folder are empty.
"""
import csv
import json
import os
import statistics
import sys

COLUMNS = [
    "preset", "kld", "kld_error", "kld_disk", "kld_disk_error", "needles", "needles_error",
    "needles_disk", "ram_mb_per_step", "disk_mb_per_step", "hits", "ram_tps", "disk_tps", "ram_tps_32k", "disk_tps_32k",
    "ram_tps_128k", "disk_tps_128k",
]  # fmt: skip
LENGTH = "8000"  # tokens, of the rows of a table


def read_csv(path):
    """Rows of a CSV behind its comment; none where there is no file."""
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def of_length(path):
    """Rows of the table's length: the divergence may have been judged at others too."""
    return [row for row in read_csv(path) if row["length"] == LENGTH]


def main():
    folder = sys.argv[1]
    table = {}

    def put(preset, **values):
        table.setdefault(preset, {}).update(values)

    for row in of_length(os.path.join(folder, "kl.csv")):
        put(row["preset"], kld=row["kld"], kld_error=row["kld_error"])
    for row in of_length(os.path.join(folder, "disk.csv")):
        put(row["preset"], kld_disk=row["kld"], kld_disk_error=row["kld_error"], hits=row["hits"],
            disk_mb_per_step=f"{int(row['disk_bytes_per_token']) / 1e6:.2f}")
    for name, suffix in (("needles", ""), ("needles-disk", "_disk")):
        path = os.path.join(folder, f"{name}.json")
        for preset, (mean, error) in (needles(path) if os.path.exists(path) else {}).items():
            put(preset, **{f"needles{suffix}": f"{mean:.1f}"}, **({} if suffix else {"needles_error": f"{error:.1f}"}))
    path = os.path.join(folder, "bytes.jsonl")
    for line in open(path) if os.path.exists(path) else []:
        row = json.loads(line)
        put(row["preset"], ram_mb_per_step=f"{row['kv_bytes_per_step'] / 1e6:.2f}")
    speeds = {}
    for name in ("speed.csv", "replay.csv"):
        for row in read_csv(os.path.join(folder, name)):
            where = "ram" if "all KV in RAM" in row["state"] else "disk"
            depth = {32768: "_32k", 131072: "_128k"}.get(int(row["depth"]), "")
            speeds.setdefault((row["preset"], f"{where}_tps{depth}"), []).append(float(row["tokens_per_second"]))
    for (preset, column), values in speeds.items():
        put(preset, **{column: f"{statistics.median(values):.1f}"})
    with open(os.path.join(folder, "presets.csv"), "w", newline="") as file:
        out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        out.writeheader()
        for preset, values in table.items():
            out.writerow({"preset": preset, **values})
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for preset, values in table.items():
        print("| " + " | ".join([f"`{preset}`", *(values.get(column, "") for column in COLUMNS[1:])]) + " |")


def needles(path):
    """Score and its error, mean of the tasks, of each preset of `loam eval ruler --json`."""
    return {row["preset"]: (row["score"], row["error"]) for row in json.load(open(path))["means"]}


main()
