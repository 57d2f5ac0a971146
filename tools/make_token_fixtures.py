#!/usr/bin/env python3
"""Writes tests/token/fixtures/{bpe,spm,characters}.txt: token ids as Hugging Face tokenizers and SentencePiece give them.

Usage: make_token_fixtures.py BOOK.txt OUTPUT_DIRECTORY
Needs tokenizers, sentencepiece and protobuf (PyPI); made with 0.23.3, 0.2.3 and 6.x.  BOOK.txt is a public-domain
text in English; what is committed was made from "The Adventures of Sherlock Holmes" (Project Gutenberg 1661).

bpe.txt: one byte-level BPE vocabulary (tokens 0..255 are the bytes, then one token per merge, then the extra tokens
that no merge makes), and strings with their ids under every pre-tokenizer.  spm.txt: one SentencePiece BPE model with
byte fallback, used in three ways: as it is, with remove_extra_whitespaces, and without byte fallback.
characters.txt: one BPE of characters as Gemma 4 has it (spaces are U+2581, bytes for what is no token, nothing cut
beforehand); U+240A stands for a line end in its tokens and merges.  It was made from tests/data/a-scandal-in-bohemia.txt.

Format: records `@kind argument bytes`, then that many bytes and a line end.  `ids` carries the mask of the columns
(pre-tokenizers or ways, in the order of `columns`) that give these ids for the `text` before it.
"""
import io
import random
import sys
import unicodedata

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

SAMPLES = """Съешь же ещё этих мягких французских булок, да выпей чаю. Η γρήγορη αλεπού. Příliš žluťoučký kůň úpěl.
Falsches Üben von Xylophonmusik quält jeden größeren Zwerg. Voix ambiguë d'un cœur qui préfère les jattes de kiwis.
我想在苹果公司工作，今天天气很好。 日本語のテキストです。カタカナも。 한국어 문장입니다. ภาษาไทย. हिन्दी में लिखा हुआ।
العربية جميلة. עברית. Cửa Việt. İstanbul'da ığdır. ქართული ენა. Հայերեն. 😀 👍🏽 👨‍👩‍👧 🇩🇪 ½ ² ³ Ⅷ ①
def f(x): return x**2 + 1  # comment\n\tif (a != b) { c = d[0]; }\n    print("hello")\n\n\nSELECT * FROM t WHERE id = 12345;
I've you'll HE'S they'RE we'D it'S don'T 'Tis rock'n'roll http://example.org/a/b?c=d&e=1 foo_bar fooBar FooBAR x1y2z3
"""

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
HEAD, TAIL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\u1f5f-\u1f7d"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ\u1fd0-\u1fd3\u1fd6-\u1fdbῨ-Ῥῠ-ῧῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-\u212dℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")


def cased(suffix):
    return rf"[^\r\n\p{{L}}\p{{N}}]?{HEAD}*{TAIL}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{HEAD}+{TAIL}*{suffix}"


def byte_level(regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


def splits(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns] + [byte_level()]


# name, ignore_merges, stages; those with classes of their own are as in the models' tokenizer.json
PRES = [
    ("llama-bpe", True, splits(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES)),
    ("qwen2", False, splits(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES)),
    ("qwen35", False, splits(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES)),
    ("gpt-2", False, [byte_level(True)]),
    ("starcoder", False, [pre_tokenizers.Digits(individual_digits=True), byte_level(True)]),
    ("deepseek-llm", False, splits(r"[\r\n]", rf"\s?[{CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}+")),
    ("deepseek-coder", False, splits(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    ("deepseek-v3", False, splits(r"\p{N}{1,3}", r"[一-龥\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES)),
    ("tekken", True, splits(cased("") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES)),
    ("gpt-4o", False, splits(cased(CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES)),
    ("falcon", False, [pre_tokenizers.Punctuation("contiguous"), byte_level(True),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]),
    ("default", False, splits(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
]


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def characters():
    """Assigned characters of this Python's Unicode by general category, without surrogates and private use.

    Punctuation is only what Unicode 3.2 has: the table behind Hugging Face's Punctuation (Falcon) is older than 15.
    """
    pools = {}
    for code in range(1, 0x110000):
        category = unicodedata.category(chr(code))
        known = category[0] != "P" or unicodedata.ucd_3_2_0.category(chr(code)) == category
        if known and category not in ("Cs", "Co", "Cn"):
            pools.setdefault(category, []).append(chr(code))
    return pools


def make_strings(book, count):
    draw = random.Random(1)
    pools = characters()
    words = book.split()
    scraps = SAMPLES.replace("\n", " \n ").split(" ")
    glue = [" ", " ", " ", "", "", "  ", "\n", "\t", "\n\n", " \n ", "\r\n", "'", "/", ".", "\u00a0", "\u3000"]
    strings = ["", " ", "\n", "a", "'s", "1234567", "12½3456²", "  x", "\n\n\n  y", "a'ſ b'S"]
    while len(strings) < count:
        kind, text = draw.random(), ""
        for _ in range(draw.randint(1, 6)):
            if kind < 0.35:
                start = draw.randrange(len(words) - 3)
                text += " ".join(words[start:start + draw.randint(1, 3)])
            elif kind < 0.7:
                text += draw.choice(scraps)
            else:
                pool = pools[draw.choice(list(pools))]
                most = draw.choice([len(pool), min(len(pool), 64)])
                text += "".join(pool[draw.randrange(most)] for _ in range(draw.randint(1, 3)))
            text += draw.choice(glue)
        strings.append(text[:40])
    return [s.replace("\u2581", "_") for s in strings]  # SentencePiece's own mark for a space


def record(out, kind, argument, text):
    data = text.encode()
    out.write(f"@{kind} {argument} {len(data)}\n".encode() + data + b"\n")


def write_cases(out, columns, strings, encode):
    record(out, "columns", len(columns), " ".join(columns))
    for text in strings:
        record(out, "text", "-", text)
        groups = {}
        for column in range(len(columns)):
            ids = " ".join(map(str, encode(column, text)))
            groups[ids] = groups.get(ids, 0) | 1 << column
        for ids, mask in groups.items():
            record(out, "ids", f"{mask:x}", ids)


def make_bpe(book, strings, path):
    alphabet = byte_alphabet()
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(PRES[0][2])
    trainer = trainers.BpeTrainer(vocab_size=1100, initial_alphabet=list(alphabet.values()), show_progress=False)
    trained.train_from_iterator([book[:60000]] + [SAMPLES] * 6, trainer)
    import json
    merges = [tuple(m) for m in json.loads(trained.to_str())["model"]["merges"]]
    extra = ["Ġdetective", "ĠBohemian", "987", "Ġunreachable"]
    tokens = [alphabet[b] for b in range(256)] + [a + b for a, b in merges] + extra
    assert len(set(tokens)) == len(tokens)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    made = []
    for _, ignore_merges, stages in PRES:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(stages)
        made.append(tokenizer)
    with open(path, "wb") as out:
        record(out, "merges", len(merges), "\n".join(f"{a} {b}" for a, b in merges))
        record(out, "extra", len(extra), "\n".join(extra))
        more = ["the detective in Bohemian", " detective987", "unreachable unreachable", " Bohemian's 987 9876"]
        write_cases(out, [name for name, _, _ in PRES], more + strings, lambda c, text: made[c].encode(text).ids)


def make_spm(book, strings, path):
    lines = [line for line in (book[:150000] + SAMPLES * 4).splitlines() if line]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=1100, model_type="bpe", byte_fallback=True,
        character_coverage=0.995, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    ways = [sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())]
    pieces = list(proto.pieces)
    with open(path, "wb") as out:
        assert all("\n" not in p.piece for p in pieces)
        # token_type of GGUF happens to be the type of SentencePiece; scores as floats print exactly in hex
        lines = [f"{p.type} {p.score.hex()} {p.piece}" for p in pieces]
        record(out, "pieces", len(pieces), "\n".join(lines))
        proto.normalizer_spec.remove_extra_whitespaces = True
        ways.append(sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString()))
        proto.normalizer_spec.remove_extra_whitespaces = False
        proto.trainer_spec.byte_fallback = False
        for piece in proto.pieces:
            if piece.type == 6:
                piece.type = 5
        ways.append(sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString()))
        more = ["x   y", "    z", "  ", " a  b   c    ", "\u4e2d\u6587\u0001\u0002 q \u4e2d"]
        texts = [s for s in more + strings[:260] if "\0" not in s]
        write_cases(out, ["plain", "single-spaces", "no-bytes"], texts, lambda c, text: ways[c].encode(text))


def make_characters(book, strings, path):
    import json
    spaces = normalizers.Replace(" ", "\u2581")
    trained = Tokenizer(models.BPE())
    trained.normalizer = spaces
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("\n+"), "isolated"), pre_tokenizers.Split("\u2581", "merged_with_next")])
    trainer = trainers.BpeTrainer(vocab_size=1000, limit_alphabet=120, show_progress=False)
    trained.train_from_iterator([book[:60000]] + [SAMPLES] * 6 + ["a\n\nb\n\n\n\nc"] * 50, trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] + sorted(model["vocab"], key=model["vocab"].get)
    merges = [tuple(merge) for merge in model["merges"]]
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, unk_token="<unk>",
                                byte_fallback=True, fuse_unk=True))
    made.normalizer = spaces
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    with open(path, "wb") as out:
        record(out, "tokens", len(tokens), "\n".join(token.replace("\n", "\u240a") for token in tokens))
        record(out, "merges", len(merges), "\n".join(f"{a} {b}".replace("\n", "\u240a") for a, b in merges))
        more = ["x   y", "\n\n\n\n\n\nz\n \n", "the detective in Bohemia", "\u4e2d\u6587\u0001 q"]
        write_cases(out, ["gemma4"], more + strings[:300], lambda c, text: made.encode(text).ids)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        book = file.read()
    book = book[book.index("A Scandal in Bohemia"):]
    strings = make_strings(book, 1000)
    make_bpe(book, strings, sys.argv[2] + "/bpe.txt")
    make_spm(book, strings, sys.argv[2] + "/spm.txt")
    make_characters(book, strings, sys.argv[2] + "/characters.txt")


main()
