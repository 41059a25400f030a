"""Layers of a given network: kernels and χ on the way, what each adds to Θ, and learning rates (theory §7)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from widthwise.activations import ActivationLike
from widthwise.criticality.critical import K_ZERO, critical
from widthwise.criticality.kernel_fixed_points import non_negative
from widthwise.criticality.moments import profile
from widthwise.errors import DivergentMoment, InvalidInput, NoRule, NotCritical
from widthwise.flow.kernels.kernel_flow import check_differentiable, kernel_flow
from widthwise.gaussian.kernel_rules import Kept, Pair, dense_kernel, kernel_rule
from widthwise.memory import require_layers, require_memory
from widthwise.network import MLP, Affine, Dense, Layer, Network, check_inputs, check_integer, simplified


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


def checked_rows(net: Network, X: object) -> np.ndarray:
    """X as (inputs, features), or one input with x·x/n_0 = 1; rows of zeros are refused."""
    if X is None:
        require_memory(8 * net.widths[0], f"an input of {net.widths[0]} features", "Take narrower inputs.")
        return np.ones((1, net.widths[0]))
    rows = check_inputs(X, net.widths[0])
    dead = np.flatnonzero(np.einsum("ai,ai->a", rows, rows) < np.finfo(float).tiny)
    if len(dead):
        raise InvalidInput(
            "X",
            f"{len(dead)} rows of zeros, the first at index {dead[0]}",
            "inputs whose squares are not zero",
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
class NetworkFlow:
    """Any list of layers: K (L, inputs), log χ_⊥ of each step (L − 1, inputs), and what parameters add to Θ.

    `per_rate` (2, learned layers, inputs) is that of biases or shifts, then of weights or gains, for a rate λ = 1.
    """

    K: np.ndarray
    log_chi_perp: np.ndarray
    per_rate: np.ndarray

    @property
    def log_gradient(self) -> np.ndarray:
        """log Π χ_⊥ over all steps, (inputs,)."""
        return self.log_chi_perp.sum(axis=0)


def network_flow(net: Network, X: np.ndarray) -> NetworkFlow:
    """Kernels of each row of X with itself by the rules of every kind of layer; Θ is linear in the rates λ.

    So Θ is carried along as a column with one entry for each λ, and one more, set to one before every step, for χ_⊥.

    >>> from widthwise.network import ResMLP
    >>> flow = network_flow(ResMLP([2, 8, 8, 1], "relu", skip=1.0, C_W=[2.0, 0.5, 2.0]), np.ones((1, 2)))
    >>> flow.K.ravel().tolist(), np.exp(flow.log_chi_perp).ravel().round(12).tolist()
    ([2.0, 2.5, 2.5], [1.25, 1.0])
    """
    check_differentiable(net)
    learned = net.learned
    for layer in learned:
        if type(layer) not in _RATES:
            raise NoRule("net", f"{layer!r}", "dense layers and learned gains", "Take theory(order=0), or measure it.")
    rows = np.eye(2 * len(learned) + 1)[:, :, None]
    units = (_with_unit_rates(layer, *rows[2 * at : 2 * at + 2]) for at, layer in enumerate(learned))
    K = np.einsum("ai,ai->a", X, X) / net.widths[0]
    Theta, kept, found, perp = np.zeros((len(rows), len(X))), Kept(), [], []
    for block in net.blocks:
        Theta = Theta.copy()
        Theta[-1] = 1.0
        for step in block:
            layer = next(units) if type(step) in _RATES else step
            K, Theta = kernel_rule(layer, Pair(K, K, K, Theta, _moments_at(K), kept))
            if not np.all(np.isfinite(K)):
                raise DivergentMoment("net", "a kernel beyond what float64 holds", "kernels that stay finite",
                                      "Scale branches by 1/sqrt(L), or lower C_W.")  # fmt: skip
        found.append(K)
        with np.errstate(divide="ignore"):
            perp.append(np.log(Theta[-1]))
    shares = np.reshape(Theta[:-1], (len(learned), 2, len(X)))
    return NetworkFlow(np.stack(found), np.reshape(perp[1:], (-1, len(X))), np.swapaxes(shares, 0, 1))


def flow_of(net: Network, X: np.ndarray) -> LayerFlow | NetworkFlow:
    """What a network does to each row of X: the flow of a plain network, of any depth, or of any list of layers."""
    return layer_flow(net, X) if isinstance(net, MLP) else network_flow(net, X)


def _with_unit_rates(layer: Layer, shift: np.ndarray, scale: np.ndarray) -> Layer:
    """A layer whose rates are columns: fields that hold arrays are no input of a user's, and are not checked."""
    made = copy.copy(layer)
    for name, column in zip(_RATES[type(layer)], (shift, scale), strict=True):
        object.__setattr__(made, name, column)
    return made


#: Rates of biases or shifts, and of weights or gains.
_RATES = {Dense: ("lambda_b", "lambda_W"), Affine: ("lambda_shift", "lambda_gain")}


def _moments_at(K: np.ndarray):
    def mean(sigma, order: int, separate: bool = False):
        if separate:
            return profile(sigma).means(K)[0] ** 2
        m = profile(sigma).moments(K)
        return m.slope if order else m.square

    return mean


def rates_of(layers: Iterable[Layer]) -> np.ndarray:
    """λ of biases or shifts, and of weights or gains, (2, layers)."""
    return np.array([[getattr(layer, name) for name in _RATES[type(layer)]] for layer in layers]).T


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


def layer_shares(net: Network, X: Any = None) -> Shares:
    """Contributions to Θ_aa at the output: λ_bˡ Π χ_⊥ and λ_Wˡ ⟨σ²⟩ Π χ_⊥ over later layers (theory §7).

    X (inputs, features); by default one input with x·x/n_0 = 1. Averages over the inputs. Of networks with skips or
    normalisation, the layers are all those with parameters, and gains count as weights, shifts as biases.

    >>> shares = layer_shares(MLP([1, 9, 9, 1], "linear", lambda_b=0.0))
    >>> shares.weights.tolist(), shares.total
    ([1.0, 1.0, 1.0], 3.0)
    """
    net = simplified(net)
    return _shares_at(net, *_per_rate(net, checked_rows(net, X)))


def _per_rate(net: Network, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What biases and weights of each layer add to Θ for λ = 1, (L,) each."""
    if not isinstance(net, MLP):
        biases, weights = network_flow(net, X).per_rate.mean(axis=-1)
        return biases, weights
    flow = layer_flow(net, X)
    later = np.exp(flow.log_later_perp)
    return later.mean(axis=1), (flow.seen * later).mean(axis=1)


def _shares_at(net: Network, biases: np.ndarray, weights: np.ndarray) -> Shares:
    lambda_b, lambda_W = rates_of(net.learned)
    return Shares(lambda_b * biases, lambda_W * weights)


@dataclass(frozen=True)
class LearningRates:
    """λ_b and λ_W per layer, the network with them, and the shares of its layers before and after."""

    lambda_b: tuple[float, ...]
    lambda_W: tuple[float, ...]
    network: Network
    before: Shares
    after: Shares


def equalise(net: Network, X: Any = None, theta_b: float = 1.0, theta_W: float = 1.0) -> LearningRates:
    """λ_bˡ and λ_Wˡ so that every layer adds theta_b/L + theta_W/L to Θ at the output (theory §7, layer equivalence).

    Exact for the given network and inputs (the average over them), critical or not; off criticality the rates vary
    exponentially with depth. `power_law_rates` is the limit of large depth at criticality.

    With learned gains and shifts, theta_b is what all biases and shifts and theta_W what all weights and gains add;
    they share it as in the network given, and every layer that has one kind adds the same. In networks with skips or
    normalisation a rate that is zero stays zero, as that of a bias which a model has not.

    >>> rates = equalise(MLP([1] + [64] * 9 + [1], "tanh"))
    >>> rates.after.layers.round(12).tolist()
    [0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]
    >>> float(rates.before.layers[0] / rates.before.layers[-1]) < 0.2
    True
    """
    net = simplified(net)
    theta_b, theta_W = non_negative(theta_b, "theta_b"), non_negative(theta_W, "theta_W")
    if theta_b + theta_W == 0.0:
        raise InvalidInput("theta_b, theta_W", "0 and 0", "at least one that is positive")
    biases, weights = _per_rate(net, checked_rows(net, X))
    wanted = np.outer([theta_b / len(biases), theta_W / len(biases)], np.ones(len(biases)))
    if not isinstance(net, MLP):
        wanted = _spread(net, np.stack([biases, weights]), (theta_b, theta_W))
    for name, values, shares in zip(("biases", "weights"), (biases, weights), wanted, strict=True):
        bad = np.flatnonzero((shares > 0.0) & ~(np.isfinite(values) & (values > 1e-300)))
        if len(bad):
            raise InvalidInput(
                "net",
                f"a network whose {name} of layer {bad[0] + 1} have a gradient of size {values[bad[0]]:.1e}",
                "gradients that reach every layer",
                "Take C_b and C_W from widthwise.critical, or fewer layers.",
            )
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(wanted > 0.0, wanted / [biases, weights], 0.0)
    lambda_b, lambda_W = (tuple(row.tolist()) for row in found)
    if isinstance(net, MLP):
        other = net.replace(lambda_b=lambda_b, lambda_W=lambda_W)
    else:
        rates = zip(net.learned, lambda_b, lambda_W, strict=True)
        named = ((layer, dict(zip(_RATES[type(layer)], both, strict=True))) for layer, *both in rates)
        other = net.with_learned(replace(layer, **both) for layer, both in named)
    return LearningRates(lambda_b, lambda_W, other, *(_shares_at(some, biases, weights) for some in (net, other)))


def _spread(net: Network, per_rate: np.ndarray, theta: tuple[float, float]) -> np.ndarray:
    """What each tensor is to add to Θ, (2, learned layers): the share of its kind, evenly over layers that have it."""
    rates, dense = rates_of(net.learned), np.array([isinstance(layer, Dense) for layer in net.learned])
    before = np.where(rates > 0.0, rates * per_rate, 0.0)
    wanted = np.zeros_like(before)
    for row, total in enumerate(theta):
        for kind in (dense, ~dense):
            moved = kind & (rates[row] > 0.0)
            if moved.any():
                wanted[row, moved] = total * before[row, moved].sum() / before[row].sum() / moved.sum()
    return wanted


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
