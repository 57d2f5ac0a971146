#!/usr/bin/env python3
"""many_documents.py LOAM MODEL TEXT FOLDER: many clients over long documents, with RAM for a part of their KV.

CLIENTS (64) clients ask about DOCUMENTS (CLIENTS) documents of LENGTH (8000) tokens each, cut from TEXT from different
places on, which is repeated as often as needed.  --kv-host is 1/PART (8) of the KV that all clients need together: each
document once, and each client's question and answer of ANSWER (32) greedy tokens.  In turn:

    alone   each client by itself; its document is read from the first client that has it on
    read    all at once in a fresh server over an empty folder: documents are read while others are answered
    known   all at once in a fresh server over that folder: documents come from the disk

A request that ends with an error, and an answer that is not the one given alone, end it with exit code 1.  ms between
two tokens of an answer and until its first one, as the client sees them; RSS of the server.  CSV on standard output.
SLOTS (8): requests at once (-np); OPTIONS: more for the server; THREADS (all processors); HOW (alone,read,known): without
`read`, what `alone` has saved is known.  FOLDER must not exist: it holds what the servers save and is removed."""
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

CLIENTS = int(os.environ.get("CLIENTS", 64))
DOCUMENTS = int(os.environ.get("DOCUMENTS", CLIENTS))
LENGTH = int(os.environ.get("LENGTH", 8000))
ANSWER = int(os.environ.get("ANSWER", 32))
PART = int(os.environ.get("PART", 8))
SLOTS = int(os.environ.get("SLOTS", 8))
HOW = os.environ.get("HOW", "alone,read,known").split(",")
QUESTION = " Question %d: who is this about, and what happens next? Answer:"
ROOM = 64  # tokens of a question


class Server:
    def __init__(self, loam, model, folder, options):
        command = [loam, "serve", "-m", model, "--port", "0", "-np", str(SLOTS), "-c", str(LENGTH + ANSWER + ROOM),
                   "-t", os.environ.get("THREADS", str(os.cpu_count())), "--kv-disk", folder, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            match = re.search(r"on http://[^:]+:(\d+), ", line)
            if match:
                self.port = int(match.group(1))
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return
        sys.exit("many_documents.py: the server ended: " + "".join(lines))

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=7200)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def tokens(self, text):
        connection, response = self.post("/tokenize", {"content": text, "add_special": False})
        found = json.loads(response.read())["tokens"]
        connection.close()
        return found

    def rss_mib(self):
        with open("/proc/%d/status" % self.process.pid, encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024

    def stop(self):
        self.process.terminate()
        if self.process.wait() != 0:
            sys.exit("many_documents.py: the server ended with exit code %d" % self.process.returncode)


class Answer:
    def __init__(self):
        self.text, self.error, self.first_ms, self.gaps_ms, self.cached = "", None, None, [], 0

    def ask(self, server, prompt):
        """Reads a whole stream.  A frame may have no text: its token ends no character."""
        began = last = time.monotonic()
        try:
            connection, response = server.post("/v1/completions", {
                "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "stream": True,
                "logprobs": 1, "stream_options": {"include_usage": True}})
            if response.status != 200:
                raise RuntimeError("%d: %s" % (response.status, response.read()[:300]))
            ended = False
            for line in response:
                now = time.monotonic()
                if line == b"data: [DONE]\n":
                    ended = True
                if not line.startswith(b"data: {"):
                    continue
                frame = json.loads(line[6:])
                if "error" in frame:
                    raise RuntimeError(str(frame["error"]))
                if frame.get("usage"):
                    self.cached = frame["usage"]["prompt_tokens_details"]["cached_tokens"]
                if not frame.get("choices") or not (frame["choices"][0].get("logprobs") or {}).get("tokens"):
                    continue
                if self.first_ms is None:
                    self.first_ms = (now - began) * 1e3
                else:
                    self.gaps_ms.append((now - last) * 1e3)
                last = now
                self.text += frame["choices"][0]["text"]
            connection.close()
            if not ended or len(self.gaps_ms) != ANSWER - 1:
                raise RuntimeError("the stream ended after %d tokens" % (len(self.gaps_ms) + 1))
        except (OSError, http.client.HTTPException, RuntimeError, ValueError) as error:
            self.error = error


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def measure(server, prompts, how, expected):
    answers = [Answer() for _ in prompts]
    began = time.monotonic()
    if how == "alone":
        for answer, prompt in zip(answers, prompts):
            answer.ask(server, prompt)
    else:
        threads = [threading.Thread(target=answer.ask, args=(server, prompt)) for answer, prompt in zip(answers, prompts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seconds = time.monotonic() - began
    errors = [str(answer.error) for answer in answers if answer.error]
    wrong = [i for i, answer in enumerate(answers) if expected and not answer.error and answer.text != expected[i]]
    gaps = [gap for answer in answers for gap in answer.gaps_ms]
    firsts = [answer.first_ms for answer in answers if answer.first_ms is not None]
    print("%s,%d,%d,%d,%d,%d,%d,%d,%.1f,%d,%.2f,%.2f,%.2f,%.2f,%.0f,%.0f,%.0f" % (
        how, len(prompts), DOCUMENTS, LENGTH, SLOTS, PART, len(errors), len(wrong), seconds,
        sum(answer.cached for answer in answers), quantile(gaps, 0.5), quantile(gaps, 0.9), quantile(gaps, 0.99),
        max(gaps, default=float("nan")), quantile(firsts, 0.5), max(firsts, default=float("nan")), server.rss_mib()), flush=True)
    for error in errors[:3]:
        print("# error: " + error, flush=True)
    for i in wrong[:3]:
        print("# client %d: %r, alone %r" % (i, answers[i].text, expected[i]), flush=True)
    return [answer.text for answer in answers], bool(errors or wrong)


def host_bytes(loam, model):
    told = subprocess.run([loam, "inspect", "--json", "-m", model], capture_output=True, text=True, check=True).stdout
    tokens = DOCUMENTS * LENGTH + CLIENTS * (ROOM + ANSWER)
    return json.loads(told)["model"]["kv_bytes_per_token"]["f16"] * tokens // PART


def main():
    loam, model, text, folder = sys.argv[1:5]
    os.mkdir(folder)
    options = ["--kv-host", str(host_bytes(loam, model)), *os.environ.get("OPTIONS", "").split()]
    print("# HOW=%s CLIENTS=%d DOCUMENTS=%d LENGTH=%d ANSWER=%d PART=%d SLOTS=%d OPTIONS=%r bench/many_documents.py LOAM %s %s FOLDER" % (
        ",".join(HOW), CLIENTS, DOCUMENTS, LENGTH, ANSWER, PART, SLOTS, os.environ.get("OPTIONS", ""), os.path.basename(model),
        os.path.basename(text)))
    print("how,clients,documents,length,slots,part,errors,wrong,seconds,cached_tokens,gap_median_ms,gap_p90_ms,gap_p99_ms,"
          "gap_max_ms,first_median_ms,first_max_ms,rss_mib", flush=True)
    failed = False
    try:
        server = Server(loam, model, os.path.join(folder, "alone"), options)
        with open(text, encoding="utf-8") as file:
            ids = server.tokens(file.read())
        step = len(ids) // DOCUMENTS
        documents = [[ids[(i * step + at) % len(ids)] for at in range(LENGTH)] for i in range(DOCUMENTS)]
        prompts = [documents[i % DOCUMENTS] + server.tokens(QUESTION % i) for i in range(CLIENTS)]
        expected = None
        for how in HOW:
            if how != "alone":
                known = "alone" if "read" not in HOW else "together"
                server = Server(loam, model, os.path.join(folder, known), options)
            found, bad = measure(server, prompts, how, expected)
            expected = expected or found
            failed = failed or bad
            server.stop()
    finally:
        shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


main()
