"""Depth against width: the emergent scale L/n, the fluctuations it brings, and where the expansion ends (theory §7).

One network is not the average network: at one input the kernel of the outputs fluctuates from network to network with
relative variance κ = V/(nK²), and the neural tangent kernel (diagonal, one output) with (A + 2B)/(nΘ²). At criticality
both grow like L/n.

Two sets of outputs share I = (m_1 m_2/8) κ² [1 − κ (20 + 3(m_1 + m_2))/6] + O(κ⁴) of mutual information. The leading
term only grows with depth. With the next one the truncated series has its maximum at κ = 4/(20 + 3(m_1 + m_2)); with
κ = νL/n, ν the growth of V/K² per layer, that is an aspect ratio. Two caveats: it is the maximum of a truncated series
(a kernel with log-normal fluctuations shares ever more information as they grow), and κ = νL/n is itself a leading law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.activations import ActivationLike
from widthwise.criticality.critical import critical
from widthwise.criticality.deep_fluctuations import deep_fluctuations, steps_of
from widthwise.criticality.learning_rates import checked_rows
from widthwise.errors import DivergentMoment, NoRule
from widthwise.flow.one_input.deep_blocks import single_block_flow
from widthwise.flow.one_input.deep_flow import existing, single_flow
from widthwise.memory import require_layers
from widthwise.network import MLP, PER_LAYER, Network, check_integer, check_one_input, simplified
from widthwise.network.validation import check_real
from widthwise.text import NumbersTable

#: The expansion counts as failed where a correction reaches its leading term.
FAILS_AT = 1.0
#: What depth and width mean, by the largest relative variance or shift of order 1/n up to which it is so. Up to a
#: hundredth networks differ by 10%, and what order 1/n leaves out is a ten-thousandth; from a tenth on they differ by a
#: third and more, and what is left out is some percent of the leading term.
LARGE_EFFECTS = 0.1
REGIMES = {
    0.01: "close to infinite width",
    LARGE_EFFECTS: "finite-width effects are noticeable",
    FAILS_AT: "finite-width effects are large",
    math.inf: "beyond the expansion in 1/n",
}
_DEEPEST = 20_000
#: The same for networks with skips or normalisation, whose memory is carried along.
_DEEPEST_WITH_MEMORY = 1024
_SHOWN = ("V", "A", "B", "G1", "H1")


def regime_of(*effects: float) -> str:
    """The regime by the largest of some relative variances or shifts of order 1/n, without those that are not finite.

    >>> regime_of(0.003, -0.05, math.nan)
    'finite-width effects are noticeable'
    """
    largest = max(abs(effect) for effect in effects if math.isfinite(effect))
    return next(name for bound, name in REGIMES.items() if largest < bound)


@dataclass(frozen=True)
class DepthWidth(NumbersTable):
    """What a network's depth and width mean at one input.

    `aspect_ratio` Σ 1/n_l over hidden layers (L/n at equal widths); `kernel_variance` κ = V/(nK²), so that the outputs
    have excess kurtosis 3κ; `ntk_variance` (A + 2B)/(nΘ²), NaN without Θ; `kernel_shift` G1/(nK) and `ntk_shift`
    H1/(nΘ), NaN without Θ, what finite width does to the means; `fails_at` the depth at which one of these reaches one
    if layers like the last hidden one are added, None if that is not within `searched` layers. With skips or
    normalisation the shifts are NaN where their rules do not hold: behind kinked activations and learned gains.
    """

    depth: int
    width: int
    aspect_ratio: float
    kernel_variance: float
    ntk_variance: float
    kernel_shift: float
    ntk_shift: float
    fails_at: int | None
    searched: int

    @property
    def kernel_fluctuation(self) -> float:
        """Relative standard deviation of the outputs' kernel from network to network."""
        return math.sqrt(max(self.kernel_variance, 0.0))

    @property
    def ntk_fluctuation(self) -> float:
        """Relative standard deviation of the neural tangent kernel from network to network."""
        return math.sqrt(max(self.ntk_variance, 0.0)) if math.isfinite(self.ntk_variance) else math.nan

    @property
    def regime(self) -> str:
        """One of `REGIMES`."""
        return regime_of(self.kernel_variance, self.ntk_variance, self.kernel_shift)


def depth_width(net: Network, x: Any = None, deepest: int | None = None) -> DepthWidth:
    """L/n of a network and the fluctuations that it predicts, at one input x (features,), by default x·x/n_0 = 1.

    `fails_at` is searched for within `deepest` layers, by default at least four times the width, at most 20,000; with
    skips or normalisation, where layers are more expensive, at most 1,024.

    >>> report = depth_width(MLP([1] + [100] * 9 + [1], "relu", C_W=2.0))
    >>> report.aspect_ratio, round(report.kernel_variance, 12), report.fails_at          # V = 5(l − 1)K²: 5·9/100
    (0.09, 0.45, 21)
    >>> from widthwise.network import ResMLP
    >>> report = depth_width(ResMLP([1] + [100] * 51 + [1], "relu", C_W=[1.0] + [2.0] * 51, branch="1/sqrt(L)"))
    >>> round(100 * report.kernel_variance, 2)                                # for all L: branches carry 1/L
    15.61
    """
    net, deepest = simplified(net), check_deepest(deepest)
    rows = checked_rows(net, None if x is None else check_one_input(x, net.widths[0])[None, :])
    if not isinstance(net, MLP):
        return _with_memory(net, rows[0], deepest)
    if net.depth == 1:
        return DepthWidth(1, net.n, 0.0, 0.0, 0.0, 0.0, 0.0, None, 0)
    wanted = tuple(name for name in _SHOWN if name in existing(*net.activations))
    # powers of four, so that one compiled program serves many widths
    fourfold = 4 ** math.ceil(math.log(max(4 * net.n, 64, net.depth), 4) - 1e-9)
    depth = max(net.depth, min(fourfold, _DEEPEST) if deepest is None else deepest)
    require_layers(depth)
    # layers like the last one, behind hidden layers like the last one
    more, last = depth - net.depth, net.activations[-1]
    hyper = {name: [*getattr(net, name), *[getattr(net, name)[-1]] * more] for name in PER_LAYER}
    widths, sigmas = [*net.widths[:-1], *[net.n] * more, net.widths[-1]], [*net.activations, *[last] * more]
    deep = MLP(widths, sigmas, **hyper)
    ratios = single_flow(deep, rows[0], wanted, "A" in wanted).ratios
    at = {name: float(values[net.depth - 1]) / net.n for name, values in ratios.items()}
    together = {name: values for name, values in ratios.items() if name not in ("A", "B")}
    if "A" in ratios:
        together["Theta"] = ratios["A"] + 2.0 * ratios["B"]
    size = np.abs(np.stack([*together.values()])) / np.asarray(deep.widths[:-1])
    beyond = np.flatnonzero((size >= FAILS_AT * (1.0 - 1e-12)).any(axis=0))
    return DepthWidth(
        net.depth, net.n, float(sum(1.0 / n for n in net.widths[1:-1])), at["V"],
        at["A"] + 2.0 * at["B"] if "A" in at else math.nan, at["G1"], at.get("H1", math.nan),
        int(beyond[0]) + 1 if len(beyond) else None, deep.depth,
    )  # fmt: skip


def check_deepest(deepest: Any) -> int | None:
    """A number of layers that fits into memory, or None."""
    if deepest is not None:
        require_layers(check_integer("deepest", deepest, 1))
    return deepest


def _shifts(net: Network, x: np.ndarray) -> tuple[float, float]:
    """G1/(nK) and H1/(nΘ) of the output; NaN where a layer has no rule for them."""
    try:
        ratios = single_block_flow(net, x, ("G1", "H1"), True).ratios
    except NoRule:
        return math.nan, math.nan
    return float(ratios["G1"][-1]) / net.n, float(ratios["H1"][-1]) / net.n


def _with_memory(net: Network, x: np.ndarray, deepest: int | None) -> DepthWidth:
    """The same for networks with skips or normalisation, from fluctuations along the stream (theory §11, §12)."""
    steps_of(net)
    x_square = float(x @ x) / net.widths[0]
    searched = min(max(4 * net.n, 64), _DEEPEST_WITH_MEMORY) if deepest is None else deepest
    require_layers(max(searched, net.depth))
    deep = net
    if net.depth > 2 and net.widths[-3] == net.n:
        # layers like the last hidden one, before the output
        *_, below, hidden, _ = net.numbered
        like = net.layers[below + 1 : hidden + 1] * max(searched - net.depth, 0)
        deep = Network([*net.layers[: hidden + 1], *like, *net.layers[hidden + 1 :]])
    end = deep_fluctuations(net, x_square)
    try:
        stream = deep_fluctuations(deep, x_square)
    except DivergentMoment:  # kernels of the layers that were added
        deep, stream = net, end
    V, A, B = (float(one[-1]) / net.n for one in (end.V, end.A, end.B))
    size = np.stack([stream.V, np.nan_to_num(stream.A + 2.0 * stream.B)]) / np.asarray(deep.widths[:-1])
    beyond = np.flatnonzero((size >= FAILS_AT * (1.0 - 1e-12)).any(axis=0))
    fails_at = int(beyond[0]) + 1 if len(beyond) else None
    ratio = float(sum(1.0 / n for n in net.widths[1:-1]))
    return DepthWidth(net.depth, net.n, ratio, V, A + 2.0 * B, *_shifts(net, x), fails_at, deep.depth)


def mutual_information(kappa: float, m_1: int = 1, m_2: int = 1) -> float:
    """I ≈ (m_1 m_2/8) κ² [1 − κ(20 + 3(m_1 + m_2))/6] nats between m_1 and m_2 outputs at one input, κ = V/(nK²).

    >>> mutual_information(0.01) < mutual_information(0.1)
    True
    """
    kappa = check_real("kappa", kappa, "a number from 0 to 1e100", largest=1e100)
    m_1, m_2 = check_integer("m_1", m_1, 1), check_integer("m_2", m_2, 1)
    return m_1 * m_2 / 8.0 * kappa**2 * (1.0 - kappa * (20.0 + 3.0 * (m_1 + m_2)) / 6.0)


def optimal_aspect_ratio(activation: ActivationLike, outputs: int = 2, *, skip: float = 0.0) -> float:
    """The L/n at which the truncated mutual information of m outputs is largest, 4/(20 + 3m)/ν, at criticality.

    ν is the growth of V/K² per layer: 2/3 for tanh, 2 for linear, 5 for relu. See the caveats above. With a skip γ it
    is ν(γ), which vanishes like 1 − γ²: any L/n is within reach if 1 − γ² is in proportion to n/L.

    >>> round(optimal_aspect_ratio("relu") * 5 * 26, 12)
    4.0
    """
    outputs = check_integer("outputs", outputs, 2)
    return 4.0 / (20.0 + 3.0 * outputs) / critical(activation, skip=skip).laws().coefficient["V"]
