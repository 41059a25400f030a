"""Layers of a given network: kernels and χ on the way, what each adds to Θ, and learning rates (theory §7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from widthwise.activations import ActivationLike
from widthwise.criticality.critical import K_ZERO, critical
from widthwise.criticality.kernel_fixed_points import non_negative
from widthwise.criticality.moments import profile
from widthwise.errors import InvalidInput, NotCritical
from widthwise.flow.kernels.kernel_flow import check_differentiable, kernel_flow
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.memory import require_layers, require_memory
from widthwise.network import MLP, Network, check_inputs, check_integer, plain


@dataclass(frozen=True)
class LayerFlow:
    """Per layer and input: kernel K (L, inputs), what its weights see (x·x/n_0, then ⟨σ²⟩), and log χ_⊥ of each step.

    `log_chi_perp[l]` belongs to the step from layer l + 1 to l + 2 (0-based rows, L − 1).
    """

    K: np.ndarray
    seen: np.ndarray
    log_chi_perp: np.ndarray

    @property
    def log_later_perp(self) -> np.ndarray:
        """log Π χ_⊥ over the layers after each, (L, inputs): how the gradient's square shrinks on its way back."""
        reverse = np.cumsum(self.log_chi_perp[::-1], axis=0)[::-1]
        return np.concatenate([reverse, np.zeros((1, self.K.shape[1]))])


def checked_rows(net: MLP, X: object) -> np.ndarray:
    """X as (inputs, features), or one input with x·x/n_0 = 1; rows of zeros are refused."""
    if X is None:
        require_memory(8 * net.widths[0], f"an input of {net.widths[0]} features", "Take narrower inputs.")
        return np.ones((1, net.widths[0]))
    rows = check_inputs(X, net.widths[0])
    dead = np.flatnonzero(~rows.any(axis=1))
    if len(dead):
        raise InvalidInput(
            "X",
            f"{len(dead)} rows of zeros, the first at index {dead[0]}",
            "inputs that are not zero",
            "Drop those rows, or append a constant feature.",
        )
    return rows


def layer_flow(net: MLP, X: np.ndarray) -> LayerFlow:
    """The kernels of theory §2 of each row of X with itself, and χ_⊥ = C_W⟨σ'²⟩ on the way.

    >>> flow = layer_flow(MLP([2, 8, 8, 1], "relu", C_W=2.0), np.ones((1, 2)))
    >>> flow.K.ravel().round(12).tolist(), np.exp(flow.log_chi_perp).ravel().round(12).tolist()
    ([2.0, 2.0, 2.0], [1.0, 1.0])
    """
    check_differentiable(net)
    seen = [np.einsum("ai,ai->a", X, X) / net.widths[0]]
    K, perp = [dense_kernel(net.C_b[0], net.C_W[0], seen[0])], []
    for sigma, layer in zip(net.activations, net.dense[1:], strict=True):
        m = profile(sigma).moments(K[-1])
        seen.append(m.square)
        K.append(dense_kernel(layer.C_b, layer.C_W, m.square))
        with np.errstate(divide="ignore", invalid="ignore"):
            perp.append(np.log(layer.C_W * m.slope))
    return LayerFlow(*(np.reshape(rows, (-1, len(X))) for rows in (K, seen, perp)))


@dataclass(frozen=True)
class Shares:
    """What biases and weights of each layer add to Θ at the output, (L,) each, averaged over inputs: they sum to Θ."""

    biases: np.ndarray
    weights: np.ndarray

    @property
    def layers(self) -> np.ndarray:
        return self.biases + self.weights

    @property
    def total(self) -> float:
        return float(self.layers.sum())


def layer_shares(net: MLP, X: Any = None) -> Shares:
    """Contributions to Θ_aa at the output: λ_bˡ Π χ_⊥ and λ_Wˡ ⟨σ²⟩ Π χ_⊥ over later layers (theory §7).

    X (inputs, features); by default one input with x·x/n_0 = 1. Averages over the inputs.

    >>> shares = layer_shares(MLP([1, 9, 9, 1], "linear", lambda_b=0.0))
    >>> shares.weights.tolist(), shares.total
    ([1.0, 1.0, 1.0], 3.0)
    """
    net = plain(net, "criticality")
    return _shares_at(net, *_per_rate(net, checked_rows(net, X)))


def _per_rate(net: MLP, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What biases and weights of each layer add to Θ for λ = 1, (L,) each."""
    flow = layer_flow(net, X)
    later = np.exp(flow.log_later_perp)
    return later.mean(axis=1), (flow.seen * later).mean(axis=1)


def _shares_at(net: MLP, biases: np.ndarray, weights: np.ndarray) -> Shares:
    return Shares(np.asarray(net.lambda_b) * biases, np.asarray(net.lambda_W) * weights)


@dataclass(frozen=True)
class LearningRates:
    """λ_b and λ_W per layer, the network with them, and the shares of its layers before and after."""

    lambda_b: tuple[float, ...]
    lambda_W: tuple[float, ...]
    network: MLP
    before: Shares
    after: Shares


def equalise(net: MLP, X: Any = None, theta_b: float = 1.0, theta_W: float = 1.0) -> LearningRates:
    """λ_bˡ and λ_Wˡ so that every layer adds theta_b/L + theta_W/L to Θ at the output (theory §7, layer equivalence).

    Exact for the given network and inputs (the average over them), critical or not; off criticality the rates vary
    exponentially with depth. `power_law_rates` is the limit of large depth at criticality.

    >>> rates = equalise(MLP([1] + [64] * 9 + [1], "tanh"))
    >>> rates.after.layers.round(12).tolist()
    [0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]
    >>> float(rates.before.layers[0] / rates.before.layers[-1]) < 0.2
    True
    """
    net = plain(net, "criticality")
    theta_b, theta_W = non_negative(theta_b, "theta_b"), non_negative(theta_W, "theta_W")
    if theta_b + theta_W == 0.0:
        raise InvalidInput("theta_b, theta_W", "0 and 0", "at least one that is positive")
    biases, weights = _per_rate(net, checked_rows(net, X))
    for name, values, wanted in (("biases", biases, theta_b), ("weights", weights, theta_W)):
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 1e-300)))
        if wanted and len(bad):
            raise InvalidInput(
                "net",
                f"a network whose {name} of layer {bad[0] + 1} have a gradient of size {values[bad[0]]:.1e}",
                "gradients that reach every layer",
                "Take C_b and C_W from widthwise.critical, or fewer layers.",
            )
    with np.errstate(divide="ignore"):
        lambda_b = tuple((theta_b / net.depth / biases).tolist()) if theta_b else (0.0,) * net.depth
        lambda_W = tuple((theta_W / net.depth / weights).tolist()) if theta_W else (0.0,) * net.depth
    other = net.replace(lambda_b=lambda_b, lambda_W=lambda_W)
    return LearningRates(lambda_b, lambda_W, other, *(_shares_at(some, biases, weights) for some in (net, other)))


def power_law_rates(
    activation: ActivationLike, depth: int, lambda_b: float = 1.0, lambda_W: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """λ_bˡ and λ_Wˡ for l = 1 … L at criticality, from the universality class alone (theory §7).

    K* = 0, where K ~ l^(−k): λ_bˡ = λ̃_b l^(−p_⊥) L^(p_⊥−1) and λ_Wˡ = λ̃_W l^(k−p_⊥) L^(p_⊥−1); for k = 1 the latter is
    λ̃_W (L/l)^(p_⊥−1). Otherwise λ̃_b/L and λ̃_W/L.

    >>> biases, weights = power_law_rates("tanh", 4)
    >>> biases.tolist(), weights.tolist()
    ([1.0, 0.5, 0.3333333333333333, 0.25], [1.0, 1.0, 1.0, 1.0])
    """
    depth = check_integer("depth", depth, 1)
    require_layers(depth)
    point = critical(activation)
    lambda_b, lambda_W = non_negative(lambda_b, "lambda_b"), non_negative(lambda_W, "lambda_W")
    layer = np.arange(1, depth + 1)
    if point.universality != K_ZERO:
        return np.full(len(layer), lambda_b / depth), np.full(len(layer), lambda_W / depth)
    p, k = point.details["p"], point.details["k"]
    if not np.isfinite(p):
        raise NotCritical(
            "activation",
            f"{point.activation}, whose Π χ_⊥ at K* = 0 is not a power of depth, as a_1 = 0 but b_1 ≠ 0",
            "an activation with an exponent p_⊥",
            "Use equalise(net, X), which needs no exponent.",
        )
    return lambda_b * layer**-p * depth ** (p - 1.0), lambda_W * layer ** (k - p) * depth ** (p - 1.0)


def largest_stable_step(net: Network, X: Any) -> float:
    """2/λ_max of Θ on the inputs: full-batch gradient descent on ½Σ(z−y)² is stable below it (theory §8).

    >>> largest_stable_step(MLP([1, 9, 1], "linear", lambda_b=0.0), [[1.0]])
    1.0
    """
    Theta = kernel_flow(net, check_inputs(X, net.widths[0]), last_only=True).Theta
    largest = float(linalg.eigvalsh(Theta[-1])[-1])
    return 2.0 / largest if largest > 0.0 else float("inf")
