"""/v1/messages and /v1/responses, whole and streamed, and tool calls in all three families, on the real model."""
import json
import sys

from loam_server import REAL, WITHOUT_REAL, Case, main

MESSAGES, COUNT, RESPONSES, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CITIES = ("Rome", "Oslo", "Lima")


def question(city):
    return "What is the weather in %s?" % city


class Families(Case):
    model = REAL
    options = ("-np", "4", "-c", "2048")

    def ask(self, path, **fields):
        reply = self.server.post(path, {"temperature": 0, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply

    def message(self, text="Say a word.", **fields):
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        return self.ask(MESSAGES, **{"max_tokens": 8, "messages": messages, **fields})

    def count(self, **fields):
        return self.server.post(COUNT, fields).json["input_tokens"]

    def response(self, text="Say a word.", **fields):
        return self.ask(RESPONSES, **{"max_output_tokens": 8, "input": text, **fields})

    # ---- /v1/messages ----

    def test_message_is_the_chats_answer(self):
        chat = self.ask(CHAT, messages=[{"role": "user", "content": "Say a word."}], max_tokens=8).json
        body = self.message().json
        self.assertEqual((body["type"], body["role"], body["stop_reason"], body["stop_sequence"]),
                         ("message", "assistant", "max_tokens", None))
        self.assertRegex(body["id"], "^msg_")
        self.assertEqual(body["content"], [{"type": "text", "text": chat["choices"][0]["message"]["content"]}])
        usage = body["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"],
                         chat["usage"]["prompt_tokens"])
        self.assertEqual(usage["output_tokens"], 8)
        self.assertEqual(self.count(messages=[{"role": "user", "content": "Say a word."}]), chat["usage"]["prompt_tokens"])

    def test_message_streams_named_events(self):
        whole = self.message().json
        events = self.message(stream=True).events
        names = [name for name, _ in events]
        self.assertEqual([n for n in names if n not in ("content_block_delta", "ping")],
                         ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"])
        for name, data in events:
            self.assertEqual(data["type"], name)
        start = events[0][1]["message"]
        self.assertEqual((start["content"], start["stop_reason"], start["usage"]["output_tokens"]), ([], None, 0))
        self.assertGreater(start["usage"]["input_tokens"] + start["usage"]["cache_read_input_tokens"], 0)
        text = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
        self.assertEqual(text, whole["content"][0]["text"])
        delta = dict(events)["message_delta"]
        self.assertEqual((delta["delta"]["stop_reason"], delta["usage"]["output_tokens"]), ("max_tokens", 8))

    def test_message_stop_sequence(self):
        whole = self.message(max_tokens=20).json["content"][0]["text"]
        word = whole.split()[3]
        cut = self.message(max_tokens=20, stop_sequences=["zzz", word]).json
        self.assertEqual((cut["stop_reason"], cut["stop_sequence"]), ("stop_sequence", word))
        self.assertEqual("".join(b["text"] for b in cut["content"]), whole[:whole.index(word)])

    def test_forms_of_a_message(self):
        text = self.count(messages=[{"role": "user", "content": "a b"}], system="Be brief.")
        for messages, system in (
                ([{"role": "user", "content": [{"type": "text", "text": "a b"}]}], [{"type": "text", "text": "Be brief."}]),
                ([{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                               {"type": "text", "text": " b"}]}], "Be brief."),
                ([{"role": "user", "content": "a b"}],
                 [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1.2.3; cch=%d;" % 77},
                  {"type": "text", "text": "Be brief."}])):
            self.assertEqual(self.count(messages=messages, system=system), text)
        # A line that changes with every request hinders no reuse.
        long = "You are an agent. " * 40
        self.message(system="x-anthropic-billing-header: cch=1;\n" + long)
        usage = self.message(system="x-anthropic-billing-header: cch=2;\n" + long).json["usage"]
        self.assertGreater(usage["cache_read_input_tokens"], 100)

    def test_message_errors(self):
        good = {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
        for change, word in (({"max_tokens": None}, "max_tokens"), ({"max_tokens": "x"}, "max_tokens"),
                             ({"messages": []}, "messages"), ({"messages": [{"role": "king", "content": "x"}]}, "role"),
                             ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
                             ({"messages": [{"role": "user", "content": 5}]}, "messages.0"), ({"system": 5}, "system"),
                             ({"tools": [{"name": 5, "input_schema": {}}]}, "tools"), ({"tool_choice": {"type": "tool"},
                              "tools": [{"name": "x", "input_schema": {}}]}, "tool_choice"), ({"temperature": -1}, "temperature"),
                             ({"messages": [{"role": "user", "content": "word " * 3000}]}, "prompt is too long")):
            reply = self.server.post(MESSAGES, {**good, **change})
            self.assertEqual(reply.status, 400, change)
            body = reply.json
            self.assertEqual((body["type"], body["error"]["type"]), ("error", "invalid_request_error"))
            self.assertIn(word, body["error"]["message"])
            self.assertIn("request_id", body)

    # ---- /v1/responses ----

    def test_response_is_the_chats_answer(self):
        chat = self.ask(CHAT, messages=[{"role": "user", "content": "Say a word."}], max_tokens=8).json
        body = self.response().json
        self.assertEqual((body["object"], body["status"], body["incomplete_details"], body["error"]),
                         ("response", "incomplete", {"reason": "max_output_tokens"}, None))
        item = body["output"][0]
        self.assertEqual((item["type"], item["role"]), ("message", "assistant"))
        self.assertEqual(item["content"][0]["text"], chat["choices"][0]["message"]["content"])
        self.assertEqual(body["usage"]["input_tokens"], chat["usage"]["prompt_tokens"])
        for items in ([{"role": "user", "content": "Say a word."}],
                      [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say a word."}]}]):
            self.assertEqual(self.response(items).json["output"][0]["content"], item["content"])

    def test_response_streams_typed_events(self):
        whole = self.response().json
        events = self.response(stream=True).events
        self.assertEqual([data["sequence_number"] for _, data in events], list(range(len(events))))
        for name, data in events:
            self.assertEqual(data["type"], name)
        self.assertEqual([name for name, _ in events if not name.endswith(".delta")],
                         ["response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.incomplete"])
        text = "".join(data["delta"] for name, data in events if name == "response.output_text.delta")
        final = events[-1][1]["response"]
        self.assertEqual(text, whole["output"][0]["content"][0]["text"])
        self.assertEqual(final["output"][0]["content"], whole["output"][0]["content"])
        self.assertEqual({events[0][1]["response"]["id"], final["id"]}, {final["id"]})
        ids = {data.get("item_id") or data["item"]["id"] for _, data in events if "item_id" in data or "item" in data}
        self.assertEqual(ids, {final["output"][0]["id"]})

    def test_response_errors(self):
        for change, word in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"input": None}, "input"),
                             ({"input": []}, "input"), ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
                             ({"input": [{"role": "king", "content": "x"}]}, "role"), ({"background": True}, "background"),
                             ({"text": {"format": {"type": "pdf"}}}, "format"), ({"instructions": 5}, "instructions"),
                             ({"max_output_tokens": -2}, "max_output_tokens"), ({"tool_choice": "must",
                              "tools": [{"type": "function", "name": "x"}]}, "tool_choice")):
            reply = self.server.post(RESPONSES, {"input": "x", "max_output_tokens": 1, **change})
            self.assertEqual(reply.status, 400, change)
            self.assertIn(word, reply.json["error"]["message"])

    def test_response_of_a_given_form(self):
        form = {"type": "json_schema", "name": "word", "schema": {"type": "object", "properties": {"word": {"type": "string"}},
                                                                  "required": ["word"], "additionalProperties": False}}
        body = self.ask(RESPONSES, input="Say a word.", max_output_tokens=200, text={"format": form}).json
        self.assertEqual(body["text"]["format"]["type"], "json_schema")
        if body["status"] == "completed":
            self.assertEqual(list(json.loads(body["output"][0]["content"][0]["text"])), ["word"])
        else:
            self.assertTrue(body["output"][0]["content"][0]["text"].startswith("{"))

    # ---- tools ----

    def test_chat_calls_a_tool(self):
        talk = sum(([{"role": "user", "content": question(city)},
                     {"role": "assistant", "content": None, "tool_calls": [
                         {"id": "c1", "type": "function",
                          "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}]}]
                    for city in CITIES), []) + [{"role": "user", "content": question("Paris")}]
        fields = {"messages": talk, "max_tokens": 60, "tools": [
            {"type": "function", "function": {"name": "get_weather", "description": "of a city", "parameters": SCHEMA}}]}
        choice = self.ask(CHAT, **fields).json["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None))
        call = choice["message"]["tool_calls"][0]
        self.assertEqual((call["type"], call["function"]["name"]), ("function", "get_weather"))
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Paris"})
        reply = self.ask(CHAT, stream=True, **fields)
        self.assertNotIn(b"tool_call>", reply.body)
        parts = [c for f in reply.frames[:-1] for c in f["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual([(p["index"], p["function"]["name"]) for p in parts], [(0, "get_weather")])
        self.assertEqual(parts[0]["function"]["arguments"], call["function"]["arguments"])
        self.assertEqual(reply.frames[-2]["choices"][0]["finish_reason"], "tool_calls")

    def test_message_calls_a_tool(self):
        talk = sum(([{"role": "user", "content": question(city)},
                     {"role": "assistant", "content": [
                         {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": city}}]}]
                    for city in CITIES), []) + [{"role": "user", "content": question("Paris")}]
        fields = {"max_tokens": 60, "tools": [{"name": "get_weather", "description": "of a city", "input_schema": SCHEMA},
                                              {"type": "web_search_20250305", "name": "web_search"}]}
        body = self.message(talk, **fields).json
        self.assertEqual(body["stop_reason"], "tool_use")
        self.assertEqual([(b["type"], b["name"], b["input"]) for b in body["content"]],
                         [("tool_use", "get_weather", {"city": "Paris"})])
        events = self.message(talk, stream=True, **fields).events
        started = [d["content_block"] for n, d in events if n == "content_block_start"]
        self.assertEqual([(b["type"], b["name"], b["input"]) for b in started], [("tool_use", "get_weather", {})])
        self.assertEqual(json.loads("".join(d["delta"]["partial_json"] for n, d in events if n == "content_block_delta")),
                         {"city": "Paris"})
        result = talk + [{"role": "assistant", "content": body["content"]},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": body["content"][0]["id"],
                                                       "content": [{"type": "text", "text": "sunny"}]},
                                                      {"type": "text", "text": "So?"}]}]
        self.assertEqual(self.message(result, **fields).status, 200)

    def test_response_calls_a_tool(self):
        talk = sum(([{"role": "user", "content": question(city)},
                     {"type": "function_call", "call_id": "c1", "name": "get_weather",
                      "arguments": json.dumps({"city": city})}] for city in CITIES), [])
        talk.append({"role": "user", "content": question("Paris")})
        fields = {"max_output_tokens": 60, "tools": [{"type": "function", "name": "get_weather", "description": "of a city",
                                                      "parameters": SCHEMA}, {"type": "web_search"}]}
        body = self.response(talk, **fields).json
        call = body["output"][0]
        self.assertEqual((body["status"], call["type"], call["name"]), ("completed", "function_call", "get_weather"))
        self.assertEqual(json.loads(call["arguments"]), {"city": "Paris"})
        events = self.response(talk, stream=True, **fields).events
        done = dict(events)["response.function_call_arguments.done"]
        self.assertEqual(json.loads(done["arguments"]), {"city": "Paris"})
        self.assertEqual(events[-1][0], "response.completed")
        talk += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}]
        self.assertEqual(self.response(talk, **fields).status, 200)

    def test_a_tool_must_be_called(self):
        schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"],
                  "additionalProperties": False}
        tools = [{"name": "time", "input_schema": {"type": "object", "additionalProperties": False}},
                 {"name": "units", "input_schema": schema}]
        for choice in ({"type": "any"}, {"type": "tool", "name": "units"}):
            body = self.message("Hello.", max_tokens=80, tools=tools, tool_choice=choice).json
            self.assertEqual((body["stop_reason"], [b["type"] for b in body["content"]]), ("tool_use", ["tool_use"]))
        self.assertEqual(body["content"][0]["name"], "units")
        self.assertIn(body["content"][0]["input"]["unit"], ("C", "F"))
        tools = [{"type": "function", "name": t["name"], "parameters": t["input_schema"]} for t in tools]
        for choice in ("required", {"type": "function", "name": "units"}):
            body = self.response("Hello.", max_output_tokens=80, tools=tools, tool_choice=choice).json
            self.assertEqual([o["type"] for o in body["output"]], ["function_call"])
        self.assertEqual(body["output"][0]["name"], "units")
        self.assertIn(json.loads(body["output"][0]["arguments"])["unit"], ("C", "F"))


if __name__ == "__main__":
    if REAL is None:
        print(WITHOUT_REAL)
        sys.exit(77)
    main()
