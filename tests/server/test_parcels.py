"""Documents as files: exported by one server, imported by another, whole or not at all, by key."""
import contextlib
import os
import socket
import tempfile
import time
import unittest

from loam_server import NANO, Server, main, send, wait_until

PATH, CHAT, IMPORT = "/v1/loam/documents", "/v1/chat/completions", "/v1/loam/documents/import"
TEXT = "The gate of the garden is painted green. Nobody knows who painted it, and nobody asks.\n" * 30
FILE = {"Content-Type": "application/octet-stream"}
KEYS = ("first-key", "second-key")
OPTIONS = ("-np", "2", "-c", "4096", "--chat-template", "llama2", "--segment", "512")


def key(name):
    return {"Authorization": "Bearer " + name}


class Folder:
    """A server, its folder and its keys."""

    def __init__(self, keys, *options, limit="", model=NANO):
        self.folder = tempfile.TemporaryDirectory()
        self.kv = os.path.join(self.folder.name, "kv")
        self.keys = keys
        self.server = Server(*OPTIONS, "--kv-disk", self.kv + limit, "--api-key", ",".join(keys), *options, model=model)

    def close(self):
        assert self.server.stop() == 0, "".join(self.server.lines)
        self.folder.cleanup()

    def call(self, method, path, body=None, name=None, **headers):
        return self.server.ask(method, path, body, {**key(name or self.keys[0]), **headers})

    def upload(self, text=TEXT, **fields):
        return self.call("POST", PATH, {"text": text, "name": "garden.txt", **fields}).json["id"]

    def export(self, document, name=None, method="GET"):
        return self.call(method, "%s/%d/export" % (PATH, document), name=name)

    def take(self, body, name=None):
        return self.call("POST", IMPORT, body, name, **FILE)

    def documents(self, name=None):
        return {d["id"]: d for d in self.call("GET", PATH, name=name).json["data"]}

    def ask(self, document, name=None):
        reply = self.call("POST", CHAT, {"messages": [{"role": "user", "content": "Which colour has the gate?"}],
                                         "documents": [document], "temperature": 0, "max_tokens": 8}, name).json
        usage = reply["usage"]
        return (reply["choices"][0]["message"]["content"], usage["prompt_tokens_details"]["cached_tokens"],
                usage["prompt_tokens"])

    def files(self):
        """What is on the disk; the catalog aside, whose journal comes and goes."""
        return {f: os.path.getsize(os.path.join(self.kv, f)) for f in os.listdir(self.kv) if "catalog" not in f}


class Parcels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.here, cls.there = Folder(KEYS), Folder(("a-third-key", "a-fourth-key", "a-fifth-key", "a-sixth-key"))
        cls.document = cls.here.upload()
        cls.file = cls.here.export(cls.document).body

    @classmethod
    def tearDownClass(cls):
        cls.here.close()
        cls.there.close()

    def refused(self, reply, status, *words):
        self.assertEqual(reply.status, status, reply.body[:300])
        for word in words:
            self.assertIn(word, reply.json["error"]["message"])

    def test_there_and_back(self):
        reply = self.here.export(self.document)
        self.assertEqual(reply.status, 200)
        self.assertEqual(reply.body, self.file)
        self.assertEqual(int(reply.headers["content-length"]), len(reply.body))
        self.assertEqual(reply.headers["content-type"], "application/octet-stream")
        self.assertEqual(reply.headers["etag"], '"%s"' % reply.body[-16:].hex())
        self.assertIn("document-%d.loam" % self.document, reply.headers["content-disposition"])
        head = self.here.export(self.document, method="HEAD")
        self.assertEqual((head.status, head.headers["etag"], head.body), (200, reply.headers["etag"], b""))

        mine, others = self.there.keys[1:3]
        made = self.there.take(self.file, mine)
        self.assertEqual(made.status, 200, made.body)
        made = made.json
        shown = self.here.call("GET", "%s/%d" % (PATH, self.document)).json
        self.assertEqual((made["name"], made["token_count"], made["was_there"]),
                         ("garden.txt", shown["token_count"], False))
        self.assertEqual(self.there.documents(mine)[made["id"]]["damaged"], None)
        self.assertEqual(self.there.documents(others), {})

        answer, _, count = self.here.ask(self.document)
        again, cached, its_count = self.there.ask(made["id"], mine)
        self.assertEqual((again, its_count), (answer, count))
        self.assertGreater(cached, count - 128)

        # What others made of it is a file of nobody's again; it is there already.
        self.assertEqual(self.there.export(made["id"], others).status, 404)
        second = self.there.take(self.file, mine).json
        self.assertEqual((second["id"], second["was_there"]), (made["id"], True))
        other = self.there.take(self.file, others).json
        self.assertEqual(other["was_there"], False)
        self.assertNotEqual(other["id"], made["id"])
        self.assertEqual(list(self.there.documents(others)), [other["id"]])
        self.assertEqual(self.there.export(other["id"], others).body, self.file)

    def test_others_documents_are_absent(self):
        self.assertEqual(self.here.export(self.document, KEYS[1]).status, 404)
        for path in ("0", "01", "-1", "1.0", "9" * 19, "x", "..", "%31", "", "1/export", "catalog.db"):
            self.assertEqual(self.here.call("GET", "%s/%s/export" % (PATH, path)).status, 404, path)
        self.assertEqual(self.here.export(10 ** 6).status, 404)
        self.assertEqual(self.here.call("POST", "%s/%d/export" % (PATH, self.document), {}).status, 405)

    def test_what_is_damaged_is_not_stored(self):
        before = {}, self.there.files()
        size = len(self.file)
        for place in (0, 9, 40, 300, 900, 2000, size // 3, size // 2, size - 17, size - 1):
            damaged = bytearray(self.file)
            damaged[place] ^= 4
            self.refused(self.there.take(bytes(damaged)), 400, "the body")
        for body in (b"", b"x", self.file[:8], self.file[:24], self.file[:5000], self.file[:-1], self.file + b"x",
                     self.file + self.file, b"\0" * 100000):
            self.refused(self.there.take(body), 400, "the body")
        self.assertEqual((self.there.documents(), self.there.files()), before)

    def test_a_body_that_ends_early_leaves_nothing(self):
        before = {}, self.there.files()
        for count in (0, 30, 4000, len(self.file) // 2, len(self.file) - 1):
            with socket.create_connection((self.there.server.host, self.there.server.port), timeout=60) as connection:
                connection.sendall(self.head(len(self.file)) + self.file[:count])
        # libmicrohttpd may learn that a client has left only when it gives the silent connection up, after 60 s.
        self.assertTrue(wait_until(lambda: (self.there.documents(), self.there.files()) == before, 90))
        self.assertTrue(wait_until(self.places_are_free))
        self.assertEqual(self.there.documents(), before[0])

    def places_are_free(self):
        """Four files at once get leave to come, and do."""
        answers = []
        with contextlib.ExitStack() as stack:
            address = (self.there.server.host, self.there.server.port)
            connections = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(4)]
            for connection in connections:
                connection.sendall(self.head(len(self.file), "Expect: 100-continue", name=self.there.keys[3]))
            leaves = [connection.recv(1000).startswith(b"HTTP/1.1 100") for connection in connections]
            for connection, leave in zip(connections, leaves):
                if leave:
                    connection.sendall(self.file)
                    answers.append(connection.recv(12))
        self.assertEqual(set(answers) - {b"HTTP/1.1 200"}, set())
        return len(answers) == 4

    def head(self, length, *more, name=None):
        lines = ("POST %s HTTP/1.1" % IMPORT, "Host: localhost", "Authorization: Bearer " + (name or self.there.keys[0]),
                 "Content-Type: application/octet-stream", *(["Content-Length: %d" % length] if length is not None else []),
                 *more, "", "")
        return "\r\n".join(lines).encode()

    def test_the_head_decides_what_it_can(self):
        server = self.there.server
        for head, status in ((self.head(None), b"411"), (self.head(None, "Transfer-Encoding: chunked"), b"411"),
                             (self.head(100).replace(b"application/octet-stream", b"text/plain"), b"415"),
                             (self.head(100).replace(b"application/octet-stream", b"application/json"), b"415"),
                             (self.head(100).replace(b"Bearer", b"Basic"), b"401")):
            self.assertIn(b" %s " % status, server.raw(head).split(b"\r\n")[0], head)
        # More than any disk has: told before the client sends it.
        answer = server.raw(self.head(10 ** 17, "Expect: 100-continue"))
        self.assertIn(b" 507 ", answer.split(b"\r\n")[0])
        self.assertNotIn(b"100 Continue", answer)
        # A client that waits for leave gets it.
        with socket.create_connection((server.host, server.port), timeout=60) as connection:
            connection.sendall(self.head(len(self.file), "Expect: 100-continue", name=self.there.keys[3]))
            self.assertIn(b"100 Continue", connection.recv(1000))
            connection.sendall(self.file)
            self.assertIn(b" 200 ", connection.recv(1000))

    def test_others_are_answered_meanwhile(self):
        """More files than there are threads for them come slowly; whoever asks in between is answered."""
        server = self.there.server
        for _ in range(20):
            began = time.monotonic()
            with contextlib.ExitStack() as stack:
                slow = [stack.enter_context(server.connect()) for _ in range(6)]
                for connection in slow:
                    connection.sendall(self.head(len(self.file), name=self.there.keys[3]) + self.file[:1000])
                self.assertEqual(server.get("/health").status, 200)
                self.assertEqual(self.there.call("GET", PATH).status, 200)
                was_slow = time.monotonic() - began > 4  # a file that stands still for 5 s gives its place away
                replies = []
                for connection in slow:
                    send(connection, self.file[1000:])
                    replies.append(connection.recv(12))
            if not was_slow:
                break
        self.assertEqual(set(replies), {b"HTTP/1.1 200", b"HTTP/1.1 429"})
        self.assertEqual(replies.count(b"HTTP/1.1 200"), 4)

    def test_a_client_that_leaves_an_export(self):
        for _ in range(6):
            with socket.create_connection((self.here.server.host, self.here.server.port), timeout=60) as connection:
                connection.sendall(b"GET %s/%d/export HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n" %
                                   (PATH.encode(), self.document, KEYS[0].encode()))
                connection.recv(100)
        self.assertTrue(wait_until(lambda: self.here.export(self.document).body == self.file))

    def test_a_damaged_document_is_told_before_its_first_byte(self):
        other = self.here.upload("The mill by the river has a red door. The miller sleeps.\n" * 30)
        with open(os.path.join(self.here.kv, "%d.pages" % other), "r+b") as pages:
            bytes_of = pages.read()
            place = next(i for i in range(5000, len(bytes_of)) if bytes_of[i] != 0)  # no padding
            pages.seek(place)
            pages.write(bytes([bytes_of[place] ^ 1]))
        self.refused(self.here.export(other), 500, "damaged")
        self.assertIsNotNone(self.here.documents()[other]["damaged"])


class Elsewhere(unittest.TestCase):
    """Servers that cannot use the document."""

    @classmethod
    def setUpClass(cls):
        here = Folder(KEYS)
        cls.file = here.export(here.upload()).body
        here.close()

    def expect(self, status, words, *options, **more):
        there = Folder(KEYS, *options, **more)
        try:
            before = there.files()
            reply = there.take(self.file)
            self.assertEqual(reply.status, status, reply.body)
            for word in words:
                self.assertIn(word, reply.json["error"]["message"])
            self.assertEqual((there.documents(), there.files()), ({}, before))
        finally:
            there.close()

    def test_other_types(self):
        self.expect(400, ("codec", "expected q8"), "-ctk", "q8_0")

    def test_another_model(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "other.gguf")
            with open(NANO, "rb") as model, open(path, "wb") as copy:
                bytes_of = model.read()
                at = bytes_of.index(b"general.name") + 24  # the key, its type, the text's length
                copy.write(bytes_of[:at] + b"L" + bytes_of[at + 1:])
            self.expect(400, ("fingerprint", "another model file"), model=path)

    def test_no_room(self):
        """Nothing is removed for it."""
        there = Folder(KEYS, limit=":22M")
        try:
            kept = there.upload("A fox and a crow met on a field. The crow had a piece of cheese.\n" * 30)
            reply = there.take(self.file)
            self.assertEqual(reply.status, 507, reply.body)
            self.assertIn("limit", reply.json["error"]["message"])
            self.assertEqual(list(there.documents()), [kept])
        finally:
            there.close()


class WithoutFolder(unittest.TestCase):
    def test_documents_need_a_folder(self):
        server = Server("-np", "1", "-c", "512", "--chat-template", "llama2")
        try:
            for reply in (server.get(PATH + "/1/export"), server.ask("POST", IMPORT, b"x", FILE)):
                self.assertEqual(reply.status, 400)
                self.assertIn("--kv-disk", reply.json["error"]["message"])
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    main()
