#!/usr/bin/env python3
"""Accuracy by keep ratio, from the lines of `loam-lab eval ruler --jsonl`: a CSV of every preset, keep and length, and a
picture (SVG) of the share found against what was kept.

    python3 tools/plot_keep.py LINES.jsonl... --csv FILE [--svg FILE] [--task NAME]... [--title TEXT]

A preset's label is read as `NAME[:SETTING=VALUE]...:KEEP%`; presets without a share (full) are lines across.  The mean
is that of the tasks' means; the interval is Wilson's, over the samples (texts), whose tasks are not independent.
minus_full is the mean difference from the preset `full` on the same samples, minus_full_error its standard error.
"""
import argparse
import csv
import json
import math
from xml.sax.saxutils import escape

COLOURS = ["#0b6e99", "#d9480f", "#2b8a3e", "#862e9c", "#b08900", "#c2255c", "#495057"]
WIDTH, HEIGHT, LEFT, TOP, GAP, LEGEND = 330, 250, 56, 56, 40, 290


def wilson(p, n, z=1.959963984540054):
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0, (centre - half) / (1 + z * z / n)), min(1, (centre + half) / (1 + z * z / n))


def split(label):
    """("quest select=meanstd", 10.0); without a share (label, 100.0)."""
    parts = label.split(":")
    keep = [p for p in parts if p.endswith("%")]
    name = " ".join(p for p in parts if not p.endswith("%"))
    return name, float(keep[0][:-1]) if keep else 100.0


def read(paths, tasks):
    """{(length, name, keep): {task: {index: score}}}"""
    found = {}
    for path in paths:
        for line in open(path, encoding="utf-8"):
            row = json.loads(line)
            if tasks and row["task"] not in tasks:
                continue
            place = found.setdefault((row["length"], *split(row["preset"])), {})
            place.setdefault(row["task"], {})[row["index"]] = row["score"]
    return found


def against_full(tasks, full):
    """Mean difference from full over the texts that both have, and its standard error."""
    common = [t for t in tasks if t in full]
    texts = set.intersection(*(set(tasks[t]) & set(full[t]) for t in common)) if common else ()
    differences = [sum(tasks[t][i] - full[t][i] for t in common) / len(common) for i in texts]
    n = len(differences)
    if n < 2:
        return sum(differences), math.nan
    mean = sum(differences) / n
    return mean, math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1) / n)


def figures(found):
    """[(length, name, keep, task or "mean", samples, score, low, high, minus full, its error)]"""
    rows = []
    for (length, name, keep), tasks in sorted(found.items(), key=lambda f: (f[0][0], f[0][1], -f[0][2])):
        means = {t: sum(s.values()) / len(s) for t, s in sorted(tasks.items())}
        counts = {t: len(tasks[t]) for t in means}
        if len(means) > 1:
            means["mean"], counts["mean"] = sum(means.values()) / len(means), min(counts.values())
        full = found.get((length, "full", 100.0), {})
        for task, mean in means.items():
            of_task = tasks if task == "mean" else {task: tasks[task]}
            rows.append((length, name, keep, task, counts[task], mean, *wilson(mean, counts[task]),
                         *against_full(of_task, full)))
    return rows


def panel(rows, length, names, left, keeps):
    """Shares on a logarithmic axis, the largest on the left."""
    def x(keep):
        low, high = math.log(keeps[0]), math.log(keeps[-1])
        return left + WIDTH * (high - math.log(keep)) / (high - low)

    def y(score):
        return TOP + HEIGHT * (1 - score)

    counts = sorted({r[4] for r in rows})
    some = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else counts[0]
    out = [f'<text x="{left}" y="{TOP - 10}" font-weight="bold">{length:,} tokens, {some} texts</text>']
    for share in range(0, 101, 20):
        out += [f'<path d="M{left} {y(share / 100):.1f}h{WIDTH}" stroke="#ddd"/>',
                f'<text x="{left - 6}" y="{y(share / 100) + 4:.1f}" text-anchor="end">{share}</text>']
    for keep in keeps:
        out += [f'<path d="M{x(keep):.1f} {TOP}v{HEIGHT}" stroke="#eee"/>',
                f'<text x="{x(keep):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{keep:g}%</text>']
    for i, name in enumerate(names):
        points = sorted((r for r in rows if r[1] == name), key=lambda r: -r[2])
        colour = COLOURS[i % len(COLOURS)]
        if len(points) == 1 and points[0][2] == 100:
            out.append(f'<path d="M{left} {y(points[0][5]):.1f}h{WIDTH}" stroke="#222" stroke-dasharray="5 4"/>')
            continue
        line = "L".join(f"{x(r[2]):.1f} {y(r[5]):.1f}" for r in points)
        out.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for r in points:
            out.append(f'<circle cx="{x(r[2]):.1f}" cy="{y(r[5]):.1f}" r="3.5" fill="{colour}"><title>'
                       f"{escape(name)} {r[2]:g}%: {100 * r[5]:.1f} [{100 * r[6]:.0f}, {100 * r[7]:.0f}], "
                       f"{r[4]} texts</title></circle>")
    return out


def draw(rows, title):
    rows = [r for r in rows if r[3] == ("mean" if any(q[3] == "mean" for q in rows) else rows[0][3])]
    lengths, names = sorted({r[0] for r in rows}), list(dict.fromkeys(r[1] for r in rows))
    keeps = sorted({r[2] for r in rows if r[2] < 100})
    width = LEFT + len(lengths) * (WIDTH + GAP) + LEGEND
    height = TOP + HEIGHT + 56
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>',
           f'<text x="14" y="{TOP + HEIGHT // 2}" transform="rotate(-90 14 {TOP + HEIGHT // 2})" '
           f'text-anchor="middle">Percent found</text>']
    for i, length in enumerate(lengths):
        out += panel([r for r in rows if r[0] == length], length, names, LEFT + i * (WIDTH + GAP), keeps)
    out.append(f'<text x="{LEFT}" y="{height - 14}">Share of the context that a step reads</text>')
    for i, name in enumerate(names):
        place, full = LEFT + len(lengths) * (WIDTH + GAP), all(r[2] == 100 for r in rows if r[1] == name)
        stroke = 'stroke="#222" stroke-dasharray="5 4"' if full else \
            f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2"'
        out += [f'<path d="M{place} {TOP + 10 + 20 * i}h24" {stroke}/>',
                f'<text x="{place + 30}" y="{TOP + 14 + 20 * i}">{escape(name)}</text>']
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="+")
    parser.add_argument("--csv", required=True)
    parser.add_argument("--svg")
    parser.add_argument("--task", action="append")
    parser.add_argument("--title", default="Accuracy by what is kept")
    options = parser.parse_args()
    rows = figures(read(options.lines, options.task))
    with open(options.csv, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow("length preset keep_percent task samples score low high minus_full minus_full_error".split())
        for row in rows:
            writer.writerow([*row[:5], *(f"{value:.4f}" for value in row[5:])])
    if options.svg:
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(draw(rows, options.title))


if __name__ == "__main__":
    main()
