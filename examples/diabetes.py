"""Ensembles trained on the diabetes data: predicted before training, then measured, in one figure with pulls.

    python examples/diabetes.py            24 patients to learn from, 6 to predict, widths 64 and 256
    python examples/diabetes.py --quick    fewer of everything

Writes out/diabetes/diabetes.png and out/diabetes/pulls.csv below the current directory.
"""

import argparse
import csv
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import widthwise as ww
from widthwise.plots.style import COLOURS, look

OUT = Path("out") / "diabetes"
#: training patients, test patients, widths, networks of each width
FULL, QUICK = (24, 6, (64, 256), 512), (8, 2, (32,), 64)


def patients(train, test, seed=0):
    """Standardised data of some patients, drawn without replacement: X, y to learn, X, y to predict."""
    data = load_diabetes(return_X_y=True)
    X, y = ((array - np.mean(array, axis=0)) / np.std(array, axis=0) for array in data)
    chosen = np.random.default_rng(seed).permutation(len(X))[: train + test]
    return X[chosen[:train]], y[chosen[:train]], X[chosen[train:]], y[chosen[train:]]


def network(width, features=10):
    """Two hidden layers of GELU at its critical initialisation."""
    point = ww.critical("gelu")
    return ww.MLP([features, width, width, 1], "gelu", C_b=point.C_b, C_W=point.C_W, lambda_b=0.1)


def diagonal(covariance):
    return np.einsum("ixix->ix", covariance.values)[0]


def study(train, test, widths, networks):
    """Per width: moments at infinite width, to order 1/n, and measured with standard errors; each (tests,)."""
    X, y, X_test, y_test = patients(train, test)
    predicted = ww.predict(network(widths[-1]), X, y, X_test, order=1)
    rows = {}
    for width in widths:
        measured = ww.train(network(width), X, y, X_test, networks=networks, seed=width)
        rows[width] = {
            # with equal hidden layers the coefficients of 1/n do not depend on n
            "mean": (predicted["mean0"].values[0], (predicted["mean0"] + predicted["mean1"] / width).values[0]),
            "variance": (diagonal(predicted["cov0"]), diagonal(predicted["cov0"] + predicted["cov1"] / width)),
            "measured mean": (measured["mean"].values[0], measured["mean_se"].values[0]),
            "measured variance": (diagonal(measured["cov"]), diagonal(measured["cov_se"])),
        }
    return rows, y_test


def pulls(row, name):
    """(measured − predicted)/standard error at infinite width and to order 1/n, each (tests,)."""
    value, error = row[f"measured {name}"]
    return [(value - expected) / error for expected in row[name]]


def report(rows):
    """A table with one row for each width and quantity, printed and written."""
    with open(OUT / "pulls.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["width", "quantity", "theory", "rms pull", "worst pull"])
        for width, row in rows.items():
            for name in ("mean", "variance"):
                for order, pull in zip(("infinite width", "to order 1/n"), pulls(row, name), strict=True):
                    cells = f"{np.sqrt(np.mean(pull**2)):.2f}", f"{np.abs(pull).max():.2f}"
                    writer.writerow([width, name, order, *cells])
                    print(f"width {width:4}  {name:8}  {order:14}  rms pull {cells[0]:>7}  worst pull {cells[1]:>7}")


def draw(rows, y_test):
    """Predicted and measured mean ± spread above, pulls of mean and variance below."""
    at = np.arange(1, len(y_test) + 1)
    with look():
        figure, axes = plt.subplots(2, len(rows), figsize=(7.2, 5.0), squeeze=False, sharex=True, sharey="row",
                                    height_ratios=(2, 1))  # fmt: skip
        for (width, row), (above, below) in zip(rows.items(), axes.T, strict=True):
            names = "infinite width", "to order 1/n", "trained"
            kinds = zip(
                (*row["mean"], row["measured mean"][0]), (*row["variance"], row["measured variance"][0]), strict=True
            )
            for k, (mean, variance) in enumerate(kinds):
                colour = (COLOURS[3], COLOURS[1], COLOURS[0])[k]
                where = at + 0.2 * (k - 1)
                above.errorbar(where, mean, np.sqrt(variance), fmt="Dso"[k], ms=4, color=colour,
                               capsize=2, label=f"{names[k]}: mean ± spread")  # fmt: skip
            above.plot(at, y_test, "_", color="k", ms=16, label="the patient")
            above.set_title(f"width {width}")
            for k, name in enumerate(("mean", "variance")):
                for order, pull in enumerate(pulls(row, name)):
                    colour, marker = (COLOURS[3], COLOURS[1])[order], "ox"[k]
                    label = f"{name}, {names[order]}"
                    below.plot(at + 0.2 * (order - 0.5), pull, marker, color=colour, ms=5, label=label)
            below.axhspan(-2, 2, color="0.93", zorder=0)
            below.set_xlabel("test patient")
            below.set_xticks(at)
        axes[0][0].set_ylabel("progression, standardised")
        axes[1][0].set_ylabel("pull")
        axes[0][0].legend(fontsize=6)
        figure.legend(*axes[1][0].get_legend_handles_labels(), fontsize=7, ncols=4, loc="outside lower center")
        figure.savefig(OUT / "diabetes.png", dpi=150)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer patients, narrower and fewer networks")
    rows, y_test = study(*(QUICK if parser.parse_args().quick else FULL))
    OUT.mkdir(parents=True, exist_ok=True)
    report(rows)
    draw(rows, y_test)
    print(f"written: {OUT / 'pulls.csv'}, {OUT / 'diabetes.png'}")


if __name__ == "__main__":
    main()
