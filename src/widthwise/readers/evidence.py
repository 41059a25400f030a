"""Hyperparameters of a network's kernel that make the data most probable at infinite width (theory §9).

The last layer is linear, so a factor s on its C_b and C_W is a factor on the kernel; with noise sρ the best s is known
in closed form, s = tr yᵀ(K + ρ)⁻¹y / (points · outputs), and ρ is found along a line for each spectrum of K. What is
left, C_b and C_W of the hidden layers, is searched by the simplex method, and the depth by trying each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, optimize

from widthwise.network import MLP
from widthwise.network.mlp import PER_LAYER
from widthwise.readers.kernel_solvers import Kernel

#: Trials of the simplex for each depth.
TRIALS = 40
_RATIOS = (math.log(1e-6), math.log(1e3))
#: Bounds of log C_b and log C_W.
_BOUNDS = ((math.log(1e-4), math.log(10.0)), (math.log(0.05), math.log(20.0)))


@dataclass(frozen=True)
class EvidenceChoice:
    """A network, the noise variance that goes with it, and the log evidence of the inputs it was chosen on."""

    net: MLP
    noise: float
    log_evidence: float


def choose_by_evidence(nets: Sequence[MLP], X: np.ndarray, y: np.ndarray, kernel: str = "K") -> EvidenceChoice:
    """The most probable choice of depth, C_b, C_W, output scale and noise, starting from each of some networks.

    y is (inputs, outputs). `kernel` is "K", or "Theta" for the Gaussian process that kernel regression with Θ is.

    >>> net, X = MLP([1, 8, 1], "erf", C_b=0.1, C_W=2.0), np.linspace(-2, 2, 12)[:, None]
    >>> choice = choose_by_evidence([net], X, np.sin(2 * X))
    >>> choice.noise < 1e-3, choice.log_evidence > 0
    (True, True)
    """
    choices = []
    for net in nets:
        start = [math.log(max(net.C_b[0], 1e-3)), math.log(net.C_W[0])]
        corners = np.array([start, [start[0] + 1.0, start[1]], [start[0], start[1] + 0.5]])
        simplex = np.clip(corners, *np.array(_BOUNDS).T)
        found = optimize.minimize(
            lambda p, net=net: -_best_scale(_changed(net, p), X, y, kernel).log_evidence,
            start,
            method="Nelder-Mead",
            bounds=_BOUNDS,
            options={"maxfev": TRIALS, "initial_simplex": simplex, "xatol": 0.05, "fatol": 0.05},
        )
        choices.append(_best_scale(_changed(net, found.x), X, y, kernel))
    return max(choices, key=lambda choice: choice.log_evidence)


def _changed(net: MLP, logs: Sequence[float]) -> MLP:
    """C_b and C_W of all layers from their logarithms; λ as in the NTK parameterisation."""
    C_b, C_W = (math.exp(value) for value in logs)
    return net.replace(C_b=C_b, C_W=C_W, lambda_b=C_b, lambda_W=C_W)


def _best_scale(net: MLP, X: np.ndarray, y: np.ndarray, kernel: str) -> EvidenceChoice:
    values, vectors = linalg.eigh(Kernel(net, kernel)(X))
    values, weights = np.maximum(values, 0.0), np.sum((vectors.T @ y) ** 2, axis=1)
    points, outputs = y.shape
    count = points * outputs

    def scale(ratio: float) -> float:
        return float(np.sum(weights / (values + ratio))) / count

    def evidence(log_ratio: float) -> float:
        ratio = math.exp(log_ratio) * float(values.mean())
        terms = outputs * float(np.sum(np.log(values + ratio)))
        return -0.5 * (count * (math.log(2 * math.pi * max(scale(ratio), 1e-300)) + 1.0) + terms)

    found: Any = optimize.minimize_scalar(lambda t: -evidence(t), bounds=_RATIOS, method="bounded")
    ratio = math.exp(float(found.x)) * float(values.mean())
    best = max(scale(ratio), 1e-12)
    scaled = {name: [*getattr(net, name)[:-1], best * getattr(net, name)[-1]] for name in PER_LAYER}
    return EvidenceChoice(net.replace(**scaled), best * ratio, evidence(float(found.x)))
