#!/usr/bin/env python3
"""Writes tests/token/fixtures/smollm2.txt: token ids as Hugging Face gives them for SmolLM2-135M-Instruct.

Usage: make_smollm2_tokens.py MODEL.gguf OUTPUT
Needs transformers, tokenizers and gguf (PyPI; made with 5.23.0 and 0.23.3).  The vocabulary and the merges are read from
the GGUF and put into tokenizers.Tokenizer, with the pre-tokenizer of the model's tokenizer.json (digits one by one, then
GPT-2's pattern), which a GGUF only names ("smollm").  Control tokens are added as special ones.

Format: as the other fixtures (tests/token/records.h): `text` and then its `ids`; `special` is a text in which control
tokens are parsed.
"""
import random
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEXTS = [
    "", " ", "  ", "   a", "a   ", "\n", "\n\n", "\n\n\nx", "\r\n", "\t", "\t\tif x:\n\t\t\treturn\n", " \n ", "a \n b",
    "Hello, world!", "hello world", "HELLO WORLD", "Hello  world", "it's we're I'VE can't o'clock 'tis rock'n'roll",
    "0", "007", "1234567890", "3.14159", "1,000,000", "v1.2.3-rc4", "x1y2z3", "2026-11-22T16:40:00Z", "½ ² Ⅷ ① ٣٤ १२",
    "naïve café déjà vu", "e\u0301 vs \u00e9", "Straße", "İstanbul ığdır", "ﬁne", "Ａ full width", "zero\u200bwidth",
    "\u00a0non-breaking\u00a0", "\u3000ideographic", "line\u2028separator", "\ufeffbom", "soft\u00adhyphen",
    "Съешь же ещё этих мягких булок", "Η γρήγορη αλεπού", "我想在苹果公司工作，今天天气很好。", "日本語のテキスト",
    "한국어 문장입니다", "हिन्दी में लिखा", "العربية جميلة", "עברית", "ภาษาไทย", "😀 👍🏽 👨‍👩‍👧 🇩🇪",
    "def f(x):\n    return x**2 + 1  # comment\n", "for (int i = 0; i < n; i++) { a[i] += b[i]; }", "SELECT * FROM t;",
    "https://example.org/a/b?c=d&e=1#f", "foo_bar fooBar FooBAR foo-bar", "!!!???...", "--- === *** ___", "$100 & 50% @ #1",
    "\u0000\u0001\u007f", "a" * 200, "ab" * 60, " " * 70 + "x", "\n" * 40, "The quick brown fox jumps over the lazy dog.",
    "“Quoted” — ‘dashes’ … –", "<|im_start|>user\nhi<|im_end|>", "<|endoftext|>", "<|im_start", "[INST] x [/INST]",
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "To Sherlock Holmes she is always _the_ woman.",
]
SPECIAL = ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "a<|endoftext|>b", "<|im_start|><|im_start|>",
           "x <|im_end|> y", "<|im_start |>"]


def tokenizer_of(path):
    fields = GGUFReader(path).fields
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, [t for t, kind in zip(tokens, types) if kind == 3]


def random_texts(count):
    """Characters of many scripts, blanks and digits in any order: what no list of cases has thought of."""
    rng = random.Random(18)
    pool = "abcXYZ019 \n\t.,'\"-_éßЖ中あ한ا😀\u0301\u200d\u00a0"
    return ["".join(rng.choice(pool) for _ in range(rng.randint(1, 60))) for _ in range(count)]


def main():
    model, output = sys.argv[1:]
    tokenizer, controls = tokenizer_of(model)
    with open(output, "wb") as file:

        def write(kind, data):
            file.write(f"@{kind} - {len(data)}\n".encode() + data + b"\n")

        def record(kind, text):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            write(kind, text.encode())
            write("ids", " ".join(map(str, ids)).encode())

        for text in TEXTS + random_texts(150):
            record("text", text)
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in controls])
        for text in SPECIAL:
            record("special", text)


if __name__ == "__main__":
    main()
