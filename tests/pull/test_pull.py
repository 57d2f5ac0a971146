"""loam pull, loam models and -m NAME against a registry of our own: test_pull.py LOAM SOURCE_DIR."""
import fcntl
import hashlib
import json
import os
import pty
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

from registry import Registry

LOAM, SOURCE = os.path.abspath(sys.argv[1]), sys.argv[2]
with open(os.path.join(SOURCE, "models", "loam-nano.gguf"), "rb") as nano:
    MODEL = nano.read()
NAME = "Nano-Q8_0.gguf"


class Pull(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="loam-pull-")
        self.registry = Registry({NAME: MODEL, "sub/Other Nano-F16.gguf": MODEL[:100000]})
        self.environment = {**os.environ, "LOAM_MODELS": os.path.join(self.folder, "models"),
                            "HF_ENDPOINT": self.registry.url, "no_proxy": "*"}
        self.environment.pop("HF_TOKEN", None)
        self.path = os.path.join(self.folder, "models", NAME)

    def tearDown(self):
        self.registry.shutdown()
        self.registry.server_close()
        shutil.rmtree(self.folder)

    def loam(self, *arguments, **options):
        environment = {**self.environment, **options.pop("environment", {})}
        return subprocess.run([LOAM, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=60, cwd=self.folder, **options)

    def pull(self, source="hf:org/repo:" + NAME, code=0, **options):
        done = self.loam("pull", *source.split(" "), **options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertLessEqual(len(done.stderr.splitlines()), 8, done.stderr)
        return done

    def is_whole(self, path=None):
        with open(path or self.path, "rb") as file:
            self.assertTrue(file.read() == MODEL)

    def ranges(self):
        return [asked[1] for asked in self.registry.asked if asked[0].startswith("/cdn/")]

    def test_a_file_of_a_repository(self):
        done = self.pull()
        self.assertEqual(done.stdout, self.path + "\n")
        self.assertIn("licence apache-2.0", done.stderr)
        self.assertIn("loam run -m Nano-Q8_0 -f", done.stderr)
        self.is_whole()
        listed = json.loads(self.loam("models", "--json").stdout)["models"]
        self.assertEqual([(m["name"], m["bytes"], m["ready"], m["license"]) for m in listed],
                         [(NAME, len(MODEL), True, "apache-2.0")])
        self.assertGreater(listed[0]["context"], 1000)
        self.assertIn("| ready", self.loam("models").stdout)
        for name in ("Nano-Q8_0", NAME):
            self.assertEqual(self.loam("inspect", "-m", name).returncode, 0)
        self.assertEqual(self.loam("inspect", "Nano-Q8_0").returncode, 0)
        before = len(self.registry.asked)
        self.assertIn("there already", self.pull().stderr)
        self.assertEqual([path for path, *_ in self.registry.asked[before:]], ["/api/models/org/repo"])

    def test_what_is_meant(self):
        self.assertIn("Nano-Q8_0.gguf", self.pull("hf:org/repo:q8_0").stdout)
        said = self.pull("hf:org/repo", code=2).stderr
        self.assertTrue(NAME in said and "sub/Other Nano-F16.gguf" in said, said)
        self.assertIn("has no GGUF file", self.pull("hf:org/repo:Q2_K", code=2).stderr)
        self.assertTrue(os.path.exists(self.pull("hf:org/repo:F16").stdout.strip()))
        for wrong in ("hf:org", "hf:../x:y", "hf:org/repo:../../x.gguf", "nonsense", "http://127.0.0.1:1/x.txt"):
            self.assertEqual(len(self.pull(wrong, code=2).stderr.splitlines()), 1)
        self.assertIn("qwen3-4b", self.pull("nonsense", code=2).stderr)
        self.assertIn("loam pull qwen3-4b", self.loam("inspect", "-m", "qwen3-4b").stderr)

    def test_an_address_and_a_page_of_the_registry(self):
        self.assertIn(NAME, self.pull(f"{self.registry.url}/org/repo/blob/main/{NAME}?x=1").stdout)
        self.is_whole()
        self.assertIn("from elsewhere", self.pull(code=2).stderr)

    def test_a_connection_that_breaks(self):
        self.registry.cut = [5000, 1, 70000]
        done = self.pull()
        self.assertEqual(done.stderr.count("asking again"), 3)
        self.assertEqual(self.ranges(), [None, "bytes=5000-", "bytes=5001-", "bytes=75001-"])
        self.is_whole()

    def test_a_connection_that_brings_nothing(self):
        self.registry.cut = [100000] + [0] * 20
        self.assertEqual(len(self.pull(code=6).stderr.splitlines()), 5)
        self.assertEqual(os.path.getsize(self.path + ".part"), 100000)
        self.assertIn("not whole", self.loam("models").stdout)
        self.assertNotEqual(self.loam("inspect", "-m", "Nano-Q8_0").returncode, 0)
        self.registry.cut = []
        self.assertIn("going on after", self.pull().stderr)
        self.is_whole()

    def part_has(self, count):
        return os.path.exists(self.path + ".part") and os.path.getsize(self.path + ".part") == count

    def release_after(self, seconds, count, event):
        """The rest comes so long after the first `count` bytes were written, however late those are."""
        deadline = time.time() + 60
        while not self.part_has(count) and time.time() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        event.set()

    def killed_after(self, count, number, before=0):
        """The pull is stopped by a signal once `count` bytes came after those that were there."""
        event = threading.Event()
        self.registry.pause = (count, event)
        process = subprocess.Popen([LOAM, "pull", "hf:org/repo:" + NAME], env=self.environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.time() + 60
        while not self.part_has(before + count):
            self.assertLess(time.time(), deadline)
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
        event.set()
        self.assertFalse(os.path.exists(self.path))
        return process.returncode, said

    def test_a_kill_in_the_middle(self):
        self.assertEqual(self.killed_after(123456, signal.SIGKILL)[0], -signal.SIGKILL)
        code, said = self.killed_after(1000, signal.SIGINT, before=123456)
        self.assertEqual(code, 130)
        self.assertIn("goes on from here", said)
        self.pull()
        self.assertEqual(self.ranges(), [None, "bytes=123456-", "bytes=124456-"])
        self.is_whole()

    def test_another_file_at_the_same_place(self):
        self.killed_after(5000, signal.SIGKILL)
        self.registry.files[NAME] = MODEL[:60000] + MODEL[:5000]
        self.pull()
        with open(self.path, "rb") as file:
            self.assertTrue(file.read() == self.registry.files[NAME])

    def test_a_server_without_ranges_digest_or_size(self):
        self.registry.has_ranges = self.registry.says_digest = False
        self.killed_after(5000, signal.SIGKILL)
        self.pull()
        self.is_whole()
        os.remove(self.path)
        self.registry.says_size = False
        self.pull()
        self.is_whole()

    def test_a_part_of_the_whole_length(self):
        self.registry.cut = [len(MODEL) - 1] + [0] * 9
        self.pull(code=6)
        with open(self.path + ".part", "ab") as file:
            file.write(MODEL[-1:])
        self.registry.cut = []
        self.pull()
        self.is_whole()

    def test_digests(self):
        right = hashlib.sha256(MODEL).hexdigest()
        said = self.pull(f"hf:org/repo:{NAME} --sha256 {'0' * 64}", code=3).stderr
        self.assertIn(right, said)
        self.assertEqual(os.listdir(os.path.dirname(self.path)), [])
        self.registry.digest[NAME] = "1" * 64
        self.assertIn("1" * 64, self.pull(code=3).stderr)
        self.pull(f"hf:org/repo:{NAME} --sha256 {right.upper()}")
        self.is_whole()
        self.assertIn("64 hexadecimal", self.pull(f"hf:org/repo:{NAME} --sha256 12", code=2).stderr)

    def test_a_damaged_part(self):
        self.killed_after(5000, signal.SIGKILL)
        with open(self.path + ".part", "r+b") as file:
            file.seek(4000)
            file.write(b"!")
        self.assertIn("removed", self.pull(code=3).stderr)
        self.pull()
        self.is_whole()

    def test_split_models(self):
        names = ["big-%05d-of-00003.gguf" % i for i in (1, 2, 3)]
        parts = [MODEL[:4000], MODEL[:3000], MODEL[:2000]]
        self.registry.files = dict(zip(names, parts))
        self.registry.cut = [4000, 100] + [0] * 9
        self.pull("hf:org/repo:big", code=6)
        listed = json.loads(self.loam("models", "--json").stdout)["models"]
        self.assertEqual([(m["name"], m["ready"]) for m in listed], [(names[0], False)])
        self.registry.cut = []
        self.assertIn(names[0], self.pull("hf:org/repo:" + names[1]).stdout)
        for name, part in zip(names, parts):
            with open(os.path.join(os.path.dirname(self.path), name), "rb") as file:
                self.assertTrue(file.read() == part)
        listed = json.loads(self.loam("models", "--json").stdout)["models"]
        self.assertEqual([(m["name"], m["bytes"], m["ready"]) for m in listed], [(names[0], 9000, True)])
        self.assertIn(names[0], self.loam("inspect", "-m", "big").stderr)  # found; a beginning is no model

    def test_permissions(self):
        self.registry.token = "secret"
        self.assertIn("set HF_TOKEN", self.pull(code=1).stderr)
        self.assertIn("does not open it", self.pull(code=1, environment={"HF_TOKEN": "other"}).stderr)
        self.pull(environment={"HF_TOKEN": "secret"})
        self.is_whole()
        for path, _, authorization in self.registry.asked:
            if path.startswith("/cdn/"):
                self.assertIsNone(authorization)  # another host: not its business
        os.remove(self.path)
        address = f"http://localhost:{self.registry.port}/org/repo/resolve/main/{NAME}"
        self.pull(address, code=1, environment={"HF_TOKEN": "secret"})
        self.assertIsNone(self.registry.asked[-1][2])

    def test_what_is_no_model(self):
        for path, code, said in (("/none.gguf", 2, "404"), ("/page.gguf", 3, "a web page"), ("/loop.gguf", 6, "redirects"),
                                 ("/up.gguf", 6, "rotocol")):
            self.assertIn(said, self.pull(self.registry.url + path, code=code).stderr)
            self.assertEqual(os.listdir(os.path.dirname(self.path)), [])
        self.registry.shutdown()
        self.registry.server_close()
        self.assertEqual(len(self.pull(code=6).stderr.splitlines()), 1)

    def test_a_full_disk(self):
        limit = 200000

        def less():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        self.assertIn(".part", self.pull(code=6, preexec_fn=less).stderr)
        self.assertEqual(os.path.getsize(self.path + ".part"), limit)
        self.pull()
        self.assertIn(f"bytes={limit}-", self.ranges())
        self.is_whole()

    def test_two_at_once(self):
        event = threading.Event()
        self.registry.pause = (5000, event)
        first = subprocess.Popen([LOAM, "pull", "-q", "hf:org/repo:" + NAME], env=self.environment,
                                 stdout=subprocess.DEVNULL)
        while not self.part_has(5000):
            time.sleep(0.01)
        self.assertIn("another loam", self.pull(code=6).stderr)
        event.set()
        self.assertEqual(first.wait(60), 0)
        self.is_whole()

    def test_without_curl(self):
        empty = os.path.join(self.folder, "bin")
        os.mkdir(empty)
        self.assertIn("install curl", self.pull(code=1, environment={"PATH": empty}).stderr)

    def test_the_bar_fits_the_terminal(self):
        """From 40 to 200 columns the bar stays in its line, and is drawn ten times a second at most."""
        for columns in (40, 80, 200):
            shutil.rmtree(os.path.dirname(self.path), ignore_errors=True)
            event, count = threading.Event(), MODEL.find(b"GGUF") + 50000
            self.registry.pause = (count, event)
            threading.Thread(target=self.release_after, args=(0.8, count, event)).start()
            ours, theirs = pty.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            process = subprocess.Popen([LOAM, "pull", "hf:org/repo:" + NAME], stderr=theirs, stdout=subprocess.DEVNULL,
                                       env={**self.environment, "TERM": "xterm"})
            os.close(theirs)
            said = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:
                    break
                said += part
            os.close(ours)
            self.assertEqual(process.wait(), 0)
            bars = [bar for bar in said.decode().split("\r") if bar.startswith(("[", "pull "))]
            self.assertTrue(bars, said)
            for bar in bars:
                self.assertLess(len(bar.removesuffix("\x1b[K")), columns)
                self.assertNotIn("\n", bar)


if __name__ == "__main__":
    if shutil.which("curl") is None:
        print("skipped: there is no curl")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
