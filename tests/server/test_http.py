"""What holds whatever is asked: clients that leave, a full queue, the end of the server."""
import http.client
import json
import os
import resource
import select
import signal
import socket
import time
import unittest

from loam_server import HAS_SLOT, TIMEOUT, Case, Reply, Server, leave, main, wait_until

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
# An answer that no client is too slow to find under way, as it takes minutes; nobody waits for its end.
LONG = {"prompt": "Once upon a time", "max_tokens": 60000, "temperature": 0, "ignore_eos": True}


def whole(connection):
    """The response that is left on a connection, which is closed."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    reply = Reply(response.status, dict(response.getheaders()), response.read())
    response.close()
    connection.close()
    return reply


class Http(Case):
    options = ("-np", "2", "-c", "65536", "--chat-template", "llama2")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slow = []
        for beginning in (b"", b"G", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: "):
            connection = socket.create_connection((cls.server.host, cls.server.port), timeout=60)
            connection.sendall(beginning)
            cls.slow.append(connection)

    def idle(self):
        return self.server.count("queued", *HAS_SLOT) == 0

    def tearDown(self):
        self.assertTrue(wait_until(self.idle))

    def leave(self, state, streams, number):
        """So many clients leave, half of them at once, without a farewell.  All are there before, in the state, or in one
        behind it where this program is slow: a prompt is read, a stream is full.  How many requests there were."""
        count, body = self.server.count, {**LONG, "stream": streams}
        bodies = [body] * number
        if state == "prefilling":  # no two begin alike: what was read of one is not of another
            bodies = [{**body, "prompt": [400 + i + 200 * streams] + [300 + j % 97 for j in range(3000)]}
                      for i in range(number)]
        states = HAS_SLOT[HAS_SLOT.index(state):] if state in HAS_SLOT else (state,)
        at_once = 10 if state == "queued" else 2
        held = 0
        for first in range(0, number, at_once):
            holders = [self.server.open(PATH, LONG) for _ in range(2)] if state == "queued" else []
            held += len(holders)
            self.assertTrue(wait_until(lambda: count("decoding") == len(holders)), state)
            left = [self.server.open(PATH, body) for body in bodies[first:first + at_once]]
            self.assertTrue(wait_until(lambda: count(*states) == len(left)), state)
            for i, connection in enumerate(left):
                (leave if i % 2 == 1 else socket.socket.close)(connection)
            self.assertTrue(wait_until(lambda: count(*states) == 0), state)
            self.assertEqual(count("decoding"), len(holders), state)  # whom it does not concern
            for connection in holders:
                connection.close()
            self.assertTrue(wait_until(self.idle), state)
        return number + held

    def test_clients_that_leave(self):
        """Decoding, prefilling and queued; streamed and not: the slot is free, and others' answers are theirs.
        LOAM_TEST_LEAVERS=100: so many of each."""
        number = int(os.environ.get("LOAM_TEST_LEAVERS", "10"))
        question = {"prompt": "The king", "max_tokens": 8, "temperature": 0}
        expected = self.server.post(PATH, question).json["choices"][0]["text"]
        before = self.server.count("cancelled_total")
        opened = 0
        for streams in (False, True):
            for state in ("decoding", "prefilling", "queued"):
                opened += self.leave(state, streams, number)
                self.assertEqual(self.server.post(PATH, question).json["choices"][0]["text"], expected)
        self.assertEqual(self.server.count("cancelled_total") - before, opened)  # each once, and nobody else

    def half_closed(self, data):
        """The whole response to these bytes, behind which the client shuts its sending side."""
        with self.server.connect() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return whole(connection)

    def test_half_closed_clients(self):
        """They are answered: before the model has run, behind a long answer, streamed, and behind a body in parts."""
        def post(body, length=None, version=b"1.1"):
            text = json.dumps(body).encode()
            return (b"POST /v1/completions HTTP/%s\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (version, len(text) if length is None else length, text))
        for _ in range(20):
            self.assertEqual(self.half_closed(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200)
        for tokens in (1, 600):  # the second one takes longer than clients that leave may keep their place
            body = {"prompt": "The king", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            text = self.server.post(PATH, body).json["choices"][0]["text"]
            reply = self.half_closed(post(body))
            self.assertEqual((reply.status, reply.headers["Content-Type"]), (200, "application/json"))
            self.assertEqual(reply.json["choices"][0]["text"], text)
            self.assertEqual(self.half_closed(post(body, version=b"1.0")).json["choices"][0]["text"], text)
            frames = self.half_closed(post({**body, "stream": True})).frames
            self.assertEqual("".join(f["choices"][0]["text"] for f in frames[:-1]), text)
            self.assertEqual(frames[-1], "[DONE]")
            padded = {**body, "ignored": "x" * 200000}
            self.assertEqual(self.half_closed(post(padded)).json["choices"][0]["text"], text)
        reply = self.half_closed(post({"prompt": 5}))
        self.refused(reply, 400, "prompt")
        reply = self.half_closed(post({"prompt": "x"}, length=1000))
        self.refused(reply, 400, "Content-Length")
        self.assertEqual(self.server.raw(post({"prompt": "x" * 20000}, length=30000), finish=True), b"")  # not for long

    def test_half_closed_in_the_queue(self):
        """A stream's head comes while others have the slots, and no more than that before it is admitted."""
        for streams in (False, True):
            holders = [self.server.open(PATH, LONG) for _ in range(2)]
            self.assertTrue(wait_until(lambda: self.server.count("decoding") == 2))
            connection = self.server.open(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2,
                                                 "stream": streams})
            connection.shutdown(socket.SHUT_WR)
            response = http.client.HTTPResponse(connection)
            response.begin()
            self.assertEqual((response.status, response.getheader("Content-Type")),
                             (200, "text/event-stream" if streams else "application/json"))
            self.assertEqual(self.server.count("queued"), 1)
            for holder in holders:
                holder.close()
            rest = response.read()
            self.assertTrue(rest.endswith(b"data: [DONE]\n\n") if streams else "choices" in json.loads(rest), rest)
            response.close()
            connection.close()

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
        self.assertTrue(wait_until(lambda: self.server.count("queued") > 200))
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
            self.assertTrue(wait_until(lambda: files() > count), files())  # a few of `before` may have gone
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
        self.assertTrue(wait_until(lambda: self.server.count("paused") > 0))
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

    def test_what_clients_read_of_the_model(self):
        """Fields that clients of OpenAI, Anthropic, llama-server and vLLM look for."""
        found = self.server.get("/v1/models").json
        model = found["data"][0]
        self.assertEqual((found["object"], found["has_more"], found["first_id"], found["last_id"]),
                         ("list", False, model["id"], model["id"]))
        self.assertEqual((model["object"], model["type"], model["max_model_len"]), ("model", "model", 65536))
        self.assertRegex(model["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertTrue(model["display_name"] and model["owned_by"] and isinstance(model["created"], int))
        self.assertTrue({"n_vocab", "n_ctx_train", "n_embd", "n_params", "size"} <= set(model["meta"]))
        props = self.server.get("/props").json
        self.assertEqual((props["total_slots"], props["default_generation_settings"]["n_ctx"], props["model_alias"]),
                         (2, 65536, model["id"]))
        self.assertIn("temperature", props["default_generation_settings"]["params"])
        self.assertEqual(props["modalities"], {"vision": False, "audio": False})
        self.assertTrue({"chat_template", "build_info", "model_path"} <= set(props))
        info = self.server.get("/tokenizer_info").json
        for name in ("eos_token", "bos_token", "pad_token"):
            self.assertEqual(len(self.server.post("/tokenize", {"content": info[name]}).json["tokens"]), 1, name)
        self.assertIn("chat_template", info)
        body = {"messages": [{"role": "user", "content": "Who is the king?"}], "max_tokens": 3, "temperature": 0}
        timings = self.server.post(CHAT, body).json["timings"]
        self.assertEqual(timings["predicted_n"], 3)
        self.assertGreater(timings["prompt_n"] + timings["cache_n"], 3)
        for name in ("prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"):
            self.assertGreaterEqual(timings[name], 0, name)

    def test_no_page_from_elsewhere_may_ask(self):
        """Without --cors-origins."""
        for origin in ("https://chat.example", "http://localhost:1", "null", "file://"):
            for data in (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: %s\r\n\r\n",
                         b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: %s\r\n\r\n"):
                reply = self.server.raw(data % origin.encode())
                self.assertTrue(reply.startswith(b"HTTP/1.1 403 "), (origin, reply[:100]))
                self.assertNotIn(b"Access-Control", reply)

    def test_titles_wait_for_chats(self):
        """What Open WebUI asks for behind a chat: it evicts the title before it, not the chat."""
        def ask(text, *more):
            talk = [{"role": role, "content": content} for role, content in zip(("user", "assistant", "user"), (text, *more))]
            reply = self.server.post(CHAT, {"messages": talk, "max_tokens": 3, "temperature": 0}).json
            return reply["choices"][0]["message"]["content"], reply["usage"]
        chat = "A fox and a crow met on a field of clover. " * 8
        answer, usage = ask(chat)
        for word in ("title", "list of tags", "search query"):
            ask("### Task:\nA %s for this chat: %s" % (word, chat))
        cached = ask(chat, answer, "And then?")[1]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreaterEqual(cached, usage["prompt_tokens"] - 16)


class End(unittest.TestCase):
    def test_running_requests_end_well(self):
        server = Server("-np", "1", "-c", "512")
        running = server.open(PATH, {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0})
        received = running.recv(100)
        waiting = server.open(PATH, {"prompt": "x", "max_tokens": 1})
        # What is not read yet is reset.  Its turn may have come and gone.
        self.assertTrue(wait_until(lambda: server.count("queued") > 0 or select.select([waiting], [], [], 0)[0]))
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
        self.assertEqual(server.process.wait(TIMEOUT), 0)
        server.process.stderr.close()
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port), timeout=5)

    def test_no_descriptor_left(self):
        """Who comes when there is none is closed, without a thread that turns meanwhile; then others are answered."""
        server = Server("-np", "1", "-c", "512", wrapper=("prlimit", "--nofile=48:48"))
        self.addCleanup(server.process.kill)

        def ticks():
            with open("/proc/%d/stat" % server.process.pid) as file:
                return sum(int(word) for word in file.read().rsplit(") ", 1)[1].split()[11:13])
        held = [server.connect() for _ in range(64)]
        before = ticks()
        held[-1].settimeout(TIMEOUT)
        self.assertEqual(held[-1].recv(1), b"")  # closed
        time.sleep(1)
        self.assertLess(ticks() - before, 50)  # of 100 a second
        for connection in held:
            connection.close()
        self.assertTrue(wait_until(lambda: len(os.listdir("/proc/%d/fd" % server.process.pid)) < 40))
        self.assertEqual(server.get("/health").status, 200)
        self.assertEqual(server.stop(), 0)

    def test_a_second_signal_leaves_at_once(self):
        server = Server("-np", "1", "-c", "65536")
        running = server.open(PATH, {**LONG, "stream": True})
        running.recv(100)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: "once more" in server.process.stderr.readline())
        server.process.send_signal(signal.SIGINT)
        self.assertIn(server.process.wait(TIMEOUT), (130, -signal.SIGINT))
        running.close()
        server.process.stderr.close()


if __name__ == "__main__":
    main()
