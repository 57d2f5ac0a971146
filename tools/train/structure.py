"""A structured ("mimetic", Trockman and Kolter 2023) initialisation: the retrieval circuit as a first guess, which
training then refines; every weight is trained afterwards.

The residual stream is cut into named parts.  Every token has a random unit code of 64 numbers.
  layer 0  four heads that attend to the token 1, 2, 4 and 6 places back and copy its code into parts of their own
  layer 1  a head that attends to the latest key (a "-noun" or the end of a five-digit value) and copies its code and
           that of the token before it: from then on every token knows the key it belongs to; another one does the
           same for the token after the latest " for"
  layer 2  induction with a key: attends to where the same key stands and the token before equals this token, and
           copies that token to the part that the output matrix reads; another head: plain induction on two tokens
  layer 3  a head that finds the values already said in this answer and subtracts them; a head that finds the
           statement "VAR X = VAR Y" of a given Y (or "VAR X = value") and copies X
The others start small and random.  Contents are compared in the slow rotary pairs only, offsets in the fast ones."""
import numpy
import torch

from words import LISTS

PARTS = dict(mark=8, own=64, p1=48, p2=32, p4=32, p6=48, key=48, latest=32, out=64)
CONSTANT, IS_KEY, IS_FIRST = 0, 1, 2  # inside mark
SLOW = 12  # first rotary pair that hardly turns in 64 K positions


def slices():
    at, result = 0, {}
    for name, size in PARTS.items():
        result[name] = slice(at, at + size)
        at += size
    return result


def orthonormal(rows, columns, generator):
    return torch.linalg.qr(torch.randn(columns, rows, generator=generator))[0].T


class Structure:
    def __init__(self, model, tokenizer, seed):
        self.model, self.shape, self.part = model, model.shape, slices()
        self.generator = torch.Generator().manual_seed(seed)
        self.half = self.shape.head_dim // 2
        self.frequency = self.shape.frequencies().numpy()
        vocabulary = tokenizer.get_vocab()
        self.codes = torch.nn.functional.normalize(
            torch.randn(len(vocabulary), 64, generator=self.generator), dim=1)
        self.codes[:2] = 0
        ids = lambda words: [vocabulary[w] for w in words]
        self.keys = ids(["-" + n for n in LISTS["NOUNS"]] + [f"{n:02d}" for n in range(100)])
        self.token = lambda text: vocabulary[text.replace(" ", "Ġ")]
        self.map = {name: orthonormal(PARTS[name], 64, self.generator) for name in ("p1", "p2", "p4", "p6", "latest")}
        self.map["key"] = (orthonormal(24, 64, self.generator), orthonormal(24, 64, self.generator))

    def slow(self, count, skip=0):
        """Dimensions of a head for contents: both numbers of the slow pairs, from the slowest on."""
        pairs = list(range(self.half - 1, SLOW - 1, -1))
        dims = [d for p in pairs for d in (p, p + self.half)]
        assert skip + count <= len(dims)
        return dims[skip:skip + count]

    def offset_pattern(self, offset, amplitude):
        """Query (to be multiplied by the constant) that with key pattern (amplitude) peaks offset tokens back."""
        query, key = torch.zeros(2 * self.half), torch.zeros(2 * self.half)
        for pair, size in enumerate(amplitude):
            turn, root = self.frequency[pair] * offset, (8 * abs(size)) ** .5
            key[pair] = root
            # the score of the pair is size * cos(frequency * (distance - offset)), distance = query's - key's position
            query[pair], query[pair + self.half] = root * numpy.cos(turn), -root * numpy.sin(turn)
        return query, key

    def recency_pattern(self, height, slope, scale):
        """Query and key patterns whose score is about height - slope * log(1 + distance / scale), by least squares."""
        distance = numpy.unique(numpy.concatenate((numpy.arange(0, 200), numpy.geomspace(200, 70000, 400).astype(int))))
        target = height - slope * numpy.log1p(distance / scale)
        weight = 1 / (1 + distance / 100) ** .5
        angle = distance[:, None] * self.frequency[None]
        columns = numpy.concatenate((numpy.cos(angle), numpy.sin(angle)), 1)
        ridge = .02 * numpy.eye(columns.shape[1])
        solution = numpy.linalg.lstsq(numpy.concatenate((columns * weight[:, None], ridge)),
                                      numpy.concatenate((target * weight, numpy.zeros(len(ridge)))), rcond=None)[0]
        a, b = solution[:self.half], solution[self.half:]
        size = numpy.hypot(a, b)
        query, key = torch.zeros(2 * self.half), torch.zeros(2 * self.half)
        root = numpy.sqrt(8 * size)
        key[:self.half] = torch.tensor(root)
        # a cos(w d) + b sin(w d) with the query turned by w d against the key
        query[:self.half] = torch.tensor(root * a / numpy.maximum(size, 1e-9))
        query[self.half:] = torch.tensor(-root * b / numpy.maximum(size, 1e-9))
        return query.float(), key.float()

    def head(self, layer, kind, head):
        """The rows (columns of o_proj) of one head: views to be written to."""
        attention, d = self.model.model.layers[layer].self_attn, self.shape.head_dim
        if kind == "o":
            return attention.o_proj.weight[:, head * d:(head + 1) * d]
        return getattr(attention, kind + "_proj").weight[head * d:(head + 1) * d]

    def clear(self, layer, heads, kv):
        for h in heads:
            self.head(layer, "q", h).zero_()
            self.head(layer, "o", h).zero_()
        self.head(layer, "k", kv).zero_()
        self.head(layer, "v", kv).zero_()

    def sink(self, layer, head, kv, score, size):
        """The begin token gets that score; its value is zero.  Uses the two slowest content dimensions."""
        dims, root = self.slow(2), (8 * score) ** .5
        self.head(layer, "q", head)[dims[0], CONSTANT] += root / size
        self.head(layer, "k", kv)[dims[0], IS_FIRST] += root / size

    @torch.no_grad()
    def sizes(self, sample):
        """1 / RMS of what every attention layer reads, as the weights stand now."""
        captured = []
        handles = [l.input_layernorm.register_forward_pre_hook(
            lambda module, inputs: captured.append(inputs[0][:, 8:].pow(2).mean(-1).rsqrt().median().item()))
            for l in self.model.model.layers]
        handles.append(self.model.model.norm.register_forward_pre_hook(
            lambda module, inputs: captured.append(inputs[0][:, 8:].pow(2).mean(-1).rsqrt().median().item())))
        self.model.hidden(*sample)
        for handle in handles:
            handle.remove()
        return captured

    @torch.no_grad()
    def embed(self):
        table = self.model.model.embed_tokens.weight
        table.normal_(0, .01, generator=self.generator)
        part = self.part
        table[:, part["own"]] = self.codes
        table[:, part["mark"]] = 0
        table[:, CONSTANT] = 1
        table[0, IS_FIRST] = 1
        table[self.keys, IS_KEY] = 1
        self.model.lm_head.weight.normal_(0, .02, generator=self.generator)

    @torch.no_grad()
    def previous(self, size):
        """Layer 0."""
        self.clear(0, range(4), 0), self.clear(0, [], 1)
        amplitude = [14, 14, 14, 12, 10, 8, 8, 8, 8]
        for kv in range(2):
            self.head(0, "k", kv)[:, CONSTANT] = self.offset_pattern(0, amplitude)[1] / size
            self.head(0, "v", kv)[:, self.part["own"]] = torch.eye(64) / size
        for h, (offset, name) in enumerate(((1, "p1"), (2, "p2"), (4, "p4"), (6, "p6"))):
            self.head(0, "q", h)[:, CONSTANT] = self.offset_pattern(offset, amplitude)[0] / size
            self.head(0, "o", h)[self.part[name]] = self.map[name]

    @torch.no_grad()
    def latest(self, size):
        """Layer 1: the latest key and the token after the latest " for"."""
        query, key = self.recency_pattern(60, 9, 5)
        part, root = self.part, 1.0
        self.clear(1, [0], 0), self.clear(1, [2], 1)
        self.head(1, "q", 0)[:, CONSTANT] = query / size
        self.head(1, "k", 0)[:, IS_KEY] = key / size
        value = self.head(1, "v", 0)
        a, b = self.map["key"]
        value[:24, part["own"]] = a / size
        value[24:48, part["p1"]] = b @ self.map["p1"].T / size
        self.head(1, "o", 0)[part["key"], :48] = torch.eye(48) * 1.4
        self.head(1, "q", 2)[:, CONSTANT] = query / size
        after = self.map["p1"] @ self.codes[self.token(" for")]
        self.head(1, "k", 1)[:, part["p1"]] = torch.outer(key, after / after.norm() ** 2) / size
        self.head(1, "v", 1)[:, part["own"]] = torch.eye(64) / size
        self.head(1, "o", 2)[part["latest"]] = self.map["latest"]
        for h, kv in ((0, 0), (2, 1)):
            self.sink(1, h, kv, 18, size)

    def match(self, layer, head, kv, dims, query, key, score, size):
        """Adds score * <query part, key part>; query, key: [len(dims), hidden] maps of unit codes."""
        root = (8 * score) ** .5 / size
        self.head(layer, "q", head)[dims] += query * root
        if key is not None:
            self.head(layer, "k", kv)[dims] += key * root

    def read(self, **parts):
        """[rows, hidden] from part=matrix."""
        rows = next(iter(parts.values())).shape[0]
        result = torch.zeros(rows, self.shape.hidden_size)
        for name, matrix in parts.items():
            result[:, self.part[name]] = matrix
        return result

    @torch.no_grad()
    def induction(self, size):
        """Layer 2."""
        self.clear(2, [0], 0), self.clear(2, [2], 1)
        for kv in range(2):
            self.head(2, "v", kv)[:, self.part["own"]] = torch.eye(64) / size
        g = self.generator
        p1 = self.map["p1"]
        dims, key = self.slow(26, 2), orthonormal(26, 48, g) * (48 / 26) ** .5
        self.match(2, 0, 0, dims, self.read(key=key), self.read(key=key), 34, size)
        dims, before = self.slow(12, 28), orthonormal(12, 48, g) * (48 / 12) ** .5
        self.match(2, 0, 0, dims, self.read(own=before @ p1), self.read(p1=before), 36, size)
        self.sink(2, 0, 0, 23, size)
        self.head(2, "o", 0)[self.part["out"]] = torch.eye(64) * 1.5
        dims, before = self.slow(24, 2), orthonormal(24, 48, g) * (48 / 24) ** .5
        self.match(2, 2, 1, dims, self.read(own=before @ p1), self.read(p1=before), 45, size)
        dims, second = self.slow(14, 26), orthonormal(14, 32, g) * (32 / 14) ** .5
        self.match(2, 2, 1, dims, self.read(p1=second @ self.map["p2"] @ p1.T), self.read(p2=second), 45, size)
        self.sink(2, 2, 1, 22, size)
        self.head(2, "o", 2)[self.part["out"]] = torch.eye(64) * .7

    @torch.no_grad()
    def said_and_chain(self, size):
        """Layer 3."""
        self.clear(3, [0], 0), self.clear(3, [2], 1)
        g, c, part = self.generator, self.codes, self.part
        dims, key = self.slow(24, 2), orthonormal(24, 48, g) * (48 / 24) ** .5
        self.match(3, 0, 0, dims, self.read(key=key), self.read(key=key), 30, size)
        mark = torch.zeros(1, self.shape.hidden_size)
        mark[0, part["p2"]] = self.map["p2"] @ c[self.token(",")] * 2
        mark[0, part["p4"]] = self.map["p4"] @ c[self.token(" above")] * 2
        constant = torch.zeros(1, self.shape.hidden_size)
        constant[0, CONSTANT] = 1
        self.match(3, 0, 0, self.slow(1, 26), constant, mark, 14, size)
        self.sink(3, 0, 0, 20, size)
        self.head(3, "v", 0)[:, part["own"]] = torch.eye(64) / size
        self.head(3, "o", 0)[part["out"]] = -torch.eye(64) * 2.5
        # the chain: the query's name (four back) or value (beside the latest key) against the token itself
        p4, key_before = self.map["p4"], self.map["key"][1]
        name = orthonormal(32, 64, g) * 2 ** .5
        query = self.read(p4=name @ p4.T * 2, key=torch.cat((torch.zeros(32, 24), name @ key_before.T), 1))
        self.match(3, 2, 1, self.slow(32, 2), query, self.read(own=name), 22, size)
        mark = torch.zeros(1, self.shape.hidden_size)
        mark[0, part["p2"]] = self.map["p2"] @ c[self.token(" =")] * 2
        self.match(3, 2, 1, self.slow(1, 34), constant, mark, 20, size)
        self.sink(3, 2, 1, 24, size)
        self.head(3, "v", 1)[:48, part["p6"]] = torch.eye(48) / size
        self.head(3, "o", 2)[part["out"], :48] = self.map["p6"].T * 2

    @torch.no_grad()
    def build(self, sample):
        """sample: (tokens, positions) of typical rows, to learn the sizes behind every norm."""
        for layer in self.model.model.layers:
            layer.self_attn.o_proj.weight.mul_(.2)
            layer.mlp.down_proj.weight.mul_(.2)
        self.embed()
        for i, step in enumerate((self.previous, self.latest, self.induction, self.said_and_chain)):
            step(self.sizes(sample)[i])
        size = self.sizes(sample)[-1]
        self.model.lm_head.weight[:, self.part["out"]] += self.codes * 16 / size
