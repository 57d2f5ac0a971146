#!/usr/bin/env python3
"""test_page.py LOAM MODEL [TEMPLATE] [SCREENSHOTS]: the page of `loam serve` in headless Chromium.

Needs Debian's chromium, chromium-driver and python3-selenium, and exits with 77 where one is absent.  SCREENSHOTS: a
folder to leave pictures in.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

SYSTEM_PYTHON = "/usr/bin/python3"
try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    if sys.executable != SYSTEM_PYTHON and os.path.exists(SYSTEM_PYTHON):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])  # Debian's package serves Debian's Python
    print("skipped: python3-selenium is not installed")
    sys.exit(77)

LOAM, MODEL = sys.argv[1], sys.argv[2]
TEMPLATE = sys.argv[3] if len(sys.argv) > 3 else ""
SCREENSHOTS = sys.argv[4] if len(sys.argv) > 4 else ""
BITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"  # of a cell of the map
SECONDS_MAX = 120  # of one answer, beside busy programs
DOCUMENT = "The gate of the garden is painted green. Nobody knows who painted it.\n" * 60


class Server:
    """`loam serve` on a free port of the loopback interface."""

    def __init__(self, *arguments):
        self.folder = tempfile.mkdtemp(prefix="loam-page-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        command = [LOAM, "serve", "-m", MODEL, "--host", "127.0.0.1", "--port", str(self.port), "-c", "4096", "-np", "2",
                   "--kv-host", "256M", "--kv-disk", os.path.join(self.folder, "kv"), "-t", "2", *arguments]
        command += ["--chat-template", TEMPLATE] if TEMPLATE else []
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        for _ in range(600):
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"loam serve ended with {self.process.returncode}: {self.log.read()}")
            try:
                urllib.request.urlopen(self.address + "health", timeout=5).read()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit("loam serve did not begin")

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()
        shutil.rmtree(self.folder)
        return self.process.returncode


def make_browser(width=1100, height=800):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.browser = make_browser()
        cls.folder = tempfile.mkdtemp(prefix="loam-page-")

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        shutil.rmtree(cls.folder)
        assert cls.server.stop() == 0

    def setUp(self):
        """An empty conversation of short greedy answers."""
        self.browser.get(self.server.address)
        self.until(lambda: "connecting" not in self.text("#model"))
        if self.one("#map").is_displayed():
            self.one("#map-open").click()
        self.one("#new").click()
        self.set_settings(system="", temperature="0", length="12")

    # ---- what a person does and sees ----

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        found = self.all(selector)
        self.assertEqual(len(found), 1, selector)
        return found[0]

    def text(self, selector):
        return self.one(selector).get_attribute("textContent")

    def until(self, holds, seconds=SECONDS_MAX):
        end = time.monotonic() + seconds
        while not holds():
            self.assertLess(time.monotonic(), end, "waited too long")
            time.sleep(0.05)

    def set_settings(self, **values):
        self.one("#settings-open").click()
        for name, value in values.items():
            field = self.one("#" + name)
            field.clear()
            field.send_keys(value)
        self.one("#settings .end button").click()
        self.until(lambda: not self.one("#settings").is_displayed())

    def idle(self):
        return self.one("#send").is_displayed()

    def ask(self, question, waits=True):
        self.one("#question").send_keys(question, Keys.ENTER)
        if waits:
            self.until(self.idle)

    def answers(self):
        return [a.text for a in self.all("article.assistant .text")]

    def file(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as out:
            out.write(content if isinstance(content, bytes) else content.encode())
        return path

    def picture(self, name):
        if SCREENSHOTS:
            self.browser.save_screenshot(os.path.join(SCREENSHOTS, name + ".png"))

    def requests(self):
        """What the page posts from now on."""
        self.browser.execute_script(
            "window.posted = []; const ask = window.fetch; window.fetch = (to, what) => {"
            " if (what && what.body) window.posted.push(JSON.parse(what.body)); return ask(to, what); };")
        return lambda: self.browser.execute_script("return window.posted")

    # ---- cases ----

    def test_01_opens_under_a_policy(self):
        response = urllib.request.urlopen(self.server.address)
        policy = response.headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(response.headers["Content-Encoding"], "gzip")
        self.assertLess(len(response.read()), 64 << 10)
        self.assertNotEqual(self.text("#model").strip(), "")
        self.assertNotIn("error", self.one("#model").get_attribute("class"))
        severe = [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        self.assertEqual(severe, [])
        self.picture("light")

    def test_02_answers_with_figures(self):
        self.ask("Say a word.")
        self.assertEqual(len(self.answers()), 1)
        self.assertNotEqual(self.answers()[0], "")
        self.assertRegex(self.text("article.assistant .figures"), r"read.* · \d+ tokens")

    def test_03_stops_and_goes_on(self):
        self.set_settings(length="3000")
        self.ask("Count to a thousand.", waits=False)
        self.until(lambda: self.answers() != [] and len(self.answers()[0]) > 20)
        self.one("#stop").click()
        self.until(self.idle, seconds=10)
        kept = self.answers()[0]
        time.sleep(0.5)
        self.assertEqual(self.answers()[0], kept)
        self.set_settings(length="4")
        self.ask("And now?")
        self.assertEqual(len(self.answers()), 2)

    def test_04_retries(self):
        self.ask("Say a word.")
        first = self.answers()
        self.all("article.assistant footer button")[1].click()
        self.until(self.idle)
        self.assertEqual(self.answers(), first)  # greedy: the same again
        self.assertEqual(len(self.all("article.user")), 1)

    def test_05_edits_and_drops_what_followed(self):
        self.ask("First.")
        self.ask("Second.")
        self.assertEqual(len(self.all("article")), 4)
        self.all("article.user")[0].find_element(By.TAG_NAME, "button").click()
        field = self.one("article.user textarea")
        field.clear()
        field.send_keys("Another first.", Keys.ENTER)
        self.until(self.idle)
        self.assertEqual(len(self.all("article")), 2)
        self.assertEqual(self.text("article.user .text"), "Another first.")

    def test_06_reads_a_document_once(self):
        posted = self.requests()
        self.one("#files").send_keys(self.file("garden.txt", DOCUMENT))
        self.until(lambda: "Read." in self.text("#status"))
        self.assertEqual(self.text("#documents li span:first-child"), "garden.txt")
        self.ask("Which colour has the gate?")
        self.assertEqual(posted()[0]["max_tokens"], 0)
        self.assertTrue(posted()[1]["messages"][0]["content"].startswith(DOCUMENT.strip()[:100]))
        known = self.text("article.assistant .figures").split(" known")[0].split(", ")[1]
        self.assertGreater(int(known.replace(",", "")), 600)
        self.assertEqual(self.text("article.user .read li"), "garden.txt")
        self.picture("document")

    def test_07_takes_dropped_files_and_shows_progress(self):
        self.browser.execute_script(
            "window.seen = []; new MutationObserver(() => window.seen.push(document.getElementById('progress-text')"
            ".textContent)).observe(document.getElementById('progress-text'), {childList: true});"
            "const data = new DataTransfer(); data.items.add(new File([arguments[0]], 'dropped.txt'));"
            "for (const kind of ['dragenter', 'dragover', 'drop']) dispatchEvent(Object.assign("
            "new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true})));",
            "Another text about a gate. " * 500)
        self.until(lambda: "Read." in self.text("#status"))
        self.assertEqual(self.text("#documents li span:first-child"), "dropped.txt")
        self.assertTrue(any("tokens" in seen for seen in self.browser.execute_script("return window.seen")))
        self.one("#documents button").click()
        self.assertEqual(self.all("#documents li"), [])

    def test_08_refuses_what_is_no_text(self):
        self.one("#files").send_keys(self.file("picture.png", b"\x89PNG\r\n\xff\xfe\x00"))
        self.until(lambda: "picture.png" in self.text("#status"))
        self.assertEqual(self.all("#documents li"), [])

    def test_09_sends_settings(self):
        self.set_settings(system="Answer in French.", temperature="0.5", length="3")
        posted = self.requests()
        self.ask("Hello.")
        body = posted()[0]
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Answer in French."})
        self.assertEqual((body["temperature"], body["max_tokens"]), (0.5, 3))
        self.assertIn("cut at the limit", self.text("article.assistant .figures"))

    def test_10_keeps_the_conversation(self):
        self.ask("Keep this.")
        before = self.answers()
        self.until(lambda: self.idle())
        time.sleep(0.3)
        self.browser.refresh()
        self.until(lambda: len(self.all("article")) == 2)
        self.assertEqual(self.answers(), before)
        self.one("#new").click()
        self.assertEqual(self.all("article"), [])

    def test_11_shows_text_as_text(self):
        html = "<img src=x onerror=\"document.title='broken'\"><b>bold</b>"
        self.one("#files").send_keys(self.file("<img src=x onerror=alert(1)>.txt", html))
        self.until(lambda: "Read." in self.text("#status"))
        self.ask(html)
        self.assertEqual(self.text("article.user .text"), html)
        self.assertEqual(self.text("article.user .read li"), "<img src=x onerror=alert(1)>.txt")
        self.assertEqual(self.all("article img, article b"), [])
        self.assertEqual(self.browser.title, "loam")

    def test_12_works_by_keyboard_in_any_light_at_320_px(self):
        self.ask("By keyboard.")
        self.one("#question").send_keys(Keys.ARROW_UP)
        field = self.browser.switch_to.active_element
        self.assertEqual(field.get_attribute("value"), "By keyboard.")
        field.send_keys(Keys.ESCAPE)
        theme = "return document.documentElement.dataset.theme"
        before = self.browser.execute_script(theme)
        self.one("#theme").click()
        self.assertNotEqual(self.browser.execute_script(theme), before)
        self.picture("dark")
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": 320, "height": 640, "deviceScaleFactor": 2, "mobile": True})
        try:
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 320)
            self.assertTrue(self.one("#send").is_displayed())
            self.picture("narrow")
        finally:
            self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            self.one("#theme").click()
        nameless = [e.get_attribute("outerHTML") for e in self.all("button, input:not([hidden]), textarea, progress")
                    if not (e.accessible_name or not e.is_displayed())]
        self.assertEqual(nameless, [])

    def test_13_tells_of_a_key(self):
        server = Server("--api-key", "a-secret-key")
        try:
            self.browser.get(server.address)
            self.until(lambda: "API key" in self.text("#model"))
            self.set_settings(key="a-secret-key", length="3")
            self.until(lambda: "API key" not in self.text("#model"))
            self.ask("Hello.")
            self.assertEqual(self.all("article .error"), [])
        finally:
            self.browser.execute_script("sessionStorage.clear()")
            self.assertEqual(server.stop(), 0)

    def copied(self, button):
        button.click()
        self.until(lambda: button.text == "Copied")
        return self.browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")

    def test_14_copies(self):
        self.browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
        self.ask("Copy this.")
        self.assertEqual(self.copied(self.all("article.user footer button")[1]), "Copy this.")
        kept = self.copied(self.all("article.assistant footer button")[0])
        self.assertNotEqual(kept, "")
        self.assertEqual(kept.split(), self.answers()[0].split())
        self.browser.execute_script("navigator.clipboard.writeText = () => Promise.reject()")  # as of an address without TLS
        self.until(lambda: self.all("article.user footer button")[1].text == "Copy")
        self.assertEqual(self.copied(self.all("article.user footer button")[1]), "Copy this.")

    def test_15_keeps_a_long_question_short(self):
        self.browser.execute_script("arguments[0].value = 'A long line.\\n'.repeat(300)", self.one("#question"))
        self.ask("End.")
        text = self.one("article.user .text")
        self.assertLess(text.size["height"], 450)
        self.assertTrue(text.get_attribute("textContent").endswith("End."))
        self.browser.execute_script("arguments[0].focus()", text)
        self.assertEqual(self.browser.switch_to.active_element, text)  # it scrolls by keyboard

    # ---- the map ----

    def read_document(self):
        self.one("#files").send_keys(self.file("garden.txt", DOCUMENT))
        self.until(lambda: "Read." in self.text("#status"))

    def open_map(self):
        if self.one("#map-open").get_attribute("aria-expanded") != "true":
            self.one("#map-open").click()
        self.until(lambda: self.one("#map-shown").is_displayed())

    def settled_map(self, server):
        """The server's map, once the page tells of it."""
        found = json.loads(urllib.request.urlopen(server.address + "v1/loam/map").read())
        self.until(lambda: f"{found['chunks']['attended']:,} and fetched" in self.text("#map-summary"))
        return found

    def test_16_draws_the_state_of_the_server(self):
        server = Server("--preset", "streaming", "--keep", "256")
        try:
            self.browser.get(server.address)
            self.set_settings(temperature="0", length="8")
            self.read_document()
            self.open_map()
            self.ask("Which colour has the gate?")
            self.compare_map(self.settled_map(server))
        finally:
            self.assertEqual(server.stop(), 0)

    def compare_map(self, found):
        self.assertEqual(found["state"], "idle")
        self.assertGreater(found["columns"], 5)
        self.assertIn(f"{found['tokens']:,} tokens", self.text("#map-state"))
        self.assertIn(f"{found['chunks']['ram']:,} of {found['chunks']['all']:,} chunks", self.text("#map-ram"))
        drawn = self.browser.execute_script(
            "const canvas = document.getElementById('map-canvas'), [layers, heads, columns] = arguments;"
            "const context = canvas.getContext('2d'), layer = canvas.height / layers, head = Math.floor((layer - 1) / heads);"
            "const found = []; for (let l = 0; l < layers; l++) for (let h = 0; h < heads; h++) for (let c = 0; c < columns; c++)"
            " found.push([...context.getImageData((c + 0.5) * canvas.width / columns, l * layer + (h + 0.5) * head, 1, 1).data]"
            ".join()); return found;", found["layers"], found["kv_heads"], found["columns"])
        colours = {}
        for cell, colour in zip(found["cells"], drawn, strict=True):
            self.assertEqual(colours.setdefault(cell, colour), colour)
        self.assertGreater(len(set(colours.values())), 2)  # attended to in part, all, not at all
        self.assertEqual(len(set(colours.values())), len({BITS.index(c) & 31 for c in colours}))  # bit 5: in RAM as well
        self.picture("map_light")

    def test_17_describes_chunks_by_keyboard(self):
        self.read_document()
        self.open_map()
        self.ask("Who painted it?")
        found = self.settled_map(self.server)
        canvas = self.one("#map-canvas")
        self.assertNotEqual(canvas.accessible_name, "")
        canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, *[Keys.ARROW_DOWN] * (found["kv_heads"] + 1))
        bits = BITS.index(found["cells"][(found["kv_heads"] + 1) * found["columns"] + 1])
        told = self.text("#map-cell")
        self.assertIn("Layer 1, KV head 1, tokens 64 to 127:", told)
        self.assertEqual("in RAM" in told, bits & 3 == 3)
        self.assertEqual("all attended to" in told, bits >> 2 & 3 == 3)
        self.one("#question").click()
        self.assertEqual(self.text("#map-cell"), "")

    def test_18_follows_an_answer_and_rests_where_motion_is_reduced(self):
        count = ("window.asked = 0; const ask = window.fetch; window.fetch = (to, what) => {"
                 " if (String(to).includes('loam/map')) window.asked++; return ask(to, what); };")
        self.set_settings(length="60")
        self.ask("Tell a story.")
        self.open_map()
        self.browser.execute_script(count)
        self.ask("Tell another story.")
        self.assertGreater(self.browser.execute_script("return window.asked"), 1)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                     {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]})
        try:
            self.until(lambda: self.one("#map-refresh").is_displayed())
            time.sleep(0.5)
            before = self.browser.execute_script("return window.asked")
            time.sleep(3)  # it asks every 2 s else
            self.assertEqual(self.browser.execute_script("return window.asked"), before)
            self.one("#map-refresh").click()
            self.assertEqual(self.browser.execute_script("return window.asked"), before + 1)
        finally:
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_19_shows_the_map_at_320_px(self):
        self.ask("A word.")
        self.open_map()
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": 320, "height": 640, "deviceScaleFactor": 2, "mobile": True})
        try:
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 320)
            self.assertTrue(self.one("#send").is_displayed())
            heights = [self.one(part).size["height"] for part in ("#map", "#log")]
            self.assertGreater(min(heights), 100, heights)
            self.picture("map_narrow")
        finally:
            self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.one("#map-open").click()
        self.assertFalse(self.one("#map").is_displayed())

    # ---- documents that are still being read ----

    def hold_reading(self):
        """Requests that only read end at window.release(), or when they are given up.  What the page posts from now on."""
        self.browser.execute_script(
            "window.posted = []; const ask = window.fetch; window.fetch = (to, what) => {"
            " if (!what || !what.body) return ask(to, what); const body = JSON.parse(what.body); window.posted.push(body);"
            " return body.max_tokens !== 0 ? ask(to, what) : new Promise((done, fail) => {"
            " window.release = () => done(new Response('data: [DONE]\\n\\n'));"
            " what.signal.addEventListener('abort', () => fail(new DOMException('given up', 'AbortError'))); }); };")
        return lambda: [body["messages"][-1]["content"] for body in self.browser.execute_script("return window.posted")]

    def ask_while_it_reads(self):
        posted = self.hold_reading()
        self.one("#files").send_keys(self.file("garden.txt", DOCUMENT))
        self.until(lambda: len(posted()) == 1)
        self.ask("Which colour?", waits=False)
        self.until(lambda: len(self.all("article")) == 2)
        self.assertFalse(self.idle())
        self.assertEqual(len(posted()), 1)
        return posted

    def test_20_is_asked_while_it_reads(self):
        posted = self.ask_while_it_reads()
        self.browser.execute_script("window.release()")
        self.until(lambda: self.text("#status") == "Answered.")
        self.assertEqual(len(posted()), 2)
        self.assertTrue(posted()[1].endswith("\n\nWhich colour?"))
        self.assertNotEqual(self.answers()[0], "")
        self.assertFalse(self.one("#progress-line").is_displayed())

    def test_21_stops_while_it_reads(self):
        posted = self.ask_while_it_reads()
        self.one("#stop").click()
        self.until(self.idle)
        self.assertIn("stopped before", self.answers()[0])
        shown = [button.text for button in self.all("article.assistant footer button") if button.is_displayed()]
        self.assertEqual(shown, ["Retry"])  # there is nothing to copy
        self.assertEqual(len(posted()), 1)

    def test_22_reads_what_is_attached_now(self):
        posted = self.hold_reading()
        for name in ("first", "second"):
            self.one("#files").send_keys(self.file(name + ".txt", name + " text"))
            self.until(lambda: self.all("#documents li") and name in self.all("#documents li")[-1].text)
        self.assertEqual(posted(), ["first text"])
        self.browser.execute_script("window.release()")
        self.until(lambda: len(posted()) == 2)
        self.assertEqual(posted()[1], "first text\n\nsecond text")
        self.all("#documents button")[0].click()
        self.until(lambda: len(posted()) == 3)
        self.assertEqual(posted()[2], "second text")
        self.assertTrue(self.one("#stop").is_displayed())
        self.one("#documents button").click()
        self.until(lambda: not self.one("#stop").is_displayed())
        self.assertEqual(len(posted()), 3)

    # ---- the sources of an answer ----

    ACCENTS = "L’été où l’hôte goûta un mûr kaki \U0001f95d était long. Nobody slept.\n" * 4 + DOCUMENT

    def ask_about_a_document(self):
        self.one("#files").send_keys(self.file("garden.txt", self.ACCENTS))
        self.until(lambda: "Read." in self.text("#status"))
        self.ask("Which colour has the gate?")

    def show_sources(self):
        self.one(".ask-sources").send_keys(Keys.ENTER)
        self.until(lambda: self.all(".sources") != [])

    def test_23_shows_the_sources_of_an_answer(self):
        posted = self.requests()
        self.ask_about_a_document()
        self.assertEqual(self.one(".ask-sources").get_attribute("aria-expanded"), "false")
        self.set_settings(system="Answer in French.")  # the next one
        self.show_sources()
        self.assertEqual(self.one(".ask-sources").get_attribute("aria-expanded"), "true")
        body = {**posted()[-1], "stream": False}
        self.assertEqual(body["sources"], [{"name": "garden.txt", "text": self.ACCENTS}])
        self.assertEqual([message["role"] for message in body["messages"]], ["user", "assistant"])
        request = urllib.request.Request(self.server.address + "v1/loam/explain", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        spans = json.loads(urllib.request.urlopen(request).read())["spans"]
        self.assertEqual(len(spans), 5)
        self.assertEqual([e.text for e in self.all(".sources q")], [" ".join(span["text"].split()) for span in spans])
        for span, told in zip(spans, [e.text for e in self.all(".sources .share")], strict=True):
            self.assertTrue(told.startswith(f"{100 * span['share']:.1f}%"), told)
        self.assertIn("5 sources", self.text("#status"))
        self.picture("sources")
        count = len(posted())
        self.one(".ask-sources").click()
        self.assertEqual(self.all(".sources"), [])
        self.show_sources()
        self.assertEqual(len(posted()), count)  # it is kept

    def test_24_shows_a_source_in_its_place(self):
        self.ask_about_a_document()
        self.show_sources()
        buttons = self.all(".sources li button")
        quotes = [button.find_element(By.TAG_NAME, "q").get_attribute("textContent") for button in buttons]
        self.assertIn(quotes[0], buttons[0].accessible_name)
        buttons[0].send_keys(Keys.ENTER)
        for at, quote in enumerate(quotes):
            self.assertEqual(self.text("#source-text mark.now"), quote)
            self.assertIn("garden.txt, line ", self.text("#source-title"))
            self.assertIn(f"{at + 1} of 5", self.text("#source-share"))
            seen, box = self.one("#source-text mark.now").rect, self.one("#source-text").rect
            self.assertTrue(box["y"] <= seen["y"] and seen["y"] + seen["height"] <= box["y"] + box["height"])
            self.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        self.assertEqual(self.text("#source-text"), self.ACCENTS)
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": 320, "height": 640, "deviceScaleFactor": 2, "mobile": True})
        try:
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 320)
            box = self.one("#source").rect
            self.assertTrue(box["x"] >= 0 and box["x"] + box["width"] <= 320, box)
            self.picture("source_narrow")
        finally:
            self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        for part in self.all("#source button, #source [tabindex]"):
            self.assertNotEqual(part.accessible_name, "")
        self.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
        self.until(lambda: not self.one("#source").is_displayed())
        self.assertEqual(self.browser.switch_to.active_element, buttons[0])

    def test_25_stops_looking_for_sources(self):
        self.ask("A word.")
        self.browser.execute_script(
            "const ask = window.fetch; window.fetch = (to, what) => !String(to).includes('explain') ? ask(to, what) :"
            " new Promise((_, fail) => what.signal.addEventListener('abort', () => fail(new DOMException('', 'AbortError'))));")
        self.one(".ask-sources").click()
        self.until(lambda: self.one("#stop").is_displayed())
        self.assertFalse(self.all("article.assistant footer button")[1].is_enabled())
        self.one("#question").send_keys(Keys.ESCAPE)
        self.until(self.idle)
        self.assertEqual(self.all(".sources"), [])
        self.assertTrue(self.all("article.assistant footer button")[1].is_enabled())


if __name__ == "__main__":
    missing = [program for program in ("chromium", "chromedriver") if shutil.which(program) is None]
    if missing:
        print("skipped: not installed: " + ", ".join(missing))
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
