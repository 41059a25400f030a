"""The rules of networks with skips and norms (`flow.tensors.block_rules`) at one input, one step at a time.

At one input every tensor is a number. A functional X[φ] of theory §11 is a vector: its values on the normalised Hermite
polynomials he_k(z/√K) of its layer. Seen from the layer below, E[he_k(z'/√K') | z] = ρ^k he_k(z/√K) with
ρ = γ √(K/K'), so that a step takes the vectors of one layer to those of the next, and the memory of all earlier layers
is carried along exactly, up to the degree at which the vectors end. Degrees up to 2 alone are the local closure.

The layer below is measured in units of its K, the upper one in units of its K and Θ, and σ in units of √⟨σ²⟩, so that
every number is of order one at any depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.polynomial.hermite_e import hermemul, poly2herme

from widthwise.flow.tensors.block_rules import FUNCTIONALS, BlockRules, Tensors
from widthwise.flow.tensors.block_step import BlockSpecification, BlockStep
from widthwise.flow.tensors.neuron_functions import NeuronFunction, PlacedFunction
from widthwise.flow.tensors.tensor_rules import QuadrupleMatrix, QuadrupleTensor
from widthwise.tensors import TENSORS

#: Orders of the derivatives of σ in a product, smallest first.
SigmaProduct = tuple[int, ...]
#: Every function of the upper layer at once, as the function that a functional is taken on.
UPPER_LAYER: Any = object()
#: Degrees of the dry run that notes what the rules read.
_DRY_DEGREES = 6


class StepKind(NamedTuple):
    """What of a step decides which terms its rules have: where it is normalised, and by which collective variables."""

    before: bool
    after: bool
    alphas: tuple[str, ...]

    @classmethod
    def of(cls, block: BlockSpecification) -> StepKind:
        if block.norm is None:
            return cls(False, False, ())
        return cls(block.before, not block.before, ("m", "ν") if block.norm.centred else ("m",))


class StepNumbers(NamedTuple):
    """Numbers of one step, or of many on the first axis, in the units of the module.

    C = C_W⟨σ²⟩/K', lam = λ_W⟨σ²⟩/Θ' (both without ⟨σ²⟩ where the norm stands behind σ), H = ΘK'/(KΘ'), gamma = ρ,
    r = n_l/n_{l−1}, shrink = √K/r̂ of a norm before σ, epsilon = ε/⟨σ²⟩ of one behind it; sharp is one where σ varies
    within the Gaussian (K > 1), else zero.
    """

    C: Any
    lam: Any
    H: Any
    gamma: Any
    r: Any
    shrink: Any
    epsilon: Any
    sharp: Any


@dataclass(frozen=True)
class OneNumber(QuadrupleMatrix, QuadrupleTensor):
    """A tensor, or a matrix, of one input: the same number at all letters."""

    number: Any

    def on(self, pair: str) -> Any:
        return self.number

    def entries(self, indices: str) -> Any:
        return self.number


class StepState(NamedTuple):
    """Stored parts of tensors over their scales, and functionals (degrees,) over theirs, at one layer."""

    tensors: dict[str, Any]
    functionals: dict[str, Any]


class OneInputExpectations:
    """⟨…⟩ of functions of one neuron at one input, from Hermite coefficients of products of σ̃^(p)(u), z = √K u.

    `kept` (degrees,) is one for the degrees that functionals keep, zero for others.
    """

    def __init__(self, series: Mapping[SigmaProduct, Any], numbers: StepNumbers, kept: np.ndarray):
        self.series, self.shrink, self.degrees = series, numbers.shrink, len(kept)
        self.passing = kept * numbers.gamma ** np.arange(self.degrees)
        self.constant = np.arange(self.degrees) == 0
        self.known: dict[Any, Any] = {}

    def passed(self, functional: Any) -> Any:
        """A functional of this layer as one of the upper layer."""
        return self.passing * functional

    def measured(self, coefficients: Any) -> Any:
        """φ → ⟨φ f⟩ as a functional."""
        return coefficients

    def coefficients(self, function: NeuronFunction) -> Any:
        """⟨f he_k⟩ for all degrees k."""
        return sum(c * self._raised(*key) for key, c in self._merged(function).items())

    def mean(self, function: NeuronFunction) -> Any:
        return sum(c * self._moment(*key) for key, c in self._merged(function).items())

    def __call__(self, first: PlacedFunction, second: PlacedFunction | None = None) -> Any:
        if second is None:
            return self.mean(first.function)
        if first is UPPER_LAYER:
            return self.passed(self.measured(self.coefficients(second.function)))
        return self.mean(first.function * second.function)

    def covariance(self, first: PlacedFunction, second: PlacedFunction) -> Any:
        if first is UPPER_LAYER:
            centred = self.coefficients(second.function) - self.mean(second.function) * self.constant
            return self.passed(self.measured(centred))
        return self(first, second) - self(first) * self(second)

    def _merged(self, function: NeuronFunction) -> dict[tuple[int, SigmaProduct], Any]:
        """Coefficients by (power of u, orders): at one input the slots are alike, and v = z/r̂ is shrink · u."""
        if function.number not in self.known:
            found: dict[tuple[int, SigmaProduct], Any] = {}
            for c, factors in function.terms:
                orders = tuple(sorted(order for _, order in factors if order is not None))
                power = len(factors) - len(orders)
                if power != sum(orders) and self.shrink is not None:
                    c = c * self.shrink ** (power - sum(orders))
                found[power, orders] = found.get((power, orders), 0.0) + c
            self.known[function.number] = found
        return self.known[function.number]

    def mean_by_parts(self, function: NeuronFunction, times: int) -> Any:
        """⟨f^(times)⟩ = ⟨He_times f⟩."""
        return sum(c * self._moment(*key, times) for key, c in self._merged(function).items())

    def _moment(self, power: int, orders: SigmaProduct, hermite: int = 0) -> Any:
        """⟨He_hermite(u) u^power Π σ̃^(o)⟩."""
        weights = _weights(power, hermite)
        if not orders:
            return float(weights[0])
        key = (power, orders, hermite)
        if key not in self.known:
            self.known[key] = self.head(orders, len(weights)) @ weights
        return self.known[key]

    def _raised(self, power: int, orders: SigmaProduct) -> Any:
        """⟨u^power Π σ̃^(o) he_k⟩ for all k: u he_k = √(k+1) he_{k+1} + √k he_{k−1}."""
        if not orders:
            return np.pad(_weights(power), (0, self.degrees))[: self.degrees]
        key = (power, orders, "all degrees")
        if key not in self.known:
            self.known[key] = self.whole(orders) if not power else _times_u(self._raised(power - 1, orders))
        return self.known[key]

    def head(self, orders: SigmaProduct, count: int) -> Any:
        """The first coefficients of a product."""
        return self.series[orders][:count]

    def whole(self, orders: SigmaProduct) -> Any:
        """Coefficients of a product in all degrees."""
        return self.series[orders][: self.degrees]


class Nodes(NamedTuple):
    """Points u and their weights; of those of the upper layer which are kept, and the matrix that passes on to them."""

    u: np.ndarray
    weight: np.ndarray
    kept_above: np.ndarray
    passing: Any


class NodeExpectations(OneInputExpectations):
    """The same with functionals as sums over points: X[φ] = Σ_j X_j φ(u_j).

    A step moves the points, u' | u ~ N(ρu, 1 − ρ²). It takes fewer numbers than Hermite polynomials where σ varies fast
    within the Gaussian and layers are almost fully correlated: tanh with K ≫ 1 and γ = 1.
    """

    def __init__(self, series: Mapping[SigmaProduct, Any], numbers: StepNumbers, nodes: Nodes, values):
        super().__init__(series, numbers, np.zeros(0))
        self.nodes, self.values, self.constant = nodes, values, np.ones(len(nodes.u))

    def passed(self, functional: Any) -> Any:
        return self.nodes.kept_above * (self.nodes.passing @ functional)

    def measured(self, coefficients: Any) -> Any:
        return self.nodes.weight * coefficients

    def _raised(self, power: int, orders: SigmaProduct) -> Any:
        return self.nodes.u**power * (self.values[orders] if orders else 1.0)


@cache
def _weights(power: int, hermite: int = 0) -> np.ndarray:
    """He_hermite(u) u^power in normalised Hermite polynomials."""
    series = hermemul(poly2herme([0.0] * power + [1.0]), [0.0] * hermite + [1.0])
    return series * np.exp(0.5 * scipy.special.gammaln(np.arange(len(series)) + 1.0))


def _times_u(coefficients: Any) -> Any:
    """⟨u f he_k⟩ from ⟨f he_k⟩; the last one lacks the degree beyond."""
    k = np.arange(coefficients.shape[0])
    lower, upper = np.maximum(k - 1, 0), np.minimum(k + 1, k[-1])
    return np.sqrt(k) * coefficients[lower] + np.sqrt(k + 1.0) * (k < k[-1]) * coefficients[upper]


class OneInputStep(BlockStep):
    """A step at one input: numbers in place of matrices over inputs."""

    expect: Any

    def __init__(self, kind: StepKind, numbers: StepNumbers, expect: OneInputExpectations):
        self.expect, self.layer, self.H, self.r = expect, 1, numbers.H, numbers.r
        self.gamma, self.C, self.lam = numbers.gamma, numbers.C, numbers.lam
        self.after, self.alphas, self.sharp = kind.after, kind.alphas, numbers.sharp
        self.root = 1.0 / numbers.shrink if kind.before else 1.0
        self.centre, self.spread = 0.0, 1.0
        if kind.after:
            self.centre = expect.mean(self.sigma(0)) if "ν" in kind.alphas else 0.0
            variance = expect.mean(self.sigma(0) * self.sigma(1)) - self.centre**2
            self.spread = (variance + numbers.epsilon) ** 0.5

    def mean(self, f: NeuronFunction, first: str, second: str) -> Any:
        return self.expect.mean(f)

    def along_both(self, f: NeuronFunction, times: int) -> NeuronFunction:
        """Its derivative as a function of one variable: at one input both slots are the same."""
        for _ in range(times):
            f = self.derivative(0, f) + self.derivative(1, f)
        return f

    def mean_derivative(self, f: NeuronFunction, times: int) -> Any:
        """⟨f^(times)⟩: differentiated where K is small, which keeps its digits, and by parts where it is large.

        There the terms of a fourth derivative are of size K^(3/2) and nearly cancel.
        """
        differentiated, by_parts = self.expect.mean(self.along_both(f, times)), self.expect.mean_by_parts(f, times)
        return (1.0 - self.sharp) * differentiated + self.sharp * by_parts

    def h(self, a: str, b: str) -> Any:
        return self.H


class OneInputRules(BlockRules):
    """The recursions of one step; `functionals` are those of the layer whose functions they are taken on."""

    expect: Any

    def __init__(self, expect: Any, functionals: Mapping[str, Any] | None):
        super().__init__(expect, [])
        self.functionals = functionals

    def functional(self, name: str, layer: int, phi: PlacedFunction, *own: str) -> Any:
        if self.functionals is None:
            return 0.0
        return self.functionals[name] @ self.expect.coefficients(phi.function)

    def next_functional(self, name: str, x: OneInputStep) -> Any:
        """X' on every he_k of the upper layer."""
        below: Any = self.functionals

        def low(other: str, *letters: str) -> Any:
            return self.expect.passed(below[other])

        return getattr(self, f"_functional_{name}")(x, UPPER_LAYER, low, *"a" * FUNCTIONALS[name][0])

    # sums over the slots of derivatives are derivatives of a function of one variable

    def _legs(self, x: Any, f: NeuronFunction) -> list[tuple[str, Any]]:
        return [("aa", x.mean_derivative(f, 2))]

    def shifted(self, x: Any, t: Tensors, phi: NeuronFunction) -> Any:
        by_V = 0.125 * x.mean_derivative(phi, 4) * t["V"].number
        by_G1 = 0.5 * x.mean_derivative(phi, 2) * t["G1"].number
        return by_G1 + by_V + 0.5 * self.functional("v", x.layer, x.along_both(phi, 2)("a", "b"), "a", "a")

    def next_tensor(self, name: str, x: BlockStep, t: Tensors) -> Any:
        return getattr(self, f"_next_{name}")(x, t, *"abcd")[1]


def one_step(
    kind: StepKind, wanted: tuple[str, ...], numbers: StepNumbers, series, kept: np.ndarray, state: StepState
) -> tuple[StepState, dict[str, Any]]:
    """What is carried to the next layer, and the wanted tensors there as theory §3 defines them, over their scales.

    Numbers may be traced by jax.
    """
    return through_rules(OneInputStep(kind, numbers, OneInputExpectations(series, numbers, kept)), wanted, state)


def through_rules(
    x: OneInputStep, wanted: tuple[str, ...], state: StepState, reading: OneInputExpectations | None = None
) -> tuple[StepState, dict[str, Any]]:
    """One step by expectations of either kind; `reading` are those by which functionals of the upper layer are read."""
    remembers = bool(state.functionals)
    tensors = {name: OneNumber(value * x.H ** TENSORS[name].scale[1]) for name, value in state.tensors.items()}
    functionals = {name: value * x.H ** FUNCTIONALS[name][1] for name, value in state.functionals.items()}
    below = OneInputRules(x.expect, functionals if remembers else None)
    stored = {name: below.next_tensor(name, x, tensors) for name in tensors}
    above = OneInputRules(reading or x.expect, {name: below.next_functional(name, x) for name in functionals})
    read = {name: stored[name] + above.on_stream(name, x)[1] if remembers else stored[name] for name in wanted}
    return StepState(stored, dict(above.functionals or {})), read


class StepNeeds(NamedTuple):
    """What the rules of some tensors read: functionals, products in all degrees, and products in the first few."""

    functionals: tuple[str, ...]
    whole: tuple[SigmaProduct, ...]
    heads: dict[SigmaProduct, int]


class _NotingExpectations(OneInputExpectations):
    """Notes which coefficients are read."""

    noted_whole: set[SigmaProduct]
    noted_heads: dict[SigmaProduct, int]

    def head(self, orders: SigmaProduct, count: int) -> Any:
        self.noted_heads[orders] = max(count, self.noted_heads.get(orders, 0))
        return np.full(count, 0.1)

    def whole(self, orders: SigmaProduct) -> Any:
        self.noted_whole.add(orders)
        return np.full(self.degrees, 0.1)


class _NotedFunctionals(dict):
    def __missing__(self, name: str):
        return self.setdefault(name, np.ones(_DRY_DEGREES))


@cache
def step_needs(kind: StepKind, carried: tuple[str, ...], remembers: bool) -> StepNeeds:
    """Found by running the rules once.

    >>> step_needs(StepKind(False, False, ()), ("V",), True).functionals
    ('v',)
    """
    numbers = StepNumbers(
        C=1.0,
        lam=1.0,
        H=1.0,
        gamma=0.5,
        r=1.0,
        shrink=1.0 if kind.before else None,
        epsilon=1.0,
        sharp=0.5,
    )
    expect = _NotingExpectations({}, numbers, np.ones(_DRY_DEGREES))
    expect.noted_whole, expect.noted_heads = set(), {}
    x, tensors = OneInputStep(kind, numbers, expect), {name: OneNumber(1.0) for name in carried}
    functionals = _NotedFunctionals()
    rules = OneInputRules(expect, functionals if remembers else None)
    for name in carried:
        rules.next_tensor(name, x, tensors)
        if remembers:
            rules.on_stream(name, x)
    done: set[str] = set()
    while remembers and done < set(functionals):
        for name in set(functionals) - done:
            rules.next_functional(name, x)
            done.add(name)
    names = tuple(name for name in FUNCTIONALS if name in functionals)
    return StepNeeds(names, tuple(sorted(expect.noted_whole)), expect.noted_heads)
