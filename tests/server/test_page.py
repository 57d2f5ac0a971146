"""The page of `loam serve` in headless Chromium (browser.py), as a person uses it.

Needs Debian's chromium, and exits with 77 where it is absent.
"""
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import unittest

from browser import Browser, Tab
from loam_server import Server, main

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "document"))
from sample_pdf import pdf

DOCUMENT = "The gate of the garden is painted green. Nobody knows who painted it.\n" * 30
BITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"  # of a cell of the map
KEY = "a-secret-key"
COMMON = ("--chat-template", "llama2", "-c", "4096", "-np", "2")
QUESTIONS, ANSWERS = "article.user", "article.assistant"
NOW = "#conversations [aria-current]"


class Driven(unittest.TestCase):
    """A server, a page of it, and what a person does and sees there."""

    options, saves = (), False

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="loam-page-")
        cls.server = Server(*COMMON, *cls.options, *(("--kv-disk", os.path.join(cls.folder, "kv")) if cls.saves else ()))
        cls.address = f"http://{cls.server.host}:{cls.server.port}/"
        cls.tab = Tab(browser)
        cls.tab.motion(reduced=True)  # a caret that blinks takes time to paint
        cls.tab.go(cls.address)

    @classmethod
    def tearDownClass(cls):
        cls.tab.close()
        shutil.rmtree(cls.folder)
        assert cls.server.stop() == 0

    def setUp(self):
        """An empty conversation of short greedy answers, in a page of usual size."""
        self.tab.until(lambda: self.tab.js("() => document.getElementById('model').textContent === server.model && !isBusy()"))
        self.tab.js("() => { if (!$('map').hidden) map.show(false); }")
        self.begin(length="12")

    def tearDown(self):
        self.assertEqual(self.tab.errors, [])
        self.tab.js("() => stop()")

    def begin(self, **settings):
        self.tab.js("""async (settings) => { await startOver(); refused = []; question.value = ''; drawDocuments();
            Object.assign(talk, {system: '', temperature: '0', length: '12', ...settings}); }""", settings)

    def is_idle(self, questions=0):
        """And so many have been asked.  Looked at together: between two looks an answer may begin."""
        return self.tab.js("""(s, n) => $('send').checkVisibility() && document.querySelector('.text.wait') === null &&
            document.querySelectorAll(s).length >= n""", QUESTIONS, questions)

    def ask(self, words, waits=True):
        """What is asked while a file is being opened is asked when it is open."""
        asked = self.tab.count(QUESTIONS)
        self.tab.focus("#question")
        self.tab.write(words)
        self.tab.press("Enter")
        if waits:
            self.tab.until(lambda: self.is_idle(asked + 1))

    def answers(self):
        return self.tab.texts(ANSWERS + " .text")

    def kept(self, store, key):
        """What the browser has on its disk."""
        return self.tab.js("""(store, key) => new Promise((done) => { const r = indexedDB.open('loam-conversations'); r.onsuccess = () => {
            const g = r.result.transaction(store).objectStore(store).get(key);
            g.onsuccess = () => { r.result.close(); done(g.result); }; }; })""", store, key)

    def said(self):
        return self.tab.js("() => tree.shown(talk).map((i) => talk.messages[i].content)")

    def is_writing(self, length=20):
        return any(len(text) > length for text in self.answers()) and not self.is_idle()

    def slowly(self):
        """For the rest of the test: an answer is not over before this program sees it."""
        self.tab.slowly()
        self.addCleanup(self.tab.slowly, False)

    def file(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as out:
            out.write(content if isinstance(content, bytes) else content.encode())
        return path

    def attach(self, name, content):
        self.tab.choose("#files", self.file(name, content))

    def read(self, name="garden.txt", content=DOCUMENT):
        self.attach(name, content)
        self.tab.until(lambda: "Read." in self.tab.text("#status"))

    def button(self, name, within=""):
        """Presses the last one of this name, once it is there."""
        self.tab.until(lambda: self.tab.clicks(within + " button", -1, name) == "")

    def names(self):
        return self.tab.texts("#conversations .name")

    def is_red(self, selector):
        red, green, _ = self.tab.js("(s) => getComputedStyle(document.querySelector(s)).color.match(/\\d+/g).map(Number)", selector)
        return red > 1.5 * green

    def conversation(self, name):
        self.tab.click("#conversations .name", name=name)
        self.tab.until(lambda: self.tab.texts(NOW) == [name])

    def server_json(self, path):
        return self.server.get(path).json

    def open_map(self):
        self.tab.click("#map-open")
        self.tab.until(lambda: self.tab.sees("#map-shown"))


class Page(Driven):
    """Over a server that saves documents and selects."""

    options = ("--kv-host", "256M", "--set", "select=window", "--keep", "256")
    saves = True

    # ---- an answer ----

    def test_opens_under_a_policy(self):
        reply = self.server.get("/")
        policy = reply.headers["content-security-policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(reply.headers["content-encoding"], "gzip")
        self.assertLess(len(reply.body), 64 << 10)
        self.tab.reload()
        self.tab.until(lambda: self.tab.text("#model") == "loam-nano")

    def test_answers_with_figures(self):
        self.ask("Say a word.")
        self.assertEqual(len(self.answers()), 1)
        self.assertNotEqual(self.answers()[0], "")
        self.assertRegex(self.tab.text(ANSWERS + " .figures"), r"read.* · 12 tokens .*cut at the limit")
        self.assertEqual(self.tab.texts(NOW), ["Say a word."])

    def test_stops_and_goes_on(self):
        self.begin(length="3000")
        self.slowly()
        self.ask("Count to a thousand.", waits=False)
        self.tab.until(self.is_writing)
        self.tab.press("Escape")
        self.tab.until(self.is_idle)
        before = self.said()[1]
        self.assertIn("stopped", self.tab.text(ANSWERS + " .figures"))
        self.tab.js("() => { talk.length = '5000'; }")
        self.button("Go on")
        self.tab.until(lambda: len(self.said()[1]) > len(before) + 20)
        self.button("Stop")
        self.tab.until(self.is_idle)
        self.assertTrue(self.said()[1].startswith(before.rstrip()))
        self.assertEqual(self.tab.posted("chat")[-1]["messages"][-1], {"role": "assistant", "content": before.rstrip()})

    def test_an_answer_that_was_cut_goes_on(self):
        self.ask("Tell a story.")
        first = self.said()[1]
        self.button("Go on")
        self.tab.until(lambda: self.is_idle() and "24 tokens" in self.tab.text(ANSWERS + " .figures"))
        self.assertTrue(self.said()[1].startswith(first))

    def test_retries_and_keeps_both(self):
        self.begin(temperature="1.5")
        self.ask("Say a word.")
        first = self.said()[1]
        self.button("Retry")
        self.tab.until(self.is_idle)
        seeds = [body["seed"] for body in self.tab.posted("chat")[-2:]]
        self.assertNotEqual(*seeds)
        second = self.said()[1]
        self.assertEqual(self.tab.attribute(".versions", "aria-label"), "Version 2 of 2 of the answer")
        self.button("‹")
        self.assertEqual((self.said()[1], self.tab.text(".versions span")), (first, "1/2"))
        self.tab.press("Tab")  # on to the way back
        self.tab.press("Enter")
        self.assertEqual((self.said()[1], self.tab.text(".versions span")), (second, "2/2"))

    def test_an_edit_keeps_what_was(self):
        self.ask("First.")
        self.ask("Second.")
        before = self.said()
        self.tab.click(QUESTIONS + " footer button")
        self.tab.press("a", ctrl=True)
        self.tab.js("() => document.activeElement.select()")
        self.tab.write("Another first.")
        self.tab.press("Enter")
        self.tab.until(self.is_idle)
        self.assertEqual((len(self.said()), self.said()[0]), (2, "Another first."))
        self.tab.reload()
        self.tab.until(lambda: self.tab.count("article") == 2)
        self.button("‹")
        self.assertEqual(self.said(), before)
        self.assertEqual(self.tab.count("article"), 4)
        self.ask("Third.")
        self.assertEqual(self.said()[:4], before)
        self.assertEqual([m["content"] for m in self.tab.posted("chat")[-1]["messages"][:4]], before)

    def test_an_edit_is_given_up(self):
        self.ask("First.")
        self.tab.focus("#question")
        self.tab.press("ArrowUp")
        self.tab.write(" More.")
        self.tab.press("Escape")
        self.assertEqual(self.tab.texts(QUESTIONS + " .text"), ["First."])
        self.assertEqual(self.tab.focused(), "Edit")
        self.assertEqual(self.tab.count(".versions"), 0)

    def test_sends_settings_of_the_conversation(self):
        self.tab.click("#settings-open")
        for name, value in (("system", "Answer in French."), ("temperature", "0.5"), ("length", "3")):
            self.tab.focus("#" + name)
            self.tab.js("() => document.activeElement.select()")
            self.tab.write(value)
        self.tab.click("#settings .end button", -1)
        self.tab.until(lambda: self.tab.js("() => talk.length") == "3")
        self.ask("Hello.")
        body = self.tab.posted("chat")[-1]
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Answer in French."})
        self.assertEqual((body["temperature"], body["max_tokens"]), (0.5, 3))
        self.begin(system="", temperature="", length="")
        self.ask("Hello again.", waits=False)
        self.tab.until(lambda: self.tab.posted("chat")[-1]["messages"][-1]["content"] == "Hello again.")
        body = self.tab.posted("chat")[-1]
        self.assertEqual((body["max_tokens"], "temperature" in body, len(body["messages"])), (2048, False, 1))
        self.tab.press("Escape")
        self.conversation("Hello.")
        self.assertEqual(self.tab.js("() => [talk.system, talk.length]"), ["Answer in French.", "3"])
        self.tab.click("#new")
        self.tab.reload()
        self.tab.until(lambda: self.tab.js("() => talk.system") == "Answer in French.")
        self.assertEqual(self.tab.js("() => talk.messages"), [])

    def stream(self, *frames, ends=True):
        """The next answer comes in these deltas; then it ends, or breaks."""
        lines = [json.dumps({"choices": [{"delta": delta, "finish_reason": None}]}) for delta in frames]
        if ends:
            lines += [json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}), "[DONE]"]
        self.tab.js("""(text, ends) => { const asked = window.fetch; window.fetch = (to, what) => {
            if (!String(to).includes('chat')) return asked(to, what); window.fetch = asked;
            return Promise.resolve(new Response(new ReadableStream({start(c) {
            c.enqueue(new TextEncoder().encode(text)); if (ends) c.close(); else setTimeout(() => c.error(new TypeError('x')), 50); }}))); }; }""",
                    "".join(f"data: {line}\n\n" for line in lines), ends)  # fmt: skip

    def test_shows_marks_of_the_answer(self):
        self.stream({"content": "# Head\n\nA **bold** `word`.\n\n- one\n- two\n\n| a | b |\n|---|--:|\n| 1 | *2* |\n\n```c\nint <b>;\n```\n"})
        self.ask("Show.")
        self.assertEqual(self.tab.texts(ANSWERS + " :is(h3, strong, p code, li, pre code)"), ["Head", "bold", "word", "one", "two", "int <b>;"])
        self.assertEqual(self.tab.texts(ANSWERS + " :is(th, td)"), ["a", "b", "1", "2"])
        self.assertEqual(self.tab.count(ANSWERS + " b"), 0)

    def test_what_breaks_is_said_at_the_answer(self):
        self.stream({"content": "Half of\n"}, ends=False)
        self.ask("Break.")
        self.assertEqual(self.tab.text(ANSWERS + " > .error"), "The connection to the server broke.")
        self.assertTrue(self.tab.sees(ANSWERS + " > .error"))
        self.assertTrue(self.is_red(ANSWERS + " > .error"))
        self.button("Go on")
        self.tab.until(lambda: self.is_idle() and len(self.said()[1]) > 20)
        self.assertFalse(self.tab.sees(ANSWERS + " > .error"))
        self.assertTrue(self.said()[1].startswith("Half of"))
        self.assertEqual(self.tab.posted("chat")[-1]["messages"][-1]["content"], "Half of")  # templates take the rest off

    def test_a_server_that_is_away_is_said_in_red(self):
        self.tab.js("""() => { const ask = window.fetch; window.fetch = (to, what) => window.isBack ? ask(to, what) :
            Promise.reject(new TypeError('x')); connect(); }""")
        self.tab.until(lambda: self.tab.text("#model") == "The server does not answer. Does loam serve still run?")
        self.assertTrue(self.is_red("#model"))
        self.ask("Are you there?")
        self.assertIn("does not answer", self.tab.text(ANSWERS + " > .error"))
        self.tab.js("() => { window.isBack = true; }")
        self.tab.until(lambda: self.tab.text("#model") == "loam-nano")
        self.assertFalse(self.is_red("#model"))
        self.button("Retry")
        self.tab.until(lambda: self.is_idle() and self.said()[-1] != "")

    def test_thoughts_are_told_apart(self):
        self.stream({"reasoning_content": "Hm, what"}, {"content": "It is so."})
        self.ask("Think.")
        self.assertEqual(self.tab.text("details.thought"), "ThoughtsHm, what")
        self.assertEqual(self.said()[1], "It is so.")
        self.stream({"reasoning_content": "Hm"}, ends=False)  # nothing but thoughts: the server cannot take these back
        self.ask("Again.")
        self.assertFalse(self.tab.js("() => [...document.querySelectorAll('.go-on')].at(-1).checkVisibility()"))

    # ---- what outlives the page ----

    def test_a_reload_in_mid_answer_goes_on(self):
        self.begin(length="3000")
        self.slowly()
        self.ask("Tell a long story.", waits=False)
        self.tab.until(self.is_writing)
        before = self.said()[1]
        self.tab.reload()
        self.tab.until(lambda: self.tab.posted("chat") != [] and len(self.said()[1]) > len(before) + 40)
        taken = self.tab.posted("chat")[0]["messages"][-1]
        self.assertEqual(taken["role"], "assistant")
        self.assertTrue(taken["content"].startswith(before.rstrip()))
        self.assertTrue(self.said()[1].startswith(taken["content"]))
        self.assertEqual(len(self.said()), 2)
        self.button("Stop")
        self.tab.until(self.is_idle)

    def test_a_reload_while_it_reads_goes_on(self):
        self.hold("documents")
        self.attach("garden.txt", DOCUMENT)
        self.tab.until(lambda: len(self.tab.posted("documents")) == 1)
        self.tab.focus("#question")
        self.tab.write("Not yet asked")
        self.tab.until(lambda: self.kept("conversations", self.tab.js("() => talk.id"))["attached"])
        self.tab.reload()
        self.tab.until(lambda: self.tab.texts("#documents li span:first-child") == ["garden.txt"])
        self.assertEqual(self.tab.js("() => question.value"), "Not yet asked")
        self.tab.until(lambda: "Read." in self.tab.text("#status"))
        self.assertEqual(self.tab.posted("documents")[0]["text"], DOCUMENT.rstrip("\n"))

    def another_tab(self, source):
        """Of the conversation that is shown, while its answer is written: with this script before its own."""
        other = Tab(browser)
        self.addCleanup(other.close)
        other.call("Page.addScriptToEvaluateOnNewDocument", source=source)
        other.go(self.address)
        other.until(lambda: "Another tab" in other.text("#status"))
        return other

    def test_two_tabs_write_one_answer(self):
        """What one of them says is not heard: it is busy."""
        self.begin(length="3000")
        self.slowly()
        self.ask("Tell a story to both.", waits=False)
        self.tab.until(self.is_writing)
        other = self.another_tab("window.BroadcastChannel = undefined;")
        taken = "() => navigator.locks.query().then((all) => all.pending.map((lock) => lock.name === 'loam-' + talk.id))"
        other.until(lambda: other.js(taken) == [True])
        self.tab.js("() => { talk.messages[1].content = 'As it was saved.'; stop(); }")
        self.tab.until(self.is_idle)
        other.until(lambda: other.texts(ANSWERS + " .text") == ["As it was saved."])  # read again, not asked again
        self.assertEqual((other.posted("chat"), other.errors, other.js(taken)), ([], [], []))
        self.ask("Tell another.", waits=False)
        self.tab.until(lambda: len(self.said()) == 4 and len(self.said()[3]) > 20)
        other.reload()
        other.until(lambda: "Another tab" in other.text("#status"))
        self.tab.go("about:blank")  # in mid-answer
        try:
            other.until(lambda: other.posted("chat") != [])
        finally:
            self.tab.go(self.address)
        self.assertEqual(other.posted("chat")[0]["messages"][-1]["role"], "assistant")
        other.js("() => stop()")
        other.until(lambda: other.count(".text.wait") == 0)

    def test_two_tabs_ask_each_other_where_there_are_no_locks(self):
        self.begin(length="3000")
        self.slowly()
        self.ask("Tell a story to both.", waits=False)
        self.tab.until(self.is_writing)
        # It asks other tabs for 150 ms, in which a busy machine may not answer: here for longer.
        other = self.another_tab("""Object.defineProperty(navigator, 'locks', {value: undefined});
            const later = window.setTimeout; window.setTimeout = (act, ms) => later(act, ms === 150 ? 30000 : ms);""")
        seen = len(other.text(ANSWERS + " .text"))
        other.until(lambda: len(other.text(ANSWERS + " .text")) > seen)  # it is followed
        self.assertEqual(other.js("() => Promise.all([1, 2].map(() => kept.claim(talk.id, () => {})))"), [None, None])
        self.assertEqual(other.posted("chat"), [])
        self.tab.js("() => stop()")
        self.tab.until(self.is_idle)
        other.until(lambda: other.count(".text.wait") == 0)
        self.assertEqual(other.texts(ANSWERS + " .text"), self.answers())
        self.assertEqual(other.errors, [])

    # ---- on the server's disk ----

    THERE = "/v1/loam/conversations"

    def forget_there(self):
        for row in self.server_json(self.THERE)["data"]:
            self.server.ask("DELETE", f"{self.THERE}/{row['id']}")

    def keep_there(self, kept=True):
        """Settings, as they are opened, switched and closed."""
        self.addCleanup(self.forget_there)
        self.tab.click("#settings-open")
        if self.tab.js("() => $('remote-kept').checked") != kept:
            self.tab.click("#remote label")
        self.tab.click("#settings .end button", -1)
        self.tab.until(lambda: self.tab.js("() => Boolean(talk.remote)") == kept)

    def there(self, words):
        """What the server has of the conversation of this name: the contents of its messages, sorted."""
        rows = [row for row in self.server_json(self.THERE)["data"] if row["title"] == words]
        found = self.server.get(f"{self.THERE}/{rows[0]['id']}") if rows else None
        if found is None or found.status == 404:  # it was deleted since
            return None
        return sorted(m["content"] for m in json.loads(found.json["content"])["messages"])

    def row_of(self, name, tab=None):
        return (tab or self.tab).js("""(name) => [...document.querySelectorAll('#conversations li')].filter((e) =>
            e.querySelector('.name')?.textContent === name).map((e) => e.lastChild.textContent)[0]""", name)

    def other_browser(self):
        other = Tab(browser, is_other=True)
        self.addCleanup(other.close)
        other.go(self.address)
        other.until(lambda: other.text("#model") == "loam-nano")
        return other

    def open_in(self, tab, name):
        tab.until(lambda: self.row_of(name, tab) == "on the server")
        tab.click("#conversations .name", name=name)
        tab.until(lambda: tab.texts(NOW) == [name])

    def ask_in(self, tab, words):
        tab.js("() => { Object.assign(talk, {temperature: '0', length: '12'}); }")
        tab.focus("#question")
        tab.write(words)
        tab.press("Enter")
        tab.until(lambda: tab.texts(QUESTIONS + " .text")[-1:] == [words] and tab.js("() => !isBusy() && !talk.messages.some((m) => m.writing)"))

    def test_two_browsers_have_one_conversation(self):
        said = "() => talk.messages.map((m) => m.content).sort()"
        name = "Of gates and mills."
        self.read("gate.txt", "The gate is green.")
        self.keep_there()
        self.ask(name)
        self.tab.until(lambda: self.there(name) == self.tab.js(said))
        other = self.other_browser()
        self.open_in(other, name)
        self.assertEqual(other.js(said), self.tab.js(said))
        self.assertEqual(other.js("() => kept.textOf(talk.messages[0].documents[0])"), "The gate is green.")
        self.assertEqual(other.text(QUESTIONS + " .read li"), "gate.txt")
        # Each goes on without the other's; then both have all.
        self.ask_in(other, "And the mill?")
        other.until(lambda: self.there(name) == other.js(said))
        self.ask("And the door?")
        self.tab.until(lambda: len(self.there(name)) == 6 and self.there(name) == self.tab.js(said))
        self.assertEqual(self.said()[2], "And the door?")
        other.click("#list-open")
        other.click("#list-open")  # what is new is asked for, and what the other one shows
        other.until(lambda: other.js(said) == self.tab.js(said))
        other.until(lambda: other.texts(QUESTIONS + " .text")[-1] == "And the door?")
        self.button("›")
        self.assertEqual(self.said()[2], "And the mill?")
        self.assertEqual(len(set(self.tab.js("() => talk.messages.map((m) => m.id)"))), 6)
        # Deleted in one, and kept in the other as its own; taken back, it is both's again.
        delete = f"[aria-label='Delete: {name}']"
        other.click(delete)
        other.until(lambda: other.count("#undo") == 1)
        self.assertIsNone(self.there(name))
        self.tab.js("() => remote.refresh()")
        self.tab.until(lambda: self.row_of(name) == "×")
        self.assertEqual(len(self.tab.js(said)), 6)
        other.click("#undo")
        other.until(lambda: len(self.there(name) or []) == 6)
        self.tab.js("() => remote.refresh()")
        self.tab.until(lambda: self.row_of(name) == "on the server")
        self.assertEqual(other.errors, [])

    def test_is_sent_once_the_answer_is_whole(self):
        self.begin(length="3000")
        self.keep_there()
        self.slowly()
        self.ask("Of a long story.", waits=False)
        self.tab.until(self.is_writing)
        self.assertEqual(self.row_of("Of a long story."), "not yet on the server")
        self.tab.reload()
        self.tab.until(lambda: self.tab.posted("chat") != [] and self.is_writing())
        self.assertIsNone(self.there("Of a long story."))
        self.button("Stop")
        self.tab.until(lambda: self.there("Of a long story.") == sorted(self.said()))
        self.keep_there(False)
        self.tab.until(lambda: self.there("Of a long story.") is None and self.row_of("Of a long story.") == "×")

    def test_what_the_server_does_not_take_stays_here_and_is_sent_later(self):
        self.tab.js("""() => { const ask = window.fetch; window.fetch = (to, what) => what?.method !== 'PUT' || window.isBack ? ask(to, what) :
            Promise.resolve(new Response('{"error": {"message": "kv: 5 MiB are needed, 3 MiB are free"}}', {status: 507})); }""")
        self.keep_there()
        self.ask("Of a full disk.")
        self.tab.until(lambda: self.row_of("Of a full disk.") == "Not on the server: kv: 5 MiB are needed, 3 MiB are free")
        self.assertTrue(self.is_red("#conversations li .error"))
        self.assertIn("5 MiB are needed", self.tab.text("#status"))
        said = sorted(self.said())
        self.begin()
        self.drop_stubs()
        self.tab.until(lambda: self.there("Of a full disk.") == said)
        self.tab.until(lambda: self.row_of("Of a full disk.") == "on the server")

    def test_opens_what_leads_round_in_circles(self):
        message = {"id": "m", "parent": -1, "last": 0, "role": "user", "content": "Of circles."}
        tree = {"title": "Of circles.", "first": 0, "used": 1, "messages": [message], "texts": {}}
        body = {"title": "Of circles.", "content": json.dumps(tree)}
        self.addCleanup(self.forget_there)
        self.assertEqual(self.server.ask("PUT", self.THERE + "/circles", body).status, 200)
        self.tab.js("() => remote.refresh()")
        self.open_in(self.tab, "Of circles.")
        self.assertEqual(self.said(), ["Of circles."])

    # ---- the list of conversations ----

    def test_new_keeps_the_old(self):
        self.ask("Of apples.")
        apples = self.said()
        self.tab.click("#new")
        self.assertEqual(self.tab.count("article"), 0)
        self.assertEqual(self.tab.focused(), "question")
        self.ask("Of pears.")
        self.assertEqual(self.names()[:2], ["Of pears.", "Of apples."])
        self.conversation("Of apples.")
        self.assertEqual(self.said(), apples)
        self.tab.reload()
        self.tab.until(lambda: self.tab.count("article") == 2)
        self.assertEqual((self.said(), self.names()[:2]), (apples, ["Of pears.", "Of apples."]))

    def test_an_answer_is_written_while_another_is_read(self):
        self.begin(length="60")
        self.ask("A long one.", waits=False)
        self.tab.until(lambda: self.tab.count(ANSWERS) == 1)
        self.tab.click("#new")
        self.tab.js("() => { talk.length = '5'; }")
        self.ask("A short one.")
        self.assertEqual(len(self.said()), 2)
        self.tab.until(lambda: self.tab.count("#conversations .busy") == 0)
        self.conversation("A long one.")
        self.assertIn("60 tokens", self.tab.text(ANSWERS + " .figures"))

    def test_renames_by_keyboard(self):
        self.ask("Its first name.")
        self.button("Rename: Its first name.")
        self.tab.write("Its second name")
        self.tab.press("Enter")
        self.assertEqual(self.tab.texts(NOW), ["Its second name"])
        self.assertEqual(self.tab.focused(), "Its second name")
        self.button("Rename: Its second name")
        self.tab.write("Not this")
        self.tab.press("Escape")
        self.tab.reload()
        self.tab.until(lambda: self.tab.texts(NOW) == ["Its second name"])

    def test_what_is_kept_outlives_a_page_that_goes_at_once(self):
        self.tab.js("""() => { Object.assign(talk, { title: "Kept at once", named: true });
            for (let i = 0; i < 40; i++) kept.save({ ...talk, id: "long-" + i, title: "x".repeat(200000) });
            kept.save(talk); location.reload(); window.isOld = true; }""")
        self.tab.arrive()
        self.tab.until(lambda: self.tab.text("#model") == "loam-nano")
        self.assertIn("Kept at once", self.names())
        self.tab.js("""async () => { for (const c of kept.all()) if (c.id.startsWith("long-")) await kept.remove(c);
            Object.assign(talk, { title: "", named: false }); await kept.remove(talk); list.draw(); }""")

    def test_deletes_and_takes_it_back(self):
        self.attach("deleted.txt", "The gate is blue.")
        self.ask("To be deleted.")
        before = self.said()
        texts = self.tab.js("() => tree.shown(talk).flatMap((i) => talk.messages[i].documents || []).map((d) => d.key)")
        self.button("Delete: To be deleted.")
        self.tab.until(lambda: self.tab.focused() == "undo")
        self.assertNotIn("To be deleted.", self.names())
        self.assertIsNone(self.kept("texts", texts[0]))
        self.tab.press("Enter")
        self.tab.until(lambda: self.said() == before)
        self.assertEqual(self.kept("texts", texts[0]), "The gate is blue.")
        self.button("Delete: To be deleted.")
        self.tab.until(lambda: self.tab.focused() == "undo")
        self.tab.reload()
        self.tab.until(lambda: self.tab.text("#model") == "loam-nano")
        self.assertNotIn("To be deleted.", self.names())

    def test_exports_as_markdown(self):
        self.read("garden.txt")
        self.ask("Which *colour*?")
        browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=self.folder)
        self.button("Export as Markdown: Which *colour*?")
        path = os.path.join(self.folder, "Which colour.md")
        self.tab.until(lambda: os.path.exists(path) and os.path.getsize(path) > 0)
        with open(path) as found:
            text = found.read()
        self.assertEqual(text, f"# Which *colour*?\n\n## Question\n\nDocuments: garden.txt\n\nWhich *colour*?\n\n## Answer\n\n{self.said()[1].strip()}\n")

    # ---- by hand, by ear, in any light ----

    def test_works_at_320_px_in_any_light(self):
        self.ask("By keyboard.")
        theme = "() => document.documentElement.dataset.theme"
        before = self.tab.js(theme)
        self.tab.click("#theme")
        self.assertNotEqual(self.tab.js(theme), before)
        self.tab.resize(320, 640, 2)
        try:
            self.tab.until(lambda: not self.tab.sees("#list"))
            self.assertLessEqual(self.tab.js("() => document.documentElement.scrollWidth"), 320)
            self.assertTrue(self.tab.sees("#send"))
            self.tab.click("#list-open")
            self.assertTrue(self.tab.sees("#list"))
            self.assertEqual(self.tab.focused(), "By keyboard.")
            self.assertEqual(self.tab.nameless(), [])
            self.assertLessEqual(self.tab.js("() => document.documentElement.scrollWidth"), 320)
            self.tab.press("Escape")
            self.assertFalse(self.tab.sees("#list"))
            self.assertEqual(self.tab.focused(), "list-open")
            self.assertEqual(self.tab.nameless(), [])
        finally:
            self.tab.resize(1100, 760)
            self.tab.click("#theme")

    def test_goes_everywhere_by_keyboard(self):
        self.tab.js("async () => { for (const c of kept.all()) await kept.remove(c); }")
        self.ask("Here.")
        self.tab.press("l", ctrl=True, shift=True)
        self.assertFalse(self.tab.sees("#list"))
        self.tab.press("l", ctrl=True, shift=True)
        self.assertEqual(self.tab.focused(), "Here.")
        reached = set()
        for _ in range(40):
            self.tab.press("Tab")
            reached.add(self.tab.focused())
        self.assertLessEqual({"Rename: Here.", "Export as Markdown: Here.", "Delete: Here.", "Edit", "Copy", "Retry", "Sources", "attach", "question"}, reached)
        self.tab.press("o", ctrl=True, shift=True)
        self.tab.until(lambda: self.tab.count("article") == 0)

    def test_live_regions_and_roles(self):
        self.ask("Aloud.")
        nodes = self.tab.call("Accessibility.getFullAXTree")["nodes"]
        roles = {(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]}
        for role in (("log", "Conversation"), ("article", "You"), ("article", "Answer"), ("navigation", "Conversations and documents"),
                     ("list", "Conversations"), ("list", "Saved documents")):
            self.assertIn(role, roles)
        self.assertEqual(self.tab.attribute("#log", "aria-live"), "polite")
        self.assertEqual(self.tab.attribute("#log", "aria-busy"), "false")
        self.assertEqual([self.tab.attribute(f"#{name}-error", "role") for name in ("documents", "key", "list")], ["alert"] * 3)

    def copied(self, within):
        self.tab.js("""(within) => { window.told = []; new MutationObserver((all) => window.told.push(...all.map((m) => m.target.textContent)))
            .observe(document.querySelector(within), {childList: true, subtree: true}); }""", within)
        self.button("Copy", within)
        self.tab.until(lambda: "Copied" in self.tab.js("() => window.told"))  # for a moment
        return self.tab.js("() => navigator.clipboard.readText()")

    def test_copies(self):
        browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        self.ask("Copy this.")
        self.assertEqual(self.copied(QUESTIONS), "Copy this.")
        self.assertEqual(self.copied(ANSWERS), self.said()[1])
        self.tab.js("() => { navigator.clipboard.writeText = () => Promise.reject(); }")  # as of an address without TLS
        self.assertEqual(self.copied(QUESTIONS), "Copy this.")

    def test_shows_text_as_text(self):
        html = "<img src=x onerror=\"document.title='broken'\"><b>bold</b>"
        self.read("<img src=x onerror=alert(1)>.txt", html)
        self.ask(html)
        self.assertEqual(self.tab.text(QUESTIONS + " .text"), html)
        self.assertEqual(self.tab.text(QUESTIONS + " .read li"), "<img src=x onerror=alert(1)>.txt")
        self.assertEqual(self.tab.count("article img, article b, #list img, #list b"), 0)
        self.assertEqual(self.tab.js("() => document.title"), "loam")
        self.assertIn("<img src=x onerror=alert(1)>.txt", self.tab.texts("#saved-documents .name"))

    def test_keeps_a_long_question_short(self):
        self.ask("A long line.\n" * 300 + "End.")
        self.assertLess(self.tab.box(QUESTIONS + " .text")["height"], 450)
        self.assertTrue(self.tab.text(QUESTIONS + " .text").endswith("End."))
        self.assertEqual(self.tab.texts(NOW), ["A long line."])

    # ---- documents ----

    def test_reads_a_document_once(self):
        self.read("once.txt", DOCUMENT + "Once.\n")
        self.assertEqual(self.tab.text("#documents li span:first-child"), "once.txt")
        self.ask("Which colour has the gate?")
        self.assertEqual(self.tab.posted("documents")[-1]["name"], "once.txt")
        self.assertTrue(self.tab.posted("chat")[-1]["messages"][0]["content"].startswith(DOCUMENT + "Once.\n\nWhich"))
        self.assertRegex(self.tab.text(ANSWERS + " .figures"), r"^\d\d? read, 6\d\d known")
        self.assertEqual(self.tab.text(QUESTIONS + " .read li"), "once.txt")
        self.ask("And the door?")
        self.assertRegex(self.tab.texts(ANSWERS + " .figures")[1], r"^\d\d? read, 6\d\d known")

    def test_takes_dropped_files_and_shows_progress(self):
        self.tab.js("""(text) => { window.seen = []; new MutationObserver(() => window.seen.push($('progress-text').textContent))
            .observe($('progress-text'), {childList: true}); const data = new DataTransfer(); data.items.add(new File([text], 'dropped.txt'));
            for (const kind of ['dragenter', 'dragover', 'drop']) dispatchEvent(Object.assign(
            new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}))); }""", "Another text about a gate. " * 300)
        self.tab.until(lambda: "Read." in self.tab.text("#status"))
        self.assertEqual(self.tab.text("#documents li span:first-child"), "dropped.txt")
        self.assertTrue(any("tokens" in seen for seen in self.tab.js("() => window.seen")))
        self.button("Remove dropped.txt")
        self.assertEqual(self.tab.count("#documents li"), 0)

    def test_takes_a_dropped_folder(self):
        os.makedirs(os.path.join(self.folder, "notes", "old"))
        for name in ("10.txt", "9.txt", ".hidden.txt", "old/1.txt"):
            self.file("notes/" + name, f"This is {name}.")
        self.file("notes/picture.png", b"\x89PNG\r\n\xff\xfe\x00")
        self.tab.drop(os.path.join(self.folder, "notes"))
        self.tab.until(lambda: "Read." in self.tab.text("#status"))
        names = ["notes/9.txt", "notes/10.txt", "notes/old/1.txt", "notes/picture.png"]
        self.assertEqual(self.tab.texts("#documents li span:first-child"), names)
        self.assertEqual(self.tab.texts("#documents li.failed span:first-child"), names[3:])
        self.ask("Which?")
        said = self.tab.posted("chat")[-1]["messages"][0]["content"]
        self.assertEqual(said.split("\n\n"), ["This is 9.txt.", "This is 10.txt.", "This is old/1.txt.", "Which?"])
        self.tab.js("() => { refused = Array.from({length: 60}, (_, i) => ({name: 'notes/' + i, words: 'is empty'})); drawDocuments(); }")
        self.tab.resize(320, 568, 2)
        self.assertLessEqual(self.tab.box("#send")["bottom"], 568)
        self.assertGreater(self.tab.box("#log")["height"], 100)
        self.tab.resize(1100, 760)

    def test_reads_files_as_people_have_them(self):
        self.tab.choose("#files", self.file("wide.txt", "\ufeffThe gate is grün.".encode("utf-16-le")),
                        self.file("page.html", "<html><head><style>b{}</style></head><body><p>The mill &amp; the <b>gate</b>.</p></body></html>"))
        self.tab.until(lambda: self.tab.texts("#documents li span:first-child") == ["wide.txt", "page.html"])
        self.ask("Which?")
        said = self.tab.posted("chat")[-1]["messages"][0]["content"]
        self.assertEqual(self.tab.posted("chat")[-1]["temperature"], 0)
        self.begin(temperature="")
        self.attach("again.txt", "The gate is green.")
        self.ask("Which?")
        self.assertAlmostEqual(self.tab.posted("chat")[-1]["temperature"], 0.3, 6)
        self.assertEqual(said.split("\n\n"), ["The gate is grün.", "The mill & the gate.", "Which?"])

    @unittest.skipIf(shutil.which("pdftotext") is None, "skipped: pdftotext (poppler-utils) is not installed")
    def test_cites_the_page_of_a_pdf(self):
        self.read("book.pdf", pdf("The gate of the garden is green.", "The mill by the river has a red door."))
        self.assertEqual(self.tab.text("#documents li .figures"), "2 pages")
        self.ask("Which colour has the door?")
        self.tab.click(".ask-sources")
        self.tab.until(lambda: self.tab.count(".sources") == 1)
        self.assertEqual(sorted(self.tab.texts(".sources .where")), ["book.pdf, page 1", "book.pdf, page 2"])

    def test_refuses_what_is_no_text_at_its_name(self):
        self.attach("picture.png", b"\x89PNG\r\n\xff\xfe\x00")
        self.tab.until(lambda: self.tab.count("#documents li.failed") == 1)
        self.assertIn("picture.png", self.tab.text("#documents li"))
        self.assertRegex(self.tab.text("#documents li .figures"), "not? text")
        self.assertTrue(self.is_red("#documents li"))
        self.assertEqual(self.tab.js("() => talk.attached"), [])
        self.button("Dismiss picture.png")
        self.assertEqual(self.tab.count("#documents li"), 0)

    def test_says_what_is_too_long_in_words(self):
        self.attach("huge.txt", DOCUMENT * 8)
        self.tab.until(lambda: self.tab.text("#documents-error") != "")
        self.assertRegex(self.tab.text("#documents-error"), r"^Too long: 4,\d\d\d tokens, of which this server takes 4,096 at once")
        self.button("Remove huge.txt")
        self.assertEqual(self.tab.text("#documents-error"), "")

    def hold(self, to):
        """Posts to this route end at window.release(), or when they are given up."""
        self.tab.js("""(to) => { const ask = window.fetch; window.fetch = (path, what) => {
            if (!String(path).includes(to) || !what?.body) return ask(path, what);
            window.posted.push({to: String(path), body: JSON.parse(what.body)}); return new Promise((done, fail) => {
            window.release = () => done(new Response('data: [DONE]\\n\\n'));
            what.signal.addEventListener('abort', () => fail(new DOMException('given up', 'AbortError'))); }); };
            window.posted = []; }""", to)

    def drop_stubs(self):
        self.tab.reload()
        self.tab.until(lambda: self.tab.text("#model") == "loam-nano")

    def ask_while_it_reads(self):
        self.hold("documents")
        self.attach("garden.txt", DOCUMENT)
        self.tab.until(lambda: len(self.tab.posted("documents")) == 1)
        self.ask("Which colour?", waits=False)
        self.tab.until(lambda: self.tab.count("article") == 2)
        self.assertFalse(self.is_idle())
        self.assertEqual(self.tab.posted("chat"), [])

    def test_is_asked_while_it_reads(self):
        self.ask_while_it_reads()
        self.tab.js("() => window.release()")
        self.tab.until(lambda: self.tab.text("#status") == "Answered.")
        self.assertTrue(self.tab.posted("chat")[0]["messages"][0]["content"].endswith("\n\nWhich colour?"))
        self.assertNotEqual(self.answers()[0], "")
        self.assertFalse(self.tab.sees("#progress-line"))
        self.drop_stubs()

    def test_stops_while_it_reads(self):
        self.ask_while_it_reads()
        self.tab.click("#stop")
        self.tab.until(self.is_idle)
        self.assertIn("Stopped before", self.tab.text(ANSWERS + " > .error"))
        shown = self.tab.js("() => [...document.querySelectorAll('article.assistant footer button')].filter((b) => b.checkVisibility()).map((b) => b.textContent)")
        self.assertEqual(shown, ["Retry"])  # there is nothing to copy
        self.assertEqual(self.tab.posted("chat"), [])
        self.drop_stubs()

    def test_reads_what_is_attached_now(self):
        self.hold("documents")
        for at, name in enumerate(("first", "second")):
            self.attach(name + ".txt", name + " text")
            self.tab.until(lambda at=at: self.tab.count("#documents li") == at + 1)
        read = lambda: [body["text"] for body in self.tab.posted("documents")]  # noqa: E731
        self.assertEqual(read(), ["first text"])
        self.tab.js("() => window.release()")
        self.tab.until(lambda: len(read()) == 2)
        self.assertEqual(self.tab.posted("documents")[1]["name"], "first.txt, second.txt")
        self.assertEqual(read()[1], "first text\n\nsecond text")
        self.button("Remove first.txt")
        self.tab.until(lambda: len(read()) == 3)
        self.assertEqual(read()[2], "second text")
        self.assertTrue(self.tab.sees("#stop"))
        self.button("Remove second.txt")
        self.tab.until(lambda: not self.tab.sees("#stop"))
        self.assertEqual(len(read()), 3)
        self.drop_stubs()

    def test_is_asked_while_a_file_is_opened(self):
        self.tab.js("""() => { const ask = window.fetch; window.fetch = (to, what) => !String(to).includes('loam/text') ? ask(to, what) :
            new Promise((done) => { window.open = () => { window.fetch = ask; ask(to, what).then(done); }; }); }""")
        self.attach("slow.txt", "The gate is blue.")
        self.ask("Which colour?", waits=False)
        self.assertEqual(self.tab.count("article"), 0)
        self.assertIn("being opened", self.tab.text("#status"))
        self.tab.js("() => window.open()")
        self.tab.until(lambda: self.is_idle(1))
        self.assertEqual(self.said()[0], "Which colour?")
        self.assertEqual(self.tab.text(QUESTIONS + " .read li"), "slow.txt")

    def saved_row(self, name):
        return self.tab.js("""(name) => [...document.querySelectorAll('#saved-documents li')].filter((e) =>
            e.querySelector('.name').textContent === name).map((e) => e.textContent)[0] || ''""", name)

    def test_lists_saved_documents(self):
        self.read("listed.txt", DOCUMENT + "Listed.\n")
        self.tab.until(lambda: self.saved_row("listed.txt") != "")
        found = next(d for d in self.server_json("/v1/loam/documents")["data"] if d["name"] == "listed.txt")
        self.assertRegex(self.saved_row("listed.txt"), rf"{found['token_count']:,} tokens · \d+\.\d MB · just now")
        self.begin()
        self.button("Ask about this document: listed.txt")
        self.tab.until(lambda: self.tab.texts("#documents li span:first-child") == ["listed.txt"])
        self.ask("Which colour?")
        self.assertRegex(self.tab.text(ANSWERS + " .figures"), r"^\d\d? read, 6\d\d known")
        self.assertEqual(self.tab.posted("chat")[-1]["messages"][0]["content"], DOCUMENT + "Listed.\n\nWhich colour?")
        delete = "Delete from the server: listed.txt"
        self.tab.focus(f"[aria-label='{delete}']")
        self.tab.js("() => saved.refresh()")
        self.assertEqual(self.tab.focused(), delete)
        self.button(delete)
        self.tab.until(lambda: self.saved_row("listed.txt") == "")
        self.assertNotIn("listed.txt", [d["name"] for d in self.server_json("/v1/loam/documents")["data"]])

    def test_a_document_that_is_not_deleted_says_why(self):
        self.read("kept.txt", DOCUMENT + "Kept.\n")
        self.tab.until(lambda: self.saved_row("kept.txt") != "")
        self.tab.js("""() => { const ask = window.fetch; window.fetch = (to, what) => what?.method !== 'DELETE' ? ask(to, what) :
            Promise.resolve(new Response('{"error": {"message": "document 7 is in use"}}', {status: 409})); }""")
        self.button("Delete from the server: kept.txt")
        self.tab.until(lambda: "document 7 is in use" in self.saved_row("kept.txt"))
        self.drop_stubs()

    # ---- the map ----

    def follow_maps(self):
        """For the rest of the test: what tokens do is noted for 3 s behind each map that is read."""
        ends = threading.Event()

        def read():
            while not ends.wait(0.5):
                self.server_json("/v1/loam/map")
        thread = threading.Thread(target=read)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(ends.set)

    def settled_map(self):
        """The server's map, once the page tells of it."""
        found = self.server_json("/v1/loam/map")
        self.tab.js("() => map.soon()")
        self.tab.until(lambda: f"{found['tokens']:,} tokens" in self.tab.text("#map-state")
                       and f"{found['chunks']['attended']:,} and fetched" in self.tab.text("#map-summary"))
        return found

    def test_draws_the_state_of_the_server(self):
        self.read()
        self.open_map()
        self.follow_maps()
        self.ask("Which colour has the gate?")
        found = self.settled_map()
        self.assertEqual(found["state"], "idle")
        self.assertGreater(found["columns"], 5)
        self.assertIn(f"{found['tokens']:,} tokens", self.tab.text("#map-state"))
        self.assertIn(f"{found['chunks']['ram']:,} of {found['chunks']['all']:,} chunks", self.tab.text("#map-ram"))
        drawn = self.tab.js("""(layers, heads, columns) => { const canvas = $('map-canvas'), context = canvas.getContext('2d');
            const layer = canvas.height / layers, head = Math.floor((layer - 1) / heads), found = [];
            for (let l = 0; l < layers; l++) for (let h = 0; h < heads; h++) for (let c = 0; c < columns; c++)
            found.push([...context.getImageData((c + 0.5) * canvas.width / columns, l * layer + (h + 0.5) * head, 1, 1).data].join());
            return found; }""", found["layers"], found["kv_heads"], found["columns"])
        colours = {}
        for cell, colour in zip(found["cells"], drawn, strict=True):
            self.assertEqual(colours.setdefault(cell, colour), colour)
        self.assertGreater(len(set(colours.values())), 2)  # attended to in part, all, not at all
        self.assertEqual(len(set(colours.values())), len({BITS.index(c) & 31 for c in colours}))  # bit 5: in RAM as well
        self.assertFalse(self.tab.sees("#map-full"))

    def test_tells_of_a_card(self):
        """By the fields that the map of a server on a card has (test_device.py), here beside those of this server."""
        self.read()
        self.open_map()
        self.assertFalse(self.tab.sees("#map-card"))
        self.tab.js("""() => { window.plain = window.fetch; window.onCard = { kv_device_bytes: 3 << 20, kv_unit_bytes: 0 };
            for (const unit of ['unit', 'unit_chunk'])
              Object.assign(onCard, { [`kv_${unit}_hits`]: 30, [`kv_${unit}_misses`]: 8, [`kv_${unit}_direct`]: 2 });
            window.fetch = async (to, what) => { const reply = await plain(to, what);
              if (!String(to).includes('loam/map')) return reply;
              return new Response(JSON.stringify({ ...await reply.json(), ...onCard })); };
            map.soon(); }""")
        try:
            self.tab.until(lambda: self.tab.text("#map-card") == "3.1 MB of KV and key index")
            self.assertTrue(self.tab.sees("#map-card-name"))
            self.tab.js("() => { onCard.kv_unit_bytes = 1 << 20; map.soon(); }")
            self.tab.until(lambda: self.tab.text("#map-card") == "3.1 MB of KV and key index, 1.0 MB of slots, "
                           "which had 75.0% of what was attended to")
        finally:
            self.tab.js("() => { window.fetch = plain; map.soon(); }")
        self.tab.until(lambda: not self.tab.sees("#map-card"))

    def test_describes_chunks_by_keyboard(self):
        self.read()
        self.open_map()
        self.follow_maps()
        self.ask("Who painted it?")
        found = self.settled_map()
        self.tab.focus("#map-canvas")
        self.tab.press("ArrowRight", "ArrowRight", *["ArrowDown"] * (found["kv_heads"] + 1))
        bits = BITS.index(found["cells"][(found["kv_heads"] + 1) * found["columns"] + 1])
        told = self.tab.text("#map-cell")
        self.assertIn("Layer 1, KV head 1, tokens 64 to 127:", told)
        self.assertEqual("in RAM" in told, bits & 3 == 3)
        self.assertEqual("all attended to" in told, bits >> 2 & 3 == 3)
        self.tab.focus("#question")
        self.assertEqual(self.tab.text("#map-cell"), "")

    def test_follows_an_answer_and_rests_where_motion_is_reduced(self):
        self.ask("Tell a story.")
        self.tab.js("() => { talk.length = '40'; }")
        self.open_map()
        self.tab.js("""() => { window.asked = 0; const ask = window.fetch; window.fetch = (to, what) => {
            if (String(to).includes('loam/map')) window.asked++; return ask(to, what); }; }""")
        self.tab.motion(reduced=False)
        self.slowly()
        try:
            self.ask("Tell another story.")
            self.assertGreater(self.tab.js("() => window.asked"), 1)
        finally:
            self.tab.motion(reduced=True)
        self.tab.until(lambda: self.tab.sees("#map-refresh"))
        def asked():
            return self.tab.js("() => window.asked")

        def rests():
            before = asked()
            time.sleep(2.5)  # it asks every 2 s else
            return asked() == before
        self.tab.until(rests)
        before = asked()
        self.tab.click("#map-refresh")
        self.tab.until(lambda: asked() > before)
        self.assertEqual(asked(), before + 1)
        self.drop_stubs()

    def test_shows_the_map_at_320_px(self):
        self.ask("A word.")
        self.tab.resize(320, 640, 2)
        try:
            self.open_map()
            self.assertLessEqual(self.tab.js("() => document.documentElement.scrollWidth"), 320)
            self.assertTrue(self.tab.sees("#send"))
            self.assertGreater(min(self.tab.box(part)["height"] for part in ("#map", "#log")), 100)
            self.tab.click("#map-open")
            self.assertFalse(self.tab.sees("#map"))
        finally:
            self.tab.resize(1100, 760)

    # ---- the sources of an answer ----

    ACCENTS = "L’été où l’hôte goûta un mûr kaki \U0001f95d était long. Nobody slept.\n" * 4 + DOCUMENT

    def show_sources(self):
        self.read("garden.txt", self.ACCENTS)
        self.ask("Which colour has the gate?")
        self.assertEqual(self.tab.attribute(".ask-sources", "aria-expanded"), "false")
        self.tab.js("() => { talk.system = 'Answer in French.'; }")  # the next one
        self.tab.focus(".ask-sources")
        self.tab.press("Enter")
        self.tab.until(lambda: self.tab.count(".sources") == 1)

    def test_shows_the_sources_of_an_answer(self):
        self.show_sources()
        self.assertEqual(self.tab.attribute(".ask-sources", "aria-expanded"), "true")
        body = {**self.tab.posted("explain")[-1], "stream": False}
        self.assertEqual(body["sources"], [{"name": "garden.txt", "text": self.ACCENTS}])
        self.assertEqual([message["role"] for message in body["messages"]], ["user", "assistant"])
        spans = self.server.post("/v1/loam/explain", body).json["spans"]
        self.assertEqual(len(spans), 5)
        self.assertEqual(self.tab.texts(".sources q"), [span["text"] for span in spans])
        self.assertEqual(self.tab.texts(".sources .where"), [f"garden.txt, line {span['line']}" for span in spans])
        for span, told in zip(spans, self.tab.texts(".sources .share"), strict=True):
            self.assertTrue(told.startswith(f"{100 * span['share']:.1f}%"), told)
        self.assertIn("5 sources", self.tab.text("#status"))
        asked = len(self.tab.posted("explain"))
        self.tab.click(".ask-sources")
        self.assertEqual((self.tab.count(".sources"), self.tab.text("#status")), (0, ""))
        self.tab.click(".ask-sources")
        self.assertEqual(self.tab.count(".sources"), 1)
        self.assertEqual(len(self.tab.posted("explain")), asked)  # they are kept

    def test_shows_a_source_in_its_place(self):
        self.show_sources()
        quotes = self.tab.texts(".sources q")
        self.tab.focus(".sources li button")
        self.tab.press("Enter")
        for at, quote in enumerate(quotes):
            self.assertEqual(self.tab.text("#source-text mark.now"), quote)
            self.assertIn("garden.txt, line ", self.tab.text("#source-title"))
            self.assertIn(f"{at + 1} of 5", self.tab.text("#source-share"))
            seen, box = self.tab.box("#source-text mark.now"), self.tab.box("#source-text")
            self.assertTrue(box["y"] <= seen["y"] and seen["bottom"] <= box["bottom"])
            self.tab.press("ArrowRight")
        self.assertEqual(self.tab.text("#source-text"), self.ACCENTS)
        self.tab.resize(320, 640, 2)
        box = self.tab.box("#source")
        self.assertTrue(box["x"] >= 0 and box["right"] <= 320, box)
        self.assertEqual(self.tab.nameless(), [])
        self.tab.press("Escape")
        self.tab.resize(1100, 760)
        self.assertFalse(self.tab.sees("#source"))

    def test_stops_looking_for_sources(self):
        self.ask("A word.")
        self.hold("explain")
        self.tab.click(".ask-sources")
        self.tab.until(lambda: self.tab.sees("#stop"))
        self.assertTrue(self.tab.js("() => document.querySelector('.assistant .waits').disabled"))
        self.tab.press("Escape")
        self.tab.until(self.is_idle)
        self.assertEqual(self.tab.count(".sources"), 0)
        self.assertFalse(self.tab.js("() => document.querySelector('.assistant .waits').disabled"))
        self.drop_stubs()

    def test_says_at_the_answer_why_there_are_no_sources(self):
        self.ask("A word.")
        self.tab.js("""() => { const ask = window.fetch; window.fetch = (to, what) => !String(to).includes('explain') ? ask(to, what) :
            Promise.resolve(new Response('{"error": {"message": "no memory"}}', {status: 503})); }""")
        self.tab.click(".ask-sources")
        self.tab.until(lambda: self.tab.text(ANSWERS + " > .error") == "No sources: no memory")
        self.drop_stubs()


class WholeAndLocked(Driven):
    """Over a server with a key that saves nothing and attends to everything."""

    options = ("--api-key", KEY)

    def setUp(self):
        if self.tab.js("() => sessionStorage.getItem('loam-key')") is None:
            self.ask_for_key()
        super().setUp()

    def ask_for_key(self):
        """As a person meets it: the field, a wrong key, the right one."""
        self.tab.until(lambda: self.tab.sees("#key"))
        self.assertIn("asks for a key", self.tab.text("#key-bar label"))
        self.assertEqual(self.tab.focused(), "key")
        self.tab.write("not-the-key")
        self.tab.press("Enter")
        self.tab.until(lambda: "does not take this key" in self.tab.text("#key-error"))
        self.tab.js("() => $('key').select()")
        self.tab.write(KEY)
        self.tab.press("Enter")
        self.tab.until(lambda: self.tab.text("#model") == "loam-nano")
        self.assertFalse(self.tab.sees("#key-bar"))

    def test_the_key_outlives_a_reload(self):
        self.ask("With a key.")
        self.tab.reload()
        self.tab.until(lambda: self.tab.text("#model") == "loam-nano")
        self.assertFalse(self.tab.sees("#key-bar"))
        self.tab.click("#settings-open")
        self.tab.click("#settings-key")
        self.assertEqual(self.tab.focused(), "key")
        self.tab.js("() => useKey($('key').value)")

    def test_says_that_nothing_is_saved(self):
        self.assertIn("--kv-disk", self.tab.text("#saved-note"))
        self.tab.click("#settings-open")
        self.assertFalse(self.tab.sees("#remote"))
        self.tab.press("Escape")
        self.read("garden.txt")
        self.assertEqual(self.tab.posted("chat")[-1]["max_tokens"], 0)

    def test_the_map_says_why_it_is_of_one_colour(self):
        self.ask("A word.")
        self.open_map()
        self.tab.until(lambda: self.tab.sees("#map-full"))
        self.assertIn("attends to everything", self.tab.text("#map-full"))

    def test_what_goes_on_is_what_would_have_come(self):
        self.begin(length="300")
        self.ask("Tell a long story.")
        whole = self.said()[1]
        self.tab.slowly()
        self.button("Retry")
        self.tab.until(lambda: len(self.said()[1]) > 40)
        self.tab.slowly(False)
        self.tab.reload()
        self.tab.until(lambda: self.tab.text("#status") == "Answered.")
        self.assertEqual(len(self.tab.posted("chat")[0]["messages"]), 2)
        length = min(len(self.said()[1]), len(whole))  # tokens without text of their own are not counted again
        self.assertGreater(length, len(whole) - 40)
        self.assertEqual(self.said()[1][:length], whole[:length])
        self.assertRegex(self.tab.text(ANSWERS + " .figures"), r" 30\d tokens")


if __name__ == "__main__":
    if shutil.which("chromium") is None:
        print("skipped: chromium is not installed")
        sys.exit(77)
    browser = Browser()
    try:
        main()
    finally:
        browser.stop()
