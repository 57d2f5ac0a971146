"""Schemas as OpenAI's strict mode, Pydantic, Zod and MCP servers write them, and more of the same kinds by chance."""
import random

WORD, WHOLE, REAL, FLAG, NIL = ({"type": t} for t in ("string", "integer", "number", "boolean", "null"))


def record(required=None, more=None, **properties):
    made = {"type": "object", "properties": properties, "additionalProperties": False}
    made["required"] = list(properties) if required is None else required
    return {**made, **(more or {})}


def text(**keywords):
    return {"type": "string", **keywords}


def several(items, **keywords):
    return {"type": "array", "items": items, **keywords}


SAFE = {"minimum": -9007199254740991, "maximum": 9007199254740991}  # Zod's .int()
CAT = record(kind={"const": "cat", "type": "string", "title": "Kind"}, lives={"type": "integer", **SAFE})
DOG = record(kind={"const": "dog", "type": "string"}, good=FLAG)
HAND = [
    # Pydantic
    record(name=text(minLength=1, maxLength=12), age={"type": "integer", "minimum": 0, "maximum": 130, "title": "Age"}),
    record(score={"type": "number", "minimum": 0, "maximum": 1}), record(p={"type": "number", "exclusiveMinimum": 0}),
    record(note={"anyOf": [text(maxLength=8), NIL], "default": None, "title": "Note"}),
    {"$defs": {"Color": {"enum": ["red", "green"], "title": "Color", "type": "string"}}, "title": "Car", "type": "object",
     "properties": {"color": {"allOf": [{"$ref": "#/$defs/Color"}], "default": "red"}, "n": {"$ref": "#/$defs/Color", "description": "x"}},
     "required": ["color"]},
    {"$defs": {"Cat": CAT, "Dog": DOG}, "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
     "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
    {"oneOf": [record(["a"], kind={"const": "x", "default": "x"}, a=FLAG), record(["a"], kind={"const": "y", "default": "y"}, a=FLAG)]},
    record(day=text(format="date"), at=text(format="time"), when=text(format="date-time")),
    record(id=text(format="uuid"), mail=text(format="email"), host=text(format="ipv4")),
    record(pair={"type": "array", "prefixItems": [WHOLE, text(maxLength=4)], "minItems": 2, "maxItems": 2}),
    record(tags={"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c"], "type": "string"}}),
    record(scores={"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}, "maxProperties": 3}),
    record(price={"anyOf": [{"type": "number", "minimum": 0}, text(pattern="^\\d{1,4}(\\.\\d{2})?$")]}),
    record(code=text(pattern="^[A-Z]{2,3}-\\d{3}$"), slug=text(pattern="^[a-z0-9]+(?:-[a-z0-9]+)*$", maxLength=20)),
    record(step={"type": "integer", "multipleOf": 5, "minimum": 10, "maximum": 40}, half={"type": "number", "multipleOf": 0.5, "maximum": 9, "minimum": 0}),
    record(path=text(format="uri", minLength=1, maxLength=60)), record(span=text(format="duration")),
    {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, NIL]}, "v": {"type": "integer", "exclusiveMaximum": 10, "exclusiveMinimum": 0}},
     "required": ["v", "next"], "additionalProperties": False},
    # Zod 4
    {"$schema": "https://json-schema.org/draft/2020-12/schema", **record(n={"type": "integer", **SAFE}, s=text(minLength=3, maxLength=3))},
    {"type": "array", "prefixItems": [FLAG, REAL], "items": False}, {"type": "array", "prefixItems": [FLAG], "items": text(maxLength=2), "maxItems": 3},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": WHOLE, "required": ["a", "b"]},
    {"type": "object", "propertyNames": text(pattern="^k[0-9]$"), "additionalProperties": FLAG, "maxProperties": 4},
    {"anyOf": [{"type": "string", "const": "on"}, {"type": "string", "const": "off"}, {"type": "number", "const": 3}]},
    {"allOf": [record(a=WHOLE, more={"additionalProperties": {}}), {"type": "object", "properties": {"b": FLAG}, "required": ["b"]}]},
    record(mail=text(format="email", maxLength=30)),
    record(ip=text(format="ipv4"), mac=text(pattern="^(?:[0-9A-F]{2}:){5}[0-9A-F]{2}$")),
    record(hex=text(pattern="^#[0-9a-fA-F]{6}$"), b64=text(contentEncoding="base64", pattern="^(?:[A-Za-z0-9+/]{4})*$", maxLength=12)),
    {"type": "string", "enum": ["admin", "user"], "id": "Role"}, {"type": "object", "properties": {"a": FLAG}, "required": ["a"], "additionalProperties": WORD},
    # MCP servers, OpenAI's strict mode, OpenAPI
    record(["path"], path=text(minLength=1, description="x"), head={"type": "number", "description": "First N lines"}, dryRun={"type": "boolean", "default": False}),
    record(["q"], q=text(maxLength=10), count={"type": "number", "minimum": 1, "maximum": 20, "default": 10}, offset={"type": "integer", "minimum": 0, "maximum": 9}),
    record(steps=several(record(explanation=text(maxLength=6), output=text(maxLength=6)), maxItems=2), final=text(maxLength=5)),
    record(type={"type": "string", "enum": ["div", "button"]}, children=several({"$ref": "#"}, maxItems=1)),
    record(unit={"type": ["string", "null"], "enum": ["F", "C", None]}, when={"type": ["string", "null"], "maxLength": 4}),
    record(state={"type": "string", "nullable": True, "x-order": 1, "example": "x", "maxLength": 5}, n={"type": "integer", "format": "int32", "minimum": 1, "maximum": 5}),
    {"type": "object", "patternProperties": {"^x-": WHOLE}, "additionalProperties": False}, {"type": "object", "minProperties": 1, "additionalProperties": WHOLE, "maxProperties": 2},
    {"properties": {"a": {"enum": [1, 2]}, "b": {"not": {}}}, "minProperties": 1}, {"type": "string", "anyOf": [{"enum": ["x"]}, {"enum": ["y"]}]},
    {"type": "object", "properties": {"a": WHOLE}, "anyOf": [{"required": ["a"]}, {"properties": {"b": FLAG}, "required": ["b"]}]},
    {"type": "object", "properties": {"t": FLAG}, "required": ["t"], "oneOf": [{"properties": {"k": {"const": 1}}, "required": ["k"]}, {"properties": {"k": {"const": 2}, "z": NIL}, "required": ["k"]}]},
    {"oneOf": [text(maxLength=3), {"type": "integer", "maximum": 50}, several(FLAG, maxItems=2), {"type": "object", "maxProperties": 1}]},
    {"type": "integer", "enum": [1, 2, 30], "minimum": 2}, {"enum": ["a", "bb", "ccc"], "minLength": 2}, {"const": "2024-02-29", "format": "date"},
    # texts and numbers at their limits
    text(minLength=4, maxLength=4), text(maxLength=0), text(pattern="a"), text(pattern="^[^a-z]*$", maxLength=6), text(pattern="^\\S+ \\S+$", maxLength=9),
    text(pattern="^(yes|no|\\u00e9\u20ac|\\\\|\"|\\n)$"), text(pattern="^.{2,5}$"), text(pattern="\\d$"), text(pattern="^\\w+@\\w+$", minLength=5, maxLength=7),
    text(pattern="^[\\s\\S]{3}$"), text(pattern="(a|b)+c?", maxLength=4), text(pattern="^$"), text(pattern="^(ab{1,2}){2}$"), text(pattern="^[\U0001F600-\U0001F64F]{1,2}$"),
    text(format="hostname"), text(format="ipv6"), text(format="date", pattern="^20"), text(format="password", maxLength=3),
    {"type": "integer", "minimum": -3, "maximum": 3}, {"type": "integer", "minimum": 99, "maximum": 1001}, {"type": "integer", "exclusiveMinimum": -10, "exclusiveMaximum": -2},
    {"type": "number", "minimum": -0.5, "maximum": 0.25}, {"type": "number", "exclusiveMinimum": 1.5, "exclusiveMaximum": 1.75}, {"type": "number", "maximum": -1e-3, "minimum": -1.5},
    {"type": "number", "multipleOf": 0.25, "minimum": 0, "exclusiveMaximum": 100}, {"type": "integer", "multipleOf": 7, "maximum": 100, "minimum": -100}, {"type": "number", "exclusiveMinimum": 0, "maximum": 1e3},
    {"type": ["integer", "string"], "minimum": 5, "maximum": 7, "maxLength": 2}, {"minLength": 2, "maxLength": 3}, {"minimum": 1, "maximum": 2.5},
]


def by_chance(chance, depth=0):
    """A schema of these kinds, small enough to be answered in a few tokens."""
    kind = chance.randrange(8 if depth > 1 else 13)
    low = chance.randrange(-20, 20)
    if kind == 0:
        return text(minLength=chance.randrange(3), maxLength=chance.randrange(3, 9))
    if kind == 1:
        one = chance.choice(("[a-z]", "\\d", "[^x]", ".", "(?:ab|c)", "\\w", "[A-Z_]"))
        return text(pattern=chance.choice(("^", "")) + one + chance.choice(("+", "{2}", "{1,3}", "*x")) + chance.choice(("$", "")), maxLength=9)
    if kind == 2:
        return text(format=chance.choice(("date", "time", "date-time", "uuid", "ipv4")))
    if kind == 3:
        return {"type": "integer", chance.choice(("minimum", "exclusiveMinimum")): low, chance.choice(("maximum", "exclusiveMaximum")): low + chance.randrange(2, 300)}
    if kind == 4:
        return {"type": "number", chance.choice(("minimum", "exclusiveMinimum")): low / 4, chance.choice(("maximum", "exclusiveMaximum")): low / 4 + chance.randrange(1, 50) / 8}
    if kind == 5:
        return {"type": chance.choice(("integer", "number")), "multipleOf": chance.choice((2, 3, 10, 25)), "minimum": low, "maximum": low + 100}
    if kind == 6:
        return chance.choice((FLAG, NIL, {"enum": ["x", "yy", 3, None]}, {"const": chance.randrange(100)}))
    if kind == 7:
        return {"type": ["string", "null"], "maxLength": chance.randrange(6)}
    if kind == 8:
        names = chance.sample("abcdefg", chance.randrange(1, 4))
        return record([n for n in names if chance.randrange(3)], **{n: by_chance(chance, depth + 1) for n in names})
    if kind == 9:
        return several(by_chance(chance, depth + 1), minItems=chance.randrange(2), maxItems=chance.randrange(2, 4))
    if kind == 10:
        return {"anyOf": [by_chance(chance, depth + 1) for _ in range(chance.randrange(1, 4))], "title": "T"}
    if kind == 11:
        return {"oneOf": [record(k={"const": i}, v=by_chance(chance, depth + 1)) for i in range(chance.randrange(1, 4))]}
    return {"allOf": [record([], {"additionalProperties": True}, a=by_chance(chance, depth + 1)), {"required": ["a"]}]}


def schemas(count):
    """The first ones are by hand; a count below theirs takes some of each."""
    chance = random.Random(7)
    every = HAND + [by_chance(chance) for _ in range(max(0, count - len(HAND)))]
    return every if count >= len(every) else every[::max(1, len(every) // count)][:count]
