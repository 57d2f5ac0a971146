"""/v1/completions: forms of the prompt, echo and log-probabilities as lm-eval sums them, streams, errors by field."""
import math

from loam_server import Case, main, run_loam

TEXT = "Once upon a time there was a king"
PATH = "/v1/completions"


class Completions(Case):
    options = ("-np", "4", "-c", "512")

    def greedy(self, **fields):
        reply = self.server.post(PATH, {"temperature": 0, "max_tokens": 8, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def ids(self, text, special=True):
        return self.server.post("/tokenize", {"content": text, "add_special": special}).json["tokens"]

    def test_text_is_the_command_lines(self):
        body = self.greedy(prompt=TEXT, max_tokens=12)
        self.assertEqual(body["object"], "text_completion")
        self.assertEqual(body["choices"][0]["text"], run_loam("run", "--raw", "-p", TEXT, "-n", "12", "--temp", "0"))
        self.assertEqual(body["usage"]["completion_tokens"], 12)
        self.assertEqual(body["choices"][0]["finish_reason"], "length")

    def test_prompt_forms(self):
        ids = self.ids(TEXT)
        alone = self.greedy(prompt=TEXT)["choices"][0]["text"]
        for prompt, count in ((ids, 1), ([TEXT], 1), ([ids], 1), ([TEXT, TEXT], 2), ([ids, ids, ids], 3)):
            choices = self.greedy(prompt=prompt)["choices"]
            self.assertEqual([choice["index"] for choice in choices], list(range(count)))
            self.assertEqual([choice["text"] for choice in choices], [alone] * count)

    def test_begin_token_is_added_to_strings_only(self):
        plain = self.ids(TEXT, special=False)
        self.assertEqual(self.greedy(prompt=TEXT)["usage"]["prompt_tokens"], len(plain) + 1)
        self.assertEqual(self.greedy(prompt=plain)["usage"]["prompt_tokens"], len(plain))

    def test_index_is_prompt_times_n_plus_i(self):
        body = self.greedy(prompt=["The king", "A small house"], n=2)
        texts = [choice["text"] for choice in body["choices"]]
        self.assertEqual([choice["index"] for choice in body["choices"]], [0, 1, 2, 3])
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[2], texts[3])
        self.assertNotEqual(texts[0], texts[2])

    def test_seeds_repeat_and_differ(self):
        def sample(seed, n=1):
            return [c["text"] for c in self.greedy(prompt=TEXT, temperature=1, seed=seed, n=n)["choices"]]
        self.assertEqual(sample(5), sample(5))
        self.assertGreater(len(set(sample(5, n=4))), 1)

    def test_echo_with_log_probabilities(self):
        for text in (TEXT, "One two", "A", "She said: \u201cYes\u201d, and 12 + 30 were 42.", "x\u00e9\u20ac\U0001F600y"):
            ids = self.ids(text, special=False)
            body = self.greedy(prompt=[ids], echo=True, logprobs=1, max_tokens=1, seed=1234)
            found = body["choices"][0]["logprobs"]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                self.assertEqual(len(found[name]), len(ids) + 1, name)
            self.assertIsNone(found["token_logprobs"][0])
            self.assertIsNone(found["top_logprobs"][0])
            self.assertEqual(found["text_offset"][0], 0)
            # The generated one is greedy: the likeliest, bit for bit.
            self.assertEqual(found["token_logprobs"][-1], max(found["top_logprobs"][-1].values()))
            for own, top in list(zip(found["token_logprobs"], found["top_logprobs"]))[1:]:
                self.assertLessEqual(own, max(top.values()))
                self.assertTrue(math.isfinite(own) and own <= 0)
                self.assertIn(own, top.values())
            self.assertTrue(body["choices"][0]["text"].startswith(text))

    def test_the_end_token_is_an_entry(self):
        """lm-eval leaves the last entry out: without that of the end token it would lose one of its own."""
        info = self.server.get("/tokenizer_info").json
        ids = self.ids(TEXT)
        for stream in (False, True):
            reply = self.server.post(PATH, {"prompt": ids, "echo": True, "logprobs": 2, "max_tokens": 4, "temperature": 0,
                                            "logit_bias": {str(info["eos_token_id"]): 100}, "stream": stream})
            choices = [f["choices"][0] for f in reply.frames[:-1]] if stream else reply.json["choices"]
            self.assertEqual(choices[-1]["finish_reason"], "stop")
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                self.assertEqual(sum(len(c["logprobs"][name]) for c in choices), len(ids) + 1, name)
            self.assertEqual([c for c in choices if c["logprobs"]["tokens"]][-1]["logprobs"]["tokens"][-1], info["eos_token"])
            self.assertEqual("".join(c["text"] for c in choices), TEXT)

    def test_tokens_that_are_no_text(self):
        """A byte of a character is told by its value, and every one of the likeliest has a key of its own."""
        split = self.ids("\U0001F600", special=False)
        found = self.greedy(prompt=[split + split], echo=True, logprobs=20, max_tokens=1)["choices"][0]["logprobs"]
        self.assertGreater(len(split), 1)
        for text in found["tokens"][:2 * len(split)]:
            self.assertRegex(text, r"^bytes:(\\x[0-9a-f]{2})+$")
        spelled = bytes.fromhex("".join(found["tokens"][:len(split)]).replace("bytes:", "").replace("\\x", ""))
        self.assertEqual(spelled.decode(), "\U0001F600")
        for top in found["top_logprobs"][1:]:
            self.assertIn(len(top), (20, 21))  # the token itself, where it is not one of them

    def test_log_probabilities_do_not_depend_on_how_they_are_asked(self):
        ids = self.ids(TEXT)
        echoed = self.greedy(prompt=ids, echo=True, logprobs=3, max_tokens=1)["choices"][0]["logprobs"]
        for cut in range(1, len(ids)):
            one = self.greedy(prompt=ids[:cut], logprobs=3, max_tokens=1)["choices"][0]["logprobs"]
            for token, value in one["top_logprobs"][0].items():
                if token in echoed["top_logprobs"][cut]:
                    self.assertAlmostEqual(value, echoed["top_logprobs"][cut][token], places=3)
            self.assertEqual(max(one["top_logprobs"][0], key=one["top_logprobs"][0].get),
                             max(echoed["top_logprobs"][cut], key=echoed["top_logprobs"][cut].get))

    def test_echoed_probabilities_are_bounded(self):
        """One prompt of 400 tokens is read once for 128 choices, each of which would have 21 probabilities a token."""
        body = {"prompt": [5] * 400, "n": 128, "max_tokens": 1, "echo": True, "logprobs": 20}
        self.refused(self.server.post(PATH, body), 400, "found 1075200 probabilities", "at most 262144")
        self.assertEqual(self.server.post(PATH, dict(body, n=3, logprobs=1)).status, 200)

    def test_echo_alone_without_an_answer(self):
        ids = self.ids(TEXT)
        body = self.greedy(prompt=ids, echo=True, logprobs=1, max_tokens=0)
        self.assertEqual(len(body["choices"][0]["logprobs"]["tokens"]), len(ids))
        self.assertEqual(body["choices"][0]["text"], TEXT)

    def test_stop_strings(self):
        whole = self.greedy(prompt=TEXT, max_tokens=12)["choices"][0]["text"]
        word = whole.split()[2]
        cut = self.greedy(prompt=TEXT, max_tokens=12, stop=[word])["choices"][0]
        self.assertEqual(cut["text"], whole[:whole.index(word)])
        self.assertEqual(cut["finish_reason"], "stop")
        for none in (None, [], ""):
            self.assertEqual(self.greedy(prompt=TEXT, max_tokens=12, stop=none)["choices"][0]["text"], whole)
        self.assertEqual(self.greedy(prompt=TEXT, max_tokens=12, stop=[word] + ["zzz%d" % i for i in range(15)])
                         ["choices"][0]["text"], cut["text"])

    def test_stream_is_the_whole_answer_cut_in_pieces(self):
        for fields in ({}, {"n": 2}, {"echo": True}, {"logprobs": 2}, {"echo": True, "logprobs": 1}):
            whole = self.greedy(prompt=TEXT, **fields)
            reply = self.server.post(PATH, {"prompt": TEXT, "temperature": 0, "max_tokens": 8, "stream": True,
                                            "stream_options": {"include_usage": True}, **fields})
            self.assertEqual(reply.headers["content-type"], "text/event-stream")
            frames = reply.frames
            self.assertEqual(frames[-1], "[DONE]")
            self.assertEqual(frames[-2]["choices"], [])
            self.assertEqual(frames[-2]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
            for choice in whole["choices"]:
                mine = [f["choices"][0] for f in frames[:-2] if f["choices"][0]["index"] == choice["index"]]
                self.assertEqual("".join(part["text"] for part in mine), choice["text"])
                self.assertEqual([part["finish_reason"] for part in mine if part["finish_reason"]],
                                 [choice["finish_reason"]])
                if "logprobs" in fields:
                    for name in ("tokens", "token_logprobs", "text_offset"):
                        joined = sum((part["logprobs"][name] for part in mine), [])
                        self.assertEqual(joined, choice["logprobs"][name], name)

    def test_biases(self):
        first = self.ids(self.greedy(prompt=TEXT, max_tokens=1)["choices"][0]["text"], special=False)[-1]
        other = self.greedy(prompt=TEXT, max_tokens=1, logit_bias={str(first): -100})["choices"][0]["text"]
        self.assertNotEqual(self.ids(other, special=False)[-1], first)
        forced = self.greedy(prompt=TEXT, max_tokens=3, logit_bias={"300": 100})["choices"][0]["text"]
        self.assertEqual(self.ids(forced, special=False)[-3:], self.ids(forced, special=False)[-1:] * 3)

    def test_numbers_out_of_range_are_named(self):
        cases = []
        for name, values in {
                "temperature": ("NaN", -1, 1001, "warm", [1], True, 1e308), "top_p": (-0.1, 1.1, "x", {}),
                "min_p": (-1, 2, "x"), "top_k": (-2, 1.5, "x", 1e12), "n": (0, -1, 129, 1.5, "2", 10**12),
                "max_tokens": (-2, 0.5, "many", [], 10**30), "logprobs": (-1, 21, 1.5, "5"),
                "presence_penalty": (-101, 101, "x"), "frequency_penalty": (-101, 101, []),
                "repeat_penalty": (0, 101, "x"), "repeat_last_n": (-1, 10**9, "x"), "seed": (1.5, "x", [1]),
                "echo": (1, "true", []), "stream": (1, "yes"), "ignore_eos": (0, "x"),
                "stream_options": (1, "x", []), "stop": (5, {}, [1], [None], ["x"] * 65, ["x"] * 500000, "y" * 5000),
                "logit_bias": ("x", {"-1": 1}, {"99999999": 1}, {"x": 1}, {"1": 101}, {"1": "x"}, {"1.5": 1}),
                "best_of": (2, 0, "x"), "suffix": ("x",), "grammar": ("root ::= x",), "guided_regex": ("a+",),
                "chat_template": ("{{x}}",), "response_format": ("json", [])}.items():
            cases += [(name, value) for value in values if value != "NaN"]
        for name, value in cases:
            reply = self.server.post(PATH, {"prompt": "x", "max_tokens": 1, name: value})
            self.assertEqual(reply.status, 400, (name, str(value)[:40], reply.body[:200]))
            if isinstance(value, int) and abs(value) >= 10**20:
                continue  # no JSON integer of this machine: the parser says so
            self.assertIn(name, (reply.json["error"]["param"], reply.json["error"]["message"].split("'")[1]), str(value)[:40])
        self.assertGreaterEqual(len(cases), 80)

    def test_samplers_of_others(self):
        """Done, or refused by name; what is off is nothing."""
        plain = self.greedy(prompt=TEXT, max_tokens=16)["choices"][0]["text"]
        for name in ("repeat_penalty", "repetition_penalty"):
            self.assertNotEqual(self.greedy(prompt=TEXT, max_tokens=16, **{name: 5.0})["choices"][0]["text"], plain, name)
        for name, off, on in (("min_tokens", 0, 4), ("dry_multiplier", 0, 0.8), ("xtc_probability", 0.0, 0.5), ("typ_p", 1, 0.5),
                              ("typical_p", 1.0, 0.5), ("mirostat", 0, 2), ("top_n_sigma", -1, 1), ("dynatemp_range", 0, 1),
                              ("no_repeat_ngram_size", 0, 3), ("use_beam_search", False, True), ("stop_token_ids", [], [5]),
                              ("length_penalty", 1.0, 2), ("bad_words", [], ["x"]), ("allowed_token_ids", None, [5])):
            self.assertEqual(self.greedy(prompt=TEXT, max_tokens=16, **{name: off})["choices"][0]["text"], plain, name)
            self.refused(self.server.post(PATH, {"prompt": "x", name: on}), 400, name)

    def test_seeds_and_stops(self):
        body = {"prompt": TEXT, "max_tokens": 12, "temperature": 1}
        texts = [self.server.post(PATH, {**body, "seed": seed, "n": 2}).json["choices"][0]["text"]
                 for seed in (2**63 + 2**40, 2**63 + 2**40, 2**64 - 2**12, 7)]
        self.assertEqual(texts[0], texts[1])
        self.assertGreater(len(set(texts)), 1)
        self.refused(self.server.post(PATH, {**body, "seed": 2**64}), 400, "seed")
        stops = ["Name%d:" % i for i in range(63)] + [self.greedy(prompt=TEXT, max_tokens=4)["choices"][0]["text"][-2:]]
        self.assertEqual(self.greedy(prompt=TEXT, max_tokens=40, stop=stops)["choices"][0]["finish_reason"], "stop")

    def test_half_a_character_is_no_text(self):
        """Each byte of these is a token: an answer that is cut inside a character ends before it."""
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "\u20ac\U0001F600"}}}
        whole = '"\u20ac\U0001F600"'
        seen = set()
        for count in range(1, 9):
            text = self.greedy(prompt="x", max_tokens=count, response_format=form)["choices"][0]["text"]
            self.assertTrue(whole.startswith(text), text)
            seen.add(text)
        self.assertIn('"\u20ac', seen)

    def test_spellings_of_routes(self):
        for path in ("/completions", "//v1/completions", "/v1//completions", "/v1/completions/", "/completions//"):
            self.assertEqual(self.server.post(path, {"prompt": "x", "max_tokens": 1}).status, 200, path)
        for path in ("/v1/health", "/health/", "/models/", "//v1/models"):
            self.assertEqual(self.server.get(path).status, 200, path)
        for path in ("/v1", "/v1/", "/v2/completions", "/v1completions", "/v1/completion", "/xv1/completions", "/completionsx"):
            self.assertEqual(self.server.post(path, {"prompt": "x"}).status, 404, path)
        for path in ("/messages", "//v1/messages/"):
            self.assertEqual(self.server.post(path, {}).json["type"], "error", path)

    def test_not_json(self):
        for text in ('{"prompt": "x", "temperature": NaN}', '{"prompt": "x", "temperature": Infinity}',
                     '{"prompt": "x", "temperature": -Infinity}', '{"prompt": "x", "n": 1e999}', "", "[]", "1", "null",
                     '"x"', "{", '{"a": 1', '{"a" 1}', "{'a': 1}", '{"a": 1,}', '{"a": 01}', '{"a": +1}',
                     '{"prompt": "x", "prompt": "y"}', '{"prompt": "\\ud8"}', '{"a": "\x01"}', "{}x",
                     '{"prompt": "x"} {"prompt": "y"}', "[" * 100000, '{"a":' * 65 + "1" + "}" * 65,
                     '{"a": ' + "[" * 64 + "]" * 64 + "}"):
            self.refused(self.server.post(PATH, text), 400)
        for data in (b'{"prompt": "\xff"}', b'{"prompt": "\xc3"}', b'{"prompt": "\xed\xa0\x80"}', b'{"\xfe": 1}',
                     b'\xef\xbb\xbf{"prompt": "x"}', b'{"prompt": "\xf5\x80\x80\x80"}', b"\x00", b'{"prompt": "\x00"}'):
            self.refused(self.server.post(PATH, data), 400)

    def test_unknown_fields_are_ignored_and_null_is_absent(self):
        self.greedy(prompt="x", user="me", metadata={"a": 1}, foo=None, temperature=0, n=None, stop=None, seed=None,
                    logprobs=None, best_of=None, suffix=None, stream_options=None, logit_bias=None)

    def test_token_ids_outside_of_the_vocabulary(self):
        size = self.server.get("/tokenizer_info").json["vocab_size"]
        for bad in (size, size + 1, -1, -2**31, 2**31, 2**40, 10**18, 1.5, "5", None, True, [1], {}):
            for prompt in ([1, bad], [[1, bad]]):
                self.assertEqual(self.server.post(PATH, {"prompt": prompt}).status, 400, prompt)
            self.assertEqual(self.server.post("/detokenize", {"tokens": [bad]}).status, 400, bad)
        for prompt in ([], [[]], "", [""], {}, 5, None, [[], [1]]):
            if prompt not in ("", [""]):  # a string gets the begin token
                self.assertEqual(self.server.post(PATH, {"prompt": prompt}).status, 400, prompt)
        self.refused(self.server.post(PATH, {}), 400, "prompt")
        self.refused(self.server.post(PATH, {"prompt": ["x"] * 129}), 400, "128")
        self.refused(self.server.post(PATH, {"prompt": ["x"] * 65, "n": 2}), 400, "128")

    def test_overflow_is_told_in_openais_words(self):
        for stream in (False, True):
            reply = self.server.post(PATH, {"prompt": [5] * 600, "max_tokens": 1, "stream": stream})
            self.assertEqual(reply.status, 400)
            error = reply.json["error"]
            self.assertEqual(error["code"], "context_length_exceeded")
            self.assertIn("This model's maximum context length is 512 tokens", error["message"])
            self.assertEqual((error["n_prompt_tokens"], error["n_ctx"]), (600, 512))
            self.assertEqual(reply.headers["x-should-retry"], "false")

    def test_tokens_and_back(self):
        for text in ("", "Hello, world", "a\u00e9\u20ac\U0001F600", "<|begin|><|end|>", " x", "\n\n", "a\u0000b"):
            found = self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json
            self.assertEqual(found["count"], len(found["tokens"]))
            back = self.server.post("/detokenize", {"tokens": found["tokens"]}).json
            self.assertEqual((back["prompt"], back["content"]), (text, text))
        pieces = self.server.post("/tokenize", {"content": "king", "with_pieces": True}).json["tokens"]
        self.assertEqual("".join(piece["piece"] for piece in pieces), "king")


class Loops(Case):
    """An answer that goes round in a circle ends, and says so; what is not to end goes on."""
    options = ("-np", "2", "-c", "1300")

    def test_a_loop_ends(self):
        asked = {"prompt": "The report of the first day says that", "temperature": 0, "max_tokens": 1250}
        for stream in (False, True):
            reply = self.server.post(PATH, {**asked, "stream": stream, "stream_options": {"include_usage": True}})
            frames = [frame for frame in reply.frames if isinstance(frame, dict)] if stream else [reply.json]
            ends = [choice for frame in frames for choice in frame["choices"] if choice["finish_reason"]]
            self.assertEqual([(end["finish_reason"], end.get("stop_reason")) for end in ends], [("length", "loop")])
            self.assertIn(frames[-1]["usage"]["completion_tokens"], range(1024, 1100))
        whole = self.server.post(PATH, {**asked, "ignore_eos": True}).json
        self.assertEqual(whole["usage"]["completion_tokens"], 1250)
        self.assertNotIn("stop_reason", whole["choices"][0])


if __name__ == "__main__":
    main()
