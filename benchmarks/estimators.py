"""Cross-validated scores and times on scikit-learn's diabetes and digits data, beside its own estimators.

    python benchmarks/estimators.py [--quick]

Five folds in a fixed shuffled order, features standardised (digits: divided by 16) within each fold. R² on diabetes,
accuracy on digits. Times are of one fold, fit and predict together, on one process; medians of the five. `--quick`
takes two folds and a third of the digits. Hyperparameters are the estimators' own choice: evidence for widthwise,
marginal likelihood for scikit-learn's regression (its classifier keeps one length scale: ten processes of 1,437 inputs
are too slow to choose among), an inner grid for kernel ridge, defaults for the others with early stopping for networks.
The first fold of each of ours includes compilation.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_digits
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

import widthwise as ww

ESTIMATORS = dict[str, Callable[[], Any]]


def regressors() -> ESTIMATORS:
    smooth = ConstantKernel(1.0) * RBF(3.0, (0.1, 100.0)) + WhiteKernel(0.5)
    return {
        "NNGPRegressor, evidence": lambda: ww.NNGPRegressor(choose="evidence", activation="erf"),
        "NTKRegressor, evidence": lambda: ww.NTKRegressor(choose="evidence", activation="erf"),
        "FiniteWidthRegressor, order 0": lambda: ww.FiniteWidthRegressor(choose="evidence", activation="erf", order=0),
        "FiniteWidthRegressor, order 1": lambda: ww.FiniteWidthRegressor(choose="evidence", activation="erf"),
        "GaussianProcessRegressor, RBF": lambda: GaussianProcessRegressor(smooth, normalize_y=True),
        "KernelRidge, RBF, grid": _kernel_ridge,
        "MLPRegressor (100)": lambda: MLPRegressor(early_stopping=True, max_iter=2000, random_state=0),
    }


def _kernel_ridge() -> Any:
    """Kernel ridge has no intercept, so the targets are standardised."""
    grid = {"regressor__alpha": [0.01, 0.1, 1.0, 10.0], "regressor__gamma": [0.001, 0.01, 0.1]}
    return GridSearchCV(TransformedTargetRegressor(KernelRidge(kernel="rbf"), transformer=StandardScaler()), grid)


def classifiers() -> ESTIMATORS:
    return {
        "NTKClassifier": lambda: ww.NTKClassifier(noise=0.01, C_b=0.01),
        "NTKClassifier, evidence": lambda: ww.NTKClassifier(choose="evidence", evidence_points=500),
        "GaussianProcessClassifier, RBF(1.5)": lambda: GaussianProcessClassifier(RBF(1.5), optimizer=cast(str, None)),
        "SVC, RBF": lambda: SVC(),
        "MLPClassifier (100)": lambda: MLPClassifier(early_stopping=True, max_iter=500, random_state=0),
    }


def table(title: str, estimators: ESTIMATORS, scale: Callable[[], Any], X, y, folds: Any) -> None:
    print(f"\n{title}: {len(X)} inputs, {X.shape[1]} features, {folds.get_n_splits()} folds\n")
    print("| estimator | score | ± over folds | seconds a fold |")
    print("|---|---|---|---|")
    for name, make in estimators.items():
        scores, seconds = [], []
        for train, test in folds.split(X, y):
            model = make_pipeline(scale(), make())
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scores.append(model.fit(X[train], y[train]).score(X[test], y[test]))
            seconds.append(time.perf_counter() - start)
        spread = np.std(scores, ddof=1) / np.sqrt(len(scores))
        print(f"| {name} | {np.mean(scores):.4f} | {spread:.4f} | {np.median(seconds):.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two folds, a third of the digits")
    quick = parser.parse_args().quick
    folds = 2 if quick else 5
    X, y = load_diabetes(return_X_y=True)
    table("diabetes, R²", regressors(), StandardScaler, X, y, KFold(folds, shuffle=True, random_state=0))
    X, y = load_digits(return_X_y=True)
    X, y = (X[:600], y[:600]) if quick else (X, y)
    split = StratifiedKFold(folds, shuffle=True, random_state=0)
    table("digits, accuracy", classifiers(), lambda: FunctionTransformer(lambda X: X / 16.0), X, y, split)


if __name__ == "__main__":
    main()
