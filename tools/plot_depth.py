"""Tokens per second by depth, from CSV files of bench/results, as a picture (SVG) for the README.

    python3 tools/plot_depth.py --svg docs/tokens_per_second.svg bench/results/PEERS.csv [bench/results/TIERS.csv]

PEERS.csv is of bench/compare.py (columns test, engine, median_tps; tests tgN@dDEPTH).  TIERS.csv is of runs with KV on
disk, by bench/tiers.py (columns depth, preset, kv_host, tokens_per_second); of a preset's rows at a depth, the median of
those with the least RAM counts.  Both axes are logarithmic.
"""
import argparse
import csv
import math
import re
import statistics
from xml.sax.saxutils import escape

# engine of the CSV: label, colour
SERIES = {
    "meanstd": ("loam, 2,048 tokens chosen (meanstd)", "#0b6e99"),
    "hata": ("loam, 2,048 tokens chosen (hata)", "#2b8a3e"),
    "leoam": ("loam, leoam from disk, 1/8 in RAM", "#862e9c"),
    "loam": ("loam, everything (full)", "#495057"),
    "ik_llama.cpp": ("ik_llama.cpp", "#d9480f"),
    "llama.cpp": ("llama.cpp", "#c2255c"),
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 330, 52, 250, 30, 42


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def least_ram(path, depth):
    """The smallest budget of RAM, as written ("128M"), that the file has for this depth"""
    budgets = {row["kv_host"] for row in rows_of(path) if row["depth"] == depth and row["kv_host"]}
    return min(budgets, key=lambda size: int(size[:-1]) << {"M": 20, "G": 30}[size[-1]])


def read(paths):
    """{engine: {depth: tokens per second}}"""
    found = {}
    for path in paths:
        for row in rows_of(path):
            if "engine" in row:
                depth = re.fullmatch(r"tg\d+@d(\d+)", row["test"])
                if depth and row["engine"] in SERIES:
                    found.setdefault(row["engine"], {}).setdefault(int(depth[1]), []).append(float(row["median_tps"]))
            elif row.get("preset") in SERIES and row["kv_host"] == least_ram(path, row["depth"]):
                found.setdefault(row["preset"], {}).setdefault(int(row["depth"]), []).append(
                    float(row["tokens_per_second"])
                )
    return {e: {d: statistics.median(v) for d, v in sorted(points.items())} for e, points in found.items()}


def draw(found):
    depths = sorted({d for points in found.values() for d in points})
    speeds = [s for points in found.values() for s in points.values()]
    low, high = math.log2(min(speeds)) - 0.3, math.log2(max(speeds)) + 0.3
    first, last = math.log2(depths[0]), math.log2(depths[-1])
    x = lambda depth: LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(depth) - first) / (last - first)
    y = lambda speed: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log2(speed) - low) / (high - low)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18">tokens per second</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">tokens in the context</text>',
    ]
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        speed = 2.0**exponent
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(speed):.1f}" y2="{y(speed):.1f}" stroke="#dee2e6"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(speed) + 4:.1f}" text-anchor="end">{speed:g}</text>')
    for depth in depths:
        out.append(f'<text x="{x(depth):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{depth // 1024}K</text>')
    ends = sorted((y(list(found[e].values())[-1]), e) for e in SERIES if e in found)
    place = 0.0
    for end, engine in ends:
        label, colour = SERIES[engine]
        points = found[engine]
        path = " ".join(f"{x(d):.1f},{y(s):.1f}" for d, s in points.items())
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(d):.1f}" cy="{y(s):.1f}" r="3" fill="{colour}"/>' for d, s in points.items()]
        place = max(end + 4, place + 16)
        out.append(f'<text x="{WIDTH - RIGHT + 10}" y="{place:.1f}" fill="{colour}">{escape(label)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", nargs="+")
    parser.add_argument("--svg", required=True)
    arguments = parser.parse_args()
    with open(arguments.svg, "w", encoding="utf-8") as file:
        file.write(draw(read(arguments.csv)))


if __name__ == "__main__":
    main()
