#!/usr/bin/env python3
"""planner.py: what `loam plan` predicts against what `loam bench` measures, setting by setting (docs/planner.md).

    loam plan --measure
    loam-lab trace record -m SmolLM2.gguf -f TEXT -o rows
    bench/planner.py --model A.gguf --model B.gguf --folder DIR --replay rows --csv grid.csv

A setting is a model, a depth, a budget of RAM for the KV (all of it in RAM, or a share with the rest in DIR) and a plan.
KV in RAM are generated; KV on disk are those that --replay has, since hits depend on them.  A disk that is shared
changes from minute to minute, so right before and right after each setting on disk its rates are measured again, and
what is compared is the mean step of the two predictions (`loam plan --measure-disk`), so that the model is judged and
not the hour; a setting during which these moved by more than 15% is measured again, twice at most.  --kept-disk predicts
by the machine's kept numbers.  Wants a quiet machine.
Lines that begin with # are the machine's and the program's; the last lines of the output say how many predictions are
within 15%, and how the plan that is predicted to be quickest of those with the same accuracy compares with the quickest
measured one."""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys

IN_RAM = ["full", "full codec=q8", "streaming", "quest", "meanstd", "hata", "leoam", "clo"]
ON_DISK = ["full", "streaming", "quest", "meanstd", "hata", "leoam"]
COLUMNS = ["model", "depth", "budget", "plan", "exact", "predicted_ts", "measured_ts", "slowest_ts", "quickest_ts",
           "ratio", "limit", "predicted_ms", "disk_ms", "pages_ms", "waited_ms", "predicted_mb", "read_mb",
           "predicted_requests", "requests", "before_ts", "after_ts", "measured"]
MOVED = 0.15  # the predictions before and after differ by more: the machine did not keep its rate
TRIES = 3  # of a setting, until it does


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else str(done.returncode))
    return done.stdout


def kv_bytes(options, model, depth):
    plans = json.loads(output([options.loam, "plan", "-m", model, "-c", str(depth), "--json", "-q"] + machine(options)))
    return next(p["kv_bytes"] for p in [plans["choice"]] + plans["others"] if p["plan"] == "full")


def machine(options):
    return ["--machine", options.machine] if options.machine else []


def tiers(options, share, bytes_of_all):
    if share == 1:
        return []
    return ["--kv-host", str(int(bytes_of_all * share) + (8 << 20)), "--kv-disk", options.folder]


def predicted(options, model, depth, budget):
    disk = ["--measure-disk"] if budget and not options.kept_disk else []
    text = output([options.loam, "plan", "-m", model, "-c", str(depth), "--json", "-q"] + budget + disk +
                  machine(options))
    plans = json.loads(text)
    return {plan["plan"]: plan for plan in [plans["choice"]] + plans["others"]}


def measured(options, model, depth, budget, plan):
    words = plan.split(" ")
    rows = ["--replay", options.replay] if budget and options.replay else ["--fill-random"]
    command = [options.loam, "bench", "-m", model, "-p", "0", "-n", str(options.steps), "-d", str(depth), "-r",
               str(options.repetitions), "-o", "jsonl", "-q", "--preset", words[0]] + rows
    if len(words) > 1:
        command += ["--set", words[1]]
    return json.loads(output(command + budget).splitlines()[-1])


def settings(options):
    for model in options.model:
        for depth in options.depths:
            bytes_of_all = kv_bytes(options, model, depth)
            for share in options.shares:
                plans = IN_RAM if share == 1 else ON_DISK
                yield model, depth, share, tiers(options, share, bytes_of_all), plans


def mean(values):
    return statistics.fmean(float(value or 0) for value in values)


def details(around, result, options):
    """Of a step: milliseconds and megabytes; what is counted is the mean over all steps."""
    steps = options.steps * options.repetitions
    parts = [plan["parts_seconds"] for plan in around]
    return [f"{1e3 * seconds:.2f}" for seconds in
            (mean(plan["step_seconds"] for plan in around), mean(part["disk"] for part in parts),
             mean(part["pages"] for part in parts), (result.get("kv_wait_seconds") or 0) / steps)] + [
        f"{1e-6 * around[0]['step_read_bytes']:.1f}", f"{1e-6 * (result.get('kv_read_bytes') or 0) / steps:.1f}",
        f"{around[0]['step_read_requests']:.0f}", f"{(result.get('kv_read_requests') or 0) / steps:.0f}"] + [
        f"{plan['tokens_per_second']:.2f}" for plan in around]


def measured_row(options, setting, plan, before, after, result):
    model, depth, share = setting
    around, rates = (before[plan], after[plan]), result["samples_ts"]
    expected = 1 / mean(prediction["step_seconds"] for prediction in around)
    found = max(rates) if options.quickest else statistics.median(rates)
    return [os.path.basename(model), depth, share, plan, int(before[plan]["exact"]), f"{expected:.2f}",
            f"{found:.2f}", f"{min(rates):.2f}", f"{max(rates):.2f}", f"{expected / found:.3f}",
            before[plan]["limit"]] + details(around, result, options)


def moved(before, after, plan):
    return abs(after[plan]["tokens_per_second"] / before[plan]["tokens_per_second"] - 1) > MOVED


def measured_between(options, setting, plan, before):
    """The prediction before, the result, the prediction after, and how often it was measured."""
    (model, depth), budget = setting
    for count in range(1, TRIES + 1):
        result = measured(options, model, depth, budget, plan)
        if not budget or options.kept_disk:
            return before, result, before, count
        after = predicted(options, model, depth, budget)
        if not moved(before, after, plan) or count == TRIES:
            return before, result, after, count
        before = after


def run(options, writer):
    rows = []
    for model, depth, share, budget, plans in settings(options):
        try:
            before = predicted(options, model, depth, budget)
        except RuntimeError as reason:
            print(f"{model} {depth} {share}: {reason}", file=sys.stderr)
            continue
        for plan in plans:
            if plan not in before:
                continue
            try:
                before, result, after, count = measured_between(options, ((model, depth), budget), plan, before)
            except RuntimeError as reason:
                print(f"{model} {depth} {share} {plan}: {reason}", file=sys.stderr)
                continue
            row = measured_row(options, (model, depth, share), plan, before, after, result) + [count]
            before = after
            writer.writerow(row)
            print("  ".join(str(cell) for cell in row), flush=True)
            rows.append(dict(zip(COLUMNS, row)))
    return rows


def is_within(row):
    return abs(float(row["ratio"]) - 1) <= 0.15


def summarize(rows):
    print(f"{sum(map(is_within, rows))} of {len(rows)} within 15%")
    kept = [row for row in rows if abs(float(row["after_ts"]) / float(row["before_ts"]) - 1) <= MOVED]
    if len(kept) < len(rows):
        print(f"{sum(map(is_within, kept))} of the {len(kept)} for which the machine kept its rate")
    groups = {}
    for row in rows:
        for kind in ["any"] + (["exact"] if row["exact"] else []):
            groups.setdefault((row["model"], row["depth"], row["budget"], kind), []).append(row)
    worst, slower = 1.0, 0
    for group in groups.values():
        choice = max(group, key=lambda row: float(row["predicted_ts"]))
        best = max(group, key=lambda row: float(row["measured_ts"]))
        part = float(choice["measured_ts"]) / float(best["measured_ts"])
        worst = min(worst, part)
        slower += part < 0.95
    print(f"the choice is more than 5% slower than the quickest in {slower} of {len(groups)}, at worst {worst:.2f} of it")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loam", default="build/release/loam-lab")
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--folder", default="kv", help="for the KV on disk")
    parser.add_argument("--replay", help="for the rows of KV on disk, of `loam-lab trace record`; without it random rows")
    parser.add_argument("--machine", help="numbers of the machine; without it those that loam keeps")
    parser.add_argument("--depths", type=lambda t: [int(n) for n in t.split(",")], default=[2048, 8192, 16384, 32768])
    parser.add_argument("--shares", type=lambda t: [float(n) for n in t.split(",")], default=[1, 0.5, 0.25])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quickest", action="store_true", help="the quickest of many single steps, as the machine's "
                        "numbers are: for a machine that others use, too")
    parser.add_argument("--kept-disk", action="store_true", help="predict by the rates of the disk that are kept")
    parser.add_argument("--csv", required=True)
    options = parser.parse_args()
    if options.quickest:
        options.steps, options.repetitions = 1, 8 * options.repetitions
    with open(options.csv, "w", newline="") as file:
        file.write(f"# {output([options.loam, 'version']).strip().splitlines()[0]}\n# {' '.join(sys.argv)}\n")
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        rows = run(options, writer)
    summarize(rows)


if __name__ == "__main__":
    main()
