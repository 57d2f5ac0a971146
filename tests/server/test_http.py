"""What holds whatever is asked: clients that leave, a full queue, the end of the server."""
import http.client
import json
import os
import resource
import signal
import socket
import unittest

from loam_server import Case, Reply, Server, main, wait_until

PATH, CHAT = "/v1/completions", "/v1/chat/completions"


def whole(connection):
    """The response that is left on a connection, which is closed."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    reply = Reply(response.status, dict(response.getheaders()), response.read())
    response.close()
    connection.close()
    return reply


class Http(Case):
    options = ("-np", "2", "-c", "1024", "--chat-template", "llama2")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slow = []
        for beginning in (b"", b"G", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: "):
            connection = socket.create_connection((cls.server.host, cls.server.port), timeout=60)
            connection.sendall(beginning)
            cls.slow.append(connection)

    def idle(self):
        metrics = self.server.metrics()
        return sum(metrics["loam_requests_" + state] for state in ("queued", "prefilling", "decoding", "paused")) == 0

    def tearDown(self):
        self.assertTrue(wait_until(self.idle))

    def test_clients_that_leave(self):
        """Decoding, prefilling and queued; streamed and not: the slot is free, and others' answers are theirs."""
        expected = self.server.post(PATH, {"prompt": "The king", "max_tokens": 8, "temperature": 0}).json["choices"][0]["text"]
        long = {"prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "ignore_eos": True}
        read = {"prompt": [300 + i % 200 for i in range(1000)], "max_tokens": 20}
        before = self.server.metrics()["loam_requests_cancelled_total"]
        opened = 0
        for stream in (False, True):
            for body in (long, read):
                for rounds in range(5):
                    left = [self.server.open(PATH, {**body, "stream": stream}) for _ in range(4)]  # two of them wait
                    opened += len(left)
                    if rounds % 2 == 0:
                        for connection in left:
                            connection.close()
                    else:  # at once, without a farewell
                        for connection in left:
                            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                            connection.close()
                    got = self.server.post(PATH, {"prompt": "The king", "max_tokens": 8, "temperature": 0}).json
                    self.assertEqual(got["choices"][0]["text"], expected)
        self.assertTrue(wait_until(self.idle))
        self.assertLessEqual(self.server.metrics()["loam_requests_cancelled_total"] - before, opened)
        self.assertGreater(self.server.metrics()["loam_requests_cancelled_total"] - before, 0)

    def test_files_do_not_leak(self):
        def files():
            return len(os.listdir("/proc/%d/fd" % self.server.process.pid))
        self.server.get("/health")
        before = files()
        for i in range(100):
            self.server.open(PATH, {"prompt": "x", "max_tokens": 3, "stream": i % 2 == 0}).close()
            socket.create_connection((self.server.host, self.server.port)).close()
        self.assertTrue(wait_until(lambda: files() <= before), (files(), before))
        for i in range(100):  # in the body: the end comes with its last bytes
            with socket.create_connection((self.server.host, self.server.port)) as connection:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                   b"Content-Length: 1000\r\n\r\n" + b"{" * (1 + i))
        self.assertTrue(wait_until(lambda: files() <= before), (files(), before))

    def test_a_full_queue_is_told(self):
        body = {"prompt": "x", "max_tokens": 900, "n": 128, "ignore_eos": True}
        left = [self.server.open(PATH, body) for _ in range(2)]
        self.assertTrue(wait_until(lambda: self.server.metrics()["loam_requests_queued"] > 200))
        reply = self.server.post(PATH, body)
        self.assertEqual(reply.status, 429)
        self.assertEqual(reply.json["error"]["type"], "rate_limit_error")
        self.assertTrue(1 <= int(reply.headers["retry-after"]) <= 120)
        self.assertNotIn("x-should-retry", reply.headers)
        for connection in left:
            connection.close()

    def test_many_streams_at_once(self):
        expected = self.server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "temperature": 0})
        text = expected.json["choices"][0]["message"]["content"]
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "temperature": 0, "stream": True}
        streams = [self.server.open(CHAT, body) for _ in range(150)]
        for connection in streams:
            frames = whole(connection).frames
            self.assertEqual("".join(f["choices"][0]["delta"].get("content", "") for f in frames[:-1]), text)
            self.assertEqual(frames[-1], "[DONE]")

    def test_a_thousand_idle_connections(self):
        """Beside them a client gets its answers; they cost memory in bounds, and nothing once they are gone."""
        count, kib_max = 1100, 96 << 10  # more than of one address from elsewhere
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < count + 200:
            self.skipTest("%d open files are needed (ulimit -n)" % (count + 200))
        if soft != resource.RLIM_INFINITY and soft < count + 200:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count + 200, hard))

        def resident():
            with open("/proc/%d/status" % self.server.process.pid, encoding="ascii") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

        def files():
            return len(os.listdir("/proc/%d/fd" % self.server.process.pid))
        body = {"prompt": "The king", "max_tokens": 8, "temperature": 0}
        expected = self.server.post(PATH, body).json["choices"][0]["text"]
        self.server.get("/health")
        before = files(), resident()
        half = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b'Content-Length: 1000\r\n\r\n{"prompt": "')
        idle = []
        try:
            for _ in range(count):
                idle.append(socket.create_connection((self.server.host, self.server.port), timeout=60))
                idle[-1].sendall(half)
            self.assertTrue(wait_until(lambda: files() > count, 60), files())  # a few of `before` may have gone
            for _ in range(20):
                self.assertEqual(self.server.post(PATH, body).json["choices"][0]["text"], expected)
            self.assertLess(resident() - before[1], kib_max)
        finally:
            for connection in idle:
                connection.close()
        self.assertTrue(wait_until(lambda: files() <= before[0]), (files(), before[0]))

    def test_a_client_that_does_not_read(self):
        """The request pauses, and goes on where it was."""
        body = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 600, "temperature": 0,
                "ignore_eos": True}
        expected = self.server.post(CHAT, body).json["choices"][0]["message"]["content"]
        text = json.dumps({**body, "logprobs": True, "top_logprobs": 20, "stream": True}).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect((self.server.host, self.server.port))
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.assertTrue(wait_until(lambda: self.server.metrics()["loam_requests_paused"] > 0, 60))
        frames = whole(connection).frames[:-1]
        self.assertEqual("".join(f["choices"][0]["delta"].get("content", "") for f in frames), expected)

    def test_slow_heads_are_closed(self):
        """Opened before the other tests: a head has ten seconds."""
        for connection in self.slow:
            received = b""
            while True:
                part = connection.recv(65536)
                if not part:
                    break
                received += part
            self.assertIn(b"408", received)
            connection.close()

    def test_heads_of_responses(self):
        reply = self.server.post(PATH, {"prompt": "x", "max_tokens": 1})
        self.assertRegex(reply.headers["x-request-id"], "^req_[0-9a-f]{16}$")
        self.assertEqual((reply.headers["cache-control"], reply.headers["x-content-type-options"]), ("no-store", "nosniff"))
        page = self.server.get("/")
        self.assertEqual((page.status, page.headers["content-encoding"]), (200, "gzip"))
        again = self.server.get("/", headers={"If-None-Match": page.headers["etag"]})
        self.assertEqual((again.status, again.body), (304, b""))
        head = self.server.ask("HEAD", "/health")
        self.assertEqual((head.status, head.body), (200, b""))
        model = self.server.get("/v1/models").json["data"][0]
        self.assertEqual(self.server.get("/v1/models/" + model["id"]).json, model)
        self.assertEqual(self.server.get("/v1/models/other").json["error"]["code"], "model_not_found")
        embeddings = self.server.post("/v1/embeddings", {"input": "x"})
        self.assertEqual((embeddings.status, embeddings.headers["x-should-retry"]), (501, "false"))
        ids = {reply.headers["x-request-id"]}
        for path, status in (("/nothing", 404), ("/v1/messages/nothing", 404), ("/props", 405)):  # refused by the head alone
            refused = self.server.ask("DELETE", path)
            self.assertEqual(refused.status, status)
            self.assertRegex(refused.headers["x-request-id"], "^req_[0-9a-f]{16}$")
            self.assertEqual(refused.json.get("request_id"), refused.headers["x-request-id"] if "messages" in path else None)
            ids.add(refused.headers["x-request-id"])
        self.assertEqual(len(ids), 4)


class End(unittest.TestCase):
    def test_running_requests_end_well(self):
        server = Server("-np", "1", "-c", "512")
        running = server.open(PATH, {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0})
        waiting = server.open(PATH, {"prompt": "x", "max_tokens": 1})
        received = running.recv(100)
        server.process.send_signal(signal.SIGTERM)
        for connection, last in ((running, b"data: [DONE]\n\n"), (waiting, b"}")):
            while True:
                part = connection.recv(65536)
                if not part:
                    break
                received += part
            connection.close()
            if connection is running:
                self.assertIn(last, received)
                self.assertIn(b'"finish_reason":"length"', received)
                received = b""
        self.assertRegex(received, b"^HTTP/1.1 (503|200) ")  # it waited: refused, unless its turn had come
        self.assertEqual(server.process.wait(20), 0)
        server.process.stderr.close()
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port), timeout=5)

    def test_a_second_signal_leaves_at_once(self):
        server = Server("-np", "1", "-c", "8192")
        running = server.open(PATH, {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True})
        running.recv(100)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: "once more" in server.process.stderr.readline())
        server.process.send_signal(signal.SIGINT)
        self.assertIn(server.process.wait(20), (130, -signal.SIGINT))
        running.close()
        server.process.stderr.close()


if __name__ == "__main__":
    main()
