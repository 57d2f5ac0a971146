#!/usr/bin/env python3
"""Several values of one key: sets heads of layers 4 and 5 of a half-trained model so that no value is said twice.

The heads of these layers are still unused by then (they attend to everything alike).  What they are to read, whether a
token begins a value of the answer, which value, which key, stands in the residual stream, and least squares on a few
rows find where:
  layer 4  heads 0, 1 and 2 attend 4, 9 and 14 places back from the blank before a value, if a value of this answer
           begins there, else to the begin token.  They lower its logits, and write its code to directions of the
           residual stream that are hardly used
  layer 5  head 0 attends to the beginnings of values of the same key whose code is not among those, and raises it
All weights are trained on afterwards.  --out gets checkpoint.pt, for train.py to go on from."""
import argparse
import math
import os

import torch

from data import Maker, Source
from model import Llama, Shape
from train import batch_of, groups
from words import LISTS

OTHER, HAYSTACK, SAID, NEXT, FIRST = range(5)  # a token: value begins in the text, in an answer; blank before a value
CODE = 24  # numbers of a value's code that are passed on and compared
KEY = 6  # numbers of a key's adjective and noun that are compared


class Rows:
    """What layer `layer` reads (x, and y before the norm), the kind of every token, and the key it belongs to."""

    def __init__(self, model, source, layer, count, seed):
        columns, vocabulary = [], source.tokenizer.get_vocab()
        digits = torch.zeros(len(vocabulary), dtype=torch.bool)
        digits[[vocabulary[f"{n:03d}"] for n in range(1000)]] = True
        nouns = torch.zeros(len(vocabulary), dtype=torch.bool)
        nouns[[vocabulary["-" + n] for n in LISTS["NOUNS"]]] = True
        hook = lambda module, inputs, output: setattr(self, "seen", (inputs[0], output))
        handle = model.model.layers[layer].input_layernorm.register_forward_hook(hook)
        tasks = ("multiquery", "multikey_2", "multikey_1", "text", "vt", "qa")
        for i in range(count):
            task = "multivalue" if i % 4 else tasks[i // 4 % 6]
            tokens, positions, weights = batch_of(Maker(source, seed + i), 8, 512, .5, .05, task)[:3]
            model.hidden(tokens, positions)
            kind = self.kinds(tokens, weights > 5, digits, nouns, vocabulary)
            noun = torch.where(nouns[tokens], torch.arange(tokens.shape[1]), 1).cummax(1).values
            columns.append((self.seen[1].flatten(0, 1), self.seen[0].flatten(0, 1), kind.flatten(), tokens.flatten(),
                            tokens.gather(1, noun).flatten(), tokens.gather(1, noun - 1).flatten()))
        handle.remove()
        self.x, self.y, self.kind, self.tokens, self.noun, self.adjective = (torch.cat(c) for c in zip(*columns))
        self.values = (self.kind == HAYSTACK) | (self.kind == SAID)

    @staticmethod
    def kinds(tokens, answer, digits, nouns, vocabulary):
        back = lambda n: torch.cat((torch.zeros_like(tokens[:, :n]), tokens[:, :-n]), 1)
        blank = vocabulary["Ġ"]
        begins = digits[tokens] & (back(1) == blank)
        kind = torch.zeros_like(tokens)
        kind[begins & (back(2) == vocabulary[":"]) & nouns[back(4)]] = HAYSTACK
        kind[begins & answer] = SAID
        kind[answer & (tokens == blank)] = FIRST
        kind[answer & (tokens == blank) & (back(1) == vocabulary[","])] = NEXT
        return kind

    def share(self, *kinds):
        """Weights of the tokens: every kind counts the same."""
        chosen = [self.kind == kind if kind is not None else self.tokens == 0 for kind in kinds]
        return sum(c.float() / c.sum().clamp(min=1) for c in chosen)

    def find(self, target, weight, ridge=1e-3):
        """The linear map of x that comes nearest to target."""
        target = target.float() if target.dim() > 1 else target.float()[:, None]
        weighted = self.x * weight[:, None]
        left = self.x.T @ weighted / weight.sum() + ridge * torch.eye(self.x.shape[1])
        return torch.linalg.solve(left, weighted.T @ target / weight.sum()).squeeze(1)

    def find_strictly(self, target, weight, rounds=5):
        """The same; other tokens for which the map is not 0 weigh more in each further round."""
        weight = weight.clone()
        for _ in range(rounds):
            result = self.find(target, weight)
            found = self.x @ result
            wrong = found.clamp(min=0) if found.dim() == 1 else found.norm(dim=1)
            weight = torch.where(self.kind == OTHER, weight * (1 + 60 * wrong.square()), weight)
        return result

    def marks(self):
        """Maps to 1 for: any token, the begin token, the blank before a further value; and weights for others."""
        every = self.share(OTHER, OTHER, HAYSTACK, SAID, NEXT, FIRST, None)
        return (self.find(torch.ones(len(self.x)), every), self.find(self.tokens == 0, every),
                self.find(self.kind == NEXT, every + self.share(NEXT)), every)

    def codes_of(self, table, weight):
        """The map to a value's code, and to nothing elsewhere."""
        return self.find(torch.where(self.values[:, None], table[self.tokens], torch.zeros(1)), weight)


class Surgeon:
    def __init__(self, model, source, seed):
        self.model, self.source, self.seed, self.d = model, source, seed, model.shape.head_dim
        vocabulary = source.tokenizer.get_vocab()
        digits = [vocabulary[f"{n:03d}"] for n in range(1000)]
        self.output = model.lm_head.weight * model.model.norm.weight
        rows = self.output[digits] - self.output[digits].mean(0)
        left, sizes, self.directions = (t[..., :self.d, :] if i == 2 else t[..., :self.d]
                                        for i, t in enumerate(torch.linalg.svd(rows, full_matrices=False)))
        self.size = rows.pow(2).sum(1).mean().sqrt()
        self.table = torch.zeros(len(vocabulary), self.d)
        self.table[digits] = left * sizes / self.size
        self.code_length = self.table[digits][:, :CODE].pow(2).sum(1).mean().sqrt()

    def to_logits(self, rows, height):
        """Code -> residual stream, raising that value's logit by about height."""
        rms = rows.y.pow(2).mean(1).sqrt().median()
        return self.directions.T * self.model.model.norm.weight[:, None] * height * rms / self.size

    def quiet(self, rows):
        """CODE directions of the residual stream that carry little and are read by little."""
        share = lambda m: m / m.trace()
        mlps = [p for layer in self.model.model.layers[4:6]
                for p in (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight)]
        reading = .5 * share(self.output.T @ self.output) + .2 * share(sum(p.T @ p for p in mlps))
        return torch.linalg.eigh(share(rows.y.T @ rows.y) + reading)[1][:, :CODE]

    def gather_said(self, quiet, written=2.0, lowered=8.0):
        """Layer 4."""
        rows, d = Rows(self.model, self.source, 4, 12, self.seed), self.d
        one, begin, query, every = rows.marks()
        key = rows.find(rows.kind == SAID, every + rows.share(SAID)) * 1.03
        values = rows.codes_of(self.table, rows.share(HAYSTACK) + 2 * rows.share(SAID) + .2 * rows.share(OTHER)
                               + .3 * rows.share(None))
        attention, frequency = self.model.model.layers[4].self_attn, self.model.shape.frequencies()
        amplitudes = (6, 8, 8, 5, 3, 3, 3)
        sink = (8 * sum(amplitudes) * .8) ** .5
        for kv in range(2):
            k = attention.k_proj.weight[kv * d:(kv + 1) * d].zero_()
            for pair, size in enumerate(amplitudes):
                k[pair] = key * (8 * size) ** .5
            k[d // 2 - 2] = begin * sink
            attention.v_proj.weight[kv * d:(kv + 1) * d] = values.T
        attention.o_proj.weight.zero_()
        for head, offset in enumerate((4, 9, 14)):
            q = attention.q_proj.weight[head * d:(head + 1) * d].zero_()
            for pair, size in enumerate(amplitudes):
                turn = frequency[pair].item() * offset
                q[pair] = query * (8 * size) ** .5 * math.cos(turn)
                q[pair + d // 2] = -query * (8 * size) ** .5 * math.sin(turn)
            q[d // 2 - 2] = one * sink
            o = attention.o_proj.weight[:, head * d:(head + 1) * d]
            o[:, :CODE] += quiet * written / self.code_length
            o -= self.to_logits(rows, lowered)

    def find_unsaid(self, quiet, same_key=12.0, value=32.0, said=18.0, sink=54.0, lower=28.0, raised=12.0):
        """Layer 5; the numbers are scores."""
        rows, d = Rows(self.model, self.source, 5, 26, self.seed), self.d
        one, begin, query, every = rows.marks()
        both = rows.share(HAYSTACK) + rows.share(SAID)
        values = rows.codes_of(self.table, both + .3 * rows.share(OTHER) + .3 * rows.share(None))
        embedding = self.model.model.embed_tokens.weight  # the parts of its codes that structure.py's keys are made of
        words = [embedding[rows.noun][:, 40:40 + KEY], embedding[rows.adjective][:, 25:25 + KEY]]
        keys = torch.cat([w / w[rows.values].pow(2).sum(1).mean().sqrt() / 2 ** .5 for w in words], 1)
        known = (rows.kind != OTHER)[:, None]
        key_of = rows.find_strictly(keys * known, both + .5 * rows.share(OTHER))
        query_of = rows.find(keys * known, rows.share(NEXT) + .05 * rows.share(OTHER))
        length = 2 * rows.y[rows.kind == NEXT].pow(2).mean(1).rsqrt().mean()
        terms = [(query_of[:, i], key_of[:, i], same_key) for i in range(2 * KEY)]
        terms += [(-quiet[:, i] / length, values[:, i] / self.code_length, said) for i in range(CODE)]
        terms.append((query, rows.find_strictly(rows.values, every + both), value))
        attention = self.model.model.layers[5].self_attn
        q, k = attention.q_proj.weight[:d].zero_(), attention.k_proj.weight[:d].zero_()
        places = [at for pair in range(d // 2 - 3, 10, -1) for at in (pair, pair + d // 2)]  # the slow pairs
        for at, (left, right, score) in zip(places, terms):
            q[at], k[at] = left * (8 * score) ** .5, right * (8 * score) ** .5
        q[d // 2 - 2] = (one - query * lower / sink) * (8 * sink) ** .5
        k[d // 2 - 2] = begin * (8 * sink) ** .5
        attention.v_proj.weight[:d] = values.T
        attention.o_proj.weight[:, :d] = self.to_logits(rows, raised)
        attention.o_proj.weight[:, d:2 * d] = 0  # head 1 shares what head 0 reads


def settle(model, state):
    """The optimizer forgets the direction in which the rewritten weights went, and begins slowly."""
    names = {id(p): n for n, p in model.named_parameters()}
    for i, parameter in enumerate(p for group in groups(model, 1) for p in group["params"]):
        if any(f"layers.{layer}.self_attn" in names[id(parameter)] for layer in (4, 5)):
            own = state["optimizer"]["state"][i]
            own["exp_avg"].zero_()
            own["exp_avg_sq"].mul_(4).add_(own["exp_avg_sq"].mean() * 4)


def trained(description, seed):
    """The arguments, the texts and the checkpoint of a step that sets weights of a trained model."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder with tokenizer.json and checkpoint.pt")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("texts", nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = Source(arguments.model, arguments.texts, False)
    return arguments, source, torch.load(os.path.join(arguments.model, "checkpoint.pt"))


@torch.no_grad()
def main():
    arguments, source, state = trained(__doc__, 100)
    model = Llama(Shape(vocab_size=source.tokenizer.get_vocab_size()))
    model.load_state_dict(state["model"])
    surgeon = Surgeon(model, source, arguments.seed)
    quiet = surgeon.quiet(Rows(model, source, 5, 2, arguments.seed + 800))
    surgeon.gather_said(quiet)
    surgeon.find_unsaid(quiet)
    settle(model, state)
    os.makedirs(arguments.out, exist_ok=True)
    source.tokenizer.save(os.path.join(arguments.out, "tokenizer.json"))
    torch.save(dict(state, model=model.state_dict()), os.path.join(arguments.out, "checkpoint.pt"))


if __name__ == "__main__":
    main()
