#!/usr/bin/env python3
"""Trains the small llama on retrieval and English; resumable; writes a Hugging Face folder into --out.

The stages (STAGES) grow the length of a row; positions are spread over 64 K from the first step on.  Every step is
made from its own number, so a resumed run is the same run.  Stops after --minutes, saving where it stands."""
import argparse
import csv
import json
import math
import os
import time

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

from data import TASKS, Maker, Source
from model import Llama, Shape
from structure import Structure

# until this share of the tokens: row length, rows per step, share of rows with spread positions
STAGES = ((.12, 256, 16, .7), (.85, 512, 8, .7), (.95, 1024, 4, .7), (1.0, 4096, 1, .5))
SPAN = 65536


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="folder with tokenizer.json; the model is written there")
    parser.add_argument("--tokens", type=float, default=10e6, help="length of the whole schedule")
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--until", type=float, default=0, help="UNIX time at which the schedule ends, whatever --tokens says")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--language", type=float, default=.05, help="weight of a token that is not an answer")
    parser.add_argument("--only", default="", help="a,b: train nothing but parameters with one of these in their names")
    parser.add_argument("texts", nargs="+")
    return parser.parse_args()


def batch_of(maker, count, length, share, background, task=None):
    rows = [maker.row(length, SPAN if maker.random.random() < share else 0, task, background) for _ in range(count)]
    return [torch.from_numpy(numpy.stack(column)) for column in zip(*rows)]


def loss_of(model, batch, generator=None, keep=.35):
    """Weighted cross entropy; logits only for answers and a random share of the other tokens.

    Where values may come in any order, the loss is that of the sum of their probabilities."""
    tokens, positions, weights, others, crowd = batch
    hidden = model.hidden(tokens, positions, crowd)[:, :-1]
    weights, targets = weights[:, 1:], tokens[:, 1:]
    chosen = (weights >= 1) | ((torch.rand(weights.shape, generator=generator) < keep) & (weights > 0))
    logits, targets, weights, others = model.lm_head(hidden[chosen]), targets[chosen], weights[chosen], others[:, 1:][chosen]
    right = torch.cat((targets[:, None], others), 1)
    each = -F.log_softmax(logits, -1).gather(1, right.clamp(min=0)).masked_fill(right < 0, -torch.inf).logsumexp(1)
    with torch.no_grad():  # count a guess among them as right
        guess = logits.argmax(-1)
        targets = torch.where((right == guess[:, None]).any(1), guess, targets)
    return (each * weights).sum() / weights.sum(), logits, targets, weights


@torch.no_grad()
def answers(model, source, lengths=((1024, 0), (1024, SPAN)), rows=3):
    """Share of answer tokens guessed right, by task and (row length, span), on held-out text and a fixed seed."""
    result = {}
    for length, span in lengths:
        maker = Maker(source, 99)
        for task in TASKS:
            batch = batch_of(maker, rows, length, span > 0, .05, task)
            _, logits, targets, weights = loss_of(model, batch, torch.Generator().manual_seed(1), 1.0)
            right, answer = logits.argmax(-1) == targets, weights >= 1
            if task == "text":
                result[f"{task}@{length}+{span // 1024}K"] = F.cross_entropy(logits, targets).item()
            else:
                result[f"{task}@{length}+{span // 1024}K"] = right[answer].float().mean().item()
    return result


def save(model, optimizer, folder, step, tokens):
    path = os.path.join(folder, "checkpoint.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "tokens": tokens},
               path + ".new")
    os.replace(path + ".new", path)
    export(model, folder)


def export(model, folder):
    save_file({k: v.contiguous() for k, v in model.state_dict().items()},
              os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(model.shape.config(), file, indent=1)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:  # every row begins with it: heads rest on it
        json.dump({"add_bos_token": True, "bos_token": "<|begin|>", "eos_token": "<|end|>"}, file)


def fresh(source, tokenizer, seed):
    torch.manual_seed(seed)
    model = Llama(Shape(vocab_size=tokenizer.get_vocab_size()))
    batch = batch_of(Maker(source, seed), 8, 512, .5, .05)
    Structure(model, tokenizer, seed).build(batch[:2])
    return model


def groups(model, rate):
    """Vectors and the embedding learn without decay."""
    plain = [p for n, p in model.named_parameters() if p.dim() < 2 or "embed" in n]
    return [{"params": plain, "weight_decay": 0.0},
            {"params": [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]}]


def main():
    arguments = arguments_of()
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(os.path.join(arguments.out, "tokenizer.json"))
    source = Source(arguments.out, arguments.texts, False)
    held_out = Source(arguments.out, arguments.texts, True)
    model = fresh(source, tokenizer, arguments.seed)
    optimizer = torch.optim.AdamW(groups(model, arguments.rate), lr=arguments.rate, betas=(.9, .98), weight_decay=.01)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name for part in arguments.only.split(",")))
    step, seen, checkpoint = 0, 0, os.path.join(arguments.out, "checkpoint.pt")
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, seen = state["step"], state["tokens"]
    print(f"{sum(p.numel() for p in model.parameters())} parameters, from step {step}, {seen} tokens", flush=True)
    log = open(os.path.join(arguments.out, "loss.csv"), "a", newline="")
    rows = csv.writer(log)
    if step == 0:
        log.write(f"# train.py {vars(arguments) | {'texts': [os.path.basename(t) for t in arguments.texts], 'out': ''}}\n")
        rows.writerow(["step", "tokens", "seconds", "length", "loss", "answer_loss", "answer_accuracy"])
    began = saved = tested = time.time()
    first_share = seen / arguments.tokens
    total, means = arguments.tokens, []

    def share_of(tokens):
        if not arguments.until:
            return tokens / total
        return first_share + (1 - first_share) * (time.time() - began) / (arguments.until - began)

    while seen < total and time.time() - began < arguments.minutes * 60 and (share_of(seen) < 1):
        if time.time() - tested > 900:
            print(step, seen, " ".join(f"{k}={v:.2f}" for k, v in answers(model, held_out).items()), flush=True)
            tested = time.time()
        share = share_of(seen)
        _, length, count, spread = next((s for s in STAGES if share < s[0]), STAGES[-1])
        maker = Maker(source, arguments.seed * 1000003 + step)
        batch = batch_of(maker, count, length, spread, arguments.language)
        warm = min(1.0, (step + 1) / 60)
        for group in optimizer.param_groups:
            group["lr"] = arguments.rate * warm * (.05 + .95 * .5 * (1 + math.cos(math.pi * share)))
        loss, logits, targets, weights = loss_of(model, batch, torch.Generator().manual_seed(step))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, seen = step + 1, seen + batch[0].numel()
        with torch.no_grad():
            answer = weights > 5
            means.append((loss.item(), F.cross_entropy(logits[answer], targets[answer]).item() if answer.any() else 0,
                          (logits[answer].argmax(-1) == targets[answer]).float().mean().item() if answer.any() else 0))
        if step % 20 == 0:
            mean = [f"{sum(m) / len(m):.4f}" for m in zip(*means)]
            rows.writerow([step, seen, int(time.time() - began), length] + mean)
            log.flush()
            print(step, seen, int(time.time() - began), length, *mean, flush=True)
            means = []
        if time.time() - saved > 180:
            save(model, optimizer, arguments.out, step, seen)
            saved = time.time()
    save(model, optimizer, arguments.out, step, seen)
    print(step, seen, " ".join(f"{k}={v:.2f}" for k, v in answers(model, held_out).items()), flush=True)


if __name__ == "__main__":
    main()
