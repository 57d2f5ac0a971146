#!/usr/bin/env python3
"""Prompts of `loam-lab eval ruler --emit` with their answers, as a text to calibrate with: needles.py JSONL... > TEXT.

Queries that look far back are those of the answers, a few tokens of a prompt.  Prompts that share a text (--shared-text)
are therefore written as one: the text, then all its questions with their answers."""
import json
import os
import sys


def joined(samples):
    """One text: what the prompts begin with alike, up to a line's end, then the rest of each and its answer."""
    prompts = [sample["prompt"] for sample in samples]
    shared = prompts[0].rfind("\n", 0, len(os.path.commonprefix(prompts))) + 1 if len(prompts) > 1 else 0
    return prompts[0][:shared] + "".join(
        sample["prompt"][shared:] + sample["answer_text"] + "\n" for sample in samples
    )


for path in sys.argv[1:]:
    texts = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file):
            sample = json.loads(line)
            if "prompt" not in sample:
                continue
            texts.setdefault((sample["length"], sample["index"] if sample["shared_text"] else -1 - number), []).append(sample)
    sys.stdout.write("".join(joined(samples) for samples in texts.values()))
