#!/usr/bin/env python3
"""Measures loam beside other engines, or beside an older loam, on the same model files, in turn, and prints ratios.

    bench/compare.py --loam build/release/loam --peer ik_llama.cpp=PATH/llama-bench --peer llama.cpp=PATH/llama-bench \
        --tests pp512,pp2048,tg64,tg32@d4096 --rounds 3 --threads 2 --csv bench/results/FILE.csv MODEL.gguf...

Peers are llama-bench binaries (or anything with its options and JSON). Every round runs each engine once per test,
one after the other, so that a machine whose speed drifts drifts for all; the figure is the median over rounds, the
spread its least and most, the ratio that of the medians. A test is ppN, tgN, either with @dDEPTH (tokens already in
the KV cache: prefilled, or for loam filled with generated rows where --fill-random is given, which the CSV says), or
tgNxS, N tokens of S sequences that decode together (all sequences' tokens per second; peers by --batched).
--variant NAME="FLAGS" runs loam once more with other flags (hata="--preset hata --keep 2048"), at tests that have a
depth. --base NAME=BINARY is another loam: it takes every test and variant too, next to the new one, and the ratio of
new to base is the median over rounds of each round's ratio, with its least and most. Every second round goes backwards.
A peer's decode at depth N is taken from --cli NAME=PATH/llama-cli (llama.cpp: llama-completion, with --cli-flags
NAME=-no-cnv) over the file NAME/dN.bin or dN.bin of --sessions where there is one (bench/peer_session.py makes them).
"""
import argparse
import csv
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys


def parse_test(text):
    match = re.fullmatch(r"(pp|tg)(\d+)(?:@d(\d+)|x(\d+))?", text)
    if not match or (match[4] and match[1] == "pp"):
        sys.exit(f"compare.py: --tests: found '{text}', expected ppN or tgN, then @dDEPTH or nothing, or tgNxSEQUENCES")
    return match[1], int(match[2]), int(match[3] or 0), int(match[4] or 1)


def is_peer(engine, arguments):
    return engine in arguments.peer


def is_base(engine, arguments):
    return engine.split()[0] in arguments.base


def engines_of(test, arguments):
    """(name, program) in the order of a round.  A variant chooses what a step reads: without a depth it has no test."""
    ways = [""] + (list(arguments.variant) if test[2] else [])
    engines = []
    for way in ways:
        engines += [(f"{name} {way}".strip(), program) for name, program in arguments.base.items()]
        engines.append((way or "loam", arguments.loam))
    batched = arguments.batched if test[3] > 1 else arguments.peer
    return engines + [(name, program) for name, program in arguments.peer.items() if name in batched]


def ratio_to_base(name, samples, arguments):
    """Median, least and most of the rounds' ratios, or three empty fields."""
    base = next(iter(arguments.base), None)
    other = samples.get(base if name == "loam" else f"{base} {name}")
    if base is None or other is None or is_base(name, arguments):
        return ["", "", ""]
    ratios = [new / old for new, old in zip(samples[name], other) if new and old]
    return [f"{value:.3f}" for value in (statistics.median(ratios), min(ratios), max(ratios))] if ratios else ["", "", ""]


def session(engine, test, arguments):
    """The peer's session file for this test, or None: llama-bench is to do it."""
    if engine not in arguments.cli or test[0] != "tg" or not test[2]:
        return None
    for folder in (engine, ""):
        path = os.path.join(arguments.sessions or "", folder, f"d{test[2]}.bin")
        if os.path.exists(path):
            return path
    return None


def command(engine, binary, model, test, arguments):
    kind, count, depth, sequences = test
    loam = not is_peer(engine, arguments)
    line = [binary, "bench"] if loam else [binary]
    if session(engine, test, arguments):
        return [arguments.cli[engine], "-m", model, "-t", str(arguments.threads), "-c", str(depth + count + 64), "-n",
                str(count), "-fa", "1", "--ignore-eos", "--prompt-cache", session(engine, test, arguments),
                "--prompt-cache-ro", "--no-display-prompt"] + arguments.cli_flags.get(engine, "").split() + \
            arguments.peer_flags.split()
    if sequences > 1 and not loam:
        return [arguments.batched[engine], "-m", model, "-t", str(arguments.threads), "-c", "4096", "-npp", "16", "-ntg",
                str(count), "-npl", str(sequences)] + arguments.peer_flags.split()
    line += ["-m", model, "-t", str(arguments.threads), "-r", "1", "-o", "json"]
    line += ["-npl", str(sequences)] if sequences > 1 else []
    if loam:
        line += ["--fill-random"] if depth and arguments.fill_random else []
        line += arguments.variant.get(engine.split()[-1], "").split()
    else:
        line += arguments.bench_flags.get(engine, "").split() + arguments.peer_flags.split()
    if depth and engine in arguments.gp:  # an older llama-bench: tg after a prompt, only the tg part timed
        return line + ["-p", "0", "-n", "0", "-gp", f"{depth},{count}"]
    line += ["-p", str(count if kind == "pp" else 0), "-n", str(count if kind == "tg" else 0)]
    return line + (["-d", str(depth)] if depth else [])


def speed(line, timeout):
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        print(f"compare.py: {' '.join(line)} ended with {done.returncode}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    if "--prompt-cache" in line:  # llama-cli
        return float(re.search(r"(?:main|perf_print): +eval time = *[0-9.]+ ms / *[0-9]+ .*?([0-9.]+) tokens per second", done.stderr)[1])
    if "-npp" in line:  # llama-batched-bench: | PP | TG | B | N_KV | T_PP | S_PP | T_TG | S_TG | ...
        table = re.findall(r"^\|(?: +[0-9.]+ \|){10}", done.stdout + done.stderr, re.M)
        return float(table[-1].split("|")[8])
    rows = json.loads(done.stdout[done.stdout.index("["):])
    return rows[-1]["avg_ts"]


def commit_of(program):
    """What a loam says of itself: loam 0.1.0 (COMMIT)."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    match = re.search(r"\((\w+)\)", said)
    return match[1] if match else ""


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loam", required=True)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=BINARY")
    parser.add_argument("--gp", action="append", default=[], metavar="NAME", help="this peer takes -gp DEPTH,N instead of -d")
    parser.add_argument("--base", action="append", default=[], metavar="NAME=BINARY", help="an older loam, in turns with --loam")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=FLAGS", help="loam once more, with these flags")
    parser.add_argument("--cli", action="append", default=[], metavar="NAME=BINARY", help="the peer's llama-cli")
    parser.add_argument("--cli-flags", action="append", default=[], metavar="NAME=FLAGS", help="what else its llama-cli takes")
    parser.add_argument("--bench-flags", action="append", default=[], metavar="NAME=FLAGS",
                        help="what else its llama-bench takes (llama.cpp=--no-warmup: else it prefills twice)")
    parser.add_argument("--batched", action="append", default=[], metavar="NAME=BINARY", help="the peer's llama-batched-bench")
    parser.add_argument("--sessions", help="folder with dDEPTH.bin or NAME/dDEPTH.bin for --cli")
    parser.add_argument("--peer-flags", default="", help="further flags for every peer, one string")
    parser.add_argument("--tests", default="pp512,tg64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=1800)
    parser.add_argument("--fill-random", action="store_true")
    parser.add_argument("--csv")
    parser.add_argument("models", nargs="+")
    arguments = parser.parse_args()
    arguments.variant = dict(variant.split("=", 1) for variant in arguments.variant)
    arguments.base = dict(base.split("=", 1) for base in arguments.base)
    arguments.peer = dict(peer.split("=", 1) for peer in arguments.peer)
    arguments.batched = dict(batched.split("=", 1) for batched in arguments.batched)
    arguments.cli = dict(cli.split("=", 1) for cli in arguments.cli)
    arguments.bench_flags = dict(flags.split("=", 1) for flags in arguments.bench_flags)
    arguments.cli_flags = dict(flags.split("=", 1) for flags in arguments.cli_flags)
    commits = {program: commit_of(program) for program in [arguments.loam, *arguments.base.values()]}
    peers = set(arguments.peer)
    rows = []
    for model in arguments.models:
        for text in arguments.tests.split(","):
            test = parse_test(text)
            engines = engines_of(test, arguments)
            rounds = {name: [] for name, _ in engines}  # None where a run failed
            for number in range(arguments.rounds):
                for name, binary in engines if number % 2 == 0 else engines[::-1]:
                    rounds[name].append(speed(command(name, binary, model, test, arguments), arguments.timeout))
            samples = {name: [value for value in values if value is not None] for name, values in rounds.items()}
            medians = {name: statistics.median(values) for name, values in samples.items() if values}
            best = max((value for name, value in medians.items() if name in peers), default=None)
            for name, program in engines:
                values = samples[name]
                if not values:
                    continue
                ratio = medians[name] / best if name not in peers and best else None
                to_base = ratio_to_base(name, rounds, arguments)
                made_up = session(name, test, arguments) if name in peers else arguments.fill_random
                filled = "" if not test[2] else "random" if made_up else "prefilled"
                rows.append([datetime.date.today(), commits.get(program, ""), processor(), arguments.threads, os.path.basename(model), text, filled,
                             name, f"{medians[name]:.3f}", f"{min(values):.3f}", f"{max(values):.3f}", len(values),
                             f"{ratio:.3f}" if ratio else "", *to_base])
                print(f"{os.path.basename(model):24} {text:14} {name:14} {medians[name]:9.2f} t/s "
                      f"[{min(values):.2f}, {max(values):.2f}]" + (f"  {ratio:.2f}x the better peer" if ratio else "") +
                      (f"  {to_base[0]} of base [{to_base[1]}, {to_base[2]}]" if to_base[0] else ""), flush=True)
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            file.write("# bench/compare.py " + " ".join(
                f"--{key.replace('_', '-')} {value}" for key, value in vars(arguments).items()
                if key in ("tests", "rounds", "threads", "peer_flags", "bench_flags", "fill_random", "variant")
                and value) + "\n")
            writer = csv.writer(file)
            writer.writerow("date commit processor threads model test kv engine median_tps min_tps max_tps rounds "
                            "ratio_to_better_peer ratio_to_base ratio_to_base_min ratio_to_base_max".split())
            writer.writerows(rows)


main()
