"""A structured ("mimetic", Trockman and Kolter 2023) initialisation: the retrieval circuit as a first guess, which
training then refines; every weight is trained afterwards.

Every token has a code of 64 numbers: random, of equal length in every block of BLOCKS, but a few tokens that give the
tasks their form (SPECIAL) have a number of their own.  The residual stream is cut into PARTS.
  layer 0  four heads attend to the token 1, 2, 4 and 6 places back and copy its code into p1, p2, p4, p6
  layer 1  a head attends to the latest key (a "-noun", or the end of a five-digit value) and copies its code and that
           of the token before it: every token knows the key it belongs to.  Another head does the same for the token
           after the latest " for"
  layer 2  induction with a key: attends to where the same key stands and the token before equals this token, and
           copies that token to the part that the output matrix reads.  Another head: plain induction on two tokens.
           In its MLP: a list of keys is answered with the first of them
  layer 3  a head finds the values already said in this answer and subtracts them.  Another one finds the statement
           "VAR X = VAR Y" of a given Y, or "VAR X = value", and copies X
All else starts small and random.  Contents are compared in the slow rotary pairs only, offsets in the fast ones."""
import numpy
import torch

from words import LISTS

PARTS = dict(mark=8, own=64, p1=48, p2=32, p4=32, p6=48, key=28, latest=48, out=64)
CONSTANT, IS_KEY, IS_FIRST = 0, 1, 2  # inside mark
FIRST = 2.0  # the size of that mark
SPECIAL = {" ": 0, ":": 1, ",": 2, " and": 2, " for": 3, " =": 4, " above": 5, " VAR": 6, " are": 7}
BLOCKS = dict(before=slice(8, 17), left=slice(17, 30), more=slice(30, 32), right=slice(32, 45), rest=slice(45, 64))
SLOW = 12  # first rotary pair that hardly turns in 64 K positions


def slices():
    at, result = 0, {}
    for name, size in PARTS.items():
        result[name] = slice(at, at + size)
        at += size
    return result


class Structure:
    def __init__(self, model, tokenizer, seed):
        self.model, self.shape, self.part = model, model.shape, slices()
        self.generator = torch.Generator().manual_seed(seed)
        self.half = self.shape.head_dim // 2
        self.frequency = self.shape.frequencies().numpy()
        vocabulary = tokenizer.get_vocab()
        self.keys = [vocabulary["-" + n] for n in LISTS["NOUNS"]] + [vocabulary[f"{n:02d}"] for n in range(100)]
        self.codes = torch.randn(len(vocabulary), 64, generator=self.generator)
        self.codes[:, :8] = 0
        for block in BLOCKS.values():
            length = ((block.stop - block.start) / 56) ** .5
            self.codes[:, block] = torch.nn.functional.normalize(self.codes[:, block], dim=1) * length
        for text, at in SPECIAL.items():
            token = vocabulary[text.replace(" ", "Ġ")]
            self.codes[token] *= .5
            self.codes[token, at] = .87
        self.codes[:2] = 0

    def offset_pattern(self, offset, amplitude):
        """Query (to be multiplied by the constant) that with key pattern (amplitude) peaks offset tokens back."""
        query, key = torch.zeros(2 * self.half), torch.zeros(2 * self.half)
        for pair, size in enumerate(amplitude):
            turn, root = self.frequency[pair] * offset, (8 * size) ** .5
            key[pair] = root
            # the score of the pair is size * cos(frequency * (distance - offset)), distance = query's - key's position
            query[pair], query[pair + self.half] = root * numpy.cos(turn), -root * numpy.sin(turn)
        return query, key

    def recency_pattern(self, height, slope, scale):
        """Query and key patterns whose score is about height - slope * log(1 + distance / scale), by least squares."""
        distance = numpy.unique(numpy.concatenate((numpy.arange(0, 200), numpy.geomspace(200, 70000, 400).astype(int))))
        target = height - slope * numpy.log1p(distance / scale)
        weight = 1 / (1 + distance / 50)
        angle = distance[:, None] * self.frequency[None]
        columns = numpy.concatenate((numpy.cos(angle), numpy.sin(angle)), 1)
        ridge = .01 * numpy.eye(columns.shape[1])
        solution = numpy.linalg.lstsq(numpy.concatenate((columns * weight[:, None], ridge)),
                                      numpy.concatenate((target * weight, numpy.zeros(len(ridge)))), rcond=None)[0]
        a, b = solution[:self.half], solution[self.half:]
        size = numpy.maximum(numpy.hypot(a, b), 1e-9)
        root = numpy.sqrt(8 * size)
        key = numpy.concatenate((root, 0 * root))
        query = numpy.concatenate((root * a / size, -root * b / size))  # turned by the pair's phase
        return torch.tensor(query).float(), torch.tensor(key).float()

    def head(self, layer, kind, head):
        """The rows (columns of o_proj) of one head: a view to be written to."""
        attention, d = self.model.model.layers[layer].self_attn, self.shape.head_dim
        if kind == "o":
            return attention.o_proj.weight[:, head * d:(head + 1) * d]
        return getattr(attention, kind + "_proj").weight[head * d:(head + 1) * d]

    def begin(self, layer, size):
        """Both key-value heads and query heads 0 and 2 of a layer start empty; values are codes."""
        self.size, self.layer, self.used = size, layer, [2] * 4
        for kv in range(2):
            self.head(layer, "k", kv).zero_()
            self.head(layer, "v", kv).zero_()
            self.head(layer, "v", kv)[:, self.part["own"]] = torch.eye(64) / size
        for h in (0, 2):
            self.head(layer, "q", h).zero_()
            self.head(layer, "o", h).zero_()

    def sink(self, head, score):
        """The begin token, whose value is zero, gets that score."""
        dimension, root = self.half - 1, (8 * score) ** .5
        norm = (self.shape.hidden_size / (1 + FIRST ** 2)) ** .5
        self.head(self.layer, "q", head)[dimension, CONSTANT] = root / self.size
        self.head(self.layer, "k", head // 2)[dimension, IS_FIRST] = root / (FIRST * norm)

    def match(self, head, score, length, queries, keys):
        """Adds score * <query numbers, key numbers> / length^2.

        queries, keys: lists of {place in the residual stream: factor}, one for every dimension of the head."""
        order = [d for p in range(self.half - 1, SLOW - 1, -1) for d in (p, p + self.half)]
        root = (8 * score) ** .5 / self.size / length
        for query, key in zip(queries, keys, strict=True):
            dimension = order[self.used[head]]
            self.used[head] += 1
            for place, factor in query.items():
                self.head(self.layer, "q", head)[dimension, place] = root * factor
            for place, factor in key.items():
                self.head(self.layer, "k", head // 2)[dimension, place] = root * factor

    def at(self, part, *numbers):
        """Places of a part's numbers."""
        begin = self.part[part].start
        flat = [i for n in numbers for i in (range(n.start, n.stop) if isinstance(n, slice) else [n])]
        return [begin + i for i in flat]

    def same(self, head, score, length, query, key):
        self.match(head, score, length, [{i: 1.0} for i in query], [{i: 1.0} for i in key])

    @torch.no_grad()
    def sizes(self, sample):
        """1 / RMS of what every attention layer, and the output, reads, as the weights stand now."""
        captured = []
        hook = lambda module, inputs: captured.append(inputs[0][:, 8:].pow(2).mean(-1).rsqrt().median().item())
        norms = [l.input_layernorm for l in self.model.model.layers] + [self.model.model.norm]
        handles = [norm.register_forward_pre_hook(hook) for norm in norms]
        self.model.hidden(*sample)
        for handle in handles:
            handle.remove()
        return captured

    def embed(self):
        table = self.model.model.embed_tokens.weight
        table.normal_(0, .01, generator=self.generator)
        table[:, self.part["own"]] = self.codes
        table[:, self.part["mark"]] = 0
        table[:, CONSTANT] = 1
        table[0] = 0
        table[0, CONSTANT], table[0, IS_FIRST] = 1, FIRST
        table[self.keys, IS_KEY] = 1

    def previous(self):
        """Layer 0."""
        amplitude = [14, 14, 14, 12, 10, 8, 8, 8, 8]
        for kv in range(2):
            self.head(0, "k", kv)[:, CONSTANT] = self.offset_pattern(0, amplitude)[1] / self.size
        for h, (offset, name) in enumerate(((1, "p1"), (2, "p2"), (4, "p4"), (6, "p6"))):
            self.head(0, "q", h).zero_()
            self.head(0, "o", h).zero_()
            self.head(0, "q", h)[:, CONSTANT] = self.offset_pattern(offset, amplitude)[0] / self.size
            self.head(0, "o", h)[self.part[name]] = torch.eye(64)[:PARTS[name]]

    def latest(self):
        """Layer 1."""
        query, key = self.recency_pattern(60, 10, 3)
        value = self.head(1, "v", 0)
        value.zero_()
        places = self.at("own", BLOCKS["right"]) + self.at("p1", BLOCKS["left"]) + self.at("p2", SPECIAL[" and"])
        value[range(27), places] = 1 / self.size
        self.head(1, "o", 0)[self.at("key", slice(0, 27)), range(27)] = 1.6
        for head in (0, 2):
            self.head(1, "q", head)[:, CONSTANT] = query / self.size
            self.sink(head, 20)
        self.head(1, "k", 0)[:, IS_KEY] += key / self.size
        self.head(1, "k", 1)[:, self.part["p1"].start + SPECIAL[" for"]] += key / self.size / .87
        self.head(1, "o", 2)[self.part["latest"]] = torch.eye(64)[:48]

    def induction(self):
        """Layer 2."""
        key_length = 1.6 * (26 / 56) ** .5
        self.same(0, 35, key_length, self.at("key", slice(0, 26)), self.at("key", slice(0, 26)))
        self.same(0, 24, (9 / 56) ** .5, self.at("own", BLOCKS["before"]), self.at("p1", BLOCKS["before"]))
        self.same(0, 26, .87, self.at("own", 0, 1, 2), self.at("p1", 0, 1, 2))
        self.sink(0, 39)
        self.head(2, "o", 0)[self.part["out"]] = torch.eye(64) * 1.5
        some = slice(8, 30)
        self.same(2, 40, (22 / 56) ** .5, self.at("own", some), self.at("p1", some))
        self.same(2, 30, .87, self.at("own", 0, 1, 2), self.at("p1", 0, 1, 2))
        few = slice(20, 30)
        self.same(2, 20, (10 / 56) ** .5, self.at("p1", few), self.at("p2", few))
        self.same(2, 20, .87, self.at("p1", 0, 1, 2), self.at("p2", 0, 1, 2))
        self.sink(2, 38)
        self.head(2, "o", 2)[self.part["out"]] = torch.eye(64) * .7

    def first_of_list(self, size):
        """In the MLP of layer 2: behind "are:" with a list of keys, the token after the latest " for"."""
        mlp, rows = self.model.model.layers[2].mlp, range(48)
        for place, share in ((self.at("key", 26)[0], 1 / 1.4), (self.at("p1", SPECIAL[" are"])[0], 1 / .87),
                             (self.at("own", SPECIAL[":"])[0], 1 / .87), (CONSTANT, -2.4)):
            mlp.gate_proj.weight[rows, place] = 8 * share / size
        mlp.up_proj.weight[:48] = 0
        mlp.up_proj.weight[rows, self.at("latest", slice(0, 48))] = 1 / size
        mlp.down_proj.weight[:, :48] = 0
        mlp.down_proj.weight[self.at("out", slice(0, 48)), rows] = 2.2

    def said_and_chain(self):
        """Layer 3."""
        key_length = 1.6 * (26 / 56) ** .5
        self.same(0, 25, key_length, self.at("key", slice(0, 26)), self.at("key", slice(0, 26)))
        comma, above = self.at("p2", SPECIAL[","])[0], self.at("p4", SPECIAL[" above"])[0]
        self.match(0, 25, 1, [{CONSTANT: 1.0}], [{comma: 1 / .87, above: 1 / .87}])
        self.match(0, 25, 1, [{CONSTANT: 1.0}], [{self.at("p1", SPECIAL[" "])[0]: 1 / .87}])
        self.sink(0, 47)
        self.head(3, "o", 0)[self.part["out"]] = -torch.eye(64) * 2
        # the chain: behind "," the name four back, behind ":" the digits beside the latest key, against the token itself
        name = slice(8, 32)
        query = [{i: 1.0} for i in self.at("p4", name)]
        for i, place in zip(range(BLOCKS["left"].start - 8, BLOCKS["left"].stop - 8), self.at("key", slice(13, 26))):
            query[i][place] = (24 / 13) / 1.6
        self.match(2, 28, (24 / 56) ** .5, query, [{i: 1.0} for i in self.at("own", name)])
        var, equals = self.at("p1", SPECIAL[" VAR"])[0], self.at("p2", SPECIAL[" ="])[0]
        self.match(2, 48, .87, [{self.at("own", SPECIAL[","])[0]: 1.0}], [{var: 1.0}])
        self.match(2, 48, .87, [{self.at("own", SPECIAL[":"])[0]: 1.0}], [{equals: 1.0, var: -1.0}])
        self.sink(2, 54)
        self.head(3, "v", 1).zero_()
        self.head(3, "v", 1)[range(48), self.at("p6", slice(0, 48))] = 1 / self.size
        self.head(3, "o", 2)[self.at("out", slice(0, 48)), range(48)] = 2.5

    @torch.no_grad()
    def build(self, sample):
        """sample: (tokens, positions) of typical rows, to learn the sizes behind every norm."""
        for layer in self.model.model.layers:
            layer.self_attn.o_proj.weight.mul_(.2)
            layer.mlp.down_proj.weight.mul_(.2)
        self.embed()
        for i, step in enumerate((self.previous, self.latest, self.induction, self.said_and_chain)):
            self.begin(i, self.sizes(sample)[i])
            step()
            if i == 2:
                self.first_of_list(self.sizes(sample)[3])
        self.model.lm_head.weight[:, self.part["out"]] += self.codes * 14 / self.sizes(sample)[-1]
