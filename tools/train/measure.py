#!/usr/bin/env python3
"""Greedy answers of a trained folder on held-out RULER-style texts: share of values found, by task and length.

A quick look from the PyTorch side, with several questions to each text; `loam-lab eval ruler` is the judge."""
import argparse
import re
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from data import BEGIN, END, Maker, Source
from model import Llama, Shape, rotation


class Runner:
    """The model with a cache of keys and values."""

    def __init__(self, model, room):
        self.model, self.count, shape = model, 0, model.shape
        size = (1, shape.num_key_value_heads, room, shape.head_dim)
        self.cache = [(torch.zeros(size), torch.zeros(size)) for _ in model.model.layers]

    @torch.no_grad()
    def append(self, tokens, chunk=1024):
        """The logits behind the last token."""
        for at in range(0, len(tokens), chunk):
            hidden = self.chunk(torch.tensor(tokens[at:at + chunk])[None])
        return self.model.lm_head(hidden[0, -1])

    def chunk(self, tokens):
        n, end, model = tokens.shape[1], self.count + tokens.shape[1], self.model
        turn = rotation(torch.arange(self.count, end)[None], model.shape)
        group = model.shape.num_attention_heads // model.shape.num_key_value_heads
        mask = torch.ones(n, end, dtype=torch.bool).tril(self.count)
        x = model.model.embed_tokens(tokens)
        for layer, (keys, values) in zip(model.model.layers, self.cache):
            q, k, v = layer.self_attn.heads(layer.input_layernorm(x), turn)
            keys[:, :, self.count:end], values[:, :, self.count:end] = k, v
            k, v = (y[:, :, :end].repeat_interleave(group, 1) for y in (keys, values))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + layer.self_attn.o_proj(y.transpose(1, 2).reshape(1, n, -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        self.count = end
        return model.model.norm(x)

    def greedy(self, tokens, most):
        """Continues tokens; forgets them afterwards."""
        kept, result = self.count, []
        logits = self.append(tokens)
        while len(result) < most and (token := logits.argmax().item()) != END:
            result.append(token)
            logits = self.append([token])
        self.count = kept
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--tasks", default="single_1,single_2,multikey_1,multikey_2,multivalue,multiquery,vt")
    parser.add_argument("--lengths", default="1024,4096")
    parser.add_argument("--texts-each", type=int, default=4)
    parser.add_argument("--questions", type=int, default=4, help="most questions to a text")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("texts", nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    source = Source(arguments.model, arguments.texts, True)
    weights = load_file(arguments.model + "/model.safetensors")
    layers = sum(name.endswith("q_proj.weight") for name in weights)
    model = Llama(Shape(vocab_size=weights["lm_head.weight"].shape[0], num_hidden_layers=layers))
    model.load_state_dict(weights)
    for length in map(int, arguments.lengths.split(",")):
        for task in arguments.tasks.split(","):
            found = asked_for = exact = questions = 0
            began, maker = time.time(), Maker(source, arguments.seed, as_ruler=True)
            for _ in range(arguments.texts_each):
                text, asked = maker.sample(task, length - 200)
                runner = Runner(model, length + 2048)
                runner.append([BEGIN] + source.encode(text))
                for question, answer in asked[:arguments.questions]:
                    said = source.tokenizer.decode(runner.greedy(source.encode("\n" + question), 110))
                    values = [v.split(": ")[-1] for v in answer.split(", ")]
                    right = sum(re.search(r"\b" + v + r"\b", said) is not None for v in values)
                    found, asked_for = found + right, asked_for + len(values)
                    exact, questions = exact + (right == len(values)), questions + 1
                    if arguments.show:
                        print(f"  {answer!r}: {said!r}")
            print(f"{task} {length}: {found}/{asked_for} values = {found / asked_for:.3f}, {exact}/{questions} whole answers, "
                  f"{time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
