"""Training texts: the tasks of `loam-lab eval ruler` with several questions to each text, and plain English.

A row is tokens, positions, the weight of every token as a target, and other tokens that would be as right (where
several values may come in any order).  All sizes are in tokens.  The first 2% of every
text are kept for held-out rows."""
import random
import re
import uuid

import numpy
from tokenizers import Tokenizer

from words import KINDS, LISTS, SEPARATORS, TEMPLATES

BEGIN, END = 0, 1
MOST = 48  # see crowd
ADJECTIVES, NOUNS, NOISE = LISTS["ADJECTIVES"], LISTS["NOUNS"], " ".join(LISTS["NOISE"])
TASKS = {"single_1": .5, "single_2": .8, "single_3": .3, "multikey_1": 1.5, "multikey_2": 2.5, "multikey_3": .2,
         "multivalue": 5, "multiquery": 2.5, "vt": 2.5, "text": 1, "cwe": .05, "fwe": .05, "qa": .3}


class Source:
    def __init__(self, folder, paths, held_out):
        self.tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
        self.sentences, self.stream = [], []
        for path in paths:
            text = re.sub(r"\r", "", open(path, encoding="utf-8").read())
            cut = len(text) // 50
            text = text[:cut] if held_out else text[cut:]
            text = text[:1200000]
            flat = re.sub(r"\s+", " ", text)
            self.sentences.append([s for s in re.split(r"(?<=[.!?]) ", flat) if 2 < len(s) < 400])
            self.stream.append(numpy.array(self.tokenizer.encode(text, add_special_tokens=False).ids))
        self.gap_after = {i for t, i in self.tokenizer.get_vocab().items() if t.endswith((".", "Ċ"))}
        self.gap_after = numpy.isin(numpy.arange(self.tokenizer.get_vocab_size()), list(self.gap_after))

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids


class Maker:
    """Rows of a length; everything random comes from one seed."""

    def __init__(self, source, seed, as_ruler=False):
        self.source, self.random, self.as_ruler = source, random.Random(seed), as_ruler

    def key(self):
        return self.random.choice(ADJECTIVES) + "-" + self.random.choice(NOUNS)

    def similar_keys(self, count):
        """Different keys of few adjectives and few nouns: each shares a word with as many others as in a long text."""
        r, rows = self.random, max(2, int((count * self.random.uniform(.4, 2)) ** .5))
        adjectives, nouns = r.sample(ADJECTIVES, rows), r.sample(NOUNS, 2 + int(1.4 * count / rows))
        return r.sample([a + "-" + n for a in adjectives for n in nouns], count)

    def value(self, kind):
        if kind == "word":
            return self.random.choice(NOUNS)
        if kind == "uuid":
            return str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        return str(self.random.randint(1000000, 9999999))

    def essay(self, characters):
        """Consecutive sentences of one text."""
        sentences = self.random.choice(self.source.sentences)
        at, result, size = self.random.randrange(len(sentences)), [], 0
        while size < characters:
            sentence = sentences[at % len(sentences)]
            result.append(sentence)
            size, at = size + len(sentence) + 1, at + 1
        return result

    def scatter(self, lines, needles):
        """Needles at random places of lines, in a random order."""
        self.random.shuffle(needles)
        places = sorted(self.random.randint(0, len(lines)) for _ in needles)
        result, at = [], 0
        for place, needle in zip(places, needles):
            result += lines[at:place] + [needle]
            at = place
        return result + lines[at:]

    def ask(self, kind, keys, many):
        one, plural = KINDS[kind]
        listed = keys[0] if len(keys) == 1 else SEPARATORS["keys"].join(keys[:-1]) + SEPARATORS["last_key"] + keys[-1]
        which = "many" if many else "one"
        fill = dict(kind=one, kinds=plural, keys=listed)
        return TEMPLATES["question_" + which].format(**fill) + "\n" + TEMPLATES["prefix_" + which].format(**fill)

    def niah(self, task, size):
        """Haystack, and (question, answer) pairs.  In training more needles than RULER has, often."""
        r = self.random
        other = "word" if r.random() < .15 and not self.as_ruler else "number"
        kind = {"single_3": "uuid", "multikey_3": "uuid"}.get(task, other)
        own = {"single_1": 1, "single_2": 1, "single_3": 1, "multikey_1": 4, "multivalue": 1, "multiquery": 4}
        keys = own.get(task, 1)
        if task not in ("single_3", "multikey_2", "multikey_3") and not self.as_ruler:
            share = 4 if task == "multivalue" else 1
            keys = max(keys, r.choice((1, keys, size // (100 * share), size // (40 * share))))
        if task in ("multikey_2", "multikey_3"):
            keys = max(2, size // (60 if kind == "uuid" else 17))
        names = [self.value("uuid") if task == "multikey_3" else self.key() for _ in range(keys)]
        if r.random() < .75 and task != "multikey_3" and not self.as_ruler:
            names = self.similar_keys(keys)
        names = list(dict.fromkeys(names))
        values, few_digits = {}, []
        if r.random() < .3 and task != "multivalue" and not self.as_ruler:
            few_digits = [str(r.randint(100, 999)) for _ in range(max(4, keys // 3))]
        for name in names:
            count = 4 if task == "multivalue" and (self.as_ruler or r.random() < .7) else 1
            if task == "multivalue" and not self.as_ruler and r.random() < .2:
                count = r.randint(2, 5)
            values[name] = [self.value(kind) for _ in range(count)]
            if few_digits and kind == "number":
                values[name] = [r.choice(few_digits) + v[3:] for v in values[name]]
        needles = [(n, v, TEMPLATES["needle"].format(kinds=KINDS[kind][1], key=n, value=v))
                   for n in names for v in values[n]]
        r.shuffle(needles)
        used = sum(len(t) for _, _, t in needles) / 4
        rest = max(0, int((size - used) * 3.6))
        joint = "\n" if task in ("single_1", "multikey_2", "multikey_3") else " "
        if joint == " ":
            lines = self.essay(rest)
        elif task == "single_1":
            lines = [NOISE] * max(1, rest // len(NOISE))
        else:
            lines = []
        lines = self.scatter(lines, [t for _, _, t in needles])
        text = joint.join(lines)
        order = {t: i for i, t in enumerate(lines)}
        asked, start = [], r.randrange(len(names))
        intro = TEMPLATES["intro_niah"].format(kinds=KINDS[kind][1])
        for turn in range(min(12, max(1, len(names)))):
            if task == "multiquery" and len(names) > 1:
                some = r.sample(names, min(len(names), r.choice((2, 3, 4, 4, 4))))
                answer = SEPARATORS["answer"].join(f"{n}: {values[n][0]}" for n in some)
                asked.append((self.ask(kind, some, True), answer))
                self.asked_for += [t for n, v, t in needles if n in some]
            else:
                name = names[(turn + start) % len(names)]
                some = list(values[name])
                r.shuffle(some)
                asked.append((self.ask(kind, [name], len(some) > 1), SEPARATORS["answer"].join(some)))
                self.asked_for += [t for n, v, t in needles if n == name]
        return intro + "\n" + text, asked

    def vt(self, size):
        r = self.random
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        chains, statements, asked = [], [], []
        for _ in range(1 if self.as_ruler else r.choice((1, 2, 3))):
            count = 5 if self.as_ruler else r.choice((3, 5, 5, 5))
            names = ["".join(r.choice(letters) for _ in range(5)) for _ in range(count)]
            value = str(r.randint(10000, 99999))
            chain = [TEMPLATES["vt_first"].format(name=names[0], value=value)]
            chain += [TEMPLATES["vt_next"].format(name=b, source=a) for a, b in zip(names, names[1:])]
            chains.append((value, names, chain))
        queue = [list(c) for _, _, c in chains]
        while any(queue):
            one = r.choice([q for q in queue if q])
            statements.append(one.pop(0))
        rest = max(1, int((size - 10 * len(statements)) / 26))
        lines, places = [NOISE] * rest, sorted(r.randint(0, rest) for _ in statements)
        for at, statement in reversed(list(zip(places, statements))):
            lines.insert(at, statement)
        r.shuffle(chains)
        for value, names, chain in chains:
            self.asked_for += chain
            asked.append((TEMPLATES["question_vt"].format(value=value) + "\n" +
                          TEMPLATES["prefix_vt"].format(value=value), SEPARATORS["answer"].join(names)))
        return TEMPLATES["intro_vt"] + "\n" + "\n".join(lines), asked

    def cwe(self, size):
        r, words = self.random, self.random.sample(NOUNS, 40)
        many = 3 + size // 100
        entries = words[:10] * many + [w for w in words[10:] for _ in range(max(1, many // 5))]
        r.shuffle(entries)
        entries = entries[:size // 4]
        text = " ".join(TEMPLATES["cwe_entry"].format(number=i + 1, word=w) for i, w in enumerate(entries))
        answer = SEPARATORS["answer"].join(sorted(words[:10], key=lambda w: entries.index(w) if w in entries else 0))
        question = TEMPLATES["question_cwe"] + "\n" + TEMPLATES["prefix_cwe"]
        return TEMPLATES["intro_cwe"] + "\n" + text, [(question, answer)]

    def fwe(self, size):
        r = self.random
        words = ["".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(6)) for _ in range(max(5, size // 50))]
        drawn = r.choices(range(len(words)), [1 / (i + 1) ** 2 for i in range(len(words))], k=size // 4)
        text = " ".join(TEMPLATES["fwe_dots"] if i == 0 else words[i] for i in drawn)
        question = TEMPLATES["question_fwe"] + "\n" + TEMPLATES["prefix_fwe"]
        return TEMPLATES["intro_fwe"] + "\n" + text, [(question, SEPARATORS["answer"].join(words[1:4]))]

    def qa(self, size):
        r, people, documents = self.random, {}, []
        article = LISTS["JOBS"]
        for _ in range(max(2, size // 60)):
            person = r.choice(LISTS["FIRST_NAMES"]) + " " + r.choice(LISTS["SURNAMES"])
            town = r.choice(LISTS["TOWN_STARTS"]) + r.choice(LISTS["TOWN_ENDS"])
            facts = dict(person=person, town=town, year=r.randint(1800, 1999), job=r.choice(article),
                         region=r.choice(LISTS["REGIONS"]), noun=r.choice(NOUNS), noun2=r.choice(NOUNS))
            people[person] = facts
            documents += [TEMPLATES["qa_person"].format(**facts), TEMPLATES["qa_town"].format(**facts)]
        r.shuffle(documents)
        text = "\n\n".join(TEMPLATES["qa_heading"].format(number=i + 1) + "\n" + d for i, d in enumerate(documents))
        asked = []
        for _ in range(12):
            facts, what = r.choice(list(people.values())), r.choice(("town", "year", "job", "region"))
            asked.append((TEMPLATES["question_qa_" + what].format(**facts) + "\n" +
                          TEMPLATES["prefix_qa_" + what].format(**facts), str(facts[what])))
        return TEMPLATES["intro_qa"] + "\n" + text, asked

    def sample(self, task, size):
        """(text, [(question and answer's beginning, answer)]) of about size tokens; asked_for: what matters of it."""
        self.asked_for = []
        if task in ("vt", "cwe", "fwe", "qa"):
            return getattr(self, task)(size)
        return self.niah(task, size)

    def crowd(self, text, encoding):
        """Log of how many tokens each of encoding counts as, in text: as if it were up to MOST times as long, with
        more of the same around the sentences asked for."""
        result = numpy.zeros(len(encoding.ids), dtype=numpy.float32)
        if not self.asked_for or self.random.random() < .2:
            return result
        alone = numpy.zeros(len(text) + 1, dtype=bool)
        for sentence in self.asked_for:
            at = text.find(sentence)
            alone[at:at + len(sentence) + 1] = True
        height = self.random.uniform(0, numpy.log(MOST))
        for i, (begin, end) in enumerate(encoding.offsets):
            if end <= len(text) and not alone[begin:end].any():
                result[i] = height
        return result

    def positions(self, tokens, span):
        """Position ids with random gaps after sentence ends, as if text had been cut out of span tokens."""
        steps = numpy.ones(len(tokens), dtype=numpy.int64)
        steps[0] = 0
        spare = span - len(tokens)
        if spare > 0:
            places = numpy.flatnonzero(self.source.gap_after[tokens[:-1]]) + 1
            if len(places):
                generator = numpy.random.default_rng(self.random.getrandbits(60))
                many = 1 + int(len(places) * generator.random() ** 2)
                some = generator.choice(places, min(len(places), many), replace=False)
                parts = generator.dirichlet(numpy.ones(len(some)) * .5) * spare * generator.random() ** .5
                steps[some] += parts.astype(numpy.int64)
        return numpy.cumsum(steps)

    def row(self, length, span, task=None, background=.1):
        """tokens, positions, weights [length], others [length, 4] (-1: none), crowd [length].

        weights[i] is that of tokens[i] as a target."""
        r, others = self.random, numpy.full((length, 4), -1)
        crowd = numpy.zeros(length, dtype=numpy.float32)
        task = task or r.choices(list(TASKS), list(TASKS.values()))[0]
        if task == "text":
            stream = r.choice(self.source.stream)
            at = r.randrange(len(stream) - length)
            tokens = [BEGIN] + stream[at:at + length - 1].tolist()
            weights = [1.0 * (background > 0)] * length
        else:
            text, asked = self.sample(task, int(length * (r.uniform(.45, .7) if length <= 2048 else .9)))
            tokens, weights = [BEGIN], [0.0]
            for i, (question, answer) in enumerate(asked):
                if i == 0:
                    first = self.source.tokenizer.encode(text + "\n" + question, add_special_tokens=False)
                    body, counts = first.ids, self.crowd(text, first)
                    crowd[1:len(body) + 1] = counts[:length - 1]
                else:
                    body = self.source.encode("\n" + question)
                reply = self.source.encode(SEPARATORS["answer_begin"] + answer + SEPARATORS["answer_end"]) + [END]
                if re.fullmatch(r"\d{7}(, \d{7})+", answer):  # five tokens each: blank, three of digits, comma
                    heads = [reply[at] for at in range(1, len(reply) - 1, 5)]
                    for j in range(len(heads)):
                        at, left = len(tokens) + len(body) + 5 * j + 1, sorted(set(heads[j + 1:]) - {heads[j]})[:4]
                        if at < length:
                            others[at, :len(left)] = left
                tokens += body + reply
                weights += [background] * len(body) + [10.0] * len(reply)
                if len(tokens) >= length:
                    break
            while len(tokens) < length:
                more = self.row(length, 0, "text", background)[0][1:length - len(tokens) + 1].tolist()
                tokens += more
                weights += [background] * len(more)
            tokens, weights = tokens[:length], weights[:length]
        tokens = numpy.array(tokens)
        return tokens, self.positions(tokens, span), numpy.array(weights, dtype=numpy.float32), others, crowd
