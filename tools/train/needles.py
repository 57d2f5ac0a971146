#!/usr/bin/env python3
"""Prompts of `loam eval ruler --emit` with their answers, as a text to calibrate with: needles.py JSONL > TEXT."""
import json
import sys

for line in open(sys.argv[1], encoding="utf-8"):
    sample = json.loads(line)
    if "prompt" in sample:
        print(f"{sample['prompt']} {', '.join(sample['answers'])}.\n")
