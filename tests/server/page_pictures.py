"""page_pictures.py LOAM ROOT FOLDER: the pictures of the page in docs/server.md, with SmolLM2 and the beginning of a story."""
import os
import sys
import tempfile

from browser import Browser, Tab
from loam_server import REAL, ROOT, WITHOUT_REAL, Server

STORY = os.path.join(ROOT, "tests", "data", "a-scandal-in-bohemia.txt")
QUESTION = "Who is Irene Adler to Sherlock Holmes?"


def ask(tab, question):
    tab.focus("#question")
    tab.write(question)
    tab.press("Enter")
    tab.until(lambda: tab.sees("#send") and tab.count(".text.wait") == 0 and tab.count("article.assistant") > 0)


def read(tab, path):
    tab.choose("#files", path)
    tab.until(lambda: "Read." in tab.text("#status"))


def begin(tab, length):
    tab.js("async (length) => { await startOver(); Object.assign(talk, {temperature: '0', length}); }", length)


def draw(tab, folder, story):
    def picture(name):
        tab.js("() => document.activeElement.blur()")
        tab.picture(os.path.join(folder, f"page_{name}.png"))

    for question in ("What is a cache?", "Name three trees."):  # something in the list
        begin(tab, "12")
        tab.js("(kept) => remote.choose(talk, kept)", question == "What is a cache?")
        ask(tab, question)
    tab.until(lambda: "on the server" in tab.texts("#conversations .more"))
    begin(tab, "56")
    read(tab, story)
    ask(tab, QUESTION)
    tab.click(".ask-sources")
    tab.until(lambda: tab.count(".sources") == 1)
    tab.js("() => { log.scrollTop = 0; }")
    picture("light")
    tab.click(".sources li button")
    picture("source")
    tab.press("Escape")
    tab.click(".ask-sources")
    tab.resize(320, 568, 2)
    tab.js("() => { log.scrollTop = 0; }")
    picture("narrow")
    tab.resize(1100, 660)
    tab.click("#theme")
    tab.click("#list-open")
    tab.click("#map-open")
    tab.motion(reduced=False)  # it follows the answer
    ask(tab, "Who wrote the note?")
    tab.until(lambda: "idle" in tab.js("async () => (await (await request('v1/loam/map')).json()).state"))
    tab.js("() => map.soon()")
    tab.motion(reduced=True)
    tab.until(lambda: tab.sees("#map-shown"))
    picture("dark")


def make(folder):
    with tempfile.TemporaryDirectory() as work:
        story = os.path.join(work, "bohemia.txt")
        with open(STORY) as whole, open(story, "w") as out:
            out.write(whole.read(9000).rsplit("\n\n", 1)[0] + "\n")
        server = Server("-c", "4096", "--kv-host", "64M", "--kv-disk", os.path.join(work, "kv"), "--set", "select=window", "--keep",
                        "512", model=REAL)
        browser = Browser()
        try:
            tab = Tab(browser, 1100, 660)
            tab.motion(reduced=True)
            tab.go(f"http://{server.host}:{server.port}/")
            tab.until(lambda: "SmolLM2" in tab.text("#model"))
            draw(tab, folder, story)
        finally:
            browser.stop()
            server.stop()


if REAL is None:
    sys.exit(WITHOUT_REAL)
make(sys.argv[3])
