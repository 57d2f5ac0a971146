#!/usr/bin/env python3
"""Pieces of texts for `loam-lab eval kl` and `recall`, and tables of what they measured on them.

    tools/kl_windows.py cut FOLDER TEXT... [--count 6] [--bytes 42000]
        FOLDER/NAME-0.txt ...: pieces of each text, spread over it, at line ends
    tools/kl_windows.py table LINES.jsonl... [--csv FILE] [--against PRESET]
        the lines that `loam-lab eval kl --jsonl` wrote, one file per piece: the mean over windows of each figure and its
        standard error over windows, and with --against the mean difference from that preset on the same windows
    tools/kl_windows.py equal LINES.jsonl... --against PRESET [--csv FILE]
        of presets that differ in what they keep alone, what each would have to keep to lose what PRESET loses: between
        the two nearest, logarithms on a line; its error by leaving out one window at a time, and its range over windows
    tools/kl_windows.py recall RESULTS.json... [--csv FILE] [--against PRESET]
        the same of `loam-lab eval recall --json`, one file per piece: percent of the attention mass and of the true top
        tokens caught, mean over all layers and heads of a piece
"""
import argparse
import csv
import json
import math
import os
import sys
from collections import defaultdict


def cut(options):
    os.makedirs(options.folder, exist_ok=True)
    for path in options.texts:
        text = open(path, "rb").read()
        first = min(20000, len(text) // 20)
        step = (len(text) - 2 * first - options.bytes) // max(1, options.count - 1)
        if step < options.bytes and options.count > 1:
            sys.exit(f"{path}: {len(text)} bytes, too few for {options.count} pieces of {options.bytes}")
        name = os.path.splitext(os.path.basename(path))[0]
        for i in range(options.count):
            begin = text.index(b"\n", first + i * step) + 1
            end = text.index(b"\n", begin + options.bytes - 1000) + 1
            with open(os.path.join(options.folder, f"{name}-{i}.txt"), "wb") as out:
                out.write(text[begin:end])


def mean_and_error(values):
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def read_rows(paths):
    rows = defaultdict(dict)  # (length, preset) -> window -> line
    for path in paths:
        for line in open(path):
            row = json.loads(line)
            rows[row["length"], row["preset"]][path, row["window"]] = row
    return rows


def table(options):
    rows = read_rows(options.lines)
    out = csv.writer(open(options.csv, "w", newline="") if options.csv else sys.stdout, lineterminator="\n")
    out.writerow("length,preset,windows,tokens,kld,kld_error,kld_worst,difference,difference_error,ln_ppl_ratio,"
                 "same_top,disk_bytes_per_token,hits,lists_reused".split(","))
    for (length, preset), windows in sorted(rows.items()):
        values = list(windows.values())
        kld, error = mean_and_error([row["kld"] for row in values])
        base = rows.get((length, options.against), {})
        pairs = [row["kld"] - base[key]["kld"] for key, row in windows.items() if key in base]
        difference, difference_error = mean_and_error(pairs) if pairs else (math.nan, math.nan)
        ratio = sum(math.log(row["perplexity"] / row["perplexity_base"]) for row in values) / len(values)
        decoded = sum(row.get("decoded_tokens", 0) for row in values)
        wanted = sum(row.get("hits", 0) + row.get("misses", 0) for row in values)
        lists = sum(row.get("lists_reused", 0) + row.get("lists_chosen", 0) for row in values)
        out.writerow([length, preset, len(values), sum(row["tokens"] for row in values), f"{kld:.5f}", f"{error:.5f}",
                      f"{max(row['kld'] for row in values):.5f}", f"{difference:.5f}" if pairs else "",
                      f"{difference_error:.5f}" if pairs else "",
                      f"{ratio:.4f}", f"{sum(row['same_top'] for row in values) / len(values):.4f}",
                      sum(row["disk_bytes"] for row in values) // decoded if decoded else "",
                      f"{sum(row['hits'] for row in values) / wanted:.4f}" if wanted else "",
                      f"{sum(row.get('lists_reused', 0) for row in values) / lists:.4f}" if lists else ""])


def keep_at(curve, kld):
    """Of (keep, kld) by keep; None: outside of what was measured."""
    for (keep, more), (next_keep, less) in zip(curve, curve[1:]):
        if more >= kld >= less and more > less > 0:
            return keep * (next_keep / keep) ** (math.log(more / kld) / math.log(more / less))
    return None


def equal(options):
    rows = read_rows(options.lines)
    methods = defaultdict(dict)  # (length, preset without its keep) -> keep -> window -> line
    for (length, preset), windows in rows.items():
        name, keep, *settings = preset.split(":")
        methods[length, ":".join([name, "KEEP", *settings])][int(keep)] = windows
    out = csv.writer(open(options.csv, "w", newline="") if options.csv else sys.stdout, lineterminator="\n")
    out.writerow("length,method,windows,kld,keep,keep_error,keep_least,keep_most".split(","))
    for (length, method), keeps in sorted(methods.items()):
        base = rows.get((length, options.against), {})
        keys = sorted(set(base).intersection(*keeps.values()))

        def keep_over(keys):
            mean = lambda windows: sum(windows[key]["kld"] for key in keys) / len(keys)
            return keep_at([(keep, mean(keeps[keep])) for keep in sorted(keeps)], mean(base))

        if len(keys) < 2 or len(keeps) < 2:
            continue
        keep, ones = keep_over(keys), [keep_over([key]) for key in keys]
        rests = [keep_over([other for other in keys if other != key]) for key in keys]
        error = None
        if keep and all(rests):
            mean = sum(rests) / len(rests)
            error = math.sqrt((len(rests) - 1) / len(rests) * sum((rest - mean) ** 2 for rest in rests))
        figures = [keep, error, min(ones) if all(ones) else None, max(ones) if all(ones) else None]
        out.writerow([length, method, len(keys), f"{sum(base[key]['kld'] for key in keys) / len(keys):.5f}",
                      *("" if figure is None else f"{figure:.0f}" for figure in figures)])


def read_recall(paths):
    rows = defaultdict(dict)  # (length, preset) -> path -> means of kept, mass and top over layers and heads
    for path in paths:
        heads = defaultdict(list)
        for row in json.load(open(path))["results"]:
            heads[row["length"], row["preset"]].append([100 * row[name] for name in ("kept", "mass", "top")])
        for key, values in heads.items():
            rows[key][path] = [sum(column) / len(values) for column in zip(*values)]
    return rows


def recall(options):
    rows = read_recall(options.lines)
    out = csv.writer(open(options.csv, "w", newline="") if options.csv else sys.stdout, lineterminator="\n")
    out.writerow("length,preset,windows,kept,mass,mass_error,mass_difference,mass_difference_error,top,top_error".split(","))
    for (length, preset), windows in sorted(rows.items()):
        kept, mass, top = ([values[i] for values in windows.values()] for i in range(3))
        base = rows.get((length, options.against), {})
        pairs = [values[1] - base[path][1] for path, values in windows.items() if path in base]
        figures = [*mean_and_error(mass), *(mean_and_error(pairs) if pairs else ()), *mean_and_error(top)]
        texts = [f"{figure:.2f}" for figure in figures]
        out.writerow([length, preset, len(windows), f"{sum(kept) / len(kept):.2f}", *texts[:2],
                      *(texts[2:4] if pairs else ["", ""]), *texts[-2:]])


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
commands = parser.add_subparsers(required=True)
cutting = commands.add_parser("cut")
cutting.add_argument("folder")
cutting.add_argument("texts", nargs="+")
cutting.add_argument("--count", type=int, default=6)
cutting.add_argument("--bytes", type=int, default=42000)
cutting.set_defaults(run=cut)
for name, run in (("table", table), ("equal", equal), ("recall", recall)):
    tabling = commands.add_parser(name)
    tabling.add_argument("lines", nargs="+")
    tabling.add_argument("--csv")
    tabling.add_argument("--against", default="")
    tabling.set_defaults(run=run)
arguments = parser.parse_args()
arguments.run(arguments)
