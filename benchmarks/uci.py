"""Kernel machines on small tables, by the protocol of Arora et al. (arXiv 1910.01663, section 4).

    python benchmarks/uci.py FOLDER                 # the UCI tables as Fernández-Delgado et al. (2014) prepared them
    python benchmarks/uci.py --shipped              # tables that scikit-learn ships, with splits drawn by --seed

A table of the folder is NAME/NAME.txt with its sizes and the name of its data, that data, `conxuntos.dat` with the rows
of one split for training and validation, and `conxuntos_kfold.dat` with those of four folds. Tables of more than
`--most` rows, or with test rows of their own, are left out, which leaves the 90 of the paper.

Kernels are Θ of relu networks of 1 to 5 layers of weights without biases, with 0, 1, … of the first ones fixed, and K
of the same networks; a support vector machine takes them, with a cost of 10⁻² to 10⁴. Kernel and cost are those with
the best accuracy on the split, the first one among equals; the accuracy that is reported is the mean over the folds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.svm import SVC

import widthwise as ww

COSTS = tuple(10.0**power for power in range(-2, 5))
SHIPPED = ("iris", "wine", "breast_cancer", "digits")

Split = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Table:
    """Standardised features, classes from 0, rows for training and validation, and rows of the four folds."""

    name: str
    X: np.ndarray
    y: np.ndarray
    split: Split
    folds: list[Split]


def tables_of(folder: Path, most: int) -> Iterator[Table]:
    """The tables of a folder of up to so many rows, by name."""
    for about in sorted(folder.glob("*/*.txt")):
        if about.stem != about.parent.name:
            continue
        told = dict(line.split() for line in about.read_text().splitlines() if len(line.split()) == 2)
        tests = int(told.get("n_patrons2=", 0))
        if tests or int(told["n_patrons1="]) > most:
            continue
        rows = np.array([line.split() for line in (about.parent / told["fich1="]).read_text().splitlines()[1:]], float)
        split, folds = (_rows_of(about.parent / name) for name in ("conxuntos.dat", "conxuntos_kfold.dat"))
        yield Table(about.stem, rows[:, 1:-1], rows[:, -1].astype(int), split[0], folds)


def _rows_of(path: Path) -> list[Split]:
    """Pairs of lines of row numbers."""
    lines = [np.array(line.split(), int) for line in path.read_text().splitlines() if line.strip()]
    return list(zip(lines[::2], lines[1::2], strict=True))


def shipped(name: str, seed: int) -> Table:
    """A table of scikit-learn: columns that vary, standardised; half of the rows to choose by, and four folds."""
    data: Any = getattr(datasets, f"load_{name}")()
    X = data.data[:, data.data.std(axis=0) > 0.0]
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), data.target
    halves: Any = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=seed)
    folds = StratifiedKFold(4, shuffle=True, random_state=seed).split(X, y)
    return Table(name, X, y, (halves[0], halves[1]), list(folds))


def kernels(X: np.ndarray, deepest: int) -> dict[str, dict[tuple[int, int], np.ndarray]]:
    """Kernels "ntk" by layers of weights and how many of them are fixed, and "nngp" by layers, in order of size."""
    found: dict[str, dict[tuple[int, int], np.ndarray]] = {"ntk": {}, "nngp": {}}
    for fixed in range(deepest):
        rates = [0.0] * fixed + [1.0] * (deepest - fixed)
        net = ww.MLP([X.shape[1], *[1] * deepest], "relu", C_b=0.0, C_W=1.0, lambda_b=0.0, lambda_W=rates)
        # the paper's kernels begin with x·x', not with its mean over features
        th = ww.theory(net, X * np.sqrt(X.shape[1]))
        for layers in range(fixed + 1, deepest + 1):
            found["ntk"][layers, fixed] = th["Theta"].values[layers - 1]
            if not fixed:
                found["nngp"][layers, 0] = th["K"].values[layers - 1]
    return {kind: dict(sorted(some.items())) for kind, some in found.items()}


def accuracy(kernel: np.ndarray, y: np.ndarray, split: Split, cost: float) -> float:
    """Of a support vector machine trained on the first rows of a split, on the second ones."""
    train, test = split
    machine = SVC(kernel="precomputed", C=cost, cache_size=1000).fit(kernel[np.ix_(train, train)], y[train])
    return float(np.mean(machine.predict(kernel[np.ix_(test, train)]) == y[test]))


@dataclass(frozen=True)
class Result:
    """What was chosen, its accuracy on the split, and the mean over folds."""

    layers: int
    fixed: int
    cost: float
    validation: float
    test: float


def chosen(table: Table, some: dict[tuple[int, int], np.ndarray]) -> Result:
    """The best of some kernels and costs on the split, on the folds."""
    tried = {(at, cost): accuracy(kernel, table.y, table.split, cost) for at, kernel in some.items() for cost in COSTS}
    (at, cost), validation = max(tried.items(), key=lambda entry: entry[1])
    test = float(np.mean([accuracy(some[at], table.y, fold, cost) for fold in table.folds]))
    return Result(*at, cost, validation, test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--shipped", action="store_true", help="tables that scikit-learn ships")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=5000, help="rows of a table")
    parser.add_argument("--deepest", type=int, default=5, help="layers of weights")
    asked = parser.parse_args()
    if (asked.folder is None) is not asked.shipped:
        parser.error("give a folder of tables, or --shipped")
    folder = Path(asked.folder or ".")
    if not folder.is_dir():
        parser.error(f"FOLDER: got {folder}, which is no folder; expected one with a folder for each table")
    found = (shipped(name, asked.seed) for name in SHIPPED) if asked.shipped else tables_of(folder, asked.most)
    print("table                     rows columns classes  kernel layers fixed     cost validation    test  seconds")
    means: dict[str, list[float]] = {"ntk": [], "nngp": []}
    for table in found:
        for kind, some in kernels(table.X, asked.deepest).items():
            start = time.process_time()
            best = chosen(table, some)
            means[kind].append(best.test)
            print(f"{table.name:25s} {len(table.y):4d} {table.X.shape[1]:7d} {len(set(table.y)):7d} {kind:>7s} "
                  f"{best.layers:6d} {best.fixed:5d} {best.cost:8g} {best.validation:10.4f} {best.test:7.4f} "
                  f"{time.process_time() - start:8.1f}", flush=True)  # fmt: skip
    if not means["ntk"]:
        parser.error(f"FOLDER: no table NAME/NAME.txt of up to {asked.most} rows in {folder}")
    for kind, values in means.items():
        print(f"mean test accuracy of {kind} on {len(values)} tables: {100 * np.mean(values):.2f}%")


if __name__ == "__main__":
    main()
