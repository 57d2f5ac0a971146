"""/v1/loam/conversations: what the page keeps on the server's disk, by key, by version, whole or not at all."""
import os
import re
import subprocess
import tempfile
import threading
import time
import unittest

from loam_server import LOAM, Server, main

PATH = "/v1/loam/conversations"
KEYS = ("first-key", "second-key")
OPTIONS = ("-np", "1", "-c", "1024", "--chat-template", "llama2")


class Conversations(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.kv = os.path.join(folder.name, "kv")
        self.file = os.path.join(self.kv, "conversations.db")
        self.server = None
        self.addCleanup(lambda: self.server.stop())

    def start(self, limit="", keys=KEYS, *options):
        if self.server is not None:
            self.assertEqual(self.server.stop(), 0)
        self.server = Server(*OPTIONS, "--kv-disk", self.kv + limit, "--api-key", ",".join(keys), *options)

    def call(self, method, name="", body=None, key=KEYS[0]):
        return self.server.ask(method, f"{PATH}/{name}" if name else PATH, body, {"Authorization": "Bearer " + key})

    def put(self, name, content, version="", key=KEYS[0], title="A title"):
        return self.call("PUT", name, {"title": title, "version": version, "content": content}, key)

    def kept(self, name, content, version="", **more):
        reply = self.put(name, content, version, **more)
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json["version"]

    def refused(self, reply, status, words):
        self.assertEqual(reply.status, status, reply.body)
        self.assertIn(words, reply.json["error"]["message"])
        self.assertNotIn("\n", reply.json["error"]["message"])

    def names(self, key=KEYS[0]):
        return sorted(row["id"] for row in self.call("GET", key=key).json["data"])

    def test_kept_listed_changed_deleted(self):
        self.start()
        self.assertEqual(self.call("GET").json, {"object": "list", "saves": True, "data": []})
        self.assertFalse(os.path.exists(self.file))  # nothing is made for who keeps nothing
        first = self.kept("a-1", "Gr\u00fcn \u0000.", title="Of gates")
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
        row = self.call("GET", "a-1").json
        self.assertEqual((row["id"], row["title"], row["version"], row["content"], row["bytes"]),
                         ("a-1", "Of gates", first, "Gr\u00fcn \u0000.", 8))
        self.assertEqual([{**row, "content": None}], [{**r, "content": None} for r in self.call("GET").json["data"]])
        second = self.kept("a-1", "Red.", first)
        self.assertNotEqual(first, second)
        for stale in ("", first, "x"):
            self.refused(self.put("a-1", "Blue.", stale), 409, second)
        self.assertEqual(self.kept("a-1", "Red.", first), second)  # asked again, as the reply was not heard
        self.assertEqual(self.call("GET", "a-1").json["content"], "Red.")
        self.assertEqual(self.server.stop(), 0)
        for name in os.listdir(self.kv):  # as who has lost the catalog is told
            if name != "conversations.db":
                os.unlink(os.path.join(self.kv, name))
        self.server = None
        self.start()
        self.assertEqual(self.call("GET", "a-1").json["version"], second)
        listed = subprocess.run([LOAM, "ls", "--kv-disk", self.kv], capture_output=True, text=True)
        self.assertEqual((listed.returncode, listed.stdout), (0, "1 conversation of the server's page, 4 B\n"))
        self.assertEqual(self.call("DELETE", "a-1").json, {"id": "a-1", "object": "loam.conversation.deleted", "deleted": True})
        for reply in (self.call("DELETE", "a-1"), self.call("GET", "a-1"), self.put("a-1", "Blue.", second)):
            self.refused(reply, 404, "no such conversation")
        self.assertEqual(self.names(), [])

    def test_belongs_to_the_key(self):
        self.start()
        version = self.kept("mine", "A secret.")
        self.assertEqual(self.names(KEYS[1]), [])
        for method in ("GET", "DELETE"):
            self.assertEqual(self.call(method, "mine", key=KEYS[1]).status, 404)
        self.refused(self.put("mine", "Overwritten.", version, KEYS[1]), 404, "no such conversation")
        self.kept("mine", "Of the other.", key=KEYS[1])
        self.assertEqual(self.call("GET", "mine").json["content"], "A secret.")
        self.start("", KEYS[::-1])  # keys may be reordered
        self.assertEqual(self.call("GET", "mine").json["content"], "A secret.")
        self.assertEqual(self.call("DELETE", "mine", key=KEYS[1]).status, 200)
        self.assertEqual(self.names(), ["mine"])
        self.assertEqual(self.server.get(PATH).status, 401)

    def test_what_is_wrong_is_named(self):
        self.start()
        for body, words in (({}, "'content'"), ({"content": 1}, "'content'"), ({"content": "x", "version": 1}, "'version'"),
                            ({"content": "x", "title": "x" * 1025}, "'title'"), ({"content": "x", "title": "\0"}, "'title'"),
                            ({"content": "x", "version": "x" * 33}, "'version'")):
            self.refused(self.call("PUT", "a", body), 400, words)
        for name in ("a.b", "a" * 65, "a%20b", "a/b"):
            self.assertEqual(self.put(name, "x").status, 404, name)
        self.assertEqual(self.server.ask("PUT", PATH + "/a", b"x", {"Content-Type": "text/plain"}).status, 401)
        self.assertEqual(self.call("POST", "a", {}).status, 405)
        self.assertFalse(os.path.exists(self.file))

    def test_without_a_folder(self):
        self.server = Server(*OPTIONS)
        self.assertEqual(self.server.get(PATH).json, {"object": "list", "saves": False, "data": []})
        self.refused(self.server.ask("PUT", PATH + "/a", {"content": "x"}), 404, "--kv-disk")

    def test_within_the_limit(self):
        """Saved documents make room; what people wrote does not."""
        self.start(":12M")
        text = "The gate of the garden is painted green. " * 40
        def upload(name):
            return self.server.post("/v1/loam/documents", {"name": name, "text": name + text}, headers={"Authorization": "Bearer " + KEYS[0]})
        self.assertEqual(upload("first").status, 200)
        self.start(":12M")  # nobody has it open
        version = self.kept("a", "x" * (6 << 20))
        documents = self.server.get("/v1/loam/documents", headers={"Authorization": "Bearer " + KEYS[0]}).json["data"]
        for i in range(9):
            reply = self.put(f"b{i}", "y" * (1 << 20))
            if reply.status != 200:
                break
        self.refused(reply, 507, "MiB are free of the limit of 12 MiB")
        after = self.server.get("/v1/loam/documents", headers={"Authorization": "Bearer " + KEYS[0]}).json["data"]
        self.assertEqual((len(documents) > 0, after), (True, []))
        self.assertEqual(self.call("GET", "a").json["version"], version)
        self.assertEqual(upload("second").status, 507)  # nothing is removed for it
        self.assertLess(sum(os.stat(os.path.join(self.kv, f)).st_blocks * 512 for f in os.listdir(self.kv)), 12 << 20)
        self.assertEqual(self.call("DELETE", "a").status, 200)
        self.assertEqual(upload("second").status, 200)

    def test_is_whole_after_a_kill(self):
        self.start()
        written = []  # versions
        def content(i):
            return f"{i}:" + f"line {i} " * 3000

        def write():
            try:
                while (reply := self.put("a", content(len(written)), written[-1] if written else "")).status == 200:
                    written.append(reply.json["version"])
                self.fail(reply.body)
            except OSError:
                pass  # killed
        writer = threading.Thread(target=write)
        writer.start()
        while len(written) < 10 and writer.is_alive():
            time.sleep(0.01)
        self.server.process.kill()
        writer.join()
        self.server.stop()
        self.server = None
        self.start()
        self.assertGreaterEqual(len(written), 10)
        found = self.call("GET", "a")
        self.assertEqual(found.status, 200, found.body)
        i = int(found.json["content"].split(":")[0])
        self.assertIn(i, (len(written) - 1, len(written)))  # the one behind may be there, too
        self.assertEqual(found.json["content"], content(i))

    def test_damage_is_one_line(self):
        self.start()
        self.kept("bad", "The gate is green. " * 3000)
        self.kept("good", "The mill is red.")
        with open(self.file, "r+b") as file:
            data = file.read()
            file.seek(data.rindex(b"The gate is green."))
            file.write(b"t")
        self.refused(self.call("GET", "bad"), 500, "conversation bad: damaged")
        self.assertEqual(self.names(), ["bad", "good"])
        self.assertEqual(self.call("GET", "good").json["content"], "The mill is red.")
        self.assertEqual(self.call("DELETE", "bad").status, 200)
        with open(self.file, "r+b") as file:
            file.write(b"x" * 100)
        for reply in (self.call("GET"), self.call("GET", "good"), self.put("new", "x"), self.call("DELETE", "good")):
            self.refused(reply, 500, "conversations.db: ")
        self.assertEqual(self.server.post("/v1/loam/documents", {"text": "The gate is green. " * 40},
                                          headers={"Authorization": "Bearer " + KEYS[0]}).status, 200)
        listed = subprocess.run([LOAM, "ls", "--kv-disk", self.kv], capture_output=True, text=True)
        self.assertEqual(listed.returncode, 4)
        self.assertRegex(listed.stdout, "1 document")
        self.assertTrue(re.search(r"conversations\.db: .*damaged", listed.stderr), listed.stderr)
        os.unlink(self.file)
        self.kept("new", "x")


if __name__ == "__main__":
    main()
