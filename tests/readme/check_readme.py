"""Runs every command of README.md: check_readme.py LOAM SOURCE_DIR, as `ctest -R readme` does.

A command is a line of an indented block that begins with `loam` or `./do`.  Those of `./do` must be known to it (running
`./do test` from a test would not end); those of `loam` run, in a folder that has the files they name: the bundled model,
under the README's name for one, and a book; `loam pull` finds a registry that has it under the name of what it
asks for.  Commands see each other's files, in the README's order.
The block of C is compiled.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

BOOK_BYTES = 5000  # of the tests' chapter: as little as `--lengths 1024` takes, since every command reads it


def commands(readme):
    for line in readme.splitlines():
        match = re.match(r"    ((?:loam(?:-lab)?|\./do) .*)$", line)
        if match:
            yield re.sub(r"\s{2,}#.*", "", match[1]).strip()


def fill(folder, source):
    os.symlink(os.path.join(source, "models", "loam-nano.gguf"), os.path.join(folder, "model.gguf"))
    with open(os.path.join(source, "tests", "data", "a-scandal-in-bohemia.txt"), encoding="utf-8") as file:
        text = file.read(BOOK_BYTES)
    with open(os.path.join(folder, "book.txt"), "w", encoding="utf-8") as file:
        file.write(text)
    sys.path.insert(0, os.path.join(source, "tests", "document"))
    from sample_pdf import pdf
    with open(os.path.join(folder, "book.pdf"), "w", encoding="latin-1") as file:
        file.write(pdf("The King paid for the photograph."))
    os.mkdir(os.path.join(folder, "notes"))
    with open(os.path.join(folder, "notes", "letter.txt"), "w", encoding="utf-8") as file:
        file.write("The fee was a snuffbox of old gold.\n")
    with open(os.path.join(folder, "requests.jsonl"), "w", encoding="utf-8") as file:
        body = {"prompt": "The king", "max_tokens": 4}
        file.write(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")


def runs(command, folder, environment):
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, input="Who is it?\n", text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    return done.returncode, done.stdout


def serves(command, folder, environment):
    """Started on a free port, and stopped once it listens: (exit code, output)."""
    process = subprocess.Popen("exec " + command + " --port 0", shell=True, cwd=folder, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = ""
    for line in process.stdout:
        said += line
        if "on http://" in line:
            process.send_signal(signal.SIGTERM)
    return process.wait(60), said


def compiles(readme, source, folder):
    """The block of C, its declarations at file scope and the rest in a function."""
    block = re.search(r"```c\n(#include <loam.h>\n)(.*?)```", readme, re.S)
    if not block:
        sys.exit("README.md: no block of C: has its form changed?")
    path = os.path.join(folder, "readme.c")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"""{block[1]}static bool print(void *c, size_t i, const char *b, size_t n) {{ (void)c, (void)i, (void)b; return n == 0; }}
int main(void) {{ int32_t ids[3] = {{1, 2, 3}}; size_t count = 3;\n{block[2]}\nreturn (int)error.status; }}\n""")
    cc = os.environ.get("CC", "cc")
    command = [cc, "-std=c17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", os.path.join(source, "include"), path]
    return subprocess.run(command).returncode == 0


def registry_of(loam, source):
    """On loopback, with the files of the first model that `loam models` knows, all of them the bundled model's bytes."""
    sys.path.insert(0, os.path.join(source, "tests", "pull"))
    from registry import Registry
    listed = subprocess.run([loam, "models", "--json"], stdout=subprocess.PIPE, check=True).stdout
    known = json.loads(listed)["known"][0]
    with open(os.path.join(source, "models", "loam-nano.gguf"), "rb") as file:
        return Registry({known["file"]: file.read()}, known["repository"])


def main():
    loam, source = sys.argv[1:]
    with open(os.path.join(source, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    found = list(commands(readme))
    if len(found) < 6:
        sys.exit(f"README.md: found {len(found)} commands, expected more: has its form changed?")
    known = subprocess.run([os.path.join(source, "do"), "help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    folder, failures = tempfile.mkdtemp(prefix="loam-readme-"), 0
    environment = {**os.environ, "PATH": os.path.dirname(loam) + os.pathsep + os.environ["PATH"], "LOAM_ARG_N_PREDICT": "8",
                   "LOAM_ARG_REPETITIONS": "1", "LOAM_ARG_CHAT_TEMPLATE": "llama2",  # a reader's model has one
                   "LOAM_MODELS": os.path.join(folder, "models"), "HF_ENDPOINT": registry_of(loam, source).url,
                   "no_proxy": "*"}
    try:
        fill(folder, source)
        failures += not compiles(readme, source, folder)
        for command in found:
            needed = "curl" if command.startswith("loam pull ") else "pdftotext" if ".pdf" in command else "sh"
            if shutil.which(needed) is None:
                code, said = 0, ""
            elif command.startswith("./do "):
                code, said = (0, "") if command.split("#")[0].strip() in known else (1, "./do help does not list it")
            else:
                code, said = (serves if command.startswith("loam serve") else runs)(command, folder, environment)
            print("ok  " if code == 0 else f"FAIL ({code})", command)
            if code != 0:
                failures += 1
                print(said)
    finally:
        shutil.rmtree(folder)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
