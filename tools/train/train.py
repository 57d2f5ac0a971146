#!/usr/bin/env python3
"""Trains the small llama on text files; resumable; writes a Hugging Face folder into --data.

Every step takes --batch windows of --time tokens from random places.  AdamW with a cosine schedule over
--steps; stops early after --minutes of its own processor-bound time, saving where it stands."""
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

from model import Llama, Shape

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", required=True, help="folder with tokenizer.json; the model is written there")
parser.add_argument("--steps", type=int, default=6000)
parser.add_argument("--minutes", type=float, default=30)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--time", type=int, default=256)
parser.add_argument("--rate", type=float, default=3e-3)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("texts", nargs="+")
arguments = parser.parse_args()

torch.manual_seed(arguments.seed)
if arguments.threads:
    torch.set_num_threads(arguments.threads)
tokenizer = Tokenizer.from_file(os.path.join(arguments.data, "tokenizer.json"))
tokens = []
for path in arguments.texts:
    tokens += tokenizer.encode(open(path, encoding="utf-8").read()).ids
tokens = torch.from_numpy(numpy.array(tokens, dtype=numpy.int64))
held_out = tokens[-len(tokens) // 50:]  # the last 2%: never trained on
tokens = tokens[:-len(tokens) // 50]

shape = Shape(vocab_size=tokenizer.get_vocab_size())
model = Llama(shape)
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.05)
first, checkpoint = 0, os.path.join(arguments.data, "checkpoint.pt")
if os.path.exists(checkpoint):
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]


def windows(source, generator):
    starts = torch.randint(0, len(source) - arguments.time - 1, (arguments.batch,), generator=generator)
    rows = torch.stack([source[s:s + arguments.time + 1] for s in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


def loss_of(batch):
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def save(step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()},
              os.path.join(arguments.data, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(arguments.data, "config.json"), "w") as file:
        json.dump(shape.config(), file, indent=1)


@torch.no_grad()
def held_out_loss():
    generator = torch.Generator().manual_seed(0)
    return sum(loss_of(windows(held_out, generator)).item() for _ in range(8)) / 8


print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(tokens)} tokens, from step {first}", flush=True)
log = open(os.path.join(arguments.data, "loss.csv"), "a", newline="")
if first == 0:
    log.write(f"# train.py {vars(arguments) | {'texts': [os.path.basename(t) for t in arguments.texts], 'data': ''}}\n")
    log.write("step,tokens,train_loss,held_out_loss\n")
rows = csv.writer(log)
began = saved = time.process_time()
for step in range(first, arguments.steps):
    generator = torch.Generator().manual_seed(arguments.seed * 1000003 + step)  # so that a resumed run is the same run
    warm = min(1.0, (step + 1) / 100)
    rate = arguments.rate * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / arguments.steps)))
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = loss_of(windows(tokens, generator))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 100 == 0:
        rows.writerow([step, (step + 1) * arguments.batch * arguments.time, f"{loss.item():.4f}", f"{held_out_loss():.4f}"])
        log.flush()
    now = time.process_time()
    if now - saved > 120:
        save(step + 1)
        saved = now
    if now - began > arguments.minutes * 60 * torch.get_num_threads():
        break
save(step + 1)
rows.writerow([step + 1, (step + 1) * arguments.batch * arguments.time, "", f"{held_out_loss():.4f}"])
