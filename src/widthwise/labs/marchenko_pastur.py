"""Spectra of sample covariances: density, edges, and what a finite size changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from widthwise.labs.base import Claim, Lab, Outcome, mean_and_error
from widthwise.plots.style import COLOURS
from widthwise.special.random_spectra import marchenko_pastur

MATRICES, BLOCKS = 600, 20
RATIOS = (0.25, 0.5, 2.0)
#: A third of the eigenvalues' range, where the correction to the count does not vanish.
PLACE = 0.3


def _spectra(P: int, n_0: int, rng: np.random.Generator, uniform: bool) -> np.ndarray:
    """Eigenvalues of XXᵀ/n_0 (matrices, P) for Gaussian or uniform data."""
    shape = (MATRICES, P, n_0)
    X = rng.uniform(-math.sqrt(3.0), math.sqrt(3.0), shape) if uniform else rng.normal(size=shape)
    return np.linalg.eigvalsh(X @ X.swapaxes(1, 2) / n_0)


def _variance(P: int, n: int) -> float:
    """Var tr S² of Gaussian data at finite size; its limit is the square of `fluctuation`, 8α(1 + α)² + 4α²."""
    return 4 * P * (2 * n**2 + 5 * n * P + 2 * P**2 + 5 * n + 5 * P + 5) / n**3


def experiment(P: int, seed: int) -> Outcome:
    claims, curves = [], {}
    rng = np.random.default_rng(seed)
    for ratio in RATIOS:
        law, n_0 = marchenko_pastur(ratio), round(P / ratio)
        values = _spectra(P, n_0, rng, uniform=False)
        curves[f"α = {ratio}"] = values.ravel()
        low, high = law.edges
        x = low + PLACE * (high - low)
        largest = values[:, -1]
        traces = np.mean(values**2, axis=1)
        spread = [np.var(P * block, ddof=1) for block in np.array_split(traces, BLOCKS)]
        claims += [
            Claim(
                f"eigenvalues below x, α = {ratio}",
                float(law.expected_count(x, P)),
                *mean_and_error(np.sum(values <= x, axis=1)),
                wrong={"no edges, uniform density": law.zero_mass * P + (1 - law.zero_mass) * P * PLACE},
            ),
            Claim(
                f"largest eigenvalue, α = {ratio}",
                law.largest(P)[0],
                *mean_and_error(largest),
                wrong={"(1 + √α)²": high},
            ),
            Claim(
                f"tr S²/P, α = {ratio}",
                float(law.moments(2)[2]) + 1.0 / n_0,
                *mean_and_error(traces),
                wrong={"all eigenvalues one": 1.0},
            ),
            Claim(
                f"variance of tr S², α = {ratio}",
                _variance(P, n_0),
                *mean_and_error(spread),
                wrong={"independent eigenvalues": P * float(law.moments(4)[4] - law.moments(2)[2] ** 2)},
            ),
        ]
    law = marchenko_pastur(0.5)
    low, high = law.edges
    values = _spectra(P, 2 * P, rng, uniform=True)
    share = mean_and_error(np.mean(values <= 0.5 * (low + high), axis=1))
    claims.append(
        Claim("share below the middle, uniform data", float(law.cdf(0.5 * (low + high))), *share, wrong={"a half": 0.5})
    )
    return Outcome(tuple(claims), curves)


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    axes = figure.subplots(1, len(RATIOS))
    size = list(outcomes)[-1]
    for axis, ratio, colour in zip(axes, RATIOS, COLOURS, strict=False):
        law = marchenko_pastur(ratio)
        low, high = law.edges
        width = high - low
        bins = np.linspace(max(1e-9, low - 0.1 * width), high + 0.1 * width, 25)
        values = np.concatenate([o.curves[f"α = {ratio}"] for o in outcomes[size]]).reshape(-1, size)
        counts = np.array([np.histogram(one, bins)[0] for one in values]) / size / np.diff(bins)
        expected = np.diff(law.expected_count(bins, size)) / size / np.diff(bins)
        low_end, high_end = np.maximum(expected - counts.std(axis=0), 0.0), expected + counts.std(axis=0)
        axis.stairs(high_end, bins, baseline=low_end, fill=True, color=colour, alpha=0.2, label="one spectrum, ± s.d.")
        x = np.linspace(bins[0], bins[-1], 400)
        axis.plot(x, law.density(x), color=colour, label="limit")
        axis.plot(0.5 * (bins[1:] + bins[:-1]), counts.mean(axis=0), "o", markersize=3, color="black", label="measured")
        axis.set(xlabel="eigenvalue", title=f"α = {ratio}, P = {size}")
        axis.set_ylim(0.0)
    axes[0].set_ylabel("density")
    axes[0].legend(fontsize=7)


LAB = Lab(
    name="marchenko-pastur",
    title="spectra of sample covariances and their finite-size corrections",
    statement=(
        "The eigenvalues of XXᵀ/n_0 for P points in n_0 dimensions have density √((x₊ − x)(x − x₋))/(2πα x) with α "
        "= P/n_0, x_± = (1 ± √α)². At finite size counts below x change by ¼ − (π − φ)/2π, the largest eigenvalue "
        "sits P^(−2/3) below the edge (Tracy–Widom), and sums over eigenvalues fluctuate by O(1), not O(√P) "
        "(theory §10)."
    ),
    experiment=experiment,
    sizes=(24, 48, 96),
    quick_sizes=(24, 48),
    draw=draw,
)
