"""POST /v1/loam/explain: the sentences that a given answer attended to.  `loam explain` on the command line says the same
of the same messages; that its weights are the model's is tests/explain/test_explain.c's."""
import json
import os
import select
import subprocess
import tempfile
import threading
import unittest

import loam_server
from loam_server import HAS_SLOT, NANO, REAL, WITHOUT_REAL, Server, leave, main, wait_until

PATH, CHAT = "/v1/loam/explain", "/v1/chat/completions"
TEMPLATE = ("--chat-template", "llama2")
DOCUMENT = ("The gate of the garden is painted green. Nobody knows who painted it.\n\nThe mill by the river has a red door. "
            "The miller sleeps in the afternoon. A fox and a crow met on a field.\n" * 8)
QUESTION = "Which colour has the gate?"
KEYS = ("first-key", "second-key")


def asked(question=QUESTION, document=DOCUMENT):
    """What the command line makes of a document and a question."""
    return {"role": "user", "content": document.rstrip("\n") + "\n\n" + question}


def said(text):
    return {"role": "assistant", "content": text}


class Explain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server("-np", "3", "-c", "4096", "--kv-disk", os.path.join(cls.folder.name, "kv"), "--kv-host", "64M",
                            "--api-key", ",".join(KEYS), *TEMPLATE)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def post(self, path, body, key=KEYS[0], server=None):
        return (server or self.server).post(path, body, headers={"Authorization": "Bearer " + key}, timeout=300)

    def explained(self, messages, key=KEYS[0], server=None, **fields):
        reply = self.post(PATH, {"messages": messages, **fields}, key, server)
        self.assertEqual(reply.status, 200, reply.body[:300])
        return reply.json

    def refused(self, body, status, word):
        reply = self.post(PATH, body)
        self.assertEqual(reply.status, status, reply.body[:300])
        self.assertIn(word, reply.json["error"]["message"])

    # ---- the numbers ----

    def printed(self, model, options, seed):
        """The answer and the spans of `loam explain`."""
        document, found = (os.path.join(self.folder.name, name) for name in ("document.txt", "found.json"))
        with open(document, "w") as out:
            out.write(DOCUMENT)
        done = subprocess.run(
            [loam_server.LOAM, "explain", "-m", model, "-f", document, "-p", QUESTION, "-n", "12", "--temp", "1",
             "--seed", str(seed), "--spans", "40", "--json", found, "-q", "-t", "1", *options], capture_output=True, check=True)
        with open(found) as file:
            return done.stdout.decode().split("\n\n" + document)[0].removesuffix("\n"), json.load(file)

    def compare(self, model, template, *options):
        """Of an answer that is not the likeliest one."""
        server = Server("-np", "2", "-c", "4096", *template, *options, model=model)
        try:
            for seed in range(1, 20):
                answer, found = self.printed(model, template, seed)
                tokens = server.post("/tokenize", {"content": answer}).json["tokens"]
                if tokens == found["output_tokens"]:  # else the text's own tokens are others
                    break
            self.assertEqual(tokens, found["output_tokens"])
            told = self.explained([asked(), said(answer)], server=server, spans=40,
                                  sources=[{"name": "garden.txt", "text": DOCUMENT}])
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertEqual(told["answer_tokens"], len(tokens))
        self.assertEqual(len(told["spans"]), len(found["spans"]))
        self.assertGreater(len(told["spans"]), 30)
        for mine, its in zip(told["spans"], found["spans"]):
            self.assertEqual((mine["source"], mine["name"]), (0, "garden.txt"))
            for name in ("line", "begin", "end", "text"):
                self.assertEqual(mine[name], its[name])
            for name in ("share", "lift"):
                self.assertAlmostEqual(mine[name], its[name], delta=1e-7 * max(1, its[name]))

    def test_says_what_the_command_line_says(self):
        self.compare(NANO, TEMPLATE)

    def test_says_it_where_a_part_of_kv_is_in_ram(self):
        self.compare(NANO, TEMPLATE, "--kv-host", "5M", "--kv-disk", os.path.join(self.folder.name, "part"))

    def test_fetches_what_the_attention_left_out(self):
        """The answer attended to a window; its explanation is over all that is stored, wherever it is."""
        found = []
        for size in ("5M", "64M"):
            server = Server("-np", "2", "-c", "4096", "--set", "select=window", "--keep", "128", "--kv-host", size,
                            "--kv-disk", os.path.join(self.folder.name, size), *TEMPLATE)
            try:
                found.append(self.explained([asked(document=DOCUMENT * 8), said("It is green.")], server=server, spans=500))
                read = server.metrics()["loam_kv_read_pages_total"]
            finally:
                self.assertEqual(server.stop(), 0)
            self.assertEqual(read > 0, size == "5M")
        self.assertEqual(found[0]["spans"], found[1]["spans"])
        self.assertGreater(min(span["share"] for span in found[0]["spans"]), 0)

    @unittest.skipUnless(REAL, WITHOUT_REAL)
    def test_says_it_of_a_real_model(self):
        self.compare(REAL, ())

    # ---- the request ----

    def test_looks_into_the_users_messages(self):
        messages = [asked("Who?"), said("Nobody knows."), {"role": "user", "content": "Why is it green?"}, said("It is painted.")]
        told = self.explained(messages, spans=1000)
        self.assertEqual({span["source"] for span in told["spans"]}, {0, 1})
        self.assertAlmostEqual(sum(span["share"] for span in told["spans"]), 1, delta=1e-6)
        for span in told["spans"]:
            text = messages[2 * span["source"]]["content"]
            self.assertEqual(text.encode()[span["begin"]:span["end"]].decode(), span["text"])
            self.assertNotIn("name", span)
        self.assertEqual(told["spans"], self.explained(messages, spans=1000)["spans"])  # from what is known now
        self.assertEqual(self.explained(messages)["spans"], told["spans"][:5])

    def test_tells_its_progress_in_a_stream(self):
        messages = [asked("What?"), said("The fox met the crow on a field.")]
        reply = self.post(PATH, {"messages": messages, "stream": True})
        self.assertEqual(reply.headers["content-type"], "text/event-stream")
        *progress, told, end = reply.frames
        self.assertEqual(end, "[DONE]")
        self.assertEqual(told["spans"], self.explained(messages)["spans"])
        states = [frame["state"] for frame in progress]
        self.assertEqual(sorted(set(states), key=states.index), ["reading", "explaining"])
        for frame in progress:
            self.assertEqual(frame["object"], "loam.explanation.progress")
            self.assertLessEqual(frame["processed"], frame["total"])
        self.assertEqual(progress[-1]["total"], told["answer_tokens"])

    def test_attaches_to_what_the_answer_read(self):
        """A document by its id, whose text stands in the first message; another key has none."""
        made = self.post("/v1/loam/documents", {"text": DOCUMENT, "name": "garden.txt"}).json
        body = {"messages": [{"role": "user", "content": QUESTION}, said("It is green.")], "documents": [made["id"]]}
        told = self.explained(**body, spans=1000)
        self.assertGreater(told["cached_tokens"], told["prompt_tokens"] - 128)
        plain = self.explained([asked(), said("It is green.")], spans=1000)["spans"]
        self.assertEqual(*([(span["text"], span["share"], span["lift"]) for span in spans] for spans in (plain, told["spans"])))
        self.assertEqual({(span["source"], span.get("name"), span.get("document")) for span in told["spans"]},
                         {(0, "garden.txt", made["id"]), (1, None, None)})
        self.assertEqual(self.post(PATH, body, KEYS[1]).status, 404)
        self.assertEqual(self.post(PATH, body, "no-key").status, 401)

    def test_cites_pages_of_what_was_saved(self):
        """Marks are in the text: a saved document has them, and its spans the page, the chapter or the file."""
        pages = "The mill is red.\n\n\fThe gate is green.\n\n\fThe river is long.\n\n\f"
        book = "Of the mill that is red.\n\v\nOf the gate that is green.\n\v"
        folder = "==> a.txt <==\v\nThe mill is red.\n\n==> b/c.pdf <==\v\nThe road is wide.\f\nThe gate is green.\f"
        for text, words, place in ((pages, "The gate is green.", {"page": 2, "line": 3}), (book, "Of the gate that is green.", {"chapter": 2}),
                                   (folder, "The gate is green.", {"file": "b/c.pdf", "page": 2}),
                                   (folder, "The mill is red.", {"file": "a.txt", "line": 1, "page": None})):
            made = self.post("/v1/loam/documents", {"text": text, "name": "book"}).json
            told = self.explained([{"role": "user", "content": QUESTION}, said("It is green.")], documents=[made["id"]], spans=100)
            span = next(span for span in told["spans"] if span["text"] == words)
            self.assertEqual({name: span.get(name) for name in place}, place)
            self.assertEqual((span["name"], span["document"]), ("book", made["id"]))
            self.assertNotIn("==>", "".join(span["text"] for span in told["spans"] if "document" in span))

    @unittest.skipUnless(REAL, WITHOUT_REAL)
    def test_what_answers_comes_first_in_a_real_model(self):
        """Right answers about a part of a story: the sentence that has it is among the first three, wherever it stands, and the
        story's end, which is near the answer, is not unless it is that sentence."""
        with open(os.path.join(loam_server.ROOT, "tests/data/a-scandal-in-bohemia.txt"), encoding="utf-8") as file:
            story = file.read()
        part = story[story.index("“You may address me as the Count"):story.index("\nII\n")].rstrip("\n")
        asked_and_told = (
            ("Why does the King wear a mask?", "The King wears a mask because his identity must stay unknown.", "this mask"),
            ("Where was Irene Adler born?", "Irene Adler was born in New Jersey in 1858.", "Born in New Jersey"),
            ("What was the King when he knew Irene Adler?", "He was only Crown Prince then, and young.", "only Crown Prince then"),
            ("Who is the King going to marry?", "He will marry Clotilde Lothman von Saxe-Meningen.", "Clotilde Lothman"),
            ("How much money does the King give?", "Three hundred pounds in gold and seven hundred in notes.", "three hundred pounds"))
        server = Server("-np", "1", "-c", "4096", model=REAL)
        try:
            for question, answer, words in asked_and_told:
                told = self.explained([asked(question, part), said(answer)], server=server, spans=3, sources=[{"text": part}])
                self.assertTrue(any(words in span["text"] for span in told["spans"]), (question, told["spans"]))
                late = [span["text"] for span in told["spans"] if span["begin"] > 0.9 * len(part.encode())]
                self.assertEqual([text for text in late if words not in text], [], question)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_refuses_by_name(self):
        answered = [asked(), said("Green.")]
        self.refused({"messages": [asked()]}, 400, "the answer")
        self.refused({"messages": [asked(), said("")]}, 400, "the answer")
        self.refused({"messages": []}, 400, "at least one")
        self.refused({"messages": answered, "spans": 0}, 400, "'spans'")
        self.refused({"messages": answered, "sources": "garden.txt"}, 400, "'sources'")
        self.refused({"messages": answered, "sources": [{"name": "x"}]}, 400, "'text' is missing")
        self.refused({"messages": answered, "sources": [{"text": "x"}] * 65}, 400, "'sources'")
        self.refused({"messages": answered, "documents": [123456789]}, 404, "123456789")
        self.refused({"messages": [asked(document=DOCUMENT * 12), said("Green.")]}, 400, "context")

    def test_finds_nothing_of_a_source_that_was_not_read(self):
        told = self.explained([asked(), said("Green.")], sources=[{"name": "x", "text": "Never sent. At all."}])
        self.assertEqual(told["spans"], [])

    # ---- beside others ----

    def answer(self, question):
        body = {"messages": [asked(question)], "temperature": 0, "max_tokens": 40, "ignore_eos": True}
        return self.post(CHAT, body, KEYS[1]).json["choices"][0]["message"]["content"]

    def test_leaves_other_answers_as_they_are(self):
        questions = ["Who sleeps?", "Who met?"]
        alone = [self.answer(question) for question in questions]
        messages = [asked(), said("The gate is green, and the miller sleeps. " * 8)]
        expected = self.explained(messages)
        self.assertGreater(expected["spans"][0]["share"], 0)
        found = {}
        threads = [threading.Thread(target=lambda q=q: found.update({q: self.answer(q)})) for q in questions]
        threads += [threading.Thread(target=lambda i=i: found.update({i: self.explained(messages)})) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([found[question] for question in questions], alone)
        self.assertEqual([found[i]["spans"] for i in range(2)], [expected["spans"]] * 2)

    def test_ends_with_its_client(self):
        headers = {"Authorization": "Bearer " + KEYS[0]}

        def count(*states):
            return self.server.count(*states, headers=headers)
        before = count("cancelled_total")
        for i in range(20):  # until one has not ended before its client leaves
            body = {"messages": [asked(document="%d. " % i + DOCUMENT * 6), said("The gate is green. " * 180)]}
            connection = self.server.open(PATH, body, headers)
            self.assertTrue(wait_until(lambda: count(*HAS_SLOT) == 1 or select.select([connection], [], [], 0)[0]))
            leave(connection)
            self.assertTrue(wait_until(lambda: count(*HAS_SLOT) == 0))
            if count("cancelled_total") > before:
                break
        self.assertEqual(count("cancelled_total") - before, 1)


if __name__ == "__main__":
    main()
