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

NEEDLES = {"4096": "_4k", "8000": "_8k"}  # columns by length
LENGTHS = {"2048": "_2k", "4096": "_4k", "8000": "_8k"}  # of the divergence
FIGURES = ("", "_error", "_worst")
DEPTHS = {"32768": "_32k", "131072": "_128k"}
PLACES = ("", "_disk")
COLUMNS = [
    "preset", "keep", "windows", "windows_disk",
    *(f"kld{place}{length}{figure}" for place in PLACES for length in LENGTHS.values() for figure in FIGURES),
    *(f"needles{place}{length}{figure}" for length in NEEDLES.values() for place in PLACES
      for figure in ("", "_minus_full", "_minus_full_error", "_samples")),
    "ram_mb_per_step", "disk_mb_per_token", "hits", "ram_tps", "disk_tps",
    *(f"{place}_tps{depth}" for depth in DEPTHS.values() for place in ("ram", "disk")),
]  # fmt: skip
LENGTH = "8000"  # tokens, of bytes


def read_csv(folder, name):
    """Rows of a CSV behind its comment; none where there is no file."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def measured(folder):
    """{preset: {column: text}}"""
    table = {}

    def put(preset, **values):
        table.setdefault(preset, {}).update(values)

    path = os.path.join(folder, "bytes.jsonl")
    for line in open(path) if os.path.exists(path) else []:
        row = json.loads(line)
        put(row["preset"], keep=row["keep"], ram_mb_per_step=f"{row['kv_bytes_per_step'] / 1e6:.1f}")
    for name, place in (("kl.csv", ""), ("disk.csv", "_disk")):
        for row in read_csv(folder, name):
            if row["length"] in LENGTHS:
                column = f"kld{place}{LENGTHS[row['length']]}"
                put(row["preset"], **{f"{column}{figure}": row[f"kld{figure}"] for figure in FIGURES},
                    **{f"windows{place}": row["windows"]})
                if place and row["length"] == LENGTH:
                    put(row["preset"], hits=row["hits"], disk_mb_per_token=f"{int(row['disk_bytes_per_token']) / 1e6:.2f}")
    for name, place in (("needles.csv", ""), ("needles-disk.csv", "_disk")):
        for row in read_csv(folder, name):
            if row["length"] in NEEDLES and row["task"] == "mean" and not (place and row["preset"] == "full"):
                column = f"needles{place}{NEEDLES[row['length']]}"
                put(row["preset"], **{column: percent(row["score"]), f"{column}_minus_full": percent(row["minus_full"]),
                                      f"{column}_minus_full_error": percent(row["minus_full_error"]),
                                      f"{column}_samples": row["samples"]})
    speeds = {}
    for row in (*read_csv(folder, "speed.csv"), *read_csv(folder, "replay.csv")):
        place = "ram" if "all KV in RAM" in row["state"] else "disk"
        column = f"{place}_tps{DEPTHS.get(row['depth'], '')}"
        speeds.setdefault((row["preset"], column), []).append(float(row["tokens_per_second"]))
    for (preset, column), values in speeds.items():
        put(preset, **{column: f"{statistics.median(values):.1f}"})
    return table


def percent(share):
    return f"{100 * float(share):.1f}"


def divergence(values, column):
    """Mean, error where there are windows to tell it by, and the worst window."""
    mean, error, worst = (float(values.get(f"{column}{figure}") or "nan") for figure in FIGURES)
    if mean != mean:
        return ""
    return f"{mean:.4f} ± {error:.4f} ({worst:.4f})" if error > 0 else f"{mean:.4f}"


def found(values, column):
    if column not in values:
        return ""
    difference, error = (float(values[f"{column}_minus_full{end}"]) for end in ("", "_error"))
    return f"{float(values[column]):.0f}, {difference:+.0f} ± {error:.0f}".replace("-", "−")


def markdown(table):
    """Those of the columns below of which a preset has a measurement."""
    columns = [("keep", lambda values: values.get("keep", ""))]
    columns += [(f"KLD {length[1:].upper()}{' from disk' if place else ''}",
                 lambda values, column=f"kld{place}{length}": divergence(values, column))
                for place in PLACES for length in LENGTHS.values()]
    columns += [(f"needles {length[1:].upper()}{' from disk' if place else ''}",
                 lambda values, column=f"needles{place}{length}": found(values, column))
                for length in NEEDLES.values() for place in PLACES]
    names = {"ram_mb_per_step": "MB a step", "disk_mb_per_token": "MB a token from disk"}
    for depth in ("", *DEPTHS.values()):
        names |= {f"{place}_tps{depth}": f"t/s {word}{' ' * bool(depth)}{depth[1:].upper()}"
                  for place, word in (("ram", "in RAM"), ("disk", "from disk"))}
    columns += [(name, lambda values, key=key: values.get(key, "")) for key, name in names.items()]
    columns = [(name, cell) for name, cell in columns if any(cell(values) for values in table.values())]
    yield "| preset | " + " | ".join(name for name, _ in columns) + " |"
    yield "|---" * (1 + len(columns)) + "|"
    for preset, values in table.items():
        yield " | ".join([f"| `{preset}`", *(cell(values) for _, cell in columns)]) + " |"


def main():
    folder = sys.argv[1]
    table = measured(folder)
    with open(os.path.join(folder, "presets.csv"), "w", newline="") as file:
        out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        out.writeheader()
        for preset, values in table.items():
            out.writerow({"preset": preset, **values})
    print("\n".join(markdown(table)))


main()
