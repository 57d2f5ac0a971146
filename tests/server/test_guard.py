"""Who may ask, and what is refused before it is understood: hosts, origins, keys, raw HTTP, limits of every number."""
import json
import os
import re
import shutil
import socket
import subprocess
import unittest

from loam_server import LOAM, ROOT, Case, Server, main, rest, send, wait_until

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
KEYS = ("the-first-key", "the-second-key")


def request(method="GET", path="/health", headers=(), body=b"", version="HTTP/1.1", host="localhost"):
    lines = ["%s %s %s" % (method, path, version)] + (["Host: " + host] if host is not None else []) + list(headers)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def post(headers=(), body=b'{"content": "x"}', path="/tokenize", json_type=True, length=True):
    own = (["Content-Type: application/json"] if json_type else []) + \
        (["Content-Length: %d" % len(body)] if length else [])
    return request("POST", path, own + list(headers), body)


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


class Open(Case):
    """Without a key, on the loopback interface."""
    options = ("-np", "2", "-c", "512", "--chat-template", "llama2", "--cors-origins", "https://chat.example/")

    def status(self, data, **options):
        return status_of(self.server.raw(data, **options))

    def test_hosts(self):
        for host in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST", "localhost:%d" % self.server.port, "127.0.0.1:1"):
            self.assertEqual(self.status(request(host=host)), 200, host)
        foreign = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8080", "127.0.0.2",
                   "0.0.0.0", "192.168.0.1", "localhos", "localhostx", "[::2]", "[::]", "10.0.0.1:80", "rebind.network",
                   "2130706433", "0x7f000001", "017700000001", "127.1", "xn--localhost-", "localhost@evil.example",
                   "evil.example#localhost", "", " ", "-")
        self.assertGreaterEqual(len(foreign), 20)
        for host in foreign:
            self.assertEqual(self.status(request(host=host)), 403, host)

    def test_origins(self):
        own = "http://localhost:%d" % self.server.port
        reply = self.server.raw(request(host="localhost:%d" % self.server.port, headers=["Origin: " + own]))
        self.assertEqual(status_of(reply), 200)
        self.assertNotIn(b"Access-Control-Allow-Origin", reply)
        allowed = self.server.raw(request(headers=["Origin: https://chat.example"]))
        self.assertIn(b"Access-Control-Allow-Origin: https://chat.example\r\n", allowed)
        self.assertIn(b"Vary: Origin", allowed)
        preflight = self.server.raw(request("OPTIONS", PATH, ["Origin: https://chat.example",
                                                              "Access-Control-Request-Method: POST"]))
        self.assertEqual(status_of(preflight), 204)
        self.assertIn(b"Access-Control-Allow-Methods", preflight)
        # OpenAI's and Anthropic's JavaScript send headers of their own; "*" alone does not stand for the key's.
        self.assertIn(b"Access-Control-Allow-Headers: authorization, *\r\n", preflight)
        # A refusal, too, is for the page to read.
        for refused, status in ((request(path="/nothing", headers=["Origin: https://chat.example"]), 404),
                                (request("PATCH", headers=["Origin: https://chat.example"]), 405)):
            reply = self.server.raw(refused)
            self.assertEqual(status_of(reply), status)
            self.assertIn(b"Access-Control-Allow-Origin: https://chat.example\r\n", reply)
        self.assertNotIn(b"Access-Control", self.server.raw(request(headers=["Origin: https://evil.example"])))
        count = 0
        for origin in ("null", "http://evil.example", "https://localhost", "http://localhost:1", "https://chat.example:1",
                       "http://chat.example", "https://chat.example.evil.example", "https://evil.chat.example", "*", "",
                       "file://", "chrome-extension://x", "http://127.0.0.1", own + ".evil.example", own + "/"):
            for data in (request(headers=["Origin: " + origin]), post(["Origin: " + origin])):
                self.assertEqual(self.status(data), 403, origin)
                count += 1
        self.assertGreaterEqual(count, 30)

    def test_bodies_say_that_they_are_json(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application",
                     "application/jsonx", "text/json", "application/xml", "*/*", "json"):
            reply = self.server.raw(post(["Content-Type: " + kind], json_type=False))
            self.assertEqual(status_of(reply), 415, kind)
            self.assertIn(b"found %s, expected application/json: curl -H" % kind.encode(), reply)
        self.assertIn(b"found none, expected", self.server.raw(post(json_type=False)))
        for kind in ("application/json", "APPLICATION/JSON", "application/json; charset=utf-8", "application/json;x"):
            self.assertEqual(self.status(post(["Content-Type: " + kind], json_type=False)), 200, kind)

    def test_raw_http(self):
        ok = request()
        bad = {
            "two hosts": request(headers=["Host: localhost"]), "no host": request(host=None),
            "two lengths": post(["Content-Length: 16"]), "lengths that differ": post(["Content-Length: 1"]),
            "length and chunks": post(["Transfer-Encoding: chunked"], b'10\r\n{"content": "x"}\r\n0\r\n\r\n'),
            "chunks twice": post(["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], length=False),
            "gzip": post(["Transfer-Encoding: gzip"], length=False),
            "gzip, chunked": post(["Transfer-Encoding: gzip, chunked"], length=False),
            "chunked, identity": post(["Transfer-Encoding: chunked, identity"], length=False),
            "xchunked": post(["Transfer-Encoding: xchunked"], length=False),
            "folded": request(headers=["X-Long: a", " b"]), "folded by a tab": request(headers=["X-Long: a", "\tb"]),
            "blank before the colon": request(headers=["X : a"]), "no colon": request(headers=["X"]),
            "no name": request(headers=[": a"]), "blank in a name": request(headers=["X Y: a"]),
            "NUL in a value": request(headers=["X: a\0b"]), "NUL in the path": request(path="/hea\0lth"),
            "bell in a value": request(headers=["X: a\x07b"]), "DEL in a value": request(headers=["X: a\x7fb"]),
            "bare line feeds": ok.replace(b"\r\n", b"\n"), "a bare line feed": ok.replace(b"\r\n", b"\n", 1),
            "a bare carriage return": b"GET /health\r HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "negative length": post(["Content-Length: -1"], length=False),
            "length with a sign": post(["Content-Length: +16"], length=False),
            "length in hex": post(["Content-Length: 0x10"], length=False),
            "no length": post(["Content-Length:"], length=False), "length list": post(["Content-Length: 16, 16"], length=False),
            "length of 30 digits": post(["Content-Length: " + "9" * 30], length=False),
            "no method": b" /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "no path": b"GET HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "an absolute path": request(path="http://evil.example/health"), "no slash": request(path="health"),
            "a star": request("OPTIONS", "*"), "a blank in the path": request(path="/he alth"),
            "high bytes in the path": request(path="/h\xe9alth"), "a body of GET": request(headers=["Content-Length: 1"], body=b"x"),
            "two origins": request(headers=["Origin: http://localhost", "Origin: http://localhost"]),
            "two keys": request(headers=["X-Api-Key: a", "X-Api-Key: b"]),
            "two authorizations": request(headers=["Authorization: Bearer a", "Authorization: Bearer b"]),
            "chunks in 1.0": request("POST", "/tokenize", ["Content-Type: application/json", "Transfer-Encoding: chunked"],
                                     b"0\r\n\r\n", version="HTTP/1.0"),
        }
        self.assertGreaterEqual(len(bad), 40)
        for name, data in bad.items():
            self.assertIn(self.status(data), (400, 403, 505), name)
        for data, expected in ((request(version="HTTP/2.0"), 505), (request(version="HTTP/1.2"), 505),
                               (request(version="http/1.1"), 505), (request(path="/" + "a" * 33000), 414),
                               (request(headers=["X: " + "a" * 40000]), 431),
                               (request(headers=["X%d: a" % i for i in range(200)]), 431),
                               (request(headers=["X%d: %s" % (i, "a" * 4000) for i in range(8)]), 431),
                               (post(["Content-Length: 40000000"], length=False), 413),
                               (post(["Content-Length: 40000000", "Expect: 100-continue"], b"", length=False), 413),
                               (post(length=False, body=b""), 411), (post(["Content-Encoding: gzip"]), 415),
                               (post(["Expect: 200-ok"]), 417), (request("PUT"), 411), (request("PATCH"), 405),
                               (request("TRACE"), 405), (request("BREW", "/nothing"), 404), (request("DELETE", "/props"), 405),
                               (request(path="/../../etc/passwd"), 404), (request(path="/%2e%2e/etc/passwd"), 404),
                               (request(path="//healthy"), 404), (request(path="/health/x"), 404)):
            self.assertEqual(self.status(data), expected, data[:80])
        self.assertEqual(self.status(ok), 200)

    def test_one_request_a_connection(self):
        answer = self.server.raw(request() + request(path="/v1/models"))
        self.assertEqual(answer.count(b"HTTP/1.1 "), 1)
        self.assertIn(b"Connection: close", answer)

    def test_chunks(self):
        body = b"10\r\n" + b'{"content": "x"}' + b"\r\n0\r\n\r\n"
        self.assertEqual(self.status(post(["Transfer-Encoding: chunked"], body, length=False)), 200)
        for broken in (b"zz\r\nx\r\n0\r\n\r\n", b"-1\r\nx\r\n0\r\n\r\n", b"FFFFFFFFFFFFFFFFF\r\nx"):
            self.assertNotEqual(self.status(post(["Transfer-Encoding: chunked"], broken, length=False), finish=True), 200)
        # What is wrong is told in JSON, like everything else, and not by a page of libmicrohttpd's.
        whole = b'{"content": "x"}'
        for broken, word in ((b"zz\r\nx\r\n0\r\n\r\n", "without a size"), (b"-1\r\nx", "without a size"), (b"\r\n", "without a size"),
                             (b"FFFFFFFFFFFFFFFFF\r\nx", "more than 8 digits"), (b"10;" + b"x" * 100000, "longer than 256"),
                             (b"10;" + b"x" * 300 + b"\r\n" + whole + b"\r\n0\r\n\r\n", "longer than 256"),
                             (b"10 \r\n" + whole + b"\r\n0\r\n\r\n", "behind its size"), (b"10;a\x07b\r\n", "a control character"),
                             (b"10\n" + whole + b"\n0\n\n", "a bare line feed"), (b"f\r\n" + whole + b"\r\n0\r\n\r\n", "where it says"),
                             (b"10\r\n" + whole + b"\r\n0\r\n" + b"X: y\r\n" * 1500, "trailers"),
                             (b"10\r\n" + whole[:9], "before its last chunk")):
            reply = self.server.raw(post(["Transfer-Encoding: chunked"], broken, length=False), finish=True)
            head, _, text = reply.partition(b"\r\n\r\n")
            self.assertEqual(status_of(reply), 400, broken[:40])
            self.assertIn(b"application/json", head, broken[:40])
            self.assertIn(word, json.loads(text)["error"]["message"])
        for good in (b"10;a=b\r\n" + whole + b"\r\n0\r\n\r\n", b"8\r\n" + whole[:8] + b"\r\n8\r\n" + whole[8:] + b"\r\n0\r\nX: y\r\n\r\n",
                     b"%x\r\n" % (len(whole) + 60000) + whole[:-2] + b"a" * 60000 + whole[-2:] + b"\r\n0\r\n\r\n"):
            self.assertEqual(self.status(post(["Transfer-Encoding: chunked"], good, length=False)), 200, good[:40])

    def test_bodies_of_all_clients(self):
        """Together they are larger than what the server takes: those beyond may try again, and none was wrong."""
        held, told = [], {}

        def hold():
            held.append(socket.create_connection((self.server.host, self.server.port), timeout=60))
            held[-1].sendall(post(["Transfer-Encoding: chunked"], b"", length=False))
            for _ in range(8):
                send(held[-1], b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        for _ in range(40):
            hold()
        refused = self.server.raw(post(["Content-Length: 33554432"], b"", length=False), finish=True)
        for connection in held:
            send(connection, b"0\r\n\r\n")
            answer = rest(connection)
            connection.close()
            told[status_of(answer)] = answer
        self.assertEqual(set(told), {400, 429})  # blanks are no JSON
        for answer in (refused, told[429]):  # by the head alone, and in the body
            self.assertEqual(status_of(answer), 429)
            self.assertRegex(answer, b"\r\nRetry-After: [1-9]")
            self.assertNotIn(b"x-should-retry", answer)
        self.assertEqual(self.status(post()), 200)

    def test_numbers(self):
        """NaN, negative, huge and of another kind, in every number of every family."""
        families = {
            PATH: ({"prompt": "x", "max_tokens": 1}, ("max_tokens", "n", "logprobs", "best_of")),
            CHAT: ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, ("max_tokens", "n", "top_logprobs",
                                                                                      "max_completion_tokens")),
            "/v1/messages": ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, ("max_tokens",)),
            "/v1/responses": ({"input": "x", "max_output_tokens": 1}, ("max_output_tokens",)),
        }
        shared = ("temperature", "top_p", "min_p", "top_k", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed")
        count = 0
        for path, (body, own) in families.items():
            for name in shared + own:
                for value in ("NaN", "-Infinity", "1e999", '"5"', "[]", "{}", "true", "1" + "0" * 40):
                    if name == "max_tokens" and "max_completion_tokens" in own:
                        body = {k: v for k, v in body.items() if k != "max_tokens"}
                    text = json.dumps({**body, name: "@"}).replace('"@"', value)
                    reply = self.server.post(path, text)
                    self.assertEqual(reply.status, 400, (path, name, value, reply.body))
                    count += 1
        self.assertGreaterEqual(count, 200)

    def test_json(self):
        """100 bodies that are no JSON, too deep, or not UTF-8."""
        good = b'{"prompt": "x", "max_tokens": 1}'
        bad = [good[:i] for i in range(len(good))]  # cut anywhere
        bad += [b"[" * n for n in (1, 64, 65, 1000, 100000)] + [b'{"a":' * n for n in (1, 64, 65, 1000, 100000)]
        bad += [b'{"prompt": "x", "a": ' + b"[" * n + b"]" * n + b"}" for n in (64, 65, 200, 5000)]
        bad += [b'{"prompt": "' + c + b'"}' for c in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80",
                                                      b"\xe0\x80\x80", b"\x80", b"\xf0\x9f\x98", b"\\ud80", b"\\udc0x",
                                                      b"\\u12", b"\\x41", b"\\", b"\n", b"\x00", b"\x1f")]
        bad += [b'{"prompt": "x", "prompt": "y"}', b'{"prompt": "x", "a": {"b": 1, "b": 2}}', b"{'prompt': 'x'}",
                b'{"prompt": "x",}', b'{"prompt": "x"}}', b'{"prompt": "x"} x', b'{prompt: "x"}', b'{"prompt": x}',
                b'\xef\xbb\xbf{"prompt": "x"}', b'\xfe\xff\x00{', b"nul", b"truefalse", b'{"a": 1.}', b'{"a": .5}',
                b'{"a": 01}', b'{"a": 1e}', b'{"a": --1}', b'{"a": 0x10}', b'{"a" "b"}', b'{"a",}', b"{,}", b"[1,]",
                b"\x00" * 100, b"a" * 10000, b'"' * 999, b"{" * 999, b"/* x */ {}", b"// x\n{}"]
        bad += [bytes([first]) + good for first in range(1, 31) if first not in (9, 10, 13)]
        self.assertGreaterEqual(len(bad), 100)
        for body in bad:
            self.assertEqual(self.server.post(PATH, body).status, 400, body[:60])
        self.assertEqual(self.server.post(PATH, good).status, 200)

    def memory(self, name):
        with open("/proc/%d/status" % self.server.process.pid) as file:
            return next(int(line.split()[1]) for line in file if line.startswith(name + ":")) << 10

    def test_memory_of_a_body(self):
        """What a value, a piece or an id costs is bounded before it is worked on, and goes back."""
        before, whole = self.memory("RssAnon"), self.memory("VmRSS")
        many = 1 << 20
        for path, body, status, word in (
                (PATH, b'{"x":[' + b"{}," * many + b"0]}", 400, b"9437197 values"),
                (PATH, b'{"x":[' + b"[]," * many + b"0]}", 400, b"values"),
                (PATH, b'{"x":[' + b"0," * many + b"0]}", 400, b"values"),
                (PATH, b'{"x":[' + b"0," * (many // 2) + b"0]}", 400, b"'prompt'"),
                ("/tokenize", b'{"with_pieces":true,"content":"' + b"\x7f" * many + b'"}', 200, b'"count":%d,' % many),
                ("/detokenize", b'{"tokens":[' + b"5," * many + b"5]}", 200, b"content"),
                ("/detokenize", b'{"tokens":[' + b"5," * (4 * many) + b"5]}", 413, b"4194305")):
            reply = self.server.post(path, body)
            self.assertEqual(reply.status, status, reply.body[:200])
            self.assertIn(word, reply.body)
        if "asan" not in LOAM:  # which keeps what is freed
            self.assertLess(self.memory("VmHWM") - whole, 300 << 20)
            self.assertTrue(wait_until(lambda: self.memory("RssAnon") - before < 32 << 20), self.memory("RssAnon") - before)

    def test_nested_tools(self):
        def nested(depth):
            schema = {"type": "string"}
            for _ in range(depth):
                schema = {"type": "object", "properties": {"a": schema}}
            return schema
        count = 0
        for depth in (1, 5, 20, 28):
            for path in (CHAT, "/v1/messages", "/v1/responses"):
                self.ask_with_tool(path, nested(depth), (200, 400))
                count += 1
        for schema in ({"$ref": "#"}, {"properties": {"a": {"$ref": "#/properties/a"}}}, {"pattern": "(a+)+$"}, [], 5, "x",
                       {"anyOf": [{}] * 200}, {"enum": ["x"] * 5000}, {"type": "no"}, {"x" * 5000: 1}, nested(40), nested(250),
                       {"allOf": [{"anyOf": [{"oneOf": [{}] * 20}] * 20}] * 5}, {"properties": {"a%d" % i: {} for i in range(300)}},
                       {"const": "<tool_call>"}, {"title": "</tools>"}):
            for path in (CHAT, "/v1/messages", "/v1/responses"):
                self.ask_with_tool(path, schema, (200, 400))
                count += 1
        self.assertGreaterEqual(count, 60)
        self.assertEqual(self.server.get("/health").status, 200)

    def ask_with_tool(self, path, schema, expected):
        tool = {CHAT: {"type": "function", "function": {"name": "f", "parameters": schema}},
                "/v1/messages": {"name": "f", "input_schema": schema},
                "/v1/responses": {"type": "function", "name": "f", "parameters": schema}}[path]
        body = {"tools": [tool], "max_tokens": 1, "max_output_tokens": 1, "messages": [{"role": "user", "content": "x"}],
                "input": "x"}
        self.assertIn(self.server.post(path, body).status, expected)

    def test_control_tokens_stay_text(self):
        """60 fields with the names of control tokens: none becomes one."""
        ids = {tuple(self.server.post("/tokenize", {"content": word, "parse_special": False}).json["tokens"]) for word in ("</s>", "<s>", "<|end|>")}
        self.assertTrue(all(len(i) > 1 for i in ids))
        for word in ("<|begin|>", "<|end|>"):
            self.assertEqual(len(self.server.post("/tokenize", {"content": word}).json["tokens"]), 1)
        count = 0
        for word in ("</s>", "<s>", "<|begin|>", "<|end|>", "<unk>", "<|im_end|>"):
            for fields in ({"messages": [{"role": "user", "content": word}]},
                           {"messages": [{"role": "user", "content": [{"type": "text", "text": word}]}]},
                           {"messages": [{"role": "system", "content": word}, {"role": "user", "content": "x"}]},
                           {"messages": [{"role": "developer", "content": word}, {"role": "user", "content": "x"}]},
                           {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": word},
                                         {"role": "user", "content": "y"}]},
                           {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": word}]},
                           {"messages": [{"role": "user", "content": "x", "name": word}]},
                           {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
                               {"function": {"name": word, "arguments": "{}"}}]}, {"role": "user", "content": "y"}]},
                           {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
                               {"function": {"name": "f", "arguments": json.dumps({"a": word})}}]},
                               {"role": "user", "content": "y"}]},
                           {"messages": [{"role": "user", "content": "x"}],
                            "tools": [{"type": "function", "function": {"name": "f", "description": word}}]}):
                prompt = self.server.post("/apply-template", fields).json["prompt"]
                tokens = self.server.post(CHAT, {**fields, "max_tokens": 1}).json["usage"]["prompt_tokens"]
                parsed = self.server.post("/tokenize", {"content": prompt}).json["tokens"]
                # Read back with control tokens, the word is one token where the request had several.
                if "name" not in fields["messages"][0] and word in ("<|begin|>", "<|end|>"):
                    self.assertGreater(tokens, len(parsed), (word, fields))
                count += 1
        self.assertGreaterEqual(count, 60)
        for name in ("chat_template", "chat_template_kwargs"):
            reply = self.server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], name: "{{ x }}"})
            self.assertEqual(reply.status, 400)

    def test_control_tokens_stay_text_in_all_families(self):
        """The same of each field that other routes put into a prompt: it has more tokens with the word, by more than the
        word has control tokens."""
        def said(role, content):
            return {"messages": [{"role": "user", "content": "x"}, {"role": role, "content": content}]}

        def tool(**fields):
            return {"name": "f", "description": "d", "input_schema": {"type": "object"}, **fields}
        word, user = "<|end|>" * 4, [{"role": "user", "content": "x"}]
        messages = (
            lambda w: {"messages": user, "system": "y" + w}, lambda w: {"messages": user, "system": [{"type": "text", "text": "y" + w}]},
            lambda w: said("user", "y" + w), lambda w: said("assistant", "y" + w), lambda w: said("user", [{"type": "text", "text": "y" + w}]),
            lambda w: said("assistant", [{"type": "tool_use", "id": "t", "name": "f" + w, "input": {}}]),
            lambda w: said("assistant", [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": w}}]),
            lambda w: said("assistant", [{"type": "tool_use", "id": "t", "name": "f", "input": {"a" + w: 1}}]),
            lambda w: said("user", [{"type": "tool_result", "tool_use_id": "t", "content": "y" + w}]),
            lambda w: said("user", [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "y" + w}]}]),
            lambda w: {"messages": user, "tools": [tool(name="f" + w)]},
            lambda w: {"messages": user, "tools": [tool(description=w)]},
            lambda w: {"messages": user, "tools": [tool(input_schema={"type": "object", "properties": {"a" + w: {}}})]})

        def items(*more):
            return {"input": [{"role": "user", "content": "x"}, *more]}

        def response_tool(**fields):
            return {"input": "x", "tools": [{"type": "function", "name": "f", "description": "d", **fields}]}
        responses = (
            lambda w: {"input": "x" + w}, lambda w: {"input": "x", "instructions": "y" + w},
            lambda w: {"input": [{"role": "user", "content": "x" + w}]},
            lambda w: {"input": [{"role": "developer", "content": "x" + w}, {"role": "user", "content": "x"}]},
            lambda w: {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x" + w}]}]},
            lambda w: items({"type": "function_call", "call_id": "c", "name": "f" + w, "arguments": "{}"}),
            lambda w: items({"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps({"a": w})}),
            lambda w: items({"type": "function_call_output", "call_id": "c", "output": "x" + w}),
            lambda w: response_tool(name="f" + w), lambda w: response_tool(description="d" + w),
            lambda w: response_tool(parameters={"type": "object", "properties": {"a": {"enum": ["b" + w]}}}))

        def counted(path, body):
            reply = self.server.post(path, body)
            self.assertEqual(reply.status, 200, reply.body)
            return reply.json["input_tokens"] if "input_tokens" in reply.json else reply.json["usage"]["input_tokens"]
        self.assertEqual(len(self.server.post("/tokenize", {"content": word}).json["tokens"]), 4)
        for path, bodies in (("/v1/messages/count_tokens", messages), ("/v1/responses", responses)):
            for index, body in enumerate(bodies):
                more = counted(path, {**body(word), "max_output_tokens": 1}) - counted(path, {**body(""), "max_output_tokens": 1})
                self.assertGreater(more, 8, (path, index))

    def test_names_come_back_as_json(self):
        """20 texts that a page might take for markup: JSON, and nothing else, says them back."""
        words = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "javascript:alert(1)",
                 "\u2028alert(1)", "</textarea>", "{{7*7}}", "${7*7}", "'; DROP TABLE documents; --", "\u202eabc", "\\u003cb\\u003e",
                 "&lt;b&gt;", "<!--", "]]>", "%3Cscript%3E", "<a href='//evil.example'>", "\"", "'", "`", "\\")
        for word in words:
            for reply in (self.server.post(CHAT, {"messages": [{"role": word, "content": "x"}]}),
                          self.server.post("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": word}]}]}),
                          self.server.get("/%3Cscript%3E")):
                self.assertGreaterEqual(reply.status, 400)
                self.assertEqual(reply.headers["content-type"], "application/json")
                self.assertIn("message", reply.json["error"])


class WithKeys(Case):
    options = ("-np", "2", "-c", "512", "--api-key", ",".join(KEYS), "--chat-template", "llama2", "--vllm-metrics",
               "--cors-origins", "https://chat.example")

    def ask(self, key, text, **fields):
        reply = self.server.post(CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields},
                                 headers={"Authorization": "Bearer " + key})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def test_keys(self):
        for headers in ({"Authorization": "Bearer " + KEYS[0]}, {"authorization": "bearer " + KEYS[1]}, {"X-Api-Key": KEYS[1]}):
            self.assertEqual(self.server.get("/v1/models", headers=headers).status, 200, headers)
        wrong = ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}, {"Authorization": "Bearer x"},
                 {"Authorization": KEYS[0]}, {"Authorization": "Basic " + KEYS[0]}, {"Authorization": "Bearer " + KEYS[0] + "x"},
                 {"Authorization": "Bearer " + KEYS[0][:-1]}, {"Authorization": "Bearer " + KEYS[0].upper()},
                 {"X-Api-Key": ""}, {"X-Api-Key": KEYS[0] + "\u00e9"}, {"X-Api-Key": "k" * 300},
                 {"Authorization": "Bearer " + ",".join(KEYS)}, {"Cookie": "key=" + KEYS[0]})
        self.assertGreaterEqual(len(wrong), 10)
        for headers in wrong:
            for path in ("/v1/models", "/metrics", "/props", "/v1/loam/documents"):
                reply = self.server.get(path, headers={k: v.encode("latin-1") for k, v in headers.items()})
                self.assertEqual(reply.status, 401, (path, headers))
                self.assertEqual(reply.json["error"]["type"], "authentication_error")
        self.assertEqual(self.server.get("/v1/models?key=" + KEYS[0]).status, 401)
        # A proxy's name: who has the key may ask.
        self.assertEqual(self.server.get("/v1/models", headers={"Host": "ai.example", "X-Api-Key": KEYS[0]}).status, 200)
        self.assertEqual(self.server.get("/v1/models", headers={"Host": "ai.example"}).status, 401)
        self.assertEqual((self.server.get("/health").status, self.server.get("/").status), (200, 200))

    def test_behind_a_proxy(self):
        """One that adds TLS and passes its own name: its page is the server's, and no other is."""
        def status(origin, host="ai.example", **more):
            return self.server.get("/v1/models", headers={"Host": host, "Origin": origin, "X-Api-Key": KEYS[0], **more}).status
        for origin in ("https://ai.example", "http://ai.example"):
            self.assertEqual(status(origin), 200, origin)
        self.assertEqual(status("https://ai.example:8443", "ai.example:8443"), 200)
        self.assertEqual(status("https://ai.example", **{"X-Api-Key": "x"}), 401)
        for origin in ("https://evil.example", "https://ai.example:8443", "https://ai.example.evil.example", "https:/ai.example",
                       "https://evil.example/ai.example", "https", "https://", "ai.example", "ftps://ai.example", "null"):
            self.assertEqual(status(origin), 403, origin)
        refused = self.server.get("/v1/models", headers={"Origin": "https://chat.example"})
        self.assertEqual((refused.status, refused.headers["access-control-allow-origin"]), (401, "https://chat.example"))

    def test_two_keys_share_nothing(self):
        """60 texts that one key asks and the other repeats: nothing is reused across, all of it within."""
        self.ask(KEYS[0], "warm"), self.ask(KEYS[1], "warm")
        for i in range(60):
            text = "Case %d: a fox and a crow met on a field of clover." % i
            first = self.ask(KEYS[i % 2], text)["usage"]
            other = self.ask(KEYS[1 - i % 2], text)["usage"]
            self.assertLess(other["prompt_tokens_details"]["cached_tokens"], 16, i)  # what all its own prompts share
            self.assertEqual(first["prompt_tokens"], other["prompt_tokens"])
        again = self.ask(KEYS[1 - i % 2], text + " And then?")["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(again, 16)

    def test_metrics(self):
        self.ask(KEYS[0], "x", max_tokens=4, temperature=0)
        self.ask(KEYS[0], "x", max_tokens=4, temperature=0)
        def read():
            return self.server.metrics({"Authorization": "Bearer " + KEYS[0]})
        ended = 'vllm:request_success_total{finished_reason="length",model_name="loam-nano"}'
        # A turn of the loop late, and a request behind its tokens.
        self.assertTrue(wait_until(lambda: read()["loam_answer_tokens_total"] >= 8 and read().get(ended, 0) >= 2))
        metrics = read()
        self.assertEqual(metrics["loam_answer_tokens_total"], metrics["llamacpp:tokens_predicted_total"])
        self.assertEqual(len([name for name in metrics if name.startswith("llamacpp:")]), 11)
        self.assertEqual(metrics['loam_request_seconds_bucket{le="+Inf"}'], metrics["loam_request_seconds_count"])
        self.assertGreater(metrics["loam_request_seconds_sum"], 0)
        self.assertEqual((metrics["loam_visible_rows_total"], metrics["loam_kept_ratio"]), (0, 1))  # attention is full
        self.assertEqual([name for name in metrics if "weights" in name], [])  # all of them are in RAM
        self.assertEqual(metrics["loam_request_seconds_count"],
                         sum(value for name, value in metrics.items() if name.startswith("loam_requests_done_total{")))
        text = self.server.get("/metrics", headers={"X-Api-Key": KEYS[0]}).body.decode()
        typed = {line.split()[2] for line in text.split("\n") if line.startswith("# TYPE")}
        for line in text.strip().split("\n"):  # every sample has a type, each name one
            if not line.startswith("#"):
                name = line.split("{")[0].split(" ")[0]
                base = next((name[:-len(end)] for end in ("_bucket", "_sum", "_count") if name.endswith(end)
                             and name[:-len(end)] in typed), name)
                self.assertIn(base, typed)
        self.assertEqual(len(typed), text.count("# TYPE"))
        with open(os.path.join(ROOT, "src", "cache", "kv_tier.h"), encoding="utf-8") as file:
            fields = re.search(r"struct kv_tier_statistics \{(.*?)\n\}", file.read(), re.S).group(1)
        fields = re.findall(r"(\w+)[,;]", re.sub(r"/\*.*?\*/", "", fields))
        self.assertIn("read_pages", fields)
        for field in fields:  # each of what the cache counts has a name here
            name = "loam_kv_" + field.replace("_ns", "_seconds")
            self.assertTrue(any(found.startswith(name) for found in metrics), field)
        promtool = shutil.which("promtool")
        if promtool:  # others' names have colons, which it dislikes
            own = "".join(line + "\n" for line in text.split("\n") if "loam_" in line)
            checked = subprocess.run([promtool, "check", "metrics"], input=own, capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))


class ExpertsAreRead(Case):
    """What is read of weights is counted as `loam run` counts it, for the same tokens."""
    model = os.path.join(ROOT, "tests", "golden", "lfm2moe", "model.gguf")
    options = ("-np", "1", "-c", "256", "--weights-host", "170K", "--chat-template", "llama2", "--draft-max", "0")

    def test_metrics(self):
        reply = self.server.post("/v1/completions", {"prompt": "a b c", "max_tokens": 4, "temperature": 0})
        self.assertEqual(reply.status, 200, reply.body)
        told = subprocess.run([LOAM, "run", "-m", self.model, "-c", "256", "--weights-host", "170K", "--raw", "-p", "a b c", "-n", "4",
                               "--temp", "0", "--draft-max", "0", "-q", "-t", "1", "--json", "/dev/stderr"], capture_output=True, check=True)
        expected = json.loads(told.stderr)["weights"]
        self.assertGreater(min(expected["expert_misses"], expected["expert_ahead_used"], expected["read_bytes"]), 0)

        def found():
            rows = {name: value for name, value in self.server.metrics().items() if name.startswith("loam_weights_")}
            return {name.removeprefix("loam_weights_").removesuffix("_total"): value for name, value in rows.items()}
        self.assertTrue(wait_until(lambda: found()["expert_misses"] == expected["expert_misses"]), found())  # a turn of the loop late
        self.assertGreater(found()["wait_seconds"], 0)
        del expected["host_bytes"]  # the sum of two rows
        self.assertEqual(found(), {**expected, "wait_seconds": found()["wait_seconds"]})


class Beyond(unittest.TestCase):
    def test_an_address_beyond_loopback_needs_a_key(self):
        for host in ("0.0.0.0", "::", "192.0.2.1"):
            with self.assertRaisesRegex(AssertionError, "--api-key"):
                Server("--host", host)


if __name__ == "__main__":
    main()
