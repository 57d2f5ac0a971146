"""The word lists and sentence templates of `loam-lab eval ruler`, read from its header: one place for both."""
import os
import re

HEADER = os.path.join(os.path.dirname(__file__), "..", "..", "src", "eval", "ruler_text.h")


def read():
    lists = {}
    text = open(os.environ.get("RULER_TEXT", HEADER), encoding="utf-8").read()
    for name, body in re.findall(r"#define RULER_(\w+)\(X\) \\\n(.*?)\n\n", text, re.S):
        entries = [re.findall(r'"((?:[^"\\]|\\.)*)"|(\w+)', e) for e in re.findall(r'X\(((?:[^"()]|"[^"]*")*)\)', body)]
        rows = [tuple(a or b for a, b in e) for e in entries]
        lists[name] = [r[0] for r in rows] if len(rows[0]) == 1 else rows
    return lists


LISTS = read()
TEMPLATES = dict(LISTS["TEMPLATES"])
SEPARATORS = dict(LISTS["SEPARATORS"])
KINDS = {name: (one, many) for name, one, many in LISTS["KINDS"]}
