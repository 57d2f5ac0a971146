"""Headless Chromium, asked over a pipe by its DevTools protocol: what a person does with a page, and what they see."""
import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time

SECONDS_MAX = 120  # of one wait, beside busy programs
KEYS = {"Enter": (13, "\r"), "Escape": (27, None), "Tab": (9, None), "ArrowUp": (38, None), "ArrowDown": (40, None),
        "ArrowLeft": (37, None), "ArrowRight": (39, None)}  # fmt: skip
# Before a page's own script: what it posts, as {to, body}; a stream comes as slowly as it is to (Tab.slowly), 200 bytes at a time.
RECORDER = """window.posted = []; const asked = window.fetch; window.fetch = (to, what) => {
  if (typeof what?.body === 'string') window.posted.push({to: String(to), body: JSON.parse(what.body)});
  return asked(to, what).then((answer) => sessionStorage.getItem('is-slow') === null || !answer.body ||
    answer.headers.get('content-type') !== 'text/event-stream' ? answer : new Response(answer.body.pipeThrough(new TransformStream({
      start(out) { what.signal?.addEventListener('abort', () => out.error(what.signal.reason)); },
      async transform(part, out) { for (let i = 0; i < part.length; i += 200) {
        out.enqueue(part.slice(i, i + 200)); await new Promise((done) => setTimeout(done, 10)); } } })), answer)); };"""


class Gone(AssertionError):
    """The page went while it was asked."""


class Browser:
    """One process.  Its tabs share their storage."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="loam-browser-")
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in os.pipe() + os.pipe()]  # above 3 and 4
        self.process = subprocess.Popen(
            [shutil.which("chromium"), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-background-networking",
             "--disable-component-update", "--hide-scrollbars", "--user-data-dir=" + self.profile, "about:blank"],
            preexec_fn=lambda: (os.dup2(ends[0], 3), os.dup2(ends[3], 4)), pass_fds=(3, 4),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        os.close(ends[0])
        os.close(ends[3])
        self.commands, self.replies = os.fdopen(ends[1], "wb", 0), os.fdopen(ends[2], "rb")
        self.held, self.number, self.tabs = b"", 0, {}

    def call(self, method, session=None, **params):
        self.number += 1
        asked = {"id": self.number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        self.commands.write(json.dumps(asked).encode() + b"\0")
        while True:
            told = self.read()
            if told.get("id") == self.number:
                if "error" in told:
                    said = told["error"]["message"]
                    raise (Gone if said == "Inspected target navigated or closed" else AssertionError)(f"{method}: {said}")
                return told["result"]
            if told.get("sessionId") in self.tabs:
                self.tabs[told["sessionId"]].hear(told)

    def read(self):
        while b"\0" not in self.held:
            part = os.read(self.replies.fileno(), 1 << 20)
            if part == b"":
                raise AssertionError("Chromium ended")
            self.held += part
        told, self.held = self.held.split(b"\0", 1)
        return json.loads(told)

    def stop(self):
        try:
            self.call("Browser.close")
        finally:
            self.process.wait(60)
            shutil.rmtree(self.profile, ignore_errors=True)


class Tab:
    def __init__(self, browser, width=1100, height=760, is_other=False):
        """is_other: as of another browser, with a storage of its own."""
        self.browser, self.errors = browser, []
        where = {"browserContextId": browser.call("Target.createBrowserContext")["browserContextId"]} if is_other else {}
        self.target = browser.call("Target.createTarget", url="about:blank", **where)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        browser.tabs[self.session] = self
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=RECORDER)
        self.resize(width, height)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def hear(self, told):
        if told["method"] == "Runtime.exceptionThrown":
            details = told["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        if told["method"] == "Log.entryAdded" and told["params"]["entry"]["source"] == "security":
            self.errors.append(told["params"]["entry"]["text"])

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
        del self.browser.tabs[self.session]

    def resize(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 500)

    def motion(self, reduced):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-reduced-motion", "value": "reduce" if reduced else "no-preference"}])

    def slowly(self, slow=True):
        """Streams that begin from now on, after a reload, too: an answer of thousands of tokens takes half a minute."""
        self.js("(s) => s ? sessionStorage.setItem('is-slow', '') : sessionStorage.removeItem('is-slow')", slow)

    # ---- what there is ----

    def js(self, function, *arguments):
        """What a function of the page gives for these arguments; a promise's value."""
        code = f"({function})(...{json.dumps(arguments)})"
        told = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True, userGesture=True)
        if "exceptionDetails" in told:
            raise AssertionError(told["exceptionDetails"]["exception"].get("description", function))
        return told["result"].get("value")

    def count(self, selector):
        return self.js("(s) => document.querySelectorAll(s).length", selector)

    def texts(self, selector):
        return self.js("(s) => [...document.querySelectorAll(s)].map((e) => e.textContent)", selector)

    def text(self, selector):
        found = self.texts(selector)
        assert len(found) == 1, f"{selector}: {len(found)}"
        return found[0]

    def sees(self, selector):
        """Whether one is shown."""
        return self.js("(s) => [...document.querySelectorAll(s)].some((e) => e.checkVisibility())", selector)

    def attribute(self, selector, name):
        return self.js("(s, n) => document.querySelector(s).getAttribute(n)", selector, name)

    def box(self, selector):
        return self.js("(s) => document.querySelector(s).getBoundingClientRect().toJSON()", selector)

    def posted(self, to=""):
        """The bodies that the page has posted since it was loaded."""
        return [p["body"] for p in self.js("() => window.posted") if to in p["to"]]

    def nameless(self):
        """What is operated and has no accessible name."""
        operated = {"button", "textbox", "spinbutton", "checkbox", "progressbar", "link", "dialog"}
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [n["role"]["value"] for n in nodes if not n["ignored"] and n["role"]["value"] in operated
                and not n.get("name", {}).get("value")]  # fmt: skip

    def until(self, holds, seconds=SECONDS_MAX):
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "waited too long: " + self.js("() => document.getElementById('status')?.textContent")
            time.sleep(0.03)

    # ---- what a person does ----

    def go(self, address):
        self.call("Page.navigate", url=address)
        self.arrive()

    def reload(self):
        self.js("() => { window.isOld = true; }")
        self.call("Page.reload")
        self.arrive()

    def arrive(self):
        """Waits for a page that is whole and has no window.isOld; the old one may go while it is asked."""
        def is_there():
            try:
                return self.js("() => !window.isOld && document.readyState === 'complete'")
            except Gone:
                return False
        self.until(is_there)

    def click(self, selector, at=0, name=None):
        """Of those that are seen, and have the name where one is given."""
        why = self.clicks(selector, at, name)
        assert why == "", why

    def clicks(self, selector, at=0, name=None):
        """Why not, or "".  Found and clicked within one turn of the page, which may draw its lists anew before the next one."""
        return self.js("""(s, at, name) => { const e = [...document.querySelectorAll(s)].filter((e) => e.checkVisibility() &&
            (name === null || e.textContent === name || e.getAttribute('aria-label') === name)).at(at);
            if (!e) return `${s} ${name ?? ''} is not seen`; e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();
            const top = document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2);
            if (!e.contains(top) && !top?.contains(e)) return s + ' lies under ' + top?.outerHTML.slice(0, 80);
            const focused = e.closest('button, input, textarea, select, a, summary, [tabindex]');
            if (focused) focused.focus(); else document.activeElement.blur();
            e.click(); return ''; }""", selector, at, name)

    def focus(self, selector):
        self.js("(s) => document.querySelector(s).focus()", selector)

    def focused(self):
        return self.js("() => document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")

    def write(self, text):
        self.call("Input.insertText", text=text)

    def press(self, *keys, ctrl=False, shift=False):
        for key in keys:
            code, text = KEYS.get(key, (ord(key[0].upper()), None))
            pressed = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 2 * ctrl + 8 * shift}
            if len(key) == 1:
                pressed["code"] = "Key" + key.upper()
            self.call("Input.dispatchKeyEvent", type="keyDown", **pressed, **({"text": text} if text else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def choose(self, selector, *paths):
        """Files for an input."""
        found = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")
        self.call("DOM.setFileInputFiles", files=list(paths), objectId=found["result"]["objectId"])

    def drop(self, *paths):
        """Files and folders, from another program."""
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=400, y=300,
                      data={"items": [], "files": list(paths), "dragOperationsMask": 1})

    def picture(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]))
