"""spectra of sample covariances and their finite-size corrections

The eigenvalues of XXᵀ/n_0 for P points in n_0 dimensions have density √((x₊ − x)(x − x₋))/(2πα x) with α = P/n_0, x_± =
(1 ± √α)². At finite size counts below x change by ¼ − (π − φ)/2π, the largest eigenvalue sits P^(−2/3) below the edge
(Tracy–Widom), and sums over eigenvalues fluctuate by O(1), not O(√P) (theory §10).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from widthwise.labs.base import Outcome, Outcomes
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import log_variance, mean_and_error
from widthwise.plots.style import COLOURS
from widthwise.special.random_spectra import marchenko_pastur

SIZES = (24, 48, 96)
SIZE = "points"
MATRICES = 600
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
        below, traces = np.sum(values <= x, axis=1), np.mean(values**2, axis=1)
        moments, variance = law.moments(4), math.log(_variance(P, n_0))
        edge, scale = law.largest(P)
        margin = scale * P ** (-2 / 3)  # the order that Tracy and Widom's law leaves out
        claims += [
            Claim.mean(f"eigenvalues below x, α = {ratio}", law.expected_count(x, P), below).rejects(
                {"no edges, uniform density": law.zero_mass * P + (1 - law.zero_mass) * P * PLACE}
            ),
            Claim(f"largest eigenvalue, α = {ratio}", edge, *mean_and_error(values[:, -1]), margin=margin).rejects(
                {"(1 + √α)²": high}
            ),
            Claim.mean(f"tr S²/P, α = {ratio}", moments[2] + 1.0 / n_0, traces).rejects({"all eigenvalues one": 1.0}),
            Claim(f"log variance of tr S², α = {ratio}", variance, *log_variance(P * traces)).rejects(
                {
                    "independent eigenvalues": math.log(P * (moments[4] - moments[2] ** 2)),
                    "twice": variance + math.log(2),
                }
            ),
        ]
    law = marchenko_pastur(0.5)
    middle = 0.5 * sum(law.edges)
    share = np.mean(_spectra(P, 2 * P, rng, uniform=True) <= middle, axis=1)
    uniform = Claim.mean("share below the middle, uniform data", law.cdf(middle), share).rejects({"a half": 0.5})
    return Outcome((*claims, uniform), curves)


def draw(figure: Any, outcomes: Outcomes) -> None:
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
        axis.set(xlabel="eigenvalue", title=f"α = {ratio}, P = {size}", ylim=(0.0, None))
    axes[0].set_ylabel("density")
    axes[0].legend(fontsize=9)
