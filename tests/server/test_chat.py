"""/v1/chat/completions: messages of every form, streams frame by frame, errors by field, reuse of what was read."""
import glob
import json
import os
import tempfile

from loam_server import ROOT, Case, main, run_loam, with_template

PATH = "/v1/chat/completions"
QUESTION = "Who is the king of the small house?"


class Chat(Case):
    options = ("-np", "4", "-c", "1024", "--chat-template", "llama2")

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.options = (*Chat.options, "--kv-disk", os.path.join(cls.folder.name, "kv"))
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def body(self, messages=QUESTION, **fields):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return {"messages": messages, "temperature": 0, "max_tokens": 8, **fields}

    def ask(self, messages=QUESTION, **fields):
        reply = self.server.post(PATH, self.body(messages, **fields))
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def answer(self, messages=QUESTION, **fields):
        return self.ask(messages, **fields)["choices"][0]["message"]["content"]

    def prompt(self, messages, **fields):
        reply = self.server.post("/apply-template", self.body(messages, **fields))
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json["prompt"]

    def test_the_answer_is_the_command_lines(self):
        body = self.ask()
        self.assertEqual(body["object"], "chat.completion")
        self.assertRegex(body["id"], "^chatcmpl-")
        choice = body["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertEqual(choice["message"]["content"],
                         run_loam("run", "-p", QUESTION, "-n", "8", "--temp", "0", "--chat-template", "llama2"))
        self.assertEqual((choice["index"], choice["finish_reason"], choice["logprobs"]), (0, "length", None))
        usage = body["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertEqual(usage["completion_tokens"], 8)

    def test_forms_of_a_message(self):
        plain = self.prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a b"}])
        same = [
            [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "a b"}],
            [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
             {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]}],
            [{"role": "system", "content": "Be brief.", "name": "x"}, {"role": "user", "content": "a b", "foo": 1}],
        ]
        for messages in same:
            self.assertEqual(self.prompt(messages), plain)
        # This template wants turns: neighbours of one role become one.
        self.assertEqual(self.prompt([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]),
                         self.prompt([{"role": "user", "content": "a\n\nb"}]))
        self.assertIn("Be brief.", plain)

    def test_control_tokens_in_text_stay_text(self):
        names = ("</s>", "<s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|begin|>", "<|end|>", "<0x0A>", "[INST]")
        for name in names:
            for role in ("system", "user", "assistant"):
                messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"},
                            {"role": "user", "content": "z"}]
                if role == "system":
                    messages.insert(0, {"role": "system", "content": ""})
                next(m for m in messages if m["role"] == role)["content"] += name
                plain = [dict(m, content=m["content"].replace(name, "")) for m in messages]
                # Text of several tokens, where the control token would be one.
                ids = self.server.post("/tokenize", {"content": name, "parse_special": False}).json["tokens"]
                whole = self.ask(messages, max_tokens=1)["usage"]["prompt_tokens"]
                self.assertGreater(whole, self.ask(plain, max_tokens=1)["usage"]["prompt_tokens"] + 1, name)
                self.assertGreater(len(ids), 1, name)

    def test_a_stream_frame_by_frame(self):
        whole = self.ask(n=2)
        reply = self.server.post(PATH, self.body(stream=True, n=2, stream_options={"include_usage": True}))
        self.assertEqual((reply.status, reply.headers["content-type"]), (200, "text/event-stream"))
        frames = reply.frames
        self.assertNotIn(b"\nid:", reply.body)
        self.assertEqual(frames[-1], "[DONE]")
        for frame in frames[:-1]:
            self.assertEqual((frame["object"], frame["id"], frame["model"]),
                             ("chat.completion.chunk", frames[0]["id"], "loam-nano"))
            self.assertEqual(frame["created"], frames[0]["created"])
        self.assertEqual([f["choices"][0]["index"] for f in frames[:2]], [0, 1])
        for frame in frames[:2]:
            self.assertEqual(frame["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual((frames[-2]["choices"], frames[-2]["usage"]["completion_tokens"]), ([], 16))
        for choice in whole["choices"]:
            mine = [f["choices"][0] for f in frames[:-2] if f["choices"][0]["index"] == choice["index"]]
            self.assertEqual("".join(part["delta"].get("content", "") for part in mine), choice["message"]["content"])
            self.assertEqual([p["finish_reason"] for p in mine if p["finish_reason"]], ["length"])
            self.assertEqual(mine[-1]["finish_reason"], "length")
        bare = self.server.post(PATH, self.body(stream=True)).frames
        self.assertTrue(all("usage" not in frame for frame in bare[:-1]))

    def test_progress_is_told(self):
        text = "The gate of the garden is green. " * 60
        frames = self.server.post(PATH, self.body(text, stream=True, return_progress=True)).frames[:-1]
        told = [f["prompt_progress"] for f in frames if "prompt_progress" in f]
        self.assertGreaterEqual(len(told), 2)
        self.assertEqual(told[-1]["processed"], told[-1]["total"])
        self.assertEqual([t["processed"] for t in told], sorted(t["processed"] for t in told))
        self.assertEqual(told[0]["processed"], told[0]["cache"])
        for frame in frames:
            if "prompt_progress" in frame:
                self.assertEqual(frame["choices"][0]["delta"], {})

    def test_what_was_read_is_not_read_again(self):
        text = "A fox and a crow met on a field. " * 40
        first = self.ask(text)
        again = self.ask([{"role": "user", "content": text},
                          {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
                          {"role": "user", "content": "Go on."}])
        prompt = first["usage"]["prompt_tokens"]
        self.assertGreater(prompt, 300)
        self.assertGreaterEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], prompt - 64)
        self.assertEqual(self.answer(text), first["choices"][0]["message"]["content"])

    def test_a_prompt_is_read_without_an_answer(self):
        text = "The mill by the river has a red door. " * 40
        for stream in (False, True):
            reply = self.server.post(PATH, self.body(text, max_tokens=0, stream=stream))
            self.assertEqual(reply.status, 200)
            choice = reply.frames[-2]["choices"][0] if stream else reply.json["choices"][0]
            self.assertEqual(choice["finish_reason"], "length")
        usage = self.ask(text)["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 1)

    def test_log_probabilities(self):
        content = self.ask(logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 8)
        for entry in content:
            self.assertEqual(len(entry["top_logprobs"]), 3)
            self.assertEqual(entry["logprob"], entry["top_logprobs"][0]["logprob"])  # greedy
            self.assertEqual((entry["token"], entry["bytes"]),
                             (entry["top_logprobs"][0]["token"], entry["top_logprobs"][0]["bytes"]))
        frames = self.server.post(PATH, self.body(stream=True, logprobs=True, top_logprobs=3)).frames[:-1]
        streamed = [entry for f in frames if f["choices"][0].get("logprobs")
                    for entry in f["choices"][0]["logprobs"]["content"]]
        self.assertEqual(streamed, content)

    def test_tools_are_told_to_the_model(self):
        tool = {"type": "function", "function": {"name": "weather", "description": "of a city",
                                                 "parameters": {"type": "object", "properties": {"city": {}}}}}
        self.assertIn('"weather"', self.prompt(QUESTION, tools=[tool]))
        self.assertEqual(self.prompt(QUESTION, tools=[tool], tool_choice="none"), self.prompt(QUESTION))
        talk = [{"role": "user", "content": "Rain?"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "dry"},
                {"role": "tool", "tool_call_id": None, "content": [{"type": "text", "text": "cold"}]}]
        told = self.prompt(talk, tools=[tool])
        for part in ('{"name": "weather", "arguments": {"city": "Ulm"}}', "<tool_response>\ndry\n</tool_response>",
                     "<tool_response>\ncold\n</tool_response>"):
            self.assertIn(part, told)

    def test_what_is_wrong_is_named(self):
        wrong = {
            "messages": ([], {}, "x", [1], [{}], [{"role": "king", "content": "x"}], [{"role": 5, "content": "x"}],
                         [{"role": "user", "content": 5}], [{"role": "user", "content": [{"type": "image_url"}]}],
                         [{"role": "user", "content": [5]}], [{"role": "user", "content": {"text": "x"}}]),
            "tools": ("x", [{}], [{"type": "function"}], [{"function": {"name": 5}}], [{"function": {"name": ""}}],
                      [{"function": {"name": "x", "parameters": 5}}]),
            "top_logprobs": (2, -1, 21, "x"), "logprobs": (1, "x"), "n": (0, 129, "x"), "max_tokens": (-2, "x"),
            "stream": ("x",), "chat_template": ("{{x}}",), "functions": ([{"name": "x"}],),
        }
        count = 0
        for name, values in wrong.items():
            for value in values:
                reply = self.server.post(PATH, {**self.body(), name: value})
                self.assertEqual(reply.status, 400, (name, value, reply.body))
                error = reply.json["error"]
                self.assertTrue(name in (error["param"] or "") or name in error["message"], (name, value, error))
                self.assertEqual((error["type"], reply.headers["content-type"]),
                                 ("invalid_request_error", "application/json"))
                count += 1
        self.assertGreaterEqual(count, 30)

    # ---- histories ----

    def test_recordings(self):
        """What agents send, turn after turn, written by us in their shapes."""
        count = 0
        for path in glob.glob(os.path.join(ROOT, "tests", "server", "recordings", "*.json")):
            with open(path) as file:
                recording = json.load(file)
            for body in recording["bodies"]:
                reply = self.server.post(recording["path"], body)
                self.assertEqual(reply.status, 200, (path, reply.body[:400]))
                self.assertNotIn(b'"error": ', reply.body)
                count += 1
        self.assertGreaterEqual(count, 11)

    def test_what_is_no_text_is_refused_in_the_newest_turn_alone(self):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        old = [{"role": "user", "content": [{"type": "text", "text": "Look: "}, image]},
               {"role": "assistant", "content": [{"type": "text", "text": "No."}, {"type": "thinking", "thinking": "x"}]}]
        self.refused(self.server.post(PATH, self.body(old[:1])), 400, "image_url", "expected text")
        prompt = self.prompt([*old, {"role": "user", "content": "Go on."}])
        self.assertIn("Look: [image_url: left out, this model reads text]", prompt)
        self.assertNotIn("thinking", prompt)
        block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        asked = {"max_tokens": 2, "messages": [{"role": "user", "content": [block]}]}
        self.refused(self.server.post("/v1/messages", asked), 400, "type 'image'")
        asked["messages"] += [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Go on."}]
        self.assertEqual(self.server.post("/v1/messages", asked).status, 200)
        items = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
        self.refused(self.server.post("/v1/responses", {"input": items}), 400, "input_image")
        items += [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Go on."}]
        self.assertEqual(self.server.post("/v1/responses", {"input": items, "max_output_tokens": 2}).status, 200)
        self.refused(self.server.post("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}), 400, "item_reference")

    def test_calls_that_were_cut(self):
        talk = [{"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"text": "cut he'}}]},
                {"role": "tool", "tool_call_id": "c", "content": "no JSON"}]
        self.assertIn('{"name": "f", "arguments": "{\\"text\\": \\"cut he"}', self.prompt(talk))

    def test_half_a_pair(self):
        """A character that was cut is U+FFFD; a whole one stays, and so does a backslash that is text."""
        for cut, whole in (("\\ud83d", "\ufffd"), ("\\ude00", "\ufffd"), ("\\ud83d\\ude00", "\U0001F600"),
                           ("\\ud83d\\ud83d\\ude00", "\ufffd\U0001F600"), ("\\\\ud83d", "\\ud83d"), ("\\uD83Dx", "\ufffdx")):
            reply = self.server.post("/apply-template", '{"messages": [{"role": "user", "content": "<%s>"}]}' % cut)
            self.assertEqual(reply.status, 200, reply.body)
            self.assertIn("<%s>" % whole, reply.json["prompt"])

    def test_a_conversation_too_long(self):
        messages = [{"role": "user", "content": "word " * 3000}]
        for path in ("/v1/messages", "/v1/messages?beta=true"):
            reply = self.server.post(path, {"messages": messages, "max_tokens": 2})
            self.assertRegex(reply.json["error"]["message"], r"^prompt is too long: \d{4} tokens > 1024 maximum$")
        reply = self.server.post(PATH, self.body("word " * 3000, stream=True))
        self.assertEqual(reply.status, 400)
        self.assertEqual(reply.json["error"]["code"], "context_length_exceeded")
        self.assertIn("maximum context length is 1024 tokens", reply.json["error"]["message"])


TEMPLATE = """{%- if tools %}[tools{% for t in tools %} {{ t.function | tojson }}{% endfor %}]{% endif %}
{%- for m in messages %}
<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content or "" }}
{%- for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}</tool_call>{% endfor %}
{%- if m.role == 'tool' %}({{ m.tool_call_id }} {{ m.name }}){% endif %}
{%- endfor %}
{%- if messages[0].content == 'no' %}{{ raise_exception('not so') }}{% endif %}
{%- if add_generation_prompt %}
<assistant>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% elif enable_thinking %}<think>{% endif %}{{ reasoning_effort }}{{ mood }}
{%- endif %}"""
USER = [{"role": "user", "content": "2+2?"}]
ANSWER = USER + [{"role": "assistant", "content": "The sum is"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {}, "additionalProperties": False}}}


class OwnTemplate(Case):
    """The model's own template, its switches, and tools as it shows them."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "own.gguf")
        with_template(cls.model, TEMPLATE, {"temp": 0.25, "top_k": 1, "top_p": 0.5, "min_p": 0.125, "penalty_repeat": 1.5,
                                            "penalty_last_n": 17})
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def prompt(self, messages=USER, **fields):
        reply = self.server.post("/apply-template", {"messages": messages, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json["prompt"].removeprefix("<|begin|>")

    def test_switches(self):
        begin = "<user>2+2?<assistant>"
        for fields, end in (
                ({}, ""), ({"chat_template_kwargs": {"enable_thinking": False}}, "<think></think>"),
                ({"enable_thinking": False}, "<think></think>"), ({"enable_thinking": True}, "<think>"),
                ({"thinking": {"type": "disabled"}}, "<think></think>"),
                ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "<think>"),
                ({"reasoning_effort": "low"}, "low"), ({"reasoning_effort": "none"}, "<think></think>"),
                ({"reasoning": {"effort": "high"}}, "high"), ({"chat_template_kwargs": {"mood": "kind"}}, "kind"),
                ({"chat_template_kwargs": {"messages": [], "bos_token": "x", "add_generation_prompt": False}}, "")):
            self.assertEqual(self.prompt(**fields), begin + end, fields)
        self.assertEqual(self.prompt(add_generation_prompt=False), "<user>2+2?")

    def test_an_answer_goes_on(self):
        begun = "<user>2+2?<assistant>The sum is"
        self.assertEqual(self.prompt(ANSWER), begun)
        self.assertEqual(self.prompt(ANSWER, continue_final_message=True, add_generation_prompt=False), begun)
        self.assertEqual(self.prompt(ANSWER, add_generation_prompt=True), begun + "<assistant>")
        self.assertEqual(self.prompt(ANSWER, continue_final_message=False), begun + "<assistant>")
        for messages, fields in ((USER, {"continue_final_message": True}), (ANSWER, {"continue_final_message": 1}),
                                 (ANSWER, {"continue_final_message": True, "add_generation_prompt": True})):
            self.refused(self.server.post(PATH, {"messages": messages, **fields}), 400, "continue_final_message")
        reply = self.server.post("/v1/messages", {"messages": ANSWER, "max_tokens": 2})
        self.assertEqual(reply.status, 200, reply.body)
        counts = [self.server.post(PATH, {"messages": messages, "max_tokens": 1}).json["usage"]["prompt_tokens"]
                  for messages in (USER, ANSWER)]
        self.assertLess(*counts)

    def test_thoughts_that_the_template_begins(self):
        def message(**fields):
            reply = self.server.post(PATH, {"messages": USER, "max_tokens": 6, "temperature": 0, **fields})
            self.assertEqual(reply.status, 200, reply.body)
            return reply.json["choices"][0]["message"]

        self.assertEqual(message(enable_thinking=True)["content"], "")
        self.assertTrue(message(enable_thinking=True)["reasoning_content"])
        self.assertTrue(message(enable_thinking=False)["content"])
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
        self.assertIn(message(enable_thinking=True, response_format=schema)["content"], ("true", "false"))
        call = message(enable_thinking=True, tools=[TOOL], tool_choice="required", max_tokens=200)
        self.assertEqual(call["tool_calls"][0]["function"]["name"], "add")

    def test_tools_as_the_template_shows_them(self):
        call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{\"a\": [1]}"}}
        history = USER + [{"role": "assistant", "content": None, "tool_calls": [call, call]},
                          {"role": "tool", "tool_call_id": "x", "content": "3"},
                          {"role": "tool", "tool_call_id": "x", "content": "4"}, {"role": "user", "content": "So?"}]
        shown = self.prompt(history, tools=[TOOL])
        self.assertTrue(shown.startswith('[tools {"name": "add", "parameters": {"type": "object"'), shown)
        self.assertIn('<tool_call>{"name": "add", "arguments": {"a": [1]}, "id": "call00001"}</tool_call>', shown)
        self.assertIn("<tool>3(call00000 add)<tool>4(call00001 add)<user>So?<assistant>", shown)
        self.assertNotIn("tool_response", shown)
        self.assertNotIn("[tools", self.prompt(tools=[TOOL], tool_choice="none"))

    def test_thoughts_of_a_history(self):
        """The template is given them, by whichever route and name they come; beside calls, too."""
        end = {"role": "user", "content": "So?"}
        for name in ("reasoning_content", "reasoning"):
            said = {"role": "assistant", "content": "4", name: "two and two"}
            self.assertEqual(self.prompt(USER + [said, end]), "<user>2+2?<assistant>(two and two)4<user>So?<assistant>")
        for nothing in ({"reasoning_content": None}, {"reasoning": {"effort": "low"}}, {"reasoning_content": ""}):
            self.assertEqual(self.prompt(USER + [{"role": "assistant", "content": "4", **nothing}, end]),
                             "<user>2+2?<assistant>4<user>So?<assistant>")
        call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        history = USER + [{"role": "assistant", "content": None, "reasoning_content": "I add", "tool_calls": [call]},
                          {"role": "tool", "tool_call_id": "x", "content": "4"}]
        shown = self.prompt(history, tools=[TOOL])
        self.assertIn("<assistant>(I add)<tool_call>", shown)
        wanted = self.server.post(PATH, {"messages": history, "tools": [TOOL], "max_tokens": 1}).json["usage"]["prompt_tokens"]
        anthropic = {"max_tokens": 1, "tools": [{"name": "add", "input_schema": TOOL["function"]["parameters"]}], "messages": USER + [
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "I add", "signature": "x"},
                                              {"type": "redacted_thinking", "data": "x"},
                                              {"type": "tool_use", "id": "x", "name": "add", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "4"}]}]}
        self.assertEqual(self.server.post("/v1/messages/count_tokens", anthropic).json["input_tokens"], wanted)
        items = USER + [{"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "I add"}]},
                        {"type": "function_call", "call_id": "x", "name": "add", "arguments": "{}"},
                        {"type": "function_call_output", "call_id": "x", "output": "4"}]
        tools = [{"type": "function", **TOOL["function"]}]
        reply = self.server.post("/v1/responses", {"input": items, "tools": tools, "max_output_tokens": 1}).json
        self.assertEqual(reply["usage"]["input_tokens"], wanted)

    def test_sampling_of_the_file(self):
        params = self.server.get("/props").json["default_generation_settings"]["params"]
        for name, value in (("temperature", 0.25), ("top_k", 1), ("top_p", 0.5), ("min_p", 0.125), ("repeat_penalty", 1.5),
                            ("repeat_last_n", 17)):
            self.assertEqual(params[name], value, name)
        self.assertEqual(self.server.get("/v1/models").json["data"][0]["document_temperature"], 0.25)
        said = [run_loam("run", "-p", "a b", "-n", "12", "-s", seed, *more, model=self.model)
                for more in ((), ("--top-k", "0", "--top-p", "1", "--min-p", "0", "--temp", "50")) for seed in ("1", "2")]
        self.assertEqual(said[0], said[1])
        self.assertNotEqual(said[2], said[3])

    def test_its_refusal_is_the_clients(self):
        reply = self.server.post(PATH, {"messages": [{"role": "user", "content": "no"}]})
        self.refused(reply, 400, "not so")


if __name__ == "__main__":
    main()
