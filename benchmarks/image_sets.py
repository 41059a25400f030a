"""Accuracy of kernel regression on small images: dense, convolution + Flatten, convolution + pooling.

    .venv/bin/python benchmarks/image_sets.py --figure docs/figures/image_sets.png

Images of 8 × 8 pixels that scikit-learn ships: its digits, and patches of its two photographs, told apart by which one
they are from. Means over random splits into training and test images. One ridge for all.
"""

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_sample_images

import widthwise as ww

RIDGE = 1e-3
#: Least standard deviation of the brightness, from 0 to 1, of a patch that shows anything.
LEAST_CONTRAST = 0.02


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (inputs, 8, 8, 1) and their classes."""
    data: Any = load_digits()
    return data.images[..., None] / 16.0 - 0.3, data.target


def patches() -> tuple[np.ndarray, np.ndarray]:
    """Pieces of 8 × 8 pixels that do not overlap, of a photo of a temple (class 0) and of one of a flower (class 1).

    Grey, each with mean 0 and variance 1: neither colour nor brightness tells them apart, only texture.
    """
    photos: Any = load_sample_images().images
    found = []
    for photo in photos:
        grey = photo[: photo.shape[0] // 8 * 8, : photo.shape[1] // 8 * 8].mean(axis=2) / 255.0
        pieces = grey.reshape(grey.shape[0] // 8, 8, -1, 8).swapaxes(1, 2).reshape(-1, 64)
        pieces = pieces[pieces.std(axis=1) > LEAST_CONTRAST]
        pieces = (pieces - pieces.mean(axis=1, keepdims=True)) / pieces.std(axis=1, keepdims=True)
        found.append(pieces.reshape(-1, 8, 8, 1))
    least = min(map(len, found))
    rng = np.random.default_rng(0)
    chosen = [pieces[rng.permutation(len(pieces))[:least]] for pieces in found]
    return np.concatenate(chosen), np.repeat([0, 1], least)


SETS = {"digits": digits, "patches of two photographs": patches}


def networks(outputs: int) -> dict[str, ww.Network]:
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
        ww.Dense(64, outputs),
    ]
    return {
        "dense": ww.Network([ww.Flatten(), *dense]),
        "convolution + Flatten": ww.Network([*conv, ww.Flatten(), ww.Dense(64 * 64, outputs)]),
        "convolution + GlobalAvgPool": ww.Network([*conv, ww.GlobalAvgPool(), ww.Dense(64, outputs)]),
    }


def accuracies(
    images: np.ndarray, classes: np.ndarray, most: int, tests: int, splits: int, seed: int = 0
) -> dict[str, dict[int, list[float]]]:
    """Network → training images → accuracy of each split, with Theta."""
    count_of_classes = classes.max() + 1
    targets = np.eye(count_of_classes)[classes] - 1.0 / count_of_classes
    nets = networks(count_of_classes)
    found: dict[str, dict[int, list[float]]] = {name: {} for name in nets}
    for split in range(splits):
        order = np.random.default_rng([seed, split]).permutation(len(images))
        train, test = order[:most], order[most : most + tests]
        for name, net in nets.items():
            square = ww.theory(net, images[train], tensors=["Theta"], layers="last")["Theta"].values[0]
            cross = ww.theory(net, images[test], images[train], tensors=["Theta"], layers="last")["Theta"].values[0]
            for count in (most // 8, most // 4, most // 2, most):
                own = square[:count, :count]
                noisy = own + RIDGE * np.trace(own) / count * np.eye(count)
                guess = cross[:, :count] @ np.linalg.solve(noisy, targets[train[:count]])
                found[name].setdefault(count, []).append(float(np.mean(guess.argmax(axis=1) == classes[test])))
    return found


def drawn(found: dict[str, dict[str, dict[int, list[float]]]], path: str) -> None:
    """Some images of every set, and below them accuracy against the number of training images."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(9, 4.6), layout="constrained")
    parts: Any = figure.subfigures(1, len(found))
    for part, (name, by_network) in zip(parts, found.items(), strict=True):
        above, below = part.subfigures(2, 1, height_ratios=[1, 2.4])
        images, classes = SETS[name]()
        above.suptitle(name)
        kinds = classes.max() + 1
        some = np.concatenate([np.flatnonzero(classes == kind)[: 20 // kinds] for kind in range(kinds)])
        for axes, one in zip(above.subplots(2, 10).ravel(), some, strict=True):
            axes.imshow(images[one, ..., 0], cmap="gray")
            axes.set_axis_off()
        axes = below.subplots()
        for network, by_count in by_network.items():
            counts, values = list(by_count), list(by_count.values())
            axes.plot(counts, [np.mean(v) for v in values], "o-", label=network)
            axes.fill_between(counts, [min(v) for v in values], [max(v) for v in values], alpha=0.15)
        axes.set_xscale("log", base=2)
        axes.set(xticks=counts, xticklabels=map(str, counts), xlabel="training images", ylabel="test accuracy")
        axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=160)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--figure")
    chosen = parser.parse_args()
    found = {}
    for data, load in SETS.items():
        found[data] = accuracies(*load(), chosen.train, chosen.tests, chosen.splits)
        print(data)
        for name, by_count in found[data].items():
            cells = (f"{count}: {np.mean(v):.3f} ({min(v):.3f} to {max(v):.3f})" for count, v in by_count.items())
            print(f"  {name:28s} {'  '.join(cells)}", flush=True)
    if chosen.figure:
        drawn(found, chosen.figure)


if __name__ == "__main__":
    main()
