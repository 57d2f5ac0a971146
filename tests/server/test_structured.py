"""response_format: every answer that ends is valid against its schema, by another validator; what is not understood is
refused by its name."""
import json
import os
import subprocess
import tempfile

from schemas import schemas
from loam_server import LOAM, NANO, REAL, ROOT, WITHOUT_REAL, Case, Server, main, run_loam

try:
    import jsonschema
except ImportError:
    jsonschema = None

PATH = "/v1/completions"
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
                                           "tags": {"type": "array", "items": {"enum": ["kind", "tall", "old"]},
                                                    "minItems": 1, "maxItems": 3}},
          "required": ["name", "age", "tags"], "additionalProperties": False}
TREE = {"$ref": "#/$defs/node", "$defs": {"node": {
    "type": "object", "properties": {"value": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
                                     "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}}},
    "required": ["value", "children"], "additionalProperties": False}}}
SHAPE = {"anyOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
                    "required": ["kind", "radius"], "additionalProperties": False},
                   {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "integer"}},
                    "required": ["kind", "side"], "additionalProperties": False}, {"type": "null"}]}
SCALARS = [{"type": "number"}, {"type": "string"}, {"enum": ["yes", "no", "maybe", 1, 1.5, None]}]
SCHEMAS = [PERSON, TREE, SHAPE, {"type": "object"}, *SCALARS]


def of_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


class Structured(Case):
    options = ("-np", "8", "-c", "1024", "--chat-template", "llama2")

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = place.name

    def answers(self, server, schema, count, seed=1, **fields):
        """(text, finish_reason) of many answers at temperature 1."""
        reply = server.post(PATH, {"prompt": "An answer in JSON:\n", "temperature": 1, "seed": seed, "n": count,
                                   "max_tokens": 90, "response_format": of_schema(schema), **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return [(choice["text"], choice["finish_reason"]) for choice in reply.json["choices"]]

    def check(self, server, rounds):
        if jsonschema is None:
            self.skipTest("the Python package jsonschema is not here")
        ended = 0
        for index, schema in enumerate(SCHEMAS):
            for text, reason in (one for seed in range(rounds) for one in self.answers(server, schema, 8, 100 * seed)):
                if reason == "length":
                    continue
                ended += 1
                jsonschema.validate(json.loads(text), schema)
        self.assertGreater(ended, 8 * rounds, "of scalars and lists at least some end")
        print(f"{ended} of {8 * rounds * len(SCHEMAS)} answers ended, all valid")

    def test_valid(self):
        self.check(self.server, 1)

    def test_valid_of_many_schemas(self):
        """Of 200 schemas an answer each; `./do fuzz` has 260, and four.  Most answers end: limits leave nothing else."""
        if jsonschema is None:
            self.skipTest("the Python package jsonschema is not here")
        count = int(os.environ.get("LOAM_TEST_SCHEMAS", 0))
        answers, tokens = (4, 60) if count > 0 else (1, 40)
        ended = asked = 0
        for schema in schemas(count or 200):
            for text, reason in self.answers(self.server, schema, answers, max_tokens=tokens):
                asked += 1
                if reason == "length":
                    continue
                ended += 1
                try:
                    jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
                except (ValueError, jsonschema.ValidationError) as error:
                    self.fail(f"{json.dumps(schema)}: {text!r}: {error}")
        self.assertGreater(ended, asked * 0.4)
        print(f"{ended} of {asked} answers ended, all valid")

    def test_valid_of_a_real_model(self):
        if REAL is None:
            self.skipTest(WITHOUT_REAL)
        server = Server(*self.options, model=REAL)
        try:
            self.check(server, 1)
            reply = server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Describe Ann, who is 31 years old."}], "temperature": 0,
                "max_tokens": 200, "response_format": of_schema(PERSON)}).json["choices"][0]
            self.assertEqual(reply["finish_reason"], "stop")
            self.assertEqual(json.loads(reply["message"]["content"])["age"], 31)
        finally:
            server.stop()

    def test_forms_of_the_request(self):
        for form in ({"type": "json_object"}, {"type": "json_object", "schema": {"type": "object"}},
                     {"type": "json_schema", "schema": {"type": "object"}}):
            text = self.server.post(PATH, {"prompt": "{", "temperature": 0, "max_tokens": 200,
                                           "response_format": form}).json["choices"][0]["text"]
            self.assertTrue(text.lstrip().startswith("{"), text)
        plain = {"prompt": "The king", "temperature": 0, "max_tokens": 8}
        self.assertEqual(self.server.post(PATH, {**plain, "response_format": {"type": "text"}}).json["choices"],
                         self.server.post(PATH, plain).json["choices"])

    def test_greedy_answers_are_the_same_in_streams_and_together(self):
        body = {"prompt": "A person:", "temperature": 0, "max_tokens": 60, "response_format": of_schema(PERSON)}
        alone = self.server.post(PATH, body).json["choices"][0]["text"]
        frames = self.server.post(PATH, {**body, "stream": True}).frames
        self.assertEqual("".join(f["choices"][0]["text"] for f in frames if isinstance(f, dict) and f["choices"]), alone)
        both = self.server.post(PATH, {**body, "prompt": ["A person:", "A person:"]}).json["choices"]
        self.assertEqual([choice["text"] for choice in both], [alone, alone])

    def test_streams_have_whole_characters(self):
        """Characters of several tokens, each of which is a byte: no frame has a part of one."""
        word = "na\u00efve \u20ac\U0001F600\U0001F469\u200d\U0001F680 \u4e2d\u6587"
        body = {"temperature": 0, "max_tokens": 100, "stream": True, "response_format": of_schema({"const": word})}
        talk = [{"role": "user", "content": "x"}]
        for path, fields, part in ((PATH, {"prompt": "x"}, lambda f: f["choices"][0]["text"]),
                                   ("/v1/chat/completions", {"messages": talk}, lambda f: f["choices"][0]["delta"].get("content", ""))):
            reply = self.server.post(path, {**body, **fields})
            parts = [part(frame) for frame in reply.frames[:-1]]
            self.assertNotIn("\ufffd", reply.body.decode())
            self.assertEqual(json.loads("".join(parts)), word)
            self.assertGreater(len([p for p in parts if p]), 5)

    def test_refused_by_name(self):
        def message(form):
            reply = self.server.post(PATH, {"prompt": "x", "response_format": form})
            self.assertEqual(reply.status, 400, reply.body)
            self.assertEqual(reply.json["error"]["param"], "response_format")
            return reply.json["error"]["message"]
        self.assertIn("pattern", message(of_schema({"type": "string", "pattern": "(?=a)b"})))
        self.assertIn("dependentRequired", message(of_schema({"properties": {"a": {"dependentRequired": {}}}})))
        self.assertIn("grammar", message({"type": "grammar", "grammar": "root ::= x"}))
        self.assertIn("schema", message({"type": "json_schema"}))
        self.assertIn("65536", message(of_schema({"enum": ["x" * 70000]})))
        deep = {"type": "integer"}
        for _ in range(40):
            deep = {"type": "array", "items": deep}
        self.assertIn("32", message(of_schema(deep)))


    def test_by_other_names(self):
        """What other servers call it: done, or refused by its name."""
        schema = {"enum": ["yes", "no"]}
        wrapped = {"type": "json_schema", "schema": schema}
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "temperature": 0}
        for path, read in ((PATH, lambda j: j["choices"][0]["text"]),
                           ("/v1/chat/completions", lambda j: j["choices"][0]["message"]["content"]),
                           ("/v1/messages", lambda j: j["content"][0]["text"])):
            body = {"prompt": "x", "max_tokens": 40, "temperature": 0} if path == PATH else chat
            for form in ({"output_config": {"format": wrapped, "effort": "low"}}, {"output_format": wrapped},
                         {"structured_outputs": {"json": schema}}, {"guided_json": schema}, {"json_schema": schema},
                         {"guided_json": json.dumps(schema)}, {"json_schema": {"name": "a", "schema": schema}},
                         {"format": schema}, {"text": {"format": wrapped}},
                         {"response_format": {"type": "json", "value": schema}},
                         {"response_format": {"type": "json_object", "json_schema": schema}}):
                reply = self.server.post(path, {**body, **form})
                self.assertEqual(reply.status, 200, reply.body)
                self.assertIn(json.loads(read(reply.json)), ("yes", "no"), form)
            for form in ({"format": "json"}, {"structured_outputs": {"json_object": True}}):
                reply = self.server.post(path, {**body, **form})
                self.assertEqual((reply.status, read(reply.json).lstrip()[:1]), (200, "{"), form)
            for name, value in (("guided_regex", "a+"), ("guided_choice", ["a"]), ("guided_grammar", "root ::= x"),
                                ("grammar", "root ::= x"), ("regex", "a"), ("ebnf", "x"), ("structural_tag", "x"),
                                ("response_schema", schema), ("json_schema", 3), ("format", "xml"),
                                ("output_format", {"type": "regex"}), ("output_format", "json")):
                reply = self.server.post(path, {**body, name: value})
                self.refused(reply, 400, name)
            for name in ("regex", "choice", "grammar", "structural_tag"):
                self.refused(self.server.post(path, {**body, "structured_outputs": {name: "a"}}), 400,
                             "structured_outputs." + name)
            self.refused(self.server.post(path, {**body, "guided_json": schema, "response_format": wrapped}), 400,
                         "guided_json", "response_format")
            text = self.server.post(path, {**body, "response_format": {"type": "text"}, "format": "", "grammar": None})
            self.assertEqual(text.status, 200, text.body)

    def test_on_the_command_line(self):
        path = os.path.join(self.folder, "person.json")
        with open(path, "w") as file:
            json.dump(PERSON, file)
        body = {"prompt": "A person:", "temperature": 0, "max_tokens": 200, "response_format": of_schema(PERSON)}
        served = self.server.post(PATH, body).json["choices"][0]["text"]
        for options in (("--json-schema", json.dumps(PERSON)), ("--json-schema-file", path)):
            printed = run_loam("run", "--raw", "-p", "A person:", "-n", "200", "--temp", "0", *options)
            self.assertEqual(printed.rstrip("\n"), served)
        done = subprocess.run([LOAM, "run", "-m", NANO, "-p", "x", "--json-schema", '{"pattern": "(?=a)"}'],
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("pattern", done.stderr)

    # ---- tool calls ----

    def chat(self, tools, choice, **fields):
        return self.server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "What is the weather?"}], "temperature": 1, "seed": 7,
            "max_tokens": 300, "tools": tools, "tool_choice": choice, **fields})

    def test_required_calls(self):
        schemas = {"weather": PERSON, "shape": {"type": "object", "properties": {"shape": {"$ref": "#/$defs/s"}},
                                                "required": ["shape"], "additionalProperties": False,
                                                "$defs": {"s": {"enum": ["circle", "square"]}}},
                   "now": None}
        tools = [{"type": "function", "function": {"name": name, **({"parameters": s} if s else {})}}
                 for name, s in schemas.items()]
        named = {"type": "function", "function": {"name": "shape"}}
        ended, seen = 0, set()
        for choice, count in (("required", 16), (named, 4)):
            reply = self.chat(tools, choice, n=count)
            self.assertEqual(reply.status, 200, reply.body)
            for answer in reply.json["choices"]:
                if answer["finish_reason"] == "length":
                    continue
                ended += 1
                self.assertEqual((answer["finish_reason"], answer["message"]["content"]), ("tool_calls", None))
                call, = answer["message"]["tool_calls"]
                name = call["function"]["name"]
                seen.add(name)
                if choice is named:
                    self.assertEqual(name, "shape")
                if jsonschema is not None:
                    jsonschema.validate(json.loads(call["function"]["arguments"]),
                                        schemas[name] or {"type": "object", "maxProperties": 0})
        self.assertGreaterEqual(ended, 8)
        self.assertIn("shape", seen)
        frames = self.chat(tools, named, stream=True).frames
        parts = [c for f in frames[:-1] for c in f["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual([(p["index"], p["function"]["name"]) for p in parts], [(0, "shape")])
        self.assertIn(json.loads(parts[0]["function"]["arguments"])["shape"], ("circle", "square"))

    def test_required_calls_refused(self):
        def tool(parameters):
            return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        for parameters, choice, param, words in (
                ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?!x)"}}}, "required", "tools",
                 "properties/a"),
                ({"type": "object"}, {"type": "function", "function": {"name": "g"}}, "tool_choice", "'g'"),
                ({"type": "object"}, {"type": "function"}, "tool_choice", "no name"),
                ({"type": "object"}, "any", "tool_choice", "required")):
            reply = self.chat(tool(parameters), choice)
            self.assertEqual((reply.status, reply.json["error"]["param"]), (400, param), reply.body)
            self.assertIn(words, reply.json["error"]["message"])

    def test_of_responses(self):
        body = {"input": "A person:", "max_output_tokens": 60, "temperature": 0,
                "text": {"format": {"type": "json_schema", "name": "p", "schema": {"enum": ["yes", "no"]}}}}
        reply = self.server.post("/v1/responses", body)
        self.assertEqual(reply.status, 200, reply.body)
        self.assertIn(json.loads(reply.json["output"][0]["content"][0]["text"]), ("yes", "no"))
        self.assertEqual(reply.json["text"]["format"]["type"], "json_schema")


if __name__ == "__main__":
    main()
