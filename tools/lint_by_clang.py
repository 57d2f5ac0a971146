#!/usr/bin/env python3
"""lint_by_clang.py BUILD_DIR: what clang warns of, for every object of a folder that clang configured.

One process reads many files: of what a file takes alone, half is the start of clang, and its system headers.  What has
an instruction set of its own becomes LLVM's code as well, without a pass: only then clang says that a function has an
intrinsic which its instruction set lacks.  Files that have not changed since they were read without a warning, nor a
header, nor a command, are not read again.
"""
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys

FILES_AT_ONCE = 24  # clang keeps what it has read until it ends


def commands(build):
    """What compiles a file, without the file: a list of files for each."""
    with open(os.path.join(build, "compile_commands.json")) as stream:
        entries = json.load(stream)
    groups = {}
    for entry in entries:
        words = shlex.split(entry["command"])
        at = words.index("-o")
        del words[at:at + 2]
        words.remove("-c")
        words.remove(entry["file"])
        generates = any(word.startswith("-m") for word in words)
        words += ["-Xclang", "-disable-llvm-passes", "-c", "-Xclang", "-emit-llvm-only"] if generates else ["-fsyntax-only"]
        files = groups.setdefault(tuple(words), [])
        if entry["file"] not in files:
            files.append(entry["file"])
    return groups


def newest_header(places):
    newest = 0
    for place in places:
        for folder, _, names in os.walk(place):
            newest = max([newest] + [os.stat(os.path.join(folder, name)).st_mtime_ns
                                     for name in names if not name.endswith(".c")])
    return newest


def read(build, words, files):
    more = [word for name in files[1:] for word in ("-Xclang", name)]
    return subprocess.run([*words, files[0], *more], cwd=build).returncode == 0


def main():
    build = os.path.abspath(sys.argv[1])
    groups = commands(build)
    made = subprocess.run(["ninja", "-t", "targets", "all"], cwd=build, check=True, capture_output=True, text=True).stdout
    made = {line.partition(": ")[0] for line in made.splitlines()}
    made &= {os.path.relpath(name, build) for files in groups.values() for name in files}
    subprocess.run(["ninja", "--quiet", *sorted(made)], cwd=build, check=True, stdout=subprocess.DEVNULL)

    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    headers = newest_header([os.path.join(source, place) for place in ("src", "include", "bench")])
    record = os.path.join(build, "linted.json")  # of each command and file: when headers and it had last changed
    try:
        with open(record) as stream:
            linted = json.load(stream)
    except (OSError, ValueError):
        linted = {}
    state, work = {}, []
    for words, files in groups.items():
        changed = []
        for name in files:
            key = shlex.join([*words, name])
            state[key] = [headers, os.stat(name).st_mtime_ns]
            if linted.get(key) != state[key]:
                changed.append(name)
        work += [(words, changed[at:at + FILES_AT_ONCE]) for at in range(0, len(changed), FILES_AT_ONCE)]
    work.sort(key=lambda part: -len(part[1]))
    count = sum(len(files) for _, files in work)
    print(f"clang reads {count} of {len(state)} files", flush=True)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        good = list(pool.map(lambda part: read(build, *part), work))
    for (words, files), right in zip(work, good):
        if not right:
            for name in files:
                del state[shlex.join([*words, name])]
    with open(record, "w") as stream:
        json.dump(state, stream)
    if not state or not all(good):
        sys.exit("lint: clang has warnings")


main()
