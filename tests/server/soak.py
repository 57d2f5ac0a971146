"""The server under load and attack: short requests of several clients at once, of whom some leave at any point, while the
server is killed and started again and its disk is full for a while.

What holds: each greedy answer is the one that the same request got alone; a document that was acknowledged is listed and
whole after each restart; a life without a kill ends with the memory and the files that it had after its first tenth; every
request ends within DEADLINE.

  soak.py LOAM ROOT [requests] [kills]      or LOAM_SOAK_REQUESTS, LOAM_SOAK_KILLS, LOAM_SOAK_WORKERS, LOAM_TEST_SEED;
  LOAM_SOAK_SECONDS: rounds of these sizes, each with the next seed, until so much time has passed
"""
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from loam_server import LOAM, Server, wait_until

DEADLINE = 120  # seconds of a request: generous, as nothing here measures time
LEAVES = 0.10
DISK_BYTES = 512 << 20
RSS_REQUESTS = 1000  # a shorter life has not warmed up at its first tenth: its memory is printed, not judged
RSS_GROWTH = 1.05
SEQUENCES = 4
PUSHES = 12
OPTIONS = ("-np", str(SEQUENCES), "-c", "1024", "--segment", "512", "--kv-host", "24M", "--idle-unload", "1",
           "--chat-template", "llama2", "-t", "2")
DOCUMENTS = "/v1/loam/documents"
BUSY = ("loam_requests_queued", "loam_requests_prefilling", "loam_requests_decoding", "loam_requests_paused")


def number(name, position, otherwise):
    given = sys.argv[position] if position is not None and len(sys.argv) > position else os.environ.get(name, otherwise)
    return int(given)


def random_text(rng, words):
    return " ".join(rng.choice(("the", "red", "fox", "a", "king", "went", "home", "and", "saw", "his", "mill", "by", "river",
                                "gate", "green", "who", "sleeps", "crow", "cheese", "field", "of", "hedge")) for _ in range(words))


# ---- the requests, and how their answers are read ----

class Question:
    """A request whose answer is known: the first time it is asked alone."""

    def __init__(self, path, body, tokens_field="max_tokens", streams=False):
        self.path, self.streams = path, streams
        self.body = {**body, tokens_field: 8, "temperature": 0, "stream": streams}
        self.document = None  # index of the document that it asks about
        self.answer = None

    def text(self, reply):
        if self.path == "/v1/completions":
            parts = [f["choices"][0]["text"] for f in self.objects(reply)]
        elif self.path == "/v1/chat/completions":
            parts = [f["choices"][0].get("delta", f["choices"][0].get("message", {})).get("content") or ""
                     for f in self.objects(reply)]
        elif self.path == "/v1/messages":
            parts = [d["delta"].get("text", "") for e, d in reply.events if e == "content_block_delta"] if self.streams \
                else [block["text"] for block in reply.json["content"]]
        else:
            parts = [d["delta"] for e, d in reply.events if e == "response.output_text.delta"] if self.streams \
                else [part["text"] for item in reply.json["output"] for part in item["content"]]
        return "".join(parts)

    def objects(self, reply):
        if not self.streams:
            return [reply.json]
        frames = reply.frames
        if not frames or frames[-1] != "[DONE]":
            raise Wrong("a stream without [DONE]: %r" % reply.body[-300:])
        return [f for f in frames[:-1] if f.get("choices")]


class Wrong(Exception):
    pass


def questions_of(rng):
    found = []
    for index in range(40):
        text = random_text(rng, rng.choice((3, 10, 40, 120, 200)))
        streams = index % 2 == 0
        family = index // 2 % 4
        if family == 0:
            found.append(Question("/v1/completions", {"prompt": text}, streams=streams))
        elif family == 3:
            found.append(Question("/v1/responses", {"input": text}, "max_output_tokens", streams))
        else:
            found.append(Question(("/v1/chat/completions", "/v1/messages")[family - 1],
                                  {"messages": [{"role": "user", "content": text}]}, streams=streams))
    return found


# ---- a disk of its own, which can be full ----

class Disk:
    """A file system of DISK_BYTES in memory, in a mount namespace that a process of ours holds; an ordinary folder, which
    is never full, where the system does not allow that."""

    def __init__(self):
        self.folder, self.holder, self.enter = tempfile.mkdtemp(prefix="loam_soak_"), None, []
        path, self.fills = self.folder, False
        if shutil.which("unshare") and shutil.which("nsenter"):
            self.holder = subprocess.Popen(
                ["unshare", "-Urm", "sh", "-c",
                 'mount -t tmpfs -o size=%d none "$0" && echo ready && exec cat' % DISK_BYTES, self.folder],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if self.holder.stdout.readline() != b"ready\n":
                self.release()
        if self.holder is not None:
            self.fills = True
            self.enter = ["nsenter", "-t", str(self.holder.pid), "-U", "-m", "--preserve-credentials",
                          "--wd=" + os.getcwd()]
            path = "/proc/%d/root%s" % (self.holder.pid, self.folder)
        self.kv, self.ballast = os.path.join(self.folder, "kv"), os.path.join(path, "ballast")

    def fill(self):
        with open(self.ballast, "wb", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def empty(self):
        os.unlink(self.ballast)

    def release(self):
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()
        self.holder = None

    def close(self):
        if self.holder is not None:
            self.release()
        shutil.rmtree(self.folder)


# ---- a life of the server ----

class Life:
    def __init__(self, server, goal):
        self.server, self.goal = server, goal
        self.began, self.ended = 0, 0
        self.killed = False
        self.changed = threading.Condition()


class Soak:
    def __init__(self, seed, workers):
        self.seed, self.workers = seed, workers
        self.rng = random.Random(seed)
        self.disk = Disk()
        self.failures, self.counts = [], {}
        self.count_lock = threading.Lock()
        self.full_since, self.full_until = None, 0.0
        self.questions = questions_of(self.rng)
        self.texts = [random_text(self.rng, 160 + 10 * i) for i in range(10)]
        self.about = [self.question_about(i) for i in range(len(self.texts))]
        self.ids = [None] * len(self.texts)  # of the documents that were acknowledged and not removed since
        self.unknown = [False] * len(self.texts)  # its client did not see how its upload or removal ended
        self.locks = [threading.Lock() for _ in self.texts]
        self.server, self.lives = None, 0

    def question_about(self, index):
        question = Question("/v1/chat/completions", {"messages": [{"role": "user", "content": self.texts[index] + "\n\nWho?"}]})
        question.document = index
        return question

    def note(self, name, count=1):
        with self.count_lock:
            self.counts[name] = self.counts.get(name, 0) + count

    def fail(self, *words):
        with self.count_lock:
            self.failures.append("life %d: " % self.lives + " ".join(str(word) for word in words))

    # ---- one request ----

    def ask(self, life, method, path, body=None):
        """The reply, or None where the server was killed meanwhile."""
        began = time.monotonic()
        try:
            return life.server.ask(method, path, body, timeout=DEADLINE)
        except (OSError, http.client.HTTPException) as error:
            if life.killed:
                self.note("ended by a kill")
                return None
            raise Wrong("%s %s after %.1f s: %r" % (method, path, time.monotonic() - began, error)) from error
        finally:
            if time.monotonic() - began > DEADLINE:
                self.fail(method, path, "took", time.monotonic() - began, "s")

    def was_full(self, began):
        return self.full_since is not None or began < self.full_until

    def ask_question(self, life, question, body=None):
        reply = self.ask(life, "POST", question.path, body or question.body)
        if reply is None:
            return
        if reply.status != 200:
            raise Wrong("%s: %d %r" % (question.path, reply.status, reply.body[:300]))
        try:
            text = question.text(reply)
        except (Wrong, KeyError, ValueError, IndexError, http.client.HTTPException) as error:
            if life.killed:
                self.note("ended by a kill")
                return
            raise Wrong("%s: %r in %r" % (question.path, error, reply.body[-500:])) from error
        if text != question.answer:
            raise Wrong("%s: %r, and alone %r; asked %r" % (question.path, text, question.answer, question.body))
        self.note("answered as alone")

    def use_document(self, life, rng, index):
        """Uploads it, or asks about it, or removes it: one at a time, so that what there is is known."""
        began = time.monotonic()
        if self.ids[index] is None:
            reply = self.ask(life, "POST", DOCUMENTS, {"name": "text %d" % index, "text": self.texts[index]})
            if reply is None:
                self.unknown[index] = True
            elif reply.status == 200:
                self.ids[index] = reply.json["id"]
                self.note("documents uploaded")
            elif self.was_full(began) and reply.status in (500, 507):
                self.unknown[index] = True
                self.note("uploads refused by a full disk")
            else:
                raise Wrong("upload: %d %r" % (reply.status, reply.body[:300]))
        elif rng.random() < 0.7:
            question = self.about[index]
            body = {**question.body, "documents": [self.ids[index]], "messages": [{"role": "user", "content": "Who?"}]}
            self.ask_question(life, question, body)
            self.note("documents asked about")
        else:
            identity = self.ids[index]
            self.ids[index], self.unknown[index] = None, True  # its removal is durable before it is acknowledged
            reply = self.ask(life, "DELETE", "%s/%d" % (DOCUMENTS, identity))
            if reply is None:
                return
            if reply.status == 200:
                self.unknown[index] = False
                self.note("documents removed")
            elif reply.status == 409 or (self.was_full(began) and reply.status >= 500):
                self.ids[index], self.unknown[index] = identity, False
            else:
                raise Wrong("removal: %d %r" % (reply.status, reply.body[:300]))

    def leave(self, life, rng):
        """A client that leaves: in the head, in the body, while it waits, in the answer."""
        question = rng.choice(self.questions)
        text = json.dumps({**question.body, question_tokens(question): rng.choice((8, 200))}).encode()
        data = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
            question.path.encode(), len(text), text)
        point = rng.choice(("head or body", "at once", "later", "in the answer"))
        try:
            with socket.create_connection((life.server.host, life.server.port), timeout=DEADLINE) as connection:
                connection.sendall(data[:rng.randrange(len(data))] if point == "head or body" else data)
                if point == "later":
                    time.sleep(rng.random() * 0.05)
                if point == "in the answer":
                    connection.recv(rng.randrange(1, 2000))
                if rng.random() < 0.5:  # without a farewell
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        except OSError as error:
            if not life.killed:
                raise Wrong("a client that leaves %s: %r" % (point, error)) from error
        self.note("clients that left " + point)

    def request(self, life, rng):
        draw = rng.random()
        if draw < LEAVES:
            self.leave(life, rng)
        elif draw < LEAVES + 0.15:
            index = rng.randrange(len(self.texts))
            with self.locks[index]:
                if not self.unknown[index]:
                    self.use_document(life, rng, index)
        else:
            self.ask_question(life, rng.choice(self.questions))

    def work(self, life, name):
        rng = random.Random("%s %d %d" % (self.seed, self.lives, name))
        while True:
            with life.changed:
                if life.killed or life.began >= life.goal or self.failures:
                    return
                life.began += 1
            try:
                self.request(life, rng)
            except Wrong as error:
                self.fail(error)
            except Exception as error:  # a fault of this program ends it, too
                self.fail("soak.py:", repr(error))
            with life.changed:
                life.ended += 1
                life.changed.notify_all()

    # ---- a life ----

    def start(self):
        self.lives += 1
        self.server = Server(*OPTIONS, "--kv-disk", self.disk.kv, wrapper=self.disk.enter)

    def documents(self):
        reply = self.server.get(DOCUMENTS, timeout=DEADLINE)
        if reply.status != 200:
            self.fail("listing:", reply.status, reply.body[:300])
            return []
        return reply.json["data"]

    def check_documents(self):
        """Every acknowledged document is there and whole; one whose end was not seen is there or not."""
        listed = {d["id"]: d for d in self.documents()}
        for index, identity in enumerate(self.ids):
            if identity is not None:
                shown = listed.get(identity)
                if shown is None:
                    self.fail("document", identity, "was acknowledged, and is lost")
                elif shown["damaged"] is not None:
                    self.fail("document", identity, "is damaged:", shown["damaged"])
            elif self.unknown[index]:
                self.unknown[index] = False  # the next upload of its text finds it, or begins anew
        self.note("restarts checked")

    def ask_all_alone(self):
        for question in self.questions + self.about:
            reply = self.server.post(question.path, question.body, timeout=DEADLINE)
            if reply.status != 200:
                raise AssertionError("%s: %d %r" % (question.path, reply.status, reply.body[:500]))
            question.answer = question.text(reply)

    def run_to(self, life, goal):
        """`goal` requests of this life were begun, and have ended."""
        life.goal = goal
        threads = [threading.Thread(target=self.work, args=(life, life.ended * self.workers + i)) for i in range(self.workers)]
        for thread in threads:
            thread.start()
        return threads

    def join(self, threads):
        end = time.monotonic() + 2 * DEADLINE + 600
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self.fail("a request has no end")
                self.server.process.kill()

    def idle(self):
        metrics = self.server.metrics()
        return sum(metrics[name] for name in BUSY) == 0

    def files(self):
        """How many files of each kind are open."""
        folder, kinds = "/proc/%d/fd" % self.server.process.pid, {}
        for name in os.listdir(folder):
            try:
                kind = os.readlink(os.path.join(folder, name))
            except OSError:
                continue
            kind = "socket" if kind.startswith("socket:") else kind
            kinds[kind] = kinds.get(kind, 0) + 1
        return kinds

    def push_out(self):
        """A sequence that is not saved stays in memory, with its files, until another one needs its place.  Uploads that
        take all places at once leave memory after a second, close their files and give memory back.  Where the machine is
        so busy that the first has left before the last comes, they are tried again."""
        for _ in range(PUSHES):
            made = self.upload_at_once()
            left = wait_until(lambda: self.server.metrics()["loam_resident_sequences"] == 0, DEADLINE / PUSHES)
            for identity in made:
                self.server.ask("DELETE", "%s/%d" % (DOCUMENTS, identity), timeout=DEADLINE)
            if left or self.failures:
                return
        self.fail("sequences that are saved stay in memory")

    def upload_at_once(self):
        """As many documents as there are places; their ids."""
        texts, replies = [random_text(self.rng, 150) for _ in range(SEQUENCES)], []
        threads = [threading.Thread(target=lambda text=text: replies.append(
            self.server.post(DOCUMENTS, {"name": "last", "text": text}, timeout=DEADLINE))) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [(reply.status, reply.body[:300]) for reply in replies if reply.status != 200]
        if refused or len(replies) < SEQUENCES:
            self.fail("uploads on an idle server:", len(replies), "answers,", refused)
        return [reply.json["id"] for reply in replies if reply.status == 200]

    def usage(self, files=None):
        """(resident KiB, open files by kind) once nothing runs, and the files are the given ones."""
        if not wait_until(self.idle, DEADLINE):
            self.fail("the server is not idle", {name: self.server.metrics()[name] for name in BUSY})
        self.push_out()
        wait_until(lambda: self.files() == files if files else self.files().get("socket", 0) == 1 and not any(
            kind.endswith(".pages") for kind in self.files()), 30)
        with open("/proc/%d/status" % self.server.process.pid, encoding="ascii") as status:
            lines = dict(line.split(":", 1) for line in status)
        return int(lines["VmRSS"].split()[0]), self.files()

    def live_long(self, requests):
        """A life without a kill, with a full disk in between; its memory and files at the first tenth and at the end."""
        life = Life(self.server, 0)
        before = half = None
        for share in (0.1, 0.5, 0.6, 1.0):
            if share == 0.6:
                self.fill()
            self.join(self.run_to(life, int(requests * share)))
            if share == 0.6:
                self.empty()
            if share == 0.1:
                before = self.usage()
            if share == 0.5:
                half = self.usage(before[1])
            if self.failures:
                return
        after = self.usage(before[1])
        print("a life of %d requests: %d KiB resident at the first tenth, %d at half, %d at the end; %d and %d files" % (
            requests, before[0], half[0], after[0], sum(before[1].values()), sum(after[1].values())), flush=True)
        if before[1] != after[1]:
            self.fail("files are left open:", before[1], after[1])
        if requests >= RSS_REQUESTS and after[0] > before[0] * RSS_GROWTH:
            self.fail("memory grew from", before[0], "to", after[0], "KiB")

    def live_short(self, requests):
        """A life that ends by a kill at any point."""
        life = Life(self.server, requests)
        threads = self.run_to(life, requests)
        last = self.rng.randrange(requests // 4, requests)
        with life.changed:
            life.changed.wait_for(lambda: life.ended >= last or self.failures, DEADLINE * 2)
            life.killed = True
        self.server.process.kill()
        self.join(threads)
        self.server.process.wait()
        self.server.process.stderr.close()
        self.note("kills")

    def fill(self):
        if self.disk.fills:
            self.full_since = time.monotonic()
            self.disk.fill()
            self.note("full disks")

    def empty(self):
        if not self.disk.fills:
            return
        self.disk.empty()
        self.full_until, self.full_since = time.monotonic(), None
        self.unknown = [False] * len(self.texts)
        reply = self.server.post(DOCUMENTS, {"name": "after", "text": random_text(self.rng, 200)}, timeout=DEADLINE)
        if reply.status != 200:
            self.fail("an upload after the full disk:", reply.status, reply.body[:300])
            return
        self.server.ask("DELETE", "%s/%d" % (DOCUMENTS, reply.json["id"]))

    def verify(self):
        done = subprocess.run([*self.disk.enter, LOAM, "verify", "--kv-disk", self.disk.kv], stdin=subprocess.DEVNULL, capture_output=True,
                              check=False)
        if done.returncode != 0:
            self.fail("loam verify:", done.returncode, done.stdout[-500:], done.stderr[-500:])

    def stop(self):
        code = self.server.stop()
        if code != 0:
            self.fail("exit code", code, "".join(self.server.lines)[-2000:])

    def round(self, requests, kills):
        """Half of the requests in one long life, the others in lives that end by a kill."""
        self.live_long(requests - requests // 2 if kills else requests)
        self.stop()
        self.verify()
        for i in range(kills):
            if self.failures:
                return
            self.start()
            self.check_documents()
            self.live_short(max(8, requests // 2 // kills))
            if i % 5 == 4 or i == kills - 1:
                self.verify()
        if kills:
            self.start()
            self.check_documents()

    def run(self, requests, kills):
        try:
            self.start()
            self.ask_all_alone()
            self.round(requests, kills)
            if self.server.process.poll() is None:
                self.stop()
        finally:
            if self.server is not None and self.server.process.poll() is None:
                self.server.process.kill()
                self.server.process.wait()
            self.disk.close()

    def report(self):
        for name, count in sorted(self.counts.items()):
            print("%7d %s" % (count, name))
        if not self.disk.fills:
            print("skipped: a full disk, as no file system can be mounted here (unshare -Urm)")
        for failure in self.failures:
            print("FAILED", failure)
        print("%d failures" % len(self.failures), flush=True)


def question_tokens(question):
    return "max_output_tokens" if "max_output_tokens" in question.body else "max_tokens"


def main():
    seed = number("LOAM_TEST_SEED", None, 1)
    requests, kills = number("LOAM_SOAK_REQUESTS", 3, 10000), number("LOAM_SOAK_KILLS", 4, 20)
    seconds, workers = number("LOAM_SOAK_SECONDS", None, 0), number("LOAM_SOAK_WORKERS", None, 8)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    end = time.monotonic() + seconds
    while True:
        print("seed %d (LOAM_TEST_SEED), %d requests, %d kills, %d workers" % (seed, requests, kills, workers), flush=True)
        soak = Soak(seed, workers)
        soak.run(requests, kills)
        soak.report()
        if soak.failures or time.monotonic() >= end:
            sys.exit(1 if soak.failures else 0)
        seed += 1


if __name__ == "__main__":
    main()
