#!/usr/bin/env python3
"""Several values of one key, the last step: a marking MLP and three more layers that choose a value not yet said.

Nothing of the trained model is trained on; what is added is set by least squares on rows of tokens.  Marks are single
coordinates of the residual stream, and what is written lies in coordinates of its own, all hardly used before:
  MLP 5    marks the begin token, beginnings of values in the text and in an answer, the blank before a further value
  layer 6  heads 0 and 2 copy a key's noun and adjective to its value in the text, heads 1 and 3 those of the question
           to the blank; the MLP writes a value's own code beside it
  layer 7  at the blank, head 0 gathers the codes of all values of the key, heads 2, 3 and 1 take off those that begin
           4, 9 and 14 tokens back: what is left is near the sum of the unsaid
  layer 8  head 0 attends to the value whose code is nearest to that sum, and raises its logit
Heads with nothing to find rest on the begin token, whose V is 0.  The model is rounded as Q8_0 layer by layer, each
before the next is set.  --out gets a Hugging Face folder; `loam-lab quantize` to Q8_0 keeps its numbers as they are."""
import math
import os

import torch
from torch.nn.functional import normalize, silu

from data import Maker
from model import rotation
from stream import fold, grown, to_eight_bits, to_q8, to_q8_fed, turn
from train import batch_of, export
from unsaid import FIRST, HAYSTACK, NEXT, OTHER, SAID, Rows as Unsaid, trained
from words import LISTS

BEGIN = FIRST + 1
MARKS = {BEGIN: 8000.0, HAYSTACK: 500.0, SAID: 12.0, NEXT: 24.0}  # coordinates 0 to 3, and how high
KEYS = {NEXT: 12.0, HAYSTACK: 200.0}  # how long the code of a key is
KEY = 13  # numbers of the code of a noun, and of an adjective
CODE = 28  # numbers of the code of a value: a block of Q8_0 but for four
ASKED, OF_TEXT, SUM, OWN = 32, 58, 96, 128  # coordinates: the key asked for, of a value, the sum, a value's own code
SUM_LENGTH, OWN_LENGTH, CODE_LENGTH = 60.0, 150.0, .75
STEEP = 60.0  # gates are 0 or open


class Batches:
    """What layer 5 reads of rows of all tasks, the kinds of their tokens, and the keys they belong to."""

    def __init__(self, model, source, seed):
        self.model, self.source = model, source
        vocabulary = source.tokenizer.get_vocab()
        chosen = lambda names: torch.zeros(len(vocabulary), dtype=torch.bool).index_fill_(
            0, torch.tensor([vocabulary[n] for n in names if n in vocabulary]), True)
        self.digits = chosen([f"{n:03d}" for n in range(1000)])
        self.nouns = chosen(["-" + n for n in LISTS["NOUNS"]])
        self.adjectives = chosen(["\u0120" + n for n in LISTS["ADJECTIVES"]])
        self.vocabulary, self.batches = vocabulary, []
        self.generator = torch.Generator().manual_seed(seed)

    def plan(self):
        """(task, rows, length, as RULER writes it)"""
        for task in ("multikey_2", "multiquery", "multikey_1", "text", "vt", "vt", "qa", "single_2"):
            yield from (("multivalue", 16, 512, False), (task, 8, 512, False))
        yield from [("multivalue", 16, 256, False)] * 40 + [("multikey_2", 8, 512, False)] * 2
        yield from [("multivalue", 4, 2048, True)] * 2 + [("multiquery", 16, 384, False)] * 12

    def fill(self, seed, most=None):
        self.batches = []
        for i, (task, count, length, ruler) in enumerate(list(self.plan())[:most]):
            tokens, positions, weights = batch_of(Maker(self.source, seed + i, ruler), count, length, .5, .05, task)[:3]
            seen = {}
            hook = self.model.model.layers[5].register_forward_pre_hook(lambda module, inputs: seen.update(y=inputs[0]))
            self.model.hidden(tokens, positions)
            hook.remove()
            kind = Unsaid.kinds(tokens, weights > 5, self.digits, self.nouns, self.vocabulary)
            kind[kind == FIRST] = OTHER
            kind[tokens == 0] = BEGIN
            noun = torch.where(self.nouns[tokens], torch.arange(tokens.shape[1]), 1).cummax(1).values
            is_noun = self.nouns[tokens]
            is_adjective = self.nouns[tokens.roll(-1, 1)] & ~is_noun & self.adjectives[tokens]
            chance = torch.rand(kind.shape, generator=self.generator)
            kept = (kind != OTHER) | (weights > 5) | (chance < .25) | ((is_noun | is_adjective) & (chance < .6))
            self.batches.append((seen["y"], positions, kept, kind, tokens, tokens.gather(1, noun),
                                 tokens.gather(1, noun - 1), is_noun, is_adjective))

    def rows(self, norm, layer):
        """What `norm` of this layer reads and gives."""
        columns, seen = [], {}
        hook = norm.register_forward_hook(lambda module, inputs, output: seen.update(y=inputs[0], x=output))
        for y, positions, kept, *rest in self.batches:
            for each in self.model.model.layers[5:layer + 1]:
                y = each(y, rotation(positions, self.model.shape))
            columns.append([c[kept] for c in (to_eight_bits(seen["x"]), seen["y"], *rest)])
        hook.remove()
        return Rows(*(torch.cat(c) for c in zip(*columns)))


class Rows:
    """x is what a layer reads, rounded as kernels round it: nothing may rest on what rounding takes; y the stream."""

    def __init__(self, x, y, kind, tokens, noun, adjective, is_noun, is_adjective):
        self.x, self.y, self.kind, self.tokens, self.noun, self.adjective = x, y, kind, tokens, noun, adjective
        self.is_noun, self.is_adjective = is_noun, is_adjective

    def share(self, *kinds):
        """Weights of the tokens: every kind counts the same."""
        return sum((self.kind == kind).float() / (self.kind == kind).sum().clamp(min=1) for kind in kinds)

    def every(self):
        return self.share(OTHER, OTHER, HAYSTACK, SAID, NEXT, BEGIN)

    def find(self, target, weight, ridge=1e-3, blind=False):
        """The linear map of x nearest to target; blind: it reads no mark, and so nothing of the begin token."""
        target = target.float() if target.dim() > 1 else target.float()[:, None]
        x = self.x.clone()
        if blind:
            x[:, :len(MARKS)] = 0
        weighted = x * weight[:, None]
        left = x.T @ weighted / weight.sum() + ridge * torch.eye(x.shape[1])
        return torch.linalg.solve(left, weighted.T @ target / weight.sum()).squeeze(1)

    def find_kind(self, kind, rounds=12):
        """1 for tokens of this kind, at most 0 for all others: the nearest miss weighs most."""
        wanted = self.kind == kind
        weight, target = self.every() + 10 * self.share(kind), wanted.float()
        for _ in range(rounds):
            result = self.find(target, weight)
            seen = self.x @ result
            target = torch.where(wanted, 1.0, seen.clamp(max=0))
            weight = weight * torch.where(wanted, 1 + 4 * (1 - seen).square(), 1 + 20 * seen.clamp(min=0).square())
        return result

    def one(self, rounds=14):
        """At least .7 for every token, 1 for those that matter: what lets a head rest on the begin token."""
        weight, wanted = self.every(), torch.ones(len(self.x))
        for _ in range(rounds):
            result = self.find(wanted, weight, 1e-4)
            seen = self.x @ result
            wanted = torch.where(self.kind == OTHER, seen.clamp(.9, 1.3), 1.0)
            weight = weight * (1 + 8 * (1 - seen).clamp(min=0).square())
        return result

    def coordinates(self, begin, count, length, kind):
        """Maps to these coordinates of tokens of this kind, as parts of `length`."""
        rms = self.y[self.kind == kind].pow(2).mean(1).sqrt().mean()
        return torch.eye(self.x.shape[1])[begin:begin + count] * rms / length

    def mark(self, kind):
        at = list(MARKS).index(kind)
        return self.coordinates(at, 1, self.y[self.kind == kind][:, at].mean(), kind)[0]

    def code(self, table, kind):
        """The map to the codes in `table` of tokens of this kind, to 0 at the begin token."""
        at = self.kind == kind
        result = self.find(table[self.tokens] * at[:, None], self.share(kind) + .5 * self.share(BEGIN), 2e-6, True)
        return result.T / self.gain(result, table, kind)

    def gain(self, map_, table, kind):
        """How much of a code the map finds: least squares find less than all."""
        at = self.kind == kind
        wanted, found = table[self.tokens[at]], self.x[at] @ map_
        print(f"  codes of kind {kind}: cosine {torch.cosine_similarity(found, wanted).mean():.3f}", flush=True)
        return ((found * wanted).sum() / (wanted * wanted).sum()).item()


class Head:
    """The rows of an attention's matrices that belong to one query head, and to its KV head."""

    def __init__(self, attention, shape, head):
        d, kv = shape.head_dim, head * shape.num_key_value_heads // shape.num_attention_heads
        self.half, self.frequency = d // 2, shape.frequencies()
        self.q, self.k = attention.q_proj.weight[head * d:(head + 1) * d], attention.k_proj.weight[kv * d:(kv + 1) * d]
        self.v = attention.v_proj.weight[kv * d:(kv + 1) * d]
        self.o = attention.o_proj.weight[:, head * d:(head + 1) * d]
        pairs = [pair for pair in range(self.half - 1, -1, -1) if pair != self.half - 2]
        self.slow = [at for pair in pairs for at in (pair, pair + self.half)]

    def sink(self, one, begin, score):
        """The begin token's score."""
        self.q[self.half - 2], self.k[self.half - 2] = one * (score / 5), begin * 40.0

    def match(self, query, key, score):
        """query [n, hidden], key [n, hidden]: score times the product of what they read, in pairs that hardly turn."""
        for left, right in zip(query, key, strict=True):
            at = self.slow.pop(0)
            self.q[at], self.k[at] = left * (8 * score) ** .5, right * (8 * score) ** .5

    def back(self, query, key, sizes, offset, of_key=None):
        """Tokens `offset` back get the sum of `sizes` (by pair, fastest first); of_key: those the key was set for."""
        for pair, size in enumerate(sizes):
            had, angle = (of_key or sizes)[pair], self.frequency[pair].item() * offset
            if of_key is None:
                self.k[pair] = key * (8 * had) ** .5
            self.q[pair] = query * (8 * size / (8 * had) ** .5 * math.cos(angle))
            self.q[pair + self.half] = -query * (8 * size / (8 * had) ** .5 * math.sin(angle))


class Recital:
    def __init__(self, model, source, seed):
        self.model, self.shape, self.layers = model, model.shape, model.model.layers
        self.batches = Batches(model, source, seed)
        self.digits = torch.where(self.batches.digits)[0]
        embedding = model.model.embed_tokens.weight  # the parts of its codes that structure.py's keys are made of
        self.words = [normalize(embedding[:, at:at + KEY], dim=1) / 2 ** .5 for at in (40, 25)]

    def make_room(self, seed):
        """The quietest directions of the stream become coordinates; the trained layers are rounded."""
        model = self.model
        fold(model)
        self.batches.fill(seed, 8)
        y, output = self.batches.rows(self.layers[5].post_attention_layernorm, 5).y, model.lm_head.weight
        share = lambda m: m / m.trace()
        quiet = torch.linalg.eigh(share(y.T @ y) + share(output.T @ output))[1][:, :OWN + 32]
        first = torch.cat((quiet[:, :4], quiet[:, 56:84], quiet[:, 4:56], quiet[:, 84:]), 1)  # marks and keys: quietest
        turn(model, first, self.batches.generator)
        rounded = [model.lm_head.weight, model.model.embed_tokens.weight, *self.layers[5].self_attn.parameters()]
        for weight in rounded + [p for layer in self.layers[:5] for p in layer.parameters() if p.dim() == 2]:
            weight.copy_(to_q8(weight))
        self.batches.fill(seed)
        rows = model.lm_head.weight[self.digits] - model.lm_head.weight[self.digits].mean(0)
        left, sizes, self.directions = torch.linalg.svd(rows, full_matrices=False)
        self.size, self.numbers = rows.pow(2).sum(1).mean().sqrt(), left * sizes
        self.to_logits = self.table(self.numbers[:, :self.shape.head_dim] / self.size)

    def table(self, codes):
        result = torch.zeros(self.shape.vocab_size, codes.shape[1])
        result[self.digits] = codes
        return result

    def clear(self, layer):
        attention = self.layers[layer].self_attn
        for weight in (*attention.parameters(), self.layers[layer].mlp.down_proj.weight):
            weight.zero_()
        return self.batches.rows(self.layers[layer].input_layernorm, layer), attention

    def quantize(self, layer, rows, *readers):
        share = rows.every() + rows.share(BEGIN)
        for reader in readers:
            reader.weight.copy_(to_q8_fed(reader.weight, rows.x, share))
        module = self.layers[layer].mlp if len(readers) == 2 else self.layers[layer].self_attn
        writer = module.down_proj if len(readers) == 2 else module.o_proj
        writer.weight.copy_(to_q8(writer.weight))

    def quantize_mlp(self, layer):
        mlp, norm = self.layers[layer].mlp, self.layers[layer].post_attention_layernorm
        self.quantize(layer, self.batches.rows(norm, layer), mlp.gate_proj, mlp.up_proj)

    def mark(self, low=.35, high=.6):
        """MLP 5: each mark by two of the least important neurons, whose gates open at low and at high: their difference
        is the same wherever both are open."""
        mlp = self.layers[5].mlp
        rows = self.batches.rows(self.layers[5].post_attention_layernorm, 5)
        active = silu(rows.x @ mlp.gate_proj.weight.T) * (rows.x @ mlp.up_proj.weight.T)
        order = (active.pow(2).mean(0).sqrt() * mlp.down_proj.weight.norm(dim=0)).argsort()
        for weight in (mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight.T):
            weight.copy_(weight[order])
        one, neuron = rows.one(), 0
        for at, (kind, height) in enumerate(MARKS.items()):
            found = rows.find_kind(kind)
            even = rows.find(torch.ones(len(rows.x)), rows.share(kind) + .02 * rows.every(), 1e-4)
            for threshold, sign in ((low, 1), (high, -1)):
                mlp.gate_proj.weight[neuron] = STEEP * (found - threshold * one)
                mlp.up_proj.weight[neuron] = even
                mlp.down_proj.weight[:, neuron] = 0
                mlp.down_proj.weight[at, neuron] = sign * height / (STEEP * (high - low))
                neuron += 1
        self.quantize_mlp(5)

    def copy_keys(self, sink=25.0):
        """Layer 6's attention.  The last noun before a blank is the question's: head 1 looks some 16 back, broadly."""
        rows, attention = self.clear(6)
        one, begin, haystack, next_ = rows.one(), rows.mark(BEGIN), rows.mark(HAYSTACK), rows.mark(NEXT)
        sizes, nearby = (20, 14, 12, 10, 8, 6, 6, 4, 4, 4, 4, 4), (0, 0, 20, 20, 10, 10, 8, 8, 6, 6, 4, 4)
        for part, at in enumerate((rows.is_noun, rows.is_adjective)):
            of_text, asked = (Head(attention, self.shape, 2 * part + i) for i in range(2))
            is_word = rows.find(at, at.float() / at.sum() + rows.every() / 8, 1e-4)
            of_text.sink(one, begin, sink)
            of_text.back(haystack, is_word, sizes, 4 + part)
            asked.sink(one, begin, sink)
            asked.back(next_, None, nearby, 16 + part, sizes)
            weight = at.float() / at.sum() + .1 * rows.share(BEGIN)
            of_text.v[:KEY] = rows.find(self.words[part][rows.tokens] * at[:, None], weight, 1e-4, True).T
            for head, begins, length in ((of_text, OF_TEXT, KEYS[HAYSTACK]), (asked, ASKED, KEYS[NEXT])):
                head.o[begins + part * KEY:begins + (part + 1) * KEY, :KEY] = length * torch.eye(KEY)
        self.quantize(6, rows, attention.q_proj, attention.k_proj, attention.v_proj)

    def choose_codes(self, rows, rounds=30):
        """Codes of one length that are linear in what can be read of a number where values stand: directions that one
        half of the rows predicts for the other, then lengths and the linear map fitted in turns."""
        many = self.numbers[:, :128]
        table, good, seen = self.table(many), 0, 0
        for kind in (HAYSTACK, SAID):
            at = rows.kind == kind
            x, wanted = rows.x[at].clone(), table[rows.tokens[at]]
            x[:, :len(MARKS)] = 0
            half = torch.arange(len(x)) % 2 == 0
            for fit in (half, ~half):
                left = x[fit].T @ x[fit] / fit.sum() + 1e-3 * torch.eye(x.shape[1])
                cross = (x[~fit] @ torch.linalg.solve(left, x[fit].T @ wanted[fit] / fit.sum())).T @ wanted[~fit]
                good, seen = good + (cross + cross.T) / 2, seen + wanted[~fit].T @ wanted[~fit]
        root = torch.linalg.inv(torch.linalg.cholesky(seen))
        best = root.T @ torch.linalg.eigh(root @ good @ root.T)[1]
        codes, many = many @ best[:, -CODE:], many @ best[:, -64:]
        left = many.T @ many + 1e-3 * (many.T @ many).diagonal().mean() * torch.eye(64)
        for _ in range(rounds):
            u, _, v = torch.linalg.svd(normalize(codes, dim=1), full_matrices=False)
            codes = many @ torch.linalg.solve(left, many.T @ normalize(u @ v, dim=1))
        self.codes = self.table(normalize(codes, dim=1) * CODE_LENGTH)

    def write_codes(self):
        """Layer 6's MLP."""
        mlp = self.layers[6].mlp
        rows = self.batches.rows(self.layers[6].post_attention_layernorm, 6)
        self.choose_codes(rows)
        gate = STEEP * (rows.mark(HAYSTACK) - .2 * rows.one())
        for i, code in enumerate(rows.code(self.codes, HAYSTACK)):
            mlp.gate_proj.weight[i] = gate
            mlp.up_proj.weight[i] = code
            mlp.down_proj.weight[OWN + i, i] = OWN_LENGTH / (STEEP * .8)
        self.quantize_mlp(6)

    def match_keys(self, head, rows, score, numbers=KEY):
        """numbers: how many of a word's code are compared."""
        chosen = torch.arange(2 * KEY) % KEY < numbers
        head.match(rows.coordinates(ASKED, 2 * KEY, KEYS[NEXT], NEXT)[chosen],
                   rows.coordinates(OF_TEXT, 2 * KEY, KEYS[HAYSTACK], HAYSTACK)[chosen], score)

    def gather(self, value=21.0, same_key=4.0, sink=21.0, lowered=.55, said=1.5):
        """Layer 7; the numbers are scores.  Of four values each should weigh a quarter; a said one loses more."""
        rows, attention = self.clear(7)
        one, begin = rows.one(), rows.mark(BEGIN)
        gather, *backs = (Head(attention, self.shape, head) for head in (0, 2, 3, 1))
        gather.sink(one, begin, sink)
        gather.match([rows.mark(NEXT)], [rows.mark(HAYSTACK)], value)
        self.match_keys(gather, rows, same_key)
        values = (rows.kind == HAYSTACK) | (rows.kind == SAID)
        weight = rows.share(HAYSTACK) + rows.share(SAID) + .5 * rows.share(BEGIN)
        both = rows.find(self.codes[rows.tokens] * values[:, None], weight, 2e-6, True)  # heads 0 and 1 share V
        gather.v[:CODE] = both.T
        gather.o[SUM:SUM + CODE, :CODE] = torch.eye(CODE) * SUM_LENGTH / rows.gain(both, self.codes, HAYSTACK)
        code, sizes = rows.code(self.codes, SAID), [said * size for size in (6, 8, 8, 5, 3, 3, 3)]
        backs[0].v[:CODE] = code  # heads 2 and 3 share it
        gains = 1, 1, rows.gain(both, self.codes, SAID)
        for head, offset, gain in zip(backs, (4, 9, 14), gains, strict=True):
            head.sink(one, begin, sum(sizes) * .75)
            head.back(rows.mark(NEXT), rows.mark(SAID), sizes, offset)
            head.o[SUM:SUM + CODE, :CODE] = torch.eye(CODE) * -lowered * SUM_LENGTH / gain
        self.quantize(7, rows, attention.q_proj, attention.k_proj, attention.v_proj)

    def choose(self, value=26.0, same_key=8.0, sink=26.0, unsaid=60.0, height=20.0):
        """Layer 8."""
        rows, attention = self.clear(8)
        head = Head(attention, self.shape, 0)
        head.sink(rows.one(), rows.mark(BEGIN), sink)
        head.match([rows.mark(NEXT)], [rows.mark(HAYSTACK)], value)
        self.match_keys(head, rows, same_key, 4)
        head.match(rows.coordinates(SUM, CODE, SUM_LENGTH, NEXT),
                   rows.coordinates(OWN, CODE, OWN_LENGTH, HAYSTACK), unsaid)
        head.v[:] = rows.code(self.to_logits, HAYSTACK)
        rms = rows.y[rows.kind == NEXT].pow(2).mean(1).sqrt().median()
        head.o[:] = self.directions[:self.shape.head_dim].T * rms / self.size * height
        self.quantize(8, rows, attention.q_proj, attention.k_proj, attention.v_proj)


@torch.no_grad()
def main():
    arguments, source, state = trained(__doc__, 5000)
    model = grown(state["model"], 9, source.tokenizer.get_vocab_size())
    recital = Recital(model, source, arguments.seed)
    recital.make_room(arguments.seed)
    for step in (recital.mark, recital.copy_keys, recital.write_codes, recital.gather, recital.choose):
        print(step.__name__, flush=True)
        step()
    os.makedirs(arguments.out, exist_ok=True)
    source.tokenizer.save(os.path.join(arguments.out, "tokenizer.json"))
    export(model, arguments.out)


if __name__ == "__main__":
    main()
