"""Training at infinite width: linear dynamics under a constant Θ (theory §8, free part).

    z_x(t) = z_x − Θ_xA G (z_A − y),    G = Θ_AA⁻¹ (1 − e^{−Θ_AA t})  or  Θ_AA⁻¹ (1 − (1 − ηΘ_AA)^steps)
With z ~ N(0, K) at initialisation the trained outputs are Gaussian, each output of the network on its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Kernels(NamedTuple):
    """K and Θ on training inputs A and inputs x to predict: the blocks AA, xA and xx."""

    K_AA: np.ndarray
    K_xA: np.ndarray
    K_xx: np.ndarray
    Theta_AA: np.ndarray
    Theta_xA: np.ndarray


class TrainedMoments(NamedTuple):
    """Mean (inputs, outputs) and covariance (inputs, inputs) over initialisations."""

    mean: np.ndarray
    covariance: np.ndarray


def trained(kernels: Kernels, y: np.ndarray, response: np.ndarray) -> tuple[TrainedMoments, TrainedMoments]:
    """TrainedMoments outputs at the inputs x and at the training inputs themselves."""
    K_AA, K_xA, K_xx, Theta_AA, Theta_xA = kernels
    at_test = _project(K_AA, K_xA, K_xx, Theta_xA @ response, y)
    at_train = _project(K_AA, K_AA, K_AA, Theta_AA @ response, y)
    return at_test, at_train


def _project(K_AA, K_xA, K_xx, transfer: np.ndarray, y: np.ndarray) -> TrainedMoments:
    """Mean T y and covariance of z_x − T z_A, with T = Θ_xA G."""
    mixed = transfer @ K_xA.T
    return TrainedMoments(transfer @ y, K_xx - mixed - mixed.T + transfer @ K_AA @ transfer.T)
