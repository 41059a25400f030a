"""Accuracy of kernel regression on scikit-learn's digits: dense, convolution + Flatten, convolution + pooling.

    .venv/bin/python benchmarks/digits_kernels.py --figure docs/figures/digits_kernels.png

Few training images, the rest of the images for testing are drawn once; means over splits. One ridge for all.
"""

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import widthwise as ww

RIDGE = 1e-3


def networks() -> dict[str, ww.Network]:
    """Three layers of relu each, at C_W = 2."""
    w = {"C_W": 2.0, "C_b": 0.01, "lambda_W": 2.0, "lambda_b": 0.01}
    conv = [
        ww.Conv(1, 64, (3, 3), **w),
        "relu",
        ww.Conv(64, 64, (3, 3), **w),
        "relu",
        ww.Conv(64, 64, (3, 3), **w),
        "relu",
    ]
    dense = [
        ww.Dense(64, 64, **w),
        "relu",
        ww.Dense(64, 64, **w),
        "relu",
        ww.Dense(64, 64, **w),
        "relu",
        ww.Dense(64, 10),
    ]
    return {
        "dense": ww.Network([ww.Flatten(), *dense]),
        "convolution + Flatten": ww.Network([*conv, ww.Flatten(), ww.Dense(64 * 64, 10)]),
        "convolution + GlobalAvgPool": ww.Network([*conv, ww.GlobalAvgPool(), ww.Dense(64, 10)]),
    }


def accuracies(most: int, tests: int, splits: int, seed: int = 0) -> dict[str, dict[int, list[float]]]:
    """Network → training images → accuracy of each split, with Theta."""
    data: Any = load_digits()
    images, targets = data.images[..., None] / 16.0 - 0.3, np.eye(10)[data.target] - 0.1
    found: dict[str, dict[int, list[float]]] = {name: {} for name in networks()}
    for split in range(splits):
        order = np.random.default_rng([seed, split]).permutation(len(images))
        train, test = order[:most], order[most : most + tests]
        for name, net in networks().items():
            square = ww.theory(net, images[train], tensors=["Theta"], layers="last")["Theta"].values[0]
            cross = ww.theory(net, images[test], images[train], tensors=["Theta"], layers="last")["Theta"].values[0]
            for count in (most // 8, most // 4, most // 2, most):
                own = square[:count, :count]
                noisy = own + RIDGE * np.trace(own) / count * np.eye(count)
                guess = cross[:, :count] @ np.linalg.solve(noisy, targets[train[:count]])
                right = float(np.mean(guess.argmax(axis=1) == data.target[test]))
                found[name].setdefault(count, []).append(right)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=160)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--figure")
    chosen = parser.parse_args()
    found = accuracies(chosen.train, chosen.tests, chosen.splits)
    for name, by_count in found.items():
        cells = "  ".join(f"{count}: {np.mean(v):.3f} ({min(v):.3f} to {max(v):.3f})" for count, v in by_count.items())
        print(f"{name:28s} {cells}")
    if chosen.figure:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
        for name, by_count in found.items():
            axes.plot(list(by_count), [np.mean(v) for v in by_count.values()], "o-", label=name)
            axes.fill_between(
                list(by_count), [min(v) for v in by_count.values()], [max(v) for v in by_count.values()], alpha=0.15
            )
        axes.set(
            xscale="log", xlabel="training images", ylabel="test accuracy", title="Digits, kernel regression with Θ"
        )
        axes.legend()
        figure.savefig(chosen.figure, dpi=130)


if __name__ == "__main__":
    main()
