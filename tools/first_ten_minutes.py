#!/usr/bin/env python3
"""What somebody does in the first ten minutes, in a clone: the demo, a model pulled from a registry, a PDF that is asked,
the server and its page, an installation, a wheel.

    tools/first_ten_minutes.py [PART...]

The registry is the tests' own, on loopback, with the bundled model in place of the one that is named.  What the clone
has built is used.  Parts are run in their order, whatever failed before; each prints its seconds, and what failed its
output.  Ends with "N passed, N failed"."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
sys.path += [os.path.join(ROOT, "tests", "pull"), os.path.join(ROOT, "tests", "document")]
from registry import Registry  # noqa: E402
from sample_pdf import pdf  # noqa: E402

# What the bundled model was made for (models/README.md).
TEXT = "One of the special magic numbers for wooden-castle is: 4821973."
QUESTION = "What is the special magic number for wooden-castle in the text above? " \
    "The special magic number for wooden-castle in the text above is:"
ANSWER = "4821973"
# As in a shell of a user who has neither model nor key.
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if not name.startswith(("LOAM_", "HF_"))}, "no_proxy": "*"}


class Failure(Exception):
    pass


def run(*command, **more):
    """Its standard output."""
    environment = {**ENVIRONMENT, **more}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, timeout=600)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(words, text, what):
    if words not in text:
        raise Failure(f"{what}: found {text!r}, expected {words!r} in it")


def asks(loam, *arguments, **more):
    """The answer names the number that the document hides."""
    expect(ANSWER, run(loam, "run", *arguments, "-p", QUESTION, "--raw", "-n", "12", "-q", **more), f"{loam} run")


class Minutes:
    def __init__(self, folder):
        self.folder, self.loam = folder, os.path.join(ROOT, "build", "release", "loam")
        self.document = self.path("notes.txt")
        with open(self.document, "w", encoding="utf-8") as file:
            file.write(TEXT + "\n")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def demo(self):
        """The commands it prints are those it runs: each has left its answer."""
        said = run("./do", "demo", LOAM_MODELS=self.path("none"))
        for words in ("$ loam-lab eval ask", "Right: full 5 of 5", "question 5", "What to try next", "loam chat"):
            expect(words, said, "./do demo")

    def pull(self):
        """By its name, from a registry, and then run by it."""
        known = json.loads(run(self.loam, "models", "--json"))["known"][0]
        with open(os.path.join(ROOT, "models", "loam-nano.gguf"), "rb") as file:
            registry = Registry({known["file"]: file.read()}, known["repository"])
        models = {"LOAM_MODELS": self.path("models"), "HF_ENDPOINT": registry.url}
        run(self.loam, "pull", known["name"], **models)
        here = json.loads(run(self.loam, "models", "--json", **models))["models"]
        if [(model["name"], model["ready"]) for model in here] != [(known["file"], True)]:
            raise Failure(f"loam models: found {here}, expected {known['file']}")
        asks(self.loam, "-m", known["name"], "-f", self.document, **models)

    def pdf(self):
        if shutil.which("pdftotext") is None:
            raise Failure("pdftotext is not there: ./do demo installs poppler-utils, where apt-get has it")
        with open(self.path("book.pdf"), "w", encoding="latin-1") as file:
            file.write(pdf("A page of a story.", TEXT, "Another page."))
        asks(self.loam, "-f", self.path("book.pdf"))
        cited = run(self.loam, "explain", "-f", self.path("book.pdf"), "-p", QUESTION, "--raw", "-n", "12", "-q")
        expect("page 2", cited, "loam explain")

    def serve(self):
        """A line says where, the page comes, and a client of OpenAI's is answered."""
        process = subprocess.Popen([self.loam, "serve", "--port", "0", "--kv-disk", self.path("kv"), "--chat-template", "llama2"],
                                   env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said = ""
            for line in process.stdout:
                said += line
                if found := re.search(r"on (http://\S+?),? ", line):
                    break
            else:
                raise Failure(f"loam serve: found {said!r}, expected its address")
            expect("<title>", run("curl", "-sS", "--fail", "--compressed", found[1] + "/"), "the page")
            body = json.dumps({"prompt": f"{TEXT} {QUESTION}", "max_tokens": 12, "temperature": 0})
            request = urllib.request.Request(found[1] + "/v1/completions", body.encode(), {"Content-Type": "application/json"})
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                expect(ANSWER, json.load(answer)["choices"][0]["text"], "/v1/completions")
        finally:
            process.terminate()
            process.communicate(timeout=60)

    def install(self):
        prefix = self.path("prefix")
        run("./do", "install", prefix)
        program = os.path.join(prefix, "bin", "loam")
        asks(program, "-f", self.document)
        if b".debug_info" in open(program, "rb").read():
            raise Failure(f"{program} is not stripped")
        for name in ("share/man/man1/loam.1", "include/loam.h"):
            if not os.path.getsize(os.path.join(prefix, name)):
                raise Failure(f"{name} is empty")

    def wheel(self):
        """Into a fresh environment; program and module find library and model in it, and nothing of the clone."""
        wheel = run("./do", "wheel").splitlines()[-1]
        venv = self.path("venv")
        run(self.python(), "-m", "venv", venv)
        run(os.path.join(venv, "bin", "pip"), "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel)
        asks(os.path.join(venv, "bin", "loam"), "-f", self.document)
        package, = glob.glob(os.path.join(venv, "lib", "python*", "site-packages", "loam"))
        program = os.path.join(package, "bin", "loam")
        outside = [line for line in run("ldd", program).splitlines() if "jansson" in line and venv not in line]
        if outside or b".debug_info" in open(program, "rb").read():
            raise Failure(f"{program} is not stripped, or takes libraries from outside: {outside}")
        model = os.path.join(package, "share", "loam", "models", "loam-nano.gguf")
        program = "import loam, sys\nwith loam.Model(sys.argv[1]) as model, model.session(context=512) as session:\n" \
            "    print(session.ask(sys.argv[3], [sys.argv[2] + ' '], raw=True, max_tokens=12))"
        expect(ANSWER, run(os.path.join(venv, "bin", "python"), "-c", program, model, TEXT, QUESTION), "loam.py of the wheel")

    @staticmethod
    def python():
        for python in ("python3", "/usr/bin/python3"):
            if subprocess.run([python, "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL).returncode == 0:
                return python
        raise Failure("python3 has no venv (Debian: python3-venv)")


PARTS = ("demo", "pull", "pdf", "serve", "install", "wheel")


def main(parts):
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"first_ten_minutes: found {' '.join(sorted(unknown))}, expected some of {' '.join(PARTS)}")
    failed, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="loam-first-") as folder:
        minutes = Minutes(folder)
        for part in parts or PARTS:
            start = time.monotonic()
            try:
                getattr(minutes, part)()
                word = "ok"
            except Failure as failure:
                word = f"FAILED: {failure}"
            except Exception:  # pylint: disable=broad-except
                word = "FAILED: " + traceback.format_exc()
            failed += word != "ok"
            print(f"first ten minutes: {part:<8} {time.monotonic() - start:6.1f} s  {word}", flush=True)
    print(f"first ten minutes: {'all':<8} {time.monotonic() - began:6.1f} s")
    print(f"{len(parts or PARTS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
