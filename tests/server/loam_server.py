"""A server under test, and the ways to ask it.  Everything stays on 127.0.0.1, or at a socket file."""
import atexit
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

LOAM = sys.argv[1] if len(sys.argv) > 1 else "build/release/loam"
ROOT = sys.argv[2] if len(sys.argv) > 2 else "."
NANO = os.path.join(ROOT, "models", "loam-nano.gguf")
REAL = os.path.join(ROOT, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")  # None: it is not there, or not to be seen
HIDDEN = os.environ.get("LOAM_TEST_REAL_MODEL", "")  # as in tests/real_model.h
if HIDDEN in ("none", "none,looks") or not os.path.exists(REAL):
    REAL = None
WITHOUT_REAL = "skipped: without models/SmolLM2-135M-Instruct.Q4_1.gguf (./do model brings it)"
TIMEOUT = 120  # seconds of any wait, which ends far sooner, but beside busy programs
HAS_SLOT = ("prefilling", "decoding", "paused")


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def frames(self):
        """The data of each frame of a stream; a string where it is not JSON ([DONE])."""
        found = []
        for block in self.body.decode().split("\n\n"):
            for line in block.split("\n"):
                if line.startswith("data: "):
                    text = line[6:]
                    found.append(json.loads(text) if text.startswith("{") else text)
        return found

    @property
    def events(self):
        """(event, data) of each frame."""
        found = []
        for block in self.body.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            if "data" in lines:
                found.append((lines.get("event"), json.loads(lines["data"])))
        return found


class Server:
    def __init__(self, *options, model=NANO, environment=None, wrapper=()):
        """One thread computes, unless options say otherwise: beside another test, one of two waits for its turn in every
        operation.  wrapper: a command that becomes the server."""
        self.process = subprocess.Popen(
            [*wrapper, LOAM, "serve", "-m", model, "--port", "0", "-t", "1", *options],
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace",
            env={**os.environ, "LOAM_ARG_LOG": "none", **(environment or {})})
        atexit.register(self.process.kill)  # a test that fails leaves none behind
        self.lines = []
        while True:
            line = self.process.stderr.readline()
            self.lines.append(line)
            found = re.search(r" on (?:http://(\S+):(\d+)|(\S+\.sock)), ", line)
            if found:
                break
            if line == "":
                self.process.wait()
                self.process.stderr.close()
                raise AssertionError("the server did not start: " + "".join(self.lines))
        self.host, self.port, self.path = found.group(1) or "localhost", int(found.group(2) or 0), found.group(3)

    def connect(self, timeout=TIMEOUT):
        if self.path is None:
            return socket.create_connection((self.host, self.port), timeout=timeout)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(self.path)
        return connection

    def ask(self, method, path, body=None, headers=None, timeout=TIMEOUT):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        if self.path is not None:
            connection.sock = self.connect(timeout)
        try:
            given = dict(headers or {})
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            if body is not None and not any(name.lower() == "content-type" for name in given):
                given["Content-Type"] = "application/json"
            connection.request(method, path, body=body, headers=given)
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def post(self, path, body, **options):
        return self.ask("POST", path, body=body, **options)

    def raw(self, data, finish=False):
        """The whole answer to these bytes."""
        with self.connect() as connection:
            send(connection, data)
            if finish:
                connection.shutdown(socket.SHUT_WR)
            return rest(connection)

    def open(self, path, body, headers=None):
        """A connection whose request was sent and whose answer was not read."""
        text = json.dumps(body).encode()
        connection = self.connect()
        more = "".join("%s: %s\r\n" % pair for pair in (headers or {}).items()).encode()
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n%s\r\n%s" % (path.encode(), len(text), more, text))
        return connection

    def metrics(self, headers=None):
        values = {}
        for line in self.get("/metrics", headers=headers).body.decode().split("\n"):
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def count(self, *states, headers=None):
        """Requests in these states: loam_requests_* of the metrics."""
        metrics = self.metrics(headers)
        return sum(metrics["loam_requests_" + state] for state in states)

    def stop(self, wait=TIMEOUT):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(wait)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the server did not stop")
        finally:
            self.lines.append(self.process.stderr.read())
            self.process.stderr.close()
        return code


class Case(unittest.TestCase):
    """A server for all tests of a class; it must end well."""
    options = ()
    model = NANO

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.options, model=cls.model)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, "exit code %d: %s" % (code, "".join(cls.server.lines))

    def refused(self, reply, status, *words):
        self.assertEqual(reply.status, status, reply.body[:300])
        message = reply.json["error"]["message"]
        for word in words:
            self.assertIn(word, message)


def leave(connection):
    """Closes it such that the server is told at once: by a farewell alone it cannot tell who still reads."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def send(connection, data):
    """All of it, unless the server has refused the request and waits no longer: its answer is there to be read."""
    try:
        connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        pass


def rest(connection):
    """What comes until the server closes it, or has closed it before all was sent."""
    received = b""
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        received += part
    return received


def wait_until(condition, seconds=TIMEOUT):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def run_loam(*arguments, model=NANO):
    """What the command line prints, without the line's end behind it."""
    done = subprocess.run([LOAM, *arguments, "-m", model, "-q", "-t", "1"], stdin=subprocess.DEVNULL, capture_output=True,
                          check=True)
    return done.stdout.decode().removesuffix("\n")


def with_template(path, template, sampling=None, model=NANO):
    """The model with another tokenizer.chat_template and general.sampling.*, as a file at path."""
    with open(model, "rb") as file:
        data = file.read()
    at = 8
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def take(form):
        nonlocal at
        value, = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value

    def skip(kind):
        nonlocal at
        if kind == 9:
            inner, count = take("I"), take("Q")
            for _ in range(count):
                skip(inner)
        else:
            length = take("Q") if kind == 8 else sizes[kind]
            at += length

    def text():
        nonlocal at
        length = take("Q")
        at += length
        return data[at - length:at]

    tensors, keys = take("Q"), take("Q")
    kept, alignment = [], 32
    for _ in range(keys):
        begin, name = at, text()
        kind = take("I")
        value = at
        skip(kind)
        if name == b"general.alignment":
            alignment, = struct.unpack_from("<I", data, value)
        if name != b"tokenizer.chat_template":
            kept.append(data[begin:at])
    begin = at
    for _ in range(tensors):
        text()
        dimensions = take("I")
        at += 8 * dimensions + 12
    infos, rest = data[begin:at], data[-(-at // alignment) * alignment:]
    key, value = b"tokenizer.chat_template", template.encode()
    kept.append(struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value)
    for name, number in (sampling or {}).items():
        key = b"general.sampling." + name.encode()
        form, kind = ("f", 6) if isinstance(number, float) else ("i", 5)
        kept.append(struct.pack("<Q", len(key)) + key + struct.pack("<I" + form, kind, number))
    head = data[:8] + struct.pack("<QQ", tensors, len(kept)) + b"".join(kept) + infos
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % alignment) + rest)


def main():
    arguments = sys.argv[3:]
    module = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    names = [case.id() for suite in module for case in suite]
    if HIDDEN == "none,looks" and any(name.endswith("_a_real_model") for name in names):
        arguments += ["-k", "*_a_real_model"]
    unittest.main(argv=[sys.argv[0]] + arguments, verbosity=2)
