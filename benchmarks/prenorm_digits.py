"""A pre-norm residual network of 100 blocks on scikit-learn's digits: PyTorch's own initialisation against the advice.

    python benchmarks/prenorm_digits.py [--without-norm] [--blocks 100] [--width 64] [--epochs 12] [--seeds 3]

The network is written in PyTorch, x = x + W gelu(LayerNorm(x)) + b, or without LayerNorm, and read by `from_torch`. The
code that `advise`
prints for it is executed as it stands: initialisation, one step size for each tensor, and the loss. Beside it stands
the network as PyTorch makes it, with plain SGD at the best of five learning rates by its final training loss. Both see
the same mini-batches in the same order; the step sizes of the advice are not tuned.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import widthwise as ww

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from deep_digits import Curve, Digits, advised, train  # pyright: ignore[reportMissingImports]

RATES = (0.003, 0.01, 0.03, 0.1, 0.3)


class PreNorm(nn.Module):
    """As a user would write it; every layer initialised by PyTorch."""

    def __init__(self, blocks: int, width: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
        self.norms = nn.ModuleList(norm(width) for _ in range(blocks + 1))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, x):
        x = self.first(x)
        for norm, layer in zip(self.norms[:-1], self.layers, strict=True):
            x = x + layer(nn.functional.gelu(norm(x)))
        return self.last(nn.functional.gelu(self.norms[-1](x)))


def default(shape: tuple, digits: Digits, rate: float, seed: int, epochs: int) -> Curve:
    torch.manual_seed(seed)
    model = PreNorm(*shape)

    def loss(model, x, y):
        return 0.5 * ((model(x) - y) ** 2).sum(dim=1).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return train(model, optimizer, loss, digits, digits.scaled_to(1.0), seed, epochs)


def row(name: str, runs: list[Curve]) -> str:
    loss, right = (np.array([getattr(run, what)[-1] for run in runs]) for what in ("loss", "accuracy"))
    return (
        f"{name:<24} loss {loss.mean():.4f} ({loss.min():.4f} to {loss.max():.4f})   test accuracy {right.mean():.3f} "
        f"({right.min():.3f} to {right.max():.3f})   seeds {len(runs)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-norm", action="store_true")
    for name, value in (("blocks", 100), ("width", 64), ("epochs", 12), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start, digits = time.perf_counter(), Digits.load()
    torch.manual_seed(0)
    shape = given.blocks, given.width, nn.Identity if given.without_norm else nn.LayerNorm
    report = ww.advise(ww.from_torch(PreNorm(*shape)), digits.inputs.numpy())
    print(f"{report.text}\n\nadvise: {time.perf_counter() - start:.1f} s\n", flush=True)
    by_rate = {rate: default(shape, digits, rate, 0, given.epochs) for rate in RATES}
    for rate, curve in by_rate.items():
        print(
            f"PyTorch default, rate {rate:<6g} loss {curve.loss[-1]:.4f}   test accuracy {curve.accuracy[-1]:.3f}",
            flush=True,
        )
    best = min(RATES, key=lambda rate: by_rate[rate].loss[-1])
    others = [default(shape, digits, best, seed, given.epochs) for seed in range(1, given.seeds)]
    print(row(f"PyTorch default, {best:g}", [by_rate[best], *others]), flush=True)
    targets = digits.scaled_to(report.output_kernel)
    print(row("advice", [advised(report, digits, targets, seed, given.epochs) for seed in range(given.seeds)]))
    print(f"{given.epochs} epochs, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
