#!/usr/bin/env python3
"""Which heads look at the needles: the attention mass that each query head puts on the sentences that hold the answer,
mean over the steps that write it, in numpy.

    loam-lab eval ruler -m MODEL --seed 5 --tasks niah_single_2,niah_multikey_1,niah_multivalue --lengths 2048 \\
      --samples 4 --emit samples.jsonl
    tools/train/needle_heads.py --model models/loam-nano.gguf --loam build/release/loam samples.jsonl

The answer is fed as it should be; how many of its tokens the model would have written itself is said beside it."""
import argparse
import collections
import json
import re

import numpy

import read_gguf

SENTENCE = r"One of the special magic [^\n.]*? is: %s\."


def spans(prompt, answers):
    """Of the sentences that hold an answer: (begin, end) in bytes."""
    found = [re.search(SENTENCE % re.escape(answer), prompt) for answer in answers]
    return [(len(prompt[:m.start()].encode()), len(prompt[:m.end()].encode())) for m in found]


def norm(x, weight, epsilon):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate(x, config):
    """x [time, heads, dimension], halves turned against each other."""
    half = config["head_dim"] // 2
    angle = numpy.arange(len(x))[:, None, None] * config["rope_theta"] ** (-numpy.arange(half) / half)
    a, b, cosine, sine = x[..., :half], x[..., half:], numpy.cos(angle), numpy.sin(angle)
    return numpy.concatenate((a * cosine - b * sine, b * cosine + a * sine), -1).astype(numpy.float32)


def softmax(x):
    x = numpy.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attend(q, k, v, row_first, marked):
    """One head, causal: outputs, and the mass on marked tokens of the rows from row_first on."""
    out, mass = numpy.empty_like(v), []
    for begin in range(0, len(q), 256):
        end = min(begin + 256, len(q))
        score = q[begin:end] @ k[:end].T / numpy.float32(k.shape[1] ** .5)
        score[numpy.arange(begin, end)[:, None] < numpy.arange(end)] = -numpy.inf
        weights = softmax(score)
        out[begin:end] = weights @ v[:end]
        mass.extend(weights[max(row_first - begin, 0):, marked[:end]].sum(-1))
    return out, mass


def run(model, ids, row_first, marked):
    """Logits of the rows from row_first on, and their mean mass on marked tokens: [layers][heads]."""
    config, w = model.config, model.weights
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    x, epsilon, masses = w["model.embed_tokens.weight"][ids], config["rms_norm_eps"], []
    for layer in range(config["num_hidden_layers"]):
        of = lambda name: w[f"model.layers.{layer}.{name}.weight"]
        y = norm(x, of("input_layernorm"), epsilon)
        q, k, v = ((y @ of(f"self_attn.{n}_proj").T).reshape(len(ids), -1, config["head_dim"]) for n in "qkv")
        q, k = rotate(q, config), rotate(k, config)
        each = [attend(q[:, h], k[:, h * kv_heads // heads], v[:, h * kv_heads // heads], row_first, marked)
                for h in range(heads)]
        masses.append([numpy.mean(mass) for _, mass in each])
        x = x + numpy.concatenate([out for out, _ in each], -1) @ of("self_attn.o_proj").T
        y = norm(x, of("post_attention_layernorm"), epsilon)
        gate = y @ of("mlp.gate_proj").T
        x = x + (gate / (1 + numpy.exp(-numpy.maximum(gate, -80))) * (y @ of("mlp.up_proj").T)) @ of("mlp.down_proj").T
    return norm(x[row_first:], w["model.norm.weight"], epsilon) @ w["lm_head.weight"].T, numpy.array(masses)


def study(model, options, sample):
    """Mass [layers][heads]; answer tokens that the model writes itself; all of them."""
    prompt = read_gguf.tokenize(options.loam, options.model, sample["prompt"])
    answer = read_gguf.tokenize(options.loam, options.model, sample["answer_text"])
    ids = [model.config["bos_token_id"]] + prompt + answer
    ends = numpy.cumsum([0] + [len(model.tokens[i]) for i in prompt + answer])  # a character stands for a byte
    marked = numpy.zeros(len(ids), bool)
    for begin, end in spans(sample["prompt"], sample["answers"]):
        marked[1:] |= (ends[1:] > begin) & (ends[:-1] < end)
    logits, masses = run(model, ids[:-1], len(prompt), marked[:-1])
    return masses, int((logits.argmax(-1) == answer).sum()), len(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a llama's GGUF file")
    parser.add_argument("--loam", default="build/release/loam", help="the program, which makes tokens of texts")
    parser.add_argument("--least", type=float, default=5, help="leave out heads with fewer percent in every task")
    parser.add_argument("samples", help="of loam-lab eval ruler --emit")
    options = parser.parse_args()
    model, tasks = read_gguf.read(options.model), collections.defaultdict(list)
    for line in open(options.samples, encoding="utf-8"):
        sample = json.loads(line)
        if sample["task"].startswith("niah"):
            tasks[sample["task"]].append(study(model, options, sample))
    for task, studies in tasks.items():
        right, count = sum(s[1] for s in studies), sum(s[2] for s in studies)
        print(f"{task}: {len(studies)} samples, {right} of {count} tokens of the answers")
    means = {task: 100 * numpy.mean([s[0] for s in studies], 0) for task, studies in tasks.items()}
    print("\n| head | " + " | ".join(means) + " |\n|---|" + "---|" * len(means))
    for layer, head in numpy.ndindex(*next(iter(means.values())).shape):
        if max(mean[layer, head] for mean in means.values()) >= options.least:
            print(f"| {layer}.{head} | " + " | ".join(f"{mean[layer, head]:.0f}" for mean in means.values()) + " |")


if __name__ == "__main__":
    main()
