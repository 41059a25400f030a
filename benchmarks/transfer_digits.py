"""The best learning rate over widths on the handwritten digits, by rule of transfer, with torch's own optimisers.

PYTHONPATH=src python benchmarks/transfer_digits.py [WIDTH ...]

Networks of two hidden layers of relu, cross entropy, 60 steps of 128 of 1,437 digits; three seeds. The best rate is the
centre, in logarithms, of the rates whose mean loss over the last ten steps is below 1.5 times the least,
each weighted by log 1.5 − log loss.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import widthwise as ww

STEPS, BATCH, SEEDS = 60, 128, 3
#: Base rates in octaves, of two optimisers.
RATES = {"adam": 2.0 ** np.arange(-11, -3), "sgd": 2.0 ** np.arange(-6, 2)}


def model(width: int) -> nn.Module:
    layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def final_loss(width: int, base: int, rule: str, optimiser: str, rate: float, seed: int, X, y) -> float:
    torch.manual_seed(0)
    network, small = model(width), model(base)
    found = ww.parametrisation(network, small, rule, optimiser, learning_rate=rate, output="variance")
    found.initialise(network, seed)
    (stepper,) = found.torch_optimisers()
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(STEPS):
        some = torch.randint(0, len(X), (BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(network(X[some]), y[some])
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(float(loss.detach()))
    last = float(np.mean(losses[-10:]))
    return last if math.isfinite(last) else math.inf


def centre(rates: np.ndarray, losses: np.ndarray) -> float:
    logs = np.log(losses).mean(1)
    weight = np.maximum(logs.min() + math.log(1.5) - logs, 0.0)
    return float(np.exp(np.sum(weight * np.log(rates)) / weight.sum()))


def main(widths: list[int]) -> None:
    torch.set_num_threads(1)
    pixels, labels = load_digits(return_X_y=True)
    X = torch.tensor(pixels / 16.0 - 0.3, dtype=torch.float32)[:1437]
    y = torch.tensor(labels)[:1437]
    for optimiser, rates in RATES.items():
        for rule in ("standard", "mup"):
            centres = []
            for width in widths:
                losses = [[final_loss(width, widths[0], rule, optimiser, rate, seed, X, y) for seed in range(SEEDS)]
                          for rate in rates]  # fmt: skip
                table = np.array(losses)
                each = [centre(rates, table[:, [k]]) for k in range(SEEDS)]
                centres.append(centre(rates, table))
                shown = " ".join(f"{one:.4f}" for one in each)
                print(f"{optimiser:>5} {rule:>9} width {width:5d}: best {centres[-1]:.4f}, by seed {shown}, "
                      f"loss {np.exp(np.log(table).mean(1)).min():.4f}", flush=True)  # fmt: skip
            moved = max(centres) / min(centres)
            print(f"{optimiser:>5} {rule:>9}: the best rate moves by a factor {moved:.2f}", flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [64, 256, 1024])
