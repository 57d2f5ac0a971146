#!/usr/bin/env python3
"""Writes a long made-up logbook and questions about it, the same for the same seed.

    tools/make_logbook.py --days 280 --seed 7 LOGBOOK.txt QUESTIONS.jsonl

Days of weather and small events; on a few of them a number is noted, in the sentence that the bundled model knows
(src/lab/eval/ruler_text.h).  The questions ask for those numbers: loam-lab eval ask."""
import argparse
import json
import os
import random
import re

HEADER = os.path.join(os.path.dirname(__file__), "..", "src", "lab", "eval", "ruler_text.h")
EVENTS = ("The {a} {n} was seen again near the {n2}.", "We mended the {n} and put a new {n2} in its place.",
          "A {a} {n} came aboard at noon and left at dusk.", "Nobody could say where the {n} had gone.",
          "The cook made {n} out of a {n2}, and it was {a}.", "The {n} is {a} this morning, the {n2} is not.",
          "All day the {a} {n} lay to the {w} of us.", "The mate dreamt of a {n} under a {a} {n2}.")
WEATHER = ("Wind from the {w}, {s}.", "No wind, {s}.", "{s2} at dawn, then wind from the {w}.")


def entries(name, text):
    """The arguments of X(...) of one list of the header."""
    body = re.search(rf"#define RULER_{name}\(X\) \\\n(.*?)\n\n", text, re.S)[1]
    return [re.findall(r'"((?:[^"\\]|\\.)*)"|(?<=\()(\w+)', entry) for entry in re.findall(r"X\((.*?)\)(?:\s|$)", body)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=280)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("logbook")
    parser.add_argument("questions")
    arguments = parser.parse_args()
    header = open(HEADER, encoding="utf-8").read()
    words = {name: [entry[0][0] for entry in entries(name, header)] for name in ("ADJECTIVES", "NOUNS")}
    templates = dict(re.findall(r'X\((\w+), "(.*)"\)', header))
    draw = random.Random(arguments.seed)
    keys = draw.sample([f"{a}-{n}" for a in words["ADJECTIVES"] for n in words["NOUNS"]], 5)
    numbers = {key: str(draw.randrange(1000000, 10000000)) for key in keys}
    notes = list(numbers.items())
    days = sorted(draw.sample(range(5, arguments.days - 5), len(notes)))
    draw.shuffle(notes)
    lines = []
    for day in range(1, arguments.days + 1):
        fill = lambda text: text.format(
            a=draw.choice(words["ADJECTIVES"]), n=draw.choice(words["NOUNS"]), n2=draw.choice(words["NOUNS"]),
            w=draw.choice(("north", "south", "east", "west")), s=draw.choice(("clear", "rain", "light fog", "high clouds")),
            s2=draw.choice(("Fog", "Rain", "Calm", "A halo round the sun")))
        sentences = [f"Day {day}.", fill(draw.choice(WEATHER))] + [fill(draw.choice(EVENTS)) for _ in range(draw.randrange(2, 5))]
        if day in days:
            key, value = notes[days.index(day)]
            sentences.insert(draw.randrange(2, len(sentences)),
                             templates["needle"].format(kinds="numbers", key=key, value=value))
        lines.append(" ".join(sentences))
    with open(arguments.logbook, "w", encoding="utf-8") as file:
        file.write(templates["intro_niah"].format(kinds="numbers") + "\n" + "\n".join(lines) + "\n")
    with open(arguments.questions, "w", encoding="utf-8") as file:
        for asked in [[key] for key in keys[:4]] + [keys[2:]]:
            form = "many" if len(asked) > 1 else "one"
            names = ", ".join(asked[:-1]) + " and " + asked[-1] if len(asked) > 1 else asked[0]
            question = "\n".join(templates[part + form].format(keys=names, kind="number", kinds="numbers")
                                 for part in ("question_", "prefix_"))
            file.write(json.dumps({"question": question, "answers": [numbers[key] for key in asked]}) + "\n")


main()
