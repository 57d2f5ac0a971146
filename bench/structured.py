#!/usr/bin/env python3
"""structured.py LOAM MODEL: how many answers of a given form are valid, by another validator (Python's jsonschema).

Sampled answers at temperature 1 to response_format with each of a list of schemas, in turns with seeds of their own, until
COUNT (1000) of them have ended by themselves; an answer that has TOKENS (96) tokens is cut (finish_reason length) and not
judged.  One that is no JSON or not valid is printed, and ends it with exit code 1.  CSV on standard output.  SEED (1): the
first one; ONLY: names of the list, separated by commas; OPTIONS: more for the server; THREADS (all processors)."""
import collections
import http.client
import json
import os
import re
import subprocess
import sys
import threading

import jsonschema

COUNT = int(os.environ.get("COUNT", 1000))
TOKENS = int(os.environ.get("TOKENS", 96))
SEED = int(os.environ.get("SEED", 1))
AT_ONCE = 8
WORD, NUMBER = {"type": "string"}, {"type": "integer"}


def record(required=None, **properties):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required,
            "additionalProperties": False}


SCHEMAS = {
    "json_object": None,
    "string": WORD, "integer": NUMBER, "number": {"type": "number"}, "boolean": {"type": "boolean"}, "null": {"type": "null"},
    "several types": {"type": ["integer", "boolean", "null"]},
    "enum": {"enum": ["yes", "no", "maybe", 1, 1.5, None, [], {"a": "b"}]},
    "const": {"const": {"text": "na\u00efve \u20ac \U0001F600 \"quoted\"\n", "list": [1, True, None]}},
    "any object": {"type": "object"}, "any array": {"type": "array"},
    "array of enum": {"type": "array", "items": {"enum": ["kind", "tall", "old"]}, "minItems": 2, "maxItems": 5},
    "array of arrays": {"type": "array", "items": {"type": "array", "items": NUMBER, "maxItems": 2}, "minItems": 1, "maxItems": 3},
    "record": record(name=WORD, age=NUMBER, tags={"type": "array", "items": {"enum": ["kind", "tall"]}, "maxItems": 3}),
    "optional": record([], a=NUMBER, b={"type": "boolean"}, c={"enum": ["x", "y"]}),
    "additional": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
    "anyOf": {"anyOf": [record(kind={"const": "circle"}, radius={"type": "number"}),
                        record(kind={"const": "square"}, side=NUMBER), {"type": "null"}]},
    "nested": record(place=record(x=NUMBER, y=NUMBER), seen={"type": "boolean"}),
    "tree": {"$ref": "#/$defs/node", "$defs": {"node": record(
        value={"anyOf": [NUMBER, {"type": "boolean"}]},
        children={"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}})}},
    "names to escape": record(**{"a \"b\"": {"type": "boolean"}, "\u00e9\u20ac": {"enum": ["\u00fc", "\\", "\n"]}}),
}
ONLY = os.environ.get("ONLY", "")
SCHEMAS = {name: schema for name, schema in SCHEMAS.items() if not ONLY or name in ONLY.split(",")}


class Server:
    def __init__(self, loam, model):
        command = [loam, "serve", "-m", model, "--port", "0", "-np", str(AT_ONCE), "-c", "1024",
                   "-t", os.environ.get("THREADS", str(os.cpu_count())), *os.environ.get("OPTIONS", "").split()]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        for line in self.process.stderr:
            found = re.search(r"on http://[^:]+:(\d+), ", line)
            if found:
                self.port = int(found.group(1))
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return
        sys.exit("structured.py: the server did not start")

    def choices(self, schema, seed):
        form = {"type": "json_object"} if schema is None else {
            "type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": "An answer in JSON:\n", "temperature": 1, "seed": seed, "n": AT_ONCE, "max_tokens": TOKENS,
            "response_format": form}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        if response.status != 200:
            sys.exit("structured.py: %d %r" % (response.status, body[:500]))
        return json.loads(body)["choices"]


def fault(schema, text):
    """Why it is not valid; None: it is."""
    try:
        jsonschema.validate(json.loads(text), {"type": "object"} if schema is None else schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).split("\n", maxsplit=1)[0]
    return None


def main():
    loam, model = sys.argv[1:3]
    server = Server(loam, model)
    asked, cut, valid, bad = (collections.Counter() for _ in range(4))
    turn = 0
    try:
        while sum(valid.values()) + sum(bad.values()) < COUNT:
            name, schema = list(SCHEMAS.items())[turn % len(SCHEMAS)]
            for choice in server.choices(schema, SEED + AT_ONCE * turn):
                asked[name] += 1
                if choice["finish_reason"] == "length":
                    cut[name] += 1
                    continue
                why = fault(schema, choice["text"])
                (valid if why is None else bad)[name] += 1
                if why is not None:
                    print("%s: %r: %s" % (name, choice["text"], why), file=sys.stderr)
            turn += 1
    finally:
        server.process.terminate()
        server.process.wait()
    print("# COUNT=%d TOKENS=%d SEED=%d ONLY=%r OPTIONS=%r bench/structured.py LOAM %s" % (
        COUNT, TOKENS, SEED, ONLY, os.environ.get("OPTIONS", ""), os.path.basename(model)))
    print("schema,answers,ended,valid,cut_by_length")
    for name in SCHEMAS:
        print("%s,%d,%d,%d,%d" % (name, asked[name], asked[name] - cut[name], valid[name], cut[name]))
    print("all,%d,%d,%d,%d" % (sum(asked.values()), sum(valid.values()) + sum(bad.values()), sum(valid.values()), sum(cut.values())))
    sys.exit(1 if bad else 0)


main()
