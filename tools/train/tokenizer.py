#!/usr/bin/env python3
"""Trains a byte-level BPE vocabulary (GPT-2's pre-tokenizer) on text files and writes tokenizer.json."""
import argparse
import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--vocabulary", type=int, default=2048)
parser.add_argument("--out", required=True, help="folder for tokenizer.json")
parser.add_argument("texts", nargs="+")
arguments = parser.parse_args()

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train(arguments.texts, trainers.BpeTrainer(
    vocab_size=arguments.vocabulary, special_tokens=["<|begin|>", "<|end|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
os.makedirs(arguments.out, exist_ok=True)
tokenizer.save(os.path.join(arguments.out, "tokenizer.json"))
