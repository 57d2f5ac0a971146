#!/usr/bin/env python3
"""Trains the byte-level BPE vocabulary (Llama 3's pre-tokenizer) and writes tokenizer.json.

Besides what BPE learns from the texts, tokens are given for: numbers of up to three digits, the words of the
retrieval tasks (so that a key is two tokens: " wooden" "-castle"), and pairs of capitals after a blank.  Capitals do
not merge otherwise, so a five-letter variable is four tokens: " QX" "R" "B" "M".  Fixed counts keep the offsets
inside a needle fixed, which the initialisation relies on."""
import argparse
import json
import os
import re
import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from words import KINDS, LISTS, TEMPLATES

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BEGIN, END = "<|begin|>", "<|end|>"


def splitter():
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=5120)
    parser.add_argument("--out", required=True, help="folder for tokenizer.json")
    parser.add_argument("texts", nargs="+")
    arguments = parser.parse_args()

    letters, blank = string.ascii_uppercase, "Ġ"
    given = [f"{n:0{w}d}" for w in (2, 3) for n in range(10 ** w)]
    given += [blank + w for w in LISTS["ADJECTIVES"] + LISTS["NOUNS"]] + ["-" + w for w in LISTS["NOUNS"]]
    given += ["VAR", blank + "VAR", blank + "=", ".Ċ", "?Ċ", ":Ċ"]
    for line in list(TEMPLATES.values()) + LISTS["NOISE"] + [" ".join((" ", *k)) for k in KINDS.values()]:
        given += [w.replace(" ", blank) for w in re.findall(r" ?[A-Za-z]+", re.sub(r"{\w+}", "", line))]
    pairs = [(blank, a) for a in letters] + [(blank + a, b) for a in letters for b in letters]
    given += [a + b for a, b in pairs]

    text = "\n".join(open(path, encoding="utf-8").read() for path in arguments.texts)
    text = re.sub(r"[A-Z]{2,}|\d+", " ", text)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter()
    tokenizer.train_from_iterator(text.split("\n\n"), trainers.BpeTrainer(
        vocab_size=arguments.vocabulary, special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(tokenizer.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    given = list(dict.fromkeys(g for g in given))
    room = arguments.vocabulary - len(given)
    # as many of the learned tokens as there is room for beside the given ones
    kept, have = [], set(given)
    for token in learned:
        if token in have:
            continue
        if len(kept) < room:
            kept.append(token)
    vocabulary = {token: i for i, token in enumerate(kept + given)}
    merges = [tuple(m) if not isinstance(m, str) else tuple(m.split(" ")) for m in model["merges"]]
    merges = [m for m in merges if m[0] in vocabulary and m[1] in vocabulary and m[0] + m[1] in vocabulary]
    merges += [p for p in pairs if p not in set(merges)]
    result = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    result.add_special_tokens([BEGIN, END])
    result.pre_tokenizer, result.decoder = splitter(), decoders.ByteLevel()
    os.makedirs(arguments.out, exist_ok=True)
    result.save(os.path.join(arguments.out, "tokenizer.json"))
    print(result.get_vocab_size(), "tokens,", len(kept), "learned")


if __name__ == "__main__":
    main()
