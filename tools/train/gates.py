#!/usr/bin/env python3
"""Head importance end to end: DuoAttention's gates, one per query head (Eq. 15 of CLO), and how they rank heads
beside the layer-local surrogate of `loam calibrate`.

In every layer the student's heads give alpha * full + (1 - alpha) * (sinks and recent tokens); the teacher is the same
model with all alpha = 1.  The loss is the squared difference of the final hidden states at the label tokens plus
0.05 * mean |alpha|; AdamW, rate 0.02, up over the first fifth of the steps and down over the last.  Differs from
DuoAttention: the labels are copied spans of the text as in `loam calibrate` (32 tokens, the first 4 not counted),
not passkeys in BookSum; sinks and recent tokens are loam's 4 and 64, not 128 and 256; fewer steps, shorter texts."""
import argparse
import json

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

from model import Llama, Shape, rotation

SPAN, TELLING = 32, 4


def load(folder):
    config = json.load(open(folder + "/config.json"))
    model = Llama(Shape(**{key: value for key, value in config.items() if key in Shape.__dataclass_fields__}))
    missing, unexpected = model.load_state_dict(load_file(folder + "/model.safetensors"), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return model.requires_grad_(False), config.get("bos_token_id")


def window(stream, size, generator, spans, bos):
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
    return torch.tensor(tokens)[None], torch.tensor(labels[(labels - text) % SPAN >= TELLING])


def hidden(model, tokens, gates=None, sinks=4, recent=64):
    """Final hidden states; gates [layers][heads] or None: the teacher."""
    shape, time = model.shape, tokens.shape[1]
    turn = rotation(torch.arange(time)[None], shape)
    group = shape.num_attention_heads // shape.num_key_value_heads
    x = model.model.embed_tokens(tokens)
    row, column = torch.arange(time)[:, None], torch.arange(time)[None]
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


def train(model, stream, steps, sizes, seed, bos):
    generator = numpy.random.default_rng(seed)
    gates = torch.ones(model.shape.num_hidden_layers, model.shape.num_attention_heads, requires_grad=True)
    optimizer = torch.optim.AdamW([gates], lr=0.02, weight_decay=0)
    for step in range(steps):
        ramp = min(1, (step + 1) / (0.2 * steps), max(0.1, (steps - step) / (0.2 * steps)))
        optimizer.param_groups[0]["lr"] = 0.02 * ramp
        size = int(generator.choice(sizes))
        tokens, labels = window(stream, size, generator, min(size // 8 // SPAN, 10), bos)
        with torch.no_grad():
            teacher = hidden(model, tokens)[0, labels]
        difference = hidden(model, tokens, gates)[0, labels] - teacher
        loss = difference.square().mean() + 0.05 * gates.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            gates.clamp_(0, 1)
        if step % 20 == 0 or step + 1 == steps:
            print(f"step {step} loss {loss.item():.4f} mean gate {gates.mean().item():.3f}", flush=True)
    return gates.detach().numpy()


def ranks(values):
    """Ranks from 0, ties share their mean."""
    values = numpy.asarray(values).ravel()
    return numpy.array([(numpy.sum(values < v) + numpy.sum(values <= v) - 1) / 2 for v in values])


def rank_correlation(a, b):
    a, b = ranks(a), ranks(b)
    return float(numpy.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face folder, as train.py writes it")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", help="the gates as a TSV: a line per layer, a column per query head")
    parser.add_argument("--calibration", help="MODEL.calib.gguf to compare with (needs the package gguf)")
    parser.add_argument("texts", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model, bos = load(options.model)
    tokenizer = Tokenizer.from_file(options.model + "/tokenizer.json")
    stream = numpy.concatenate([numpy.array(tokenizer.encode(open(path, encoding="utf-8").read()).ids)
                                for path in options.texts])
    gates = train(model, stream, options.steps, options.sizes, options.seed, bos)
    print(numpy.array2string(gates, precision=3, suppress_small=True))
    if options.out:
        numpy.savetxt(options.out, gates, fmt="%.6f", delimiter="\t")
    if options.calibration:
        from gguf import GGUFReader
        tensors = {t.name: numpy.array(t.data) for t in GGUFReader(options.calibration).tensors}
        for name in ("head_importance", "head_alone"):
            print(f"rank correlation of the gates with {name}: {rank_correlation(gates, tensors[name]):.3f}")


if __name__ == "__main__":
    main()
