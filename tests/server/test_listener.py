"""Where the server listens: a socket file and what becomes of it; how many connections one address has."""
import json
import os
import socket
import stat
import subprocess
import tempfile
import unittest

from loam_server import HAS_SLOT, LOAM, NANO, Case, Server, main, wait_until

PATH = "/v1/completions"
BODY = {"prompt": "The king", "max_tokens": 8, "temperature": 0}
LONG = {**BODY, "max_tokens": 16000, "ignore_eos": True, "stream": True}  # a stream that nobody reads pauses before its end
OPTIONS = ("-np", "2", "-c", "16384", "--chat-template", "llama2")


def start_fails(*options):
    done = subprocess.run([LOAM, "serve", "-m", NANO, "-t", "1", *OPTIONS, *options], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def is_served(connection):
    """One request; False: it was closed."""
    try:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    except (ConnectionResetError, BrokenPipeError):
        return False
    finally:
        connection.close()


class File(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "loam.sock")

    def serve(self, *options, **more):
        server = Server(*OPTIONS, "--host", self.path, *options, **more)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def test_requests(self):
        server = self.serve("--connections-per-address", "1")  # which a file has none of
        self.assertEqual(server.path, self.path)
        expected = server.post(PATH, BODY).json["choices"][0]["text"]
        frames = server.post(PATH, {**BODY, "stream": True}).frames
        self.assertEqual("".join(frame["choices"][0]["text"] for frame in frames[:-1]), expected)
        for host in ("localhost", "chat.example", "10.0.0.1:80", self.path):  # no name leads a browser here
            self.assertTrue(server.raw(b"GET /health HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode())
                            .startswith(b"HTTP/1.1 200 "), host)
        for origin, status in (("http://chat.example", 200), ("https://chat.example", 200), ("https://evil.example", 403),
                               ("null", 403)):  # a proxy passes on its own Host
            reply = server.raw(b"GET /health HTTP/1.1\r\nHost: chat.example\r\nOrigin: %s\r\n\r\n" % origin.encode())
            self.assertTrue(reply.startswith(b"HTTP/1.1 %d " % status), origin)
        with server.connect() as connection:  # a head in pieces
            for piece in (b"GET /hea", b"lth HTTP/1.1\r", b"\nHost: x\r\n\r", b"\n"):
                connection.sendall(piece)
            self.assertIn(b" 200 ", connection.recv(65536))
        many = [server.connect() for _ in range(50)]
        self.assertTrue(all(is_served(connection) for connection in many))
        left = server.open(PATH, LONG)
        self.assertTrue(wait_until(lambda: server.count(*HAS_SLOT) == 1))
        left.close()
        self.assertTrue(wait_until(lambda: server.count(*HAS_SLOT) == 0))
        self.assertEqual(server.stop(), 0)
        self.assertFalse(os.path.lexists(self.path))

    def test_keys(self):
        server = self.serve("--api-key", "the-key")
        self.assertEqual(server.post(PATH, BODY).status, 401)
        self.assertEqual(server.post(PATH, BODY, headers={"Authorization": "Bearer the-key"}).status, 200)

    def test_who_may_connect(self):
        for mask, mode in (("022", 0o640), ("077", 0o600), ("007", 0o660), ("000", 0o660)):
            server = self.serve(wrapper=("sh", "-c", 'umask %s; exec "$@"' % mask, "sh"))
            found = os.lstat(self.path).st_mode
            self.assertTrue(stat.S_ISSOCK(found))
            self.assertEqual(oct(stat.S_IMODE(found)), oct(mode))
            self.assertEqual(server.stop(), 0)

    def test_a_dead_file_is_replaced(self):
        server = self.serve()
        server.process.kill()
        server.process.wait()
        server.process.stderr.close()
        self.assertTrue(stat.S_ISSOCK(os.lstat(self.path).st_mode))
        server = self.serve()
        self.assertEqual(server.get("/health").status, 200)
        # One that serves stays, and so does its file.
        code, message = start_fails("--host", self.path)
        self.assertEqual(code, 6, message)
        self.assertIn("cannot listen on %s: another server does" % self.path, message)
        self.assertEqual(server.get("/health").status, 200)
        # Another's file at the same path is not ours to remove.
        os.rename(self.path, self.path + "-moved")
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(self.path)
            self.assertEqual(server.stop(), 0)
            self.assertTrue(os.path.lexists(self.path))

    def test_one_that_is_too_busy_to_answer_is_not_dead(self):
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(self.path)
            other.listen(0)
            waiting = []
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                try:
                    waiting[-1].connect(self.path)
                except BlockingIOError:
                    break
            before = os.lstat(self.path).st_ino
            code, message = start_fails("--host", self.path)
            self.assertEqual(code, 6, message)
            self.assertEqual(os.lstat(self.path).st_ino, before)
            for connection in waiting:
                connection.close()

    def test_of_many_that_start_one_listens(self):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(self.path)
        command = [LOAM, "serve", "-m", NANO, "-t", "1", *OPTIONS, "--host", self.path]
        started = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # pylint: disable=R1732
                   for _ in range(6)]
        try:
            self.assertTrue(wait_until(lambda: sum(one.poll() is None for one in started) == 1))
            left = next(one for one in started if one.poll() is None)
            self.assertEqual({one.returncode for one in started if one is not left}, {6})
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self.path)
            left.terminate()
            self.assertIn(left.wait(60), (0, 130))
            self.assertFalse(os.path.lexists(self.path))
        finally:
            for one in started:
                if one.poll() is None:
                    one.kill()
                    one.wait()

    def test_what_is_no_socket_stays(self):
        aside = self.path + "-aside"
        with open(aside, "w", encoding="ascii") as file:
            file.write("a user's\n")

        def write():
            os.link(aside, self.path)
        for make, remove in ((write, os.unlink), (lambda: os.mkdir(self.path), os.rmdir),
                             (lambda: os.symlink(aside, self.path), os.unlink),
                             (lambda: os.symlink("nowhere", self.path), os.unlink),
                             (lambda: os.mkfifo(self.path), os.unlink)):
            make()
            before = os.lstat(self.path)
            code, message = start_fails("--host", self.path)
            self.assertEqual(code, 2, message)
            self.assertIn("found a file that is no socket", message)
            self.assertEqual(os.lstat(self.path).st_ino, before.st_ino)
            remove(self.path)
        with open(aside, encoding="ascii") as file:
            self.assertEqual(file.read(), "a user's\n")

    def test_an_address_in_brackets(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            self.skipTest("this machine has no ::1")
        server = Server(*OPTIONS, "--host", "[::1]")
        self.assertEqual(server.host, "[::1]")
        server.host = "::1"
        self.assertEqual(server.get("/health").status, 200)
        self.assertEqual(server.get("/v1/models").status, 200)
        self.assertEqual(server.stop(), 0)

    def test_paths_that_cannot_be(self):
        code, message = start_fails("--host", os.path.join(os.path.dirname(self.path), "no", "folder.sock"))
        self.assertEqual(code, 6, message)
        self.assertIn("its folder", message)
        code, message = start_fails("--host", self.path[:-5] + "x" * 100 + ".sock")
        self.assertEqual(code, 2, message)
        self.assertIn("a socket's path has at most 107", message)


class Limit(Case):
    """Five connections of an address, also of this machine, as the option was given."""
    options = (*OPTIONS, "--connections-per-address", "5")

    def test_one_address(self):
        held = [self.server.connect() for _ in range(5)]
        self.assertFalse(is_served(self.server.connect()))
        other = socket.create_connection((self.server.host, self.server.port), 60, source_address=("127.0.0.2", 0))
        self.assertTrue(is_served(other))
        for connection in held:
            connection.close()

        def five_are_served():
            return all([is_served(connection) for connection in [self.server.connect() for _ in range(5)]])
        for _ in range(20):  # whoever leaves gives its place back
            self.assertTrue(wait_until(five_are_served))

    def test_the_option(self):
        for value in ("0", "-1", "2049", "many"):
            code, message = start_fails("--connections-per-address", value)
            self.assertEqual(code, 2, value)
            self.assertIn("--connections-per-address", message)


class Log(unittest.TestCase):
    """A line a request: what it came to."""

    def lines_of(self, form, *options):
        server = Server(*OPTIONS, *options, environment={"LOAM_ARG_LOG": form})
        self.addCleanup(server.process.kill)
        long = {**BODY, "prompt": "The king went to the river and sat down. " * 8}
        for body in (BODY, long, long, {**BODY, "stream": True}):
            self.assertEqual(server.post(PATH, body).status, 200)
        self.assertEqual(server.post(PATH, {**BODY, "max_tokens": "x"}).status, 400)
        self.assertEqual(server.get("/none?key=secret%0a").status, 404)
        self.assertEqual(server.get("/health").status, 200)
        left = server.open(PATH, LONG)
        self.assertTrue(wait_until(lambda: server.count(*HAS_SLOT) == 1))
        left.close()
        self.assertTrue(wait_until(lambda: server.count(*HAS_SLOT) == 0))
        self.assertEqual(server.stop(), 0)
        return [line for line in server.lines[-1].splitlines() if "POST" in line or "GET" in line]

    def test_json(self):
        """A line is written when the last thread is done with its request, so lines may pass each other."""
        lines = [json.loads(line) for line in self.lines_of("json")]
        whole = [line for line in lines if not line["left"]]
        self.assertEqual(sorted((line["method"], line["path"], line["status"]) for line in whole),
                         [("GET", "/none", 404)] + 4 * [("POST", PATH, 200)] + [("POST", PATH, 400)])
        self.assertEqual([line["status"] for line in lines if line["left"]], [200])
        answers = [line for line in whole if line["status"] == 200]
        longest = max(line["read"] + line["known"] for line in answers)
        fresh, again = sorted((line for line in answers if line["read"] + line["known"] == longest),
                              key=lambda line: line["known"])
        self.assertGreater(fresh["read"], 60)
        self.assertLess(again["read"], 3)
        self.assertEqual({line["made"] for line in answers}, {8})
        self.assertFalse([line for line in whole if line["status"] != 200 and "read" in line])
        self.assertEqual(len({line["id"] for line in lines}), 7)
        self.assertTrue(all(line["seconds"] >= 0 for line in lines))

    def test_text(self):
        lines = self.lines_of("text")
        self.assertEqual(len(lines), 7)
        self.assertRegex("\n".join(lines), r"(?m)^loam: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ POST /v1/completions 200, read \d+, known 0, "
                                   r"made 8, \d+\.\d{3} s, req_[0-9a-f]{16}$")
        self.assertNotIn("secret", "".join(lines))
        self.assertEqual(sum(", the client left, " in line for line in lines), 1)
        self.assertEqual(self.lines_of("none") + self.lines_of("text", "-q"), [])


if __name__ == "__main__":
    main()
