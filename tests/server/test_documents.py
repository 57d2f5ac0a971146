"""/v1/loam/documents, and what outlives a request: saved prefixes, conversations and cancelled prefills, by key."""
import base64
import json
import os
import tempfile
import unittest

from loam_server import NANO, ROOT, Server, leave, main, wait_until

PATH, CHAT = "/v1/loam/documents", "/v1/chat/completions"
TEXT = "The gate of the garden is painted green. Nobody knows who painted it, and nobody asks.\n" * 30
OTHER = "The mill by the river has a red door. The miller sleeps in the afternoon.\n" * 30
KEYS = ("first-key", "second-key")


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.start()

    @classmethod
    def start(cls, keys=KEYS, *options):
        cls.server = Server("-np", "2", "-c", "4096", "--chat-template", "llama2", "--segment", "512", "--kv-disk",
                            os.path.join(cls.folder.name, "kv"), "--api-key", ",".join(keys), *options)

    @classmethod
    def restart(cls, **options):
        assert cls.server.stop() == 0
        cls.start(**options)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def call(self, method, path, body=None, key=KEYS[0]):
        return self.server.ask(method, path, body, {"Authorization": "Bearer " + key})

    def upload(self, text=TEXT, key=KEYS[0], **fields):
        reply = self.call("POST", PATH, {"text": text, "name": "garden.txt", **fields}, key)
        self.assertEqual(reply.status, 200, reply.body)
        return reply

    def ask(self, question, key=KEYS[0], messages=None, **fields):
        messages = messages or [{"role": "user", "content": question}]
        reply = self.call("POST", CHAT, {"messages": messages, "temperature": 0, "max_tokens": 6, **fields}, key)
        self.assertEqual(reply.status, 200, reply.body)
        body = reply.json
        return (body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens_details"]["cached_tokens"],
                body["usage"]["prompt_tokens"])

    def ids(self, key=KEYS[0]):
        return [d["id"] for d in self.call("GET", PATH, key=key).json["data"]]

    def test_uploaded_asked_listed_removed(self):
        frames = self.upload(stream=True).frames
        self.assertEqual(frames[-1], "[DONE]")
        progress = [f for f in frames[:-2] if f["object"] == "loam.document.progress"]
        self.assertEqual(progress[-1]["processed"], progress[-1]["total"])
        made = frames[-2]
        self.assertEqual((made["object"], made["name"]), ("loam.document", "garden.txt"))
        self.assertGreater(made["token_count"], 600)

        again = self.upload().json
        self.assertEqual(again["id"], made["id"])
        self.assertGreaterEqual(again["cached_tokens"], made["token_count"] - 64)

        text = TEXT.rstrip("\n") + "\n\nWhich colour has the gate?"
        named, cached, count = self.ask("Which colour has the gate?", documents=[made["id"]])
        self.assertGreater(cached, count - 128)
        self.assertEqual((named, count), (self.ask(text)[0], self.ask(text)[2]))

        shown = self.call("GET", "%s/%d" % (PATH, made["id"])).json
        self.assertEqual((shown["id"], shown["name"], shown["damaged"], shown["other_version"]),
                         (made["id"], "garden.txt", None, False))
        self.assertGreater(shown["bytes"], 0)
        self.assertIn(made["id"], self.ids())
        text = self.call("GET", "%s/%d/text" % (PATH, made["id"])).json
        self.assertEqual((text["id"], text["text"]), (made["id"], TEXT.rstrip("\n")))

        removed = self.call("DELETE", "%s/%d" % (PATH, made["id"]))
        self.assertEqual((removed.status, removed.json["deleted"]), (200, True))
        self.assertNotIn(made["id"], self.ids())
        for method, below in (("GET", ""), ("GET", "/text"), ("DELETE", "")):
            self.assertEqual(self.call(method, "%s/%d%s" % (PATH, made["id"], below)).status, 404)
        reply = self.call("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "documents": [made["id"]]})
        self.assertEqual(reply.status, 404, reply.body)

    # ---- files ----

    def text_of(self, data, query="name=a.txt"):
        return self.server.ask("POST", "/v1/loam/text?" + query, data,
                               {"Authorization": "Bearer " + KEYS[0], "Content-Type": "application/octet-stream"})

    def test_a_file_becomes_its_text(self):
        page = "<html><script>x</script><h1>Gate</h1>It is gr&uuml;n.".encode()
        for data, query, expected in (
                (page, "name=the%20page", {"name": "the page", "format": "html", "note": "read as HTML", "pages": 0,
                                           "text": "Gate\n\nIt is gr\u00fcn.\n"}),
                ("\ufeffGate".encode("utf-16-le"), "", {"name": "document", "format": "plain", "text": "Gate"}),
                (b"K\xf6ln\x0cBonn", "encoding=latin1&name=x", {"name": "x", "text": "K\u00f6ln\x0cBonn", "pages": 1}),
                (b"", "name=", {"name": "", "text": ""})):
            reply = self.text_of(data, query)
            self.assertEqual(reply.status, 200, reply.body)
            self.assertEqual({name: reply.json[name] for name in expected}, expected)

    def test_what_is_no_text_is_refused_by_name(self):
        for data, query, status, words in (
                (b"K\xf6ln", "name=a.txt", 415, "a.txt: is no UTF-8: byte 2"),
                (b"\x89PNG\r\n\0", "name=p.png", 415, "p.png: is a PNG picture"),
                (b"x", "encoding=klingon", 415, "encoding: found 'klingon'"),
                (b"%PDF-1.4 broken", "name=b.pdf", 415, "b.pdf: is a PDF")):
            reply = self.text_of(data, query)
            self.assertEqual(reply.status, status, reply.body)
            self.assertIn(words, reply.json["error"]["message"])
        self.assertEqual(self.call("POST", "/v1/loam/text", {"text": "x"}).status, 415)
        self.assertEqual(self.server.ask("POST", "/v1/loam/text", b"x", {"Content-Type": "application/octet-stream"}).status, 401)
        huge = self.server.raw(b"POST /v1/loam/text HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer first-key\r\n"
                               b"Content-Type: application/octet-stream\r\nExpect: 100-continue\r\nContent-Length: 999999999999\r\n\r\n")
        self.assertIn(b" 413 ", huge.split(b"\r\n")[0])

    def test_a_file_in_base64_is_uploaded(self):
        def file(data):
            return base64.b64encode(data).decode()
        wide = self.call("POST", PATH, {"name": "garden.txt", "file": file(TEXT.encode("utf-16"))})
        self.assertEqual(wide.status, 200, wide.body)
        self.assertEqual(wide.json["id"], self.upload().json["id"])
        for fields, words in (({"file": "a"}, None), ({"file": "?"}, "expected base64"), ({"file": 1}, "expected base64"),
                              ({"file": file(b"x"), "text": "x"}, "no 'text' beside it"),
                              ({"file": file(b"K\xf6ln")}, "b.txt: is no UTF-8"),
                              ({"file": file(b"%PDF-1.4 x"), "name": "b.pdf"}, "b.pdf: is a PDF")):
            reply = self.call("POST", PATH, {"name": "b.txt", **fields})
            self.assertEqual(reply.status, 400, reply.body)
            self.assertIn(words or "'text'", reply.json["error"]["message"])

    def test_files_in_messages_are_text(self):
        """Of each family: the prompt is that of the file's text behind its name."""
        data = base64.b64encode("<html>The gate is gr&uuml;n.".encode()).decode()
        text = "==> g.html <==\v\nThe gate is gr\u00fcn.\n\n\nWhich colour?"
        question = {"type": "text", "text": "Which colour?"}
        parts = [{"type": "file", "file": {"filename": "g.html", "file_data": "data:text/html;base64," + data}}, question]
        plain = self.ask(text)
        self.assertEqual((self.ask(None, messages=[{"role": "user", "content": parts}])[::2]), plain[::2])
        block = {"type": "document", "title": "g.html", "source": {"type": "base64", "media_type": "text/html", "data": data}}
        counted = self.call("POST", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [block, question]}]})
        self.assertEqual(counted.json["input_tokens"], plain[2])
        item = {"role": "user", "content": [{"type": "input_file", "filename": "g.html", "file_data": data},
                                            {"type": "input_text", "text": "Which colour?"}]}
        told = self.call("POST", "/v1/responses", {"input": [item], "max_output_tokens": 4})
        self.assertEqual(told.json["usage"]["input_tokens"], plain[2])
        bad = [{"type": "file", "file": {"filename": "p.png", "file_data": base64.b64encode(b"\x89PNG\0").decode()}}, question]
        reply = self.call("POST", CHAT, {"messages": [{"role": "user", "content": bad}], "max_tokens": 1})
        self.assertEqual((reply.status, reply.json["error"]["param"]), (400, "messages[0].content"))
        self.assertIn("p.png: is a PNG picture", reply.json["error"]["message"])
        earlier = [{"role": "user", "content": bad}, {"role": "assistant", "content": "No."}, {"role": "user", "content": "Why?"}]
        self.assertEqual(self.call("POST", CHAT, {"messages": earlier, "max_tokens": 1}).status, 200)

    def test_short_prompts_leave_no_documents(self):
        """Less than 64 tokens are not found again: each request would leave its own."""
        def saved():
            return [d["id"] for d in self.call("GET", PATH).json["data"] if d["token_count"] > 0]
        before = saved()
        for _ in range(10):
            self.ask("Who sleeps?")
        self.assertEqual(saved(), before)
        named = self.upload("The cat.").json["id"]
        self.assertEqual(saved(), before + [named])
        self.call("DELETE", "%s/%d" % (PATH, named))

    def test_a_text_that_was_asked_about_before(self):
        """The prompt of a question shares all but its end with the document: that is saved all the same."""
        text = "The cat of the house sleeps on the warm stone. Nobody wakes it.\n" * 30
        self.ask(text + "\n\nWho sleeps?")
        made = self.upload(text).json
        self.assertGreater(made["cached_tokens"], 0)
        shown = self.call("GET", "%s/%d" % (PATH, made["id"])).json
        self.assertEqual((shown["name"], shown["token_count"]), ("garden.txt", made["token_count"]))
        self.restart()
        self.assertIn(made["id"], self.ids())

    def test_a_short_conversation_hides_no_document(self):
        text = "Briefly. " + TEXT
        self.ask("Briefly.")  # begins like the next question, and is too short to be saved
        self.upload(text)
        _, known, count = self.ask(text + "\n\nWhich colour?")
        self.assertGreater(known, count - 64)

    def test_answers_about_documents_are_drawn_at_a_lower_temperature(self):
        made, seed = self.upload("Drawn. " + OTHER).json, {"seed": 5, "max_tokens": 24}
        def answer(**more):
            body = {"messages": [{"role": "user", "content": "Who sleeps?"}], "documents": [made["id"]], **seed, **more}
            return self.call("POST", CHAT, body).json["choices"][0]["message"]["content"]
        self.assertEqual(answer(), answer(temperature=0.3))
        self.assertNotEqual(answer(), answer(temperature=0.8))

    def test_a_document_survives_a_restart(self):
        made = self.upload(OTHER).json
        before = self.ask("Who sleeps?", documents=[made["id"]])
        self.restart()
        self.assertIn(made["id"], self.ids())
        after = self.ask("Who sleeps?", documents=[made["id"]])
        self.assertEqual(after[0], before[0])
        self.assertGreater(after[1], after[2] - 128)

    def test_a_conversation_survives_a_restart(self):
        text = "A fox and a crow met on a field. The crow had a piece of cheese.\n" * 30
        answer, _, count = self.ask(text)
        self.restart()
        talk = [{"role": "user", "content": text}, {"role": "assistant", "content": answer},
                {"role": "user", "content": "What had the crow?"}]
        _, cached, _ = self.ask("", messages=talk)
        self.assertGreaterEqual(cached, count - 64)

    def cancel(self, text):
        """A chat whose client leaves when more than two segments of the text were read."""
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 4, "stream": True,
                "return_progress": True}
        connection = self.server.open(CHAT, body, {"Authorization": "Bearer " + KEYS[0]})
        seen, processed = b"", 0
        while processed < 1100:
            part = connection.recv(65536)
            self.assertNotEqual(part, b"", seen)
            seen += part
            for line in seen.split(b"\n")[:-1]:
                if line.startswith(b"data: {") and b"prompt_progress" in line:
                    processed = json.loads(line[6:])["prompt_progress"]["processed"]
        leave(connection)
        self.assertTrue(wait_until(lambda: self.ask("x", max_tokens=1)[2] > 0))

    def test_an_upload_does_not_go_on_in_a_chat(self):
        """A chat that was cancelled has read the beginning: the document has the upload's name, from RAM and disk."""
        for leaves, text in ((False, "One goat, two goats, three goats went up the hill. " * 200),
                             (True, "One hen, two hens, three hens went across the road. " * 200)):
            self.cancel(text)
            if leaves:
                self.restart()
            before = self.ids()
            made = self.upload(text, name="goats.txt").json
            self.assertGreaterEqual(made["cached_tokens"], 1024)
            shown = self.call("GET", "%s/%d" % (PATH, made["id"])).json
            self.assertEqual((shown["name"], shown["token_count"]), ("goats.txt", made["token_count"]))
            self.assertNotIn(made["id"], before)

    def test_a_cancelled_prefill_is_not_read_again(self):
        text = "One sheep, two sheep, three sheep went through the hedge. " * 200
        self.cancel(text)
        _, cached, count = self.ask(text)
        self.assertGreaterEqual(cached, 1024)
        self.assertLess(cached, count)

    def test_keys_stay_apart(self):
        text = "The key to the cellar hangs behind the clock. Nobody winds the clock.\n" * 30
        mine = self.upload(text).json
        self.assertEqual(set(self.ids()) & set(self.ids(KEYS[1])), set())
        for method, below in (("GET", ""), ("GET", "/text"), ("DELETE", "")):
            self.assertEqual(self.call(method, "%s/%d%s" % (PATH, mine["id"], below), key=KEYS[1]).status, 404)
        reply = self.call("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "documents": [mine["id"]]},
                          KEYS[1])
        self.assertEqual(reply.status, 404)
        self.assertEqual(self.upload(text, KEYS[1]).json["cached_tokens"], 0)
        question = text.rstrip("\n") + "\n\nWhere is the key?"
        self.assertGreater(self.ask(question)[1], 0)
        self.assertIn(mine["id"], self.ids())
        # Other keys come and go, in any order: a key's documents stay its own.
        self.restart(keys=("a-third-key", KEYS[1], KEYS[0]))
        try:
            self.assertIn(mine["id"], self.ids())
            self.assertNotIn(mine["id"], self.ids(KEYS[1]))
            self.assertEqual(self.ids("a-third-key"), [])
            self.assertEqual(self.ask(question, "a-third-key")[1], 0)
        finally:
            self.restart()

    def test_documents_may_be_shared(self):
        """--shared-documents: one set for all keys, that of no key; a key's own stay where they are."""
        text = "The lamp in the hall burns all night. Somebody fills it in the morning.\n" * 30
        mine = self.upload("The lamp of the first key. " * 40).json
        assert self.server.stop() == 0
        self.start(KEYS, "--shared-documents")
        try:
            made = self.upload(text).json
            self.assertEqual(self.ids(), self.ids(KEYS[1]))
            self.assertNotIn(mine["id"], self.ids())
            _, cached, count = self.ask("When does it burn?", KEYS[1], documents=[made["id"]])
            self.assertGreater(cached, count - 128)
            self.assertEqual(self.upload(text, KEYS[1]).json["id"], made["id"])
            self.assertEqual(self.call("GET", PATH, key="no-key").status, 401)
        finally:
            self.restart()
        self.assertIn(mine["id"], self.ids())
        for key in KEYS:
            self.assertNotIn(made["id"], self.ids(key))

    def test_an_id_is_a_number(self):
        paths = ("..", "../..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "../catalog.db", "catalog.db", "1.pages", "1/..",
                 "1/", "0", "00", "01", "-1", "+1", "1.0", "1e3", "0x1", "1%20", "%31", "9" * 18, "9" * 19, "9" * 200,
                 "1;", "1'", "1--", "*", "a", "1/texts", "/1", ".", "~", "1%00", "NaN", "null", "1,2", "[1]", "1&2", "$1",
                 "file:///etc/passwd", "\\..\\1")
        self.assertGreaterEqual(len(paths), 40)
        for path in paths:
            for method in ("GET", "DELETE"):
                self.assertEqual(self.call(method, PATH + "/" + path).status, 404, path)
        for documents in ("1", 1, {}, ["1"], [0], [-1], [1.5], [None], [[1]], [2**63 - 1], [1] * 17, ["../x"]):
            reply = self.call("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "documents": documents})
            self.assertIn(reply.status, (400, 404), documents)
            self.assertEqual(reply.json["error"]["param"], "documents")

    def test_what_is_wrong_is_named(self):
        for body, word in (({}, "text"), ({"text": ""}, "text"), ({"text": "\n\n"}, "text"), ({"text": 5}, "text"),
                           ({"text": "x", "name": ""}, "name"), ({"text": "x", "name": "a\nb"}, "name"),
                           ({"text": "x", "name": "a\u0000b"}, "name"), ({"text": "x", "name": "n" * 300}, "name"),
                           ({"text": "x", "name": 5}, "name"), ({"text": "x", "stream": 1}, "stream"),
                           ({"text": "x", "system": 1}, "system")):
            reply = self.call("POST", PATH, body)
            self.assertEqual(reply.status, 400, body)
            self.assertEqual(reply.json["error"]["param"], word)
        reply = self.call("POST", PATH, {"text": TEXT * 20})
        self.assertEqual(reply.json["error"]["code"], "context_length_exceeded")

    def test_a_system_message_is_part_of_what_was_read(self):
        made = self.upload(OTHER, system="Be brief.").json
        talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who sleeps?"}]
        _, cached, count = self.ask("", messages=talk, documents=[made["id"]])
        self.assertGreater(cached, count - 128)
        talk[0]["content"] = "Be long."
        reply = self.call("POST", CHAT, {"messages": talk, "documents": [made["id"]]})
        self.assertEqual(reply.status, 400)
        self.assertIn("another system message", reply.json["error"]["message"])


class ChangedModel(unittest.TestCase):
    """A model file that is written to while it is served: refused until the server starts again; nothing is saved."""
    def started(self, *options, **more):
        server = Server(*options, **more)
        self.addCleanup(server.process.kill)  # also of a test that fails
        return server

    def test_a_model_that_changes(self):
        body = {"prompt": OTHER, "max_tokens": 6, "temperature": 0}
        with open(NANO, "rb") as file:
            whole = file.read()
        other = bytearray(whole)
        for i in range(len(other) // 2, len(other), 64):
            other[i] ^= 0x5a
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model.gguf")
            options = ("-np", "1", "-c", "2048", "--kv-disk", os.path.join(folder, "kv"))
            for change in (other, b""):  # in place, and cut short under the mapping
                with open(model, "wb") as file:
                    file.write(whole)
                server = self.started(*options, model=model)
                read = server.post("/v1/completions", {**body, "prompt": TEXT})
                self.assertEqual((server.get("/health").status, read.status), (200, 200))
                with open(model, "r+b") as file:
                    file.truncate(0)
                    file.write(change)
                for _ in range(2):
                    refused = server.post("/v1/completions", body)
                    self.assertEqual(refused.status, 503, refused.body)
                    self.assertIn("model.gguf: the file changed on disk", refused.json["error"]["message"])
                self.assertEqual(server.get("/health").status, 503)
                self.assertEqual(server.stop(), 3)
            with open(model, "wb") as file:
                file.write(whole)
            server = self.started(*options, model=model)
            reply = server.post("/v1/completions", body)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(reply.json["usage"]["prompt_tokens_details"]["cached_tokens"], 0)


class States(unittest.TestCase):
    def test_turns_of_a_model_with_states(self):
        """The second turn begins where the first one's question ends, over a restart, too."""
        model = os.path.join(ROOT, "tests", "golden", "qwen35", "model.gguf")
        turns = [{"role": "user", "content": TEXT[:700]}]
        with tempfile.TemporaryDirectory() as folder:
            for restarts in range(2):
                server = Server("-c", "4096", "--kv-disk", folder, model=model)
                reply = server.post(CHAT, {"messages": turns, "temperature": 0, "max_tokens": 6})
                self.assertEqual(reply.status, 200, reply.body)
                usage = reply.json["usage"]
                if restarts:
                    self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], before)
                answer = reply.json["choices"][0]["message"]["content"]
                before = usage["prompt_tokens"] - len("\0assistant\n")
                turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
                self.assertEqual(server.stop(), 0)


class WithoutFolder(unittest.TestCase):
    def test_documents_need_a_folder(self):
        server = Server("-np", "1", "-c", "512", "--chat-template", "llama2")
        try:
            reply = server.post(PATH, {"text": "x"})
            self.assertEqual(reply.status, 400)
            self.assertIn("--kv-disk", reply.json["error"]["message"])
            reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "documents": [1]})
            self.assertEqual((reply.status, reply.json["error"]["param"]), (400, "documents"))
            listed = server.get(PATH).json
            self.assertEqual((listed["saves"], listed["data"]), (False, []))
        finally:
            self.assertEqual(server.stop(), 0)


class Overwritten(unittest.TestCase):
    """The catalog is overwritten while the server runs: that is said once, and answers go on, unsaved."""

    def test_answers_go_on(self):
        def body(i):
            return {"prompt": "A king (%d) ran to the mill, and nobody saw him there. " % i * 8, "max_tokens": 6, "temperature": 0}
        for damage in (lambda file, size: file.write(b"x" * size), lambda file, size: file.truncate(0)):
            with self.subTest(damage=damage), tempfile.TemporaryDirectory() as folder:
                server = Server("-np", "1", "-c", "512", "--kv-host", "64M", "--kv-disk", folder)
                self.addCleanup(server.process.kill)
                texts = [server.post("/v1/completions", body(i)).json["choices"][0]["text"] for i in range(2)]
                catalog = os.path.join(folder, "catalog.db")
                with open(catalog, "r+b") as file:
                    damage(file, os.path.getsize(catalog))
                for i in (0, 1, 2, 1, 3):
                    reply = server.post("/v1/completions", body(i))
                    self.assertEqual(reply.status, 200, reply.body)
                    if i < 2:
                        self.assertEqual(reply.json["choices"][0]["text"], texts[i])
                self.assertEqual(server.stop(), 0)
                told = "".join(server.lines)
                self.assertEqual(told.count("catalog.db"), 1, told)
                self.assertIn("answers go on without it", told)


if __name__ == "__main__":
    main()
