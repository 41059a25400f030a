"""Fifty layers on scikit-learn's digits with plain SGD: PyTorch's own initialisation against the advice.

    python examples/deep_digits.py [--quick] [--plain-targets] [--out out/deep_digits]

For each activation `advise` looks at the network as PyTorch would make it, and the PyTorch code that it prints is
executed as it stands: initialisation, one step size for each tensor, and the loss. The other network is PyTorch's
default with one learning rate for all tensors, the best of a grid. Both see the same data in the same order for the
same number of steps. The loss that is shown is the mean square error over the mean square of the targets: 1 for a
network that has learnt nothing. With --plain-targets the advice is trained once more, alone, with one-hot targets as
they come: only their scaling is not followed.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.ticker import PercentFormatter
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import widthwise as ww
from widthwise.plots.style import COLOURS, look

DEPTH, BATCH = 50, 64


@dataclass(frozen=True)
class Digits:
    """Inputs (rows, 64) with mean zero and mean square one, and one-hot classes centred to mean zero."""

    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_classes: torch.Tensor

    @classmethod
    def load(cls) -> Digits:
        X, classes = load_digits(return_X_y=True)
        split = train_test_split(X, classes, test_size=360, random_state=0, stratify=classes)
        train, test, classes, test_classes = (np.asarray(part) for part in split)
        centre = train.mean(axis=0)
        size = np.sqrt(np.mean((train - centre) ** 2))
        one_hot = np.eye(10)[classes]
        rows = (train - centre) / size, one_hot - one_hot.mean(axis=0), (test - centre) / size
        inputs, targets, test_inputs = (torch.tensor(x, dtype=torch.float32) for x in rows)
        return cls(inputs, targets, test_inputs, torch.tensor(test_classes))

    @property
    def one_hot(self) -> torch.Tensor:
        return (self.targets > 0.0).float()

    def scaled_to(self, mean_square: float) -> torch.Tensor:
        return self.targets * math.sqrt(mean_square / float((self.targets**2).mean()))


@dataclass(frozen=True)
class Curve:
    """After each epoch: the loss over that of an untrained guess, and the share of test digits that are right."""

    loss: list[float]
    accuracy: list[float]


def advised(report: ww.Advice, digits: Digits, targets: torch.Tensor, seed: int, epochs: int) -> Curve:
    """The code that the report prints, executed."""
    torch.manual_seed(seed)
    names: dict[str, Any] = {}
    exec(report.code["pytorch"], names)
    return train(names["model"], names["optimizer"], names["loss"], digits, targets, seed, epochs)


def default(report: ww.Advice, digits: Digits, rate: float, seed: int, epochs: int) -> Curve:
    """PyTorch's own initialisation of the same layers, one learning rate, targets of mean square one."""
    names: dict[str, Any] = {}
    exec(report.code["pytorch"], names)
    torch.manual_seed(seed)
    model = names["model"]
    for layer in model.layers:
        layer.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def loss(model, x, y):
        return 0.5 * ((model(x) - y) ** 2).sum(dim=1).mean()

    return train(model, optimizer, loss, digits, digits.scaled_to(1.0), seed, epochs)


def train(model, optimizer, loss: Callable, digits: Digits, targets: torch.Tensor, seed: int, epochs: int) -> Curve:
    """Plain SGD on mini-batches in an order that depends on the seed alone."""
    order = torch.Generator().manual_seed(seed)
    curve = Curve([], [])
    size = float(((targets - targets.mean(dim=0)) ** 2).mean())
    for _ in range(epochs):
        for rows in torch.randperm(len(targets), generator=order).split(BATCH):
            optimizer.zero_grad()
            loss(model, digits.inputs[rows], targets[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            error = float(((model(digits.inputs) - targets) ** 2).mean()) / size
            right = model(digits.test_inputs).argmax(dim=1) == digits.test_classes
        curve.loss.append(error if math.isfinite(error) else math.inf)
        curve.accuracy.append(float(right.float().mean()))
    return curve


def advise(activation: str, width: int, rows: int, digits: Digits) -> ww.Advice:
    net = ww.MLP.torch_default([64, *[width] * (DEPTH - 1), 10], activation)
    report = ww.advise(net, digits.inputs.numpy()[:rows])
    print(f"\n{report.text}\n", flush=True)
    return report


def compare(report: ww.Advice, digits: Digits, epochs: int, seeds: int, grid: list[float]) -> dict[str, list[Curve]]:
    """Curves by name, each a list over seeds; the default with the best learning rate of the grid."""
    by_rate = {rate: default(report, digits, rate, 0, epochs) for rate in grid}
    for rate, curve in by_rate.items():
        print(f"  default, rate {rate:g}: loss {curve.loss[-1]:.4f}, accuracy {curve.accuracy[-1]:.3f}", flush=True)
    best = min(grid, key=lambda rate: by_rate[rate].loss[-1])
    more = [default(report, digits, best, seed, epochs) for seed in range(1, seeds)]
    targets = digits.scaled_to(report.output_kernel)
    return {
        "default": [by_rate[best], *more],
        "advice": [advised(report, digits, targets, seed, epochs) for seed in range(seeds)],
    }


def show(name: str, runs: list[Curve]) -> None:
    loss, right = (np.array([getattr(run, what)[-1] for run in runs]) for what in ("loss", "accuracy"))
    print(f"  {name}: loss {loss.mean():.4f} ({loss.min():.4f} to {loss.max():.4f}), accuracy {right.mean():.3f} "
          f"({right.min():.3f} to {right.max():.3f}), seeds: {len(runs)}", flush=True)  # fmt: skip


def draw(results: dict[str, dict[str, list[Curve]]], file: Path) -> None:
    """Test accuracy against epochs: means over seeds, bands from the smallest to the largest, labels on the curves."""
    with look():
        figure, axes = plt.subplots(1, len(results), figsize=(5.2 * len(results), 3.9), sharey=True, squeeze=False)
        for axis, (activation, curves) in zip(axes[0], results.items(), strict=True):
            for name, colour in (("advice", COLOURS[1]), ("default", COLOURS[0])):
                values = np.array([run.accuracy for run in curves.get(name, [])])
                if not len(values):
                    continue
                epoch, mean = np.arange(1, values.shape[1] + 1), values.mean(axis=0)
                axis.plot(epoch, mean, color=colour, lw=2.5)
                axis.fill_between(epoch, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.25, lw=0)
                words = {"advice": "code printed by widthwise", "default": "PyTorch default"}[name]
                below = "bottom" if name == "default" else "top"
                high = mean[-1] + 0.02 if name == "default" else values[:, -len(epoch) // 2 :].min() - 0.06
                text = f"{words}: {mean[-1]:.0%}"
                axis.text(epoch[-1], high, text, ha="right", va=below, color=colour, weight="bold")
            axis.set(title=f"{activation}, {DEPTH} layers", xlabel="epoch", ylim=(0, 1))
            axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes[0, 0].set_ylabel("test accuracy")
        figure.savefig(file, dpi=160)
        plt.close(figure)


def save(results: dict[str, dict[str, list[Curve]]], file: Path) -> None:
    with file.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["activation", "initialisation", "seed", "epoch", "loss", "accuracy"])
        for activation, curves in results.items():
            for name, runs in curves.items():
                for seed, run in enumerate(runs):
                    for epoch, row in enumerate(zip(run.loss, run.accuracy, strict=True), start=1):
                        table.writerow([activation, name, seed, epoch, *(f"{value:.6g}" for value in row)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tanh only, narrow, few epochs, one seed")
    parser.add_argument("--plain-targets", action="store_true", help="the advice alone, with one-hot targets")
    parser.add_argument("--out", type=Path, default=Path("out/deep_digits"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    width, rows, epochs, seeds, grid = 100, 1437, 60, 3, [0.003, 0.01, 0.03, 0.1, 0.3]
    if options.quick:
        width, rows, epochs, seeds, grid = 32, 60, 5, 1, [0.01, 0.1]
    digits, results = Digits.load(), {}
    for activation in ("tanh",) if options.quick else ("tanh", "gelu"):
        report = advise(activation, width, rows, digits)
        if options.plain_targets:
            curves = {"advice": [advised(report, digits, digits.one_hot, seed, epochs) for seed in range(seeds)]}
        else:
            curves = compare(report, digits, epochs, seeds, grid)
        results[activation] = curves
        for name, runs in curves.items():
            show(f"{activation}, {name}", runs)
    save(results, options.out / "curves.csv")
    draw(results, options.out / "deep_digits.png")
    print(f"\nwritten to {options.out} after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
