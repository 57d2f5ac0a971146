#!/usr/bin/env python3
"""Head importance end to end: DuoAttention's gates, one per query head (Eq. 15 of CLO), and how they rank heads
beside the layer-local surrogate of `loam-lab calibrate`.

In every layer the student's heads give alpha * full + (1 - alpha) * (sinks and recent tokens); the teacher is the same
model with all alpha = 1.  The loss is the squared difference of the final hidden states at the label tokens plus
--sparsity (0.05) * mean |alpha|; AdamW, rate 0.02, up over the first 20 steps.

When it ends: the same windows of held-out text, the last tenth of each, are looked at every few steps.  Where the mean
of three such losses is no longer below the least so far by 1% in three looks, the rate becomes a tenth; the second time
that is the end.  --steps is the most there are.  The gates are those of the least loss on held-out text.

Differs from DuoAttention: the labels are copied spans of the text as in `loam-lab calibrate` (32 tokens, the first 4 not
counted), not passkeys in BookSum; sinks and recent tokens are loam's 4 and 64, not 128 and 256; the number of steps
follows from the loss, shorter texts."""
import argparse
import json
import time

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

from model import Llama, Shape, rotation
from plateau import Plateau

SPAN, TELLING = 32, 4


def load(path, loam, device):
    """The model, its begin token and what makes tokens of a text: of a Hugging Face folder, or of a GGUF file."""
    if path.endswith(".gguf"):
        import read_gguf
        file = read_gguf.read(path)
        config, weights = file.config, {name: torch.tensor(array) for name, array in file.weights.items()}
        encode = lambda text: read_gguf.tokenize(loam, path, text)
    else:
        config, weights = json.load(open(path + "/config.json")), load_file(path + "/model.safetensors")
        tokenizer = Tokenizer.from_file(path + "/tokenizer.json")
        encode = lambda text: tokenizer.encode(text).ids
    model = Llama(Shape(**{key: value for key, value in config.items() if key in Shape.__dataclass_fields__}))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return model.requires_grad_(False).to(device), config.get("bos_token_id"), encode


def split(texts, encode):
    """Tokens to learn from, and those of the last tenth of each text."""
    parts = ([], [])
    for path in texts:
        tokens = numpy.array(encode(open(path, encoding="utf-8").read()))
        for part, some in zip(parts, (tokens[:len(tokens) // 10 * 9], tokens[len(tokens) // 10 * 9:])):
            part.append(some)
    return tuple(numpy.concatenate(part) for part in parts)


def window(stream, size, generator, spans, bos, device):
    """Tokens with `spans` copies at the end, and which positions are labels.  They begin as the model's rows do, on whose
    first token heads that find nothing rest."""
    text = size - spans * SPAN
    at = generator.integers(0, len(stream) - size)
    tokens = stream[at:at + size].copy()
    if bos is not None:
        tokens[0] = bos
    for end in range(text, size, SPAN):
        source = generator.integers(1, text // 20 * 19 - SPAN)
        tokens[end:end + SPAN] = tokens[source:source + SPAN]
    labels = numpy.arange(text, size)
    labels = labels[(labels - text) % SPAN >= TELLING]
    return torch.tensor(tokens, device=device)[None], torch.tensor(labels, device=device)


def hidden(model, tokens, gates=None, sinks=4, recent=64):
    """Final hidden states; gates [layers][heads] or None: the teacher."""
    shape, time = model.shape, tokens.shape[1]
    turn = rotation(torch.arange(time, device=tokens.device)[None], shape)
    group = shape.num_attention_heads // shape.num_key_value_heads
    x = model.model.embed_tokens(tokens)
    row = torch.arange(time, device=tokens.device)[:, None]
    column = row.T
    near = (column <= row) & ((column < sinks) | (column > row - recent))
    for index, layer in enumerate(model.model.layers):
        q, k, v = layer.self_attn.heads(layer.input_layernorm(x), turn)
        k, v = (y.repeat_interleave(group, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if gates is not None:
            alpha = gates[index].clamp(0, 1)[None, :, None, None]
            y = alpha * y + (1 - alpha) * F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        x = x + layer.self_attn.o_proj(y.transpose(1, 2).reshape(1, time, -1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.model.norm(x)


def spans_of(size):
    return max(1, min(size // 8 // SPAN, 10))


def losses_of(model, gates, tokens, labels, teacher, sparsity):
    """What the student is off by, and what its gates cost."""
    difference = hidden(model, tokens, gates)[0, labels] - teacher
    return difference.square().mean(), sparsity * gates.abs().mean()


class Trial:
    """Windows of held-out text that never change, and what the teacher says of them."""

    def __init__(self, model, stream, sizes, count, seed, bos, sparsity, device):
        generator = numpy.random.default_rng(seed)
        self.model, self.sparsity, self.windows = model, sparsity, []
        for i in range(count):
            size = sizes[i % len(sizes)]
            tokens, labels = window(stream, size, generator, spans_of(size), bos, device)
            self.windows.append((tokens, labels, hidden(model, tokens)[0, labels]))

    def losses(self, gates):
        """Means over the windows of both losses."""
        all_losses = [losses_of(self.model, gates, *window, self.sparsity) for window in self.windows]
        return [sum(loss.item() for loss in losses) / len(self.windows) for losses in zip(*all_losses)]


def train(model, stream, held_out, options, bos):
    """The gates of the least loss on held-out text; options.out has the best so far at any time."""
    generator = numpy.random.default_rng(options.seed)
    gates = torch.ones(model.shape.num_hidden_layers, model.shape.num_attention_heads, device=options.device,
                       requires_grad=True)
    optimizer = torch.optim.AdamW([gates], lr=0.02, weight_decay=0)
    plateau, best, rate, began = Plateau(options.least, options.patience, 3), None, 0.02, time.time()
    with torch.no_grad():
        trial = Trial(model, held_out, options.sizes, options.validation, options.seed, bos, options.sparsity,
                      options.device)
    for step in range(options.steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 20)
        size = int(generator.choice(options.sizes))
        tokens, labels = window(stream, size, generator, spans_of(size), bos, options.device)
        with torch.no_grad():
            teacher = hidden(model, tokens)[0, labels]
        loss = sum(losses_of(model, gates, tokens, labels, teacher, options.sparsity))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            gates.clamp_(0, 1)
        if (step + 1) % options.every != 0:
            continue
        with torch.no_grad():
            off, cost = trial.losses(gates)
        value = off + cost
        if best is None or value < best[0]:
            best = value, step + 1, gates.detach().cpu().numpy().copy()
            save(best[2], options.out)
        print(f"step {step + 1} loss {loss.item():.4f} held out {value:.4f} of which off by {off:.4f} mean gate "
              f"{gates.mean().item():.3f} rate {rate:g} {time.time() - began:.0f} s", flush=True)
        if plateau.reached(value):
            rate /= 10
            if rate < 0.001:
                print(f"held-out loss falls no more; the least, {best[0]:.4f}, was at step {best[1]}", flush=True)
                break
    else:
        print(f"ended by --steps; the least held-out loss, {best[0]:.4f}, was at step {best[1]}", flush=True)
    return best[2]


def save(gates, path):
    if path:
        numpy.savetxt(path, gates, fmt="%.6f", delimiter="\t")


def ranks(values):
    """Ranks from 0, ties share their mean."""
    values = numpy.asarray(values).ravel()
    return numpy.array([(numpy.sum(values < v) + numpy.sum(values <= v) - 1) / 2 for v in values])


def rank_correlation(a, b):
    a, b = ranks(a), ranks(b)
    return float(numpy.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Hugging Face folder, as train.py writes it, or a GGUF file")
    parser.add_argument("--loam", default="build/release/loam", help="makes tokens of the texts for a GGUF file")
    parser.add_argument("--steps", type=int, default=2000, help="the most that are made")
    parser.add_argument("--every", type=int, default=10, help="steps between two looks at held-out text")
    parser.add_argument("--validation", type=int, default=8, help="windows of it")
    parser.add_argument("--least", type=float, default=0.01, help="fraction by which a loss must fall")
    parser.add_argument("--patience", type=int, default=3, help="looks in which it may fail to")
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--sparsity", type=float, default=0.05, help="what a gate of 1 costs, beside the squared error")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", help="the gates as a TSV: a line per layer, a column per query head")
    parser.add_argument("--calibration", help="MODEL.calib.gguf to compare with (needs the package gguf)")
    parser.add_argument("texts", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model, bos, encode = load(options.model, options.loam, options.device)
    stream, held_out = split(options.texts, encode)
    gates = train(model, stream, held_out, options, bos)
    print(numpy.array2string(gates, precision=3, suppress_small=True))
    if options.calibration:
        from gguf import GGUFReader
        tensors = {t.name: numpy.array(t.data) for t in GGUFReader(options.calibration).tensors}
        for name in ("head_importance", "head_alone"):
            print(f"rank correlation of the gates with {name}: {rank_correlation(gates, tensors[name]):.3f}")


if __name__ == "__main__":
    main()
