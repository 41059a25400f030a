"""One step of a network with residual connections and normalisation: functions of its neurons and their means.

The step from layer l to l + 1 is z' = γ z + b + W s with s = τ((y − μ̂)/r̂): y = z and τ = σ where the normalisation
stands before the activation, y = σ(z) and τ(v) = v where it stands after it, r̂ = 1 and μ̂ = 0 without one
(theory §11, §12).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from widthwise.flow.tensors.neuron_functions import LayerOfNeurons, NeuronExpectations, NeuronFunction
from widthwise.flow.tensors.tensor_rules import on
from widthwise.network import Dense
from widthwise.network.layers.normalisation import Normalisation

#: A slot function of a neuron: of its slot; with collective variables before it: of those and its slot.
SlotFunction = Callable[..., NeuronFunction]


@dataclass(frozen=True)
class BlockSpecification:
    """One step: the scale γ of its skip (0 without one), normalisation before or after its activation, its weights."""

    scale: float
    activation: Any
    norm: Normalisation | None
    before: bool
    dense: Dense


class BlockStep:
    """All that the step from layer l uses, besides the tensors of layer l: functions of its neurons and their means.

    Collective variables α of a normalised layer: "m", the relative second moment over neurons, and with LayerNorm
    "ν", the mean (theory §12).
    """

    def __init__(
        self,
        expect: NeuronExpectations,
        layer: int,
        block: BlockSpecification,
        K,
        Theta,
        r: float,
        without: frozenset[str],
    ):
        self.expect, self.layer, self.block, self.H, self.r = expect, layer, block, Theta, r
        self.gamma, self.C, self.lam = block.scale, block.dense.C_W, block.dense.lambda_W
        norm = block.norm
        self.after = norm is not None and not block.before
        self.root = np.ones(len(K)) if norm is None or self.after else np.sqrt(np.diag(K) + norm.epsilon)
        neurons = LayerOfNeurons(layer, block.activation, K, self.root)
        expect.layers[layer], expect.scales[layer] = neurons, self.gamma
        self.alphas = () if norm is None or "normaliser" in without else ("m", "ν") if norm.centred else ("m",)
        self.centre, self.spread = np.zeros(len(K)), np.ones(len(K))
        if norm is not None and self.after:
            self.centre = neurons.single(0) if norm.centred else self.centre
            self.spread = np.sqrt(np.diag(neurons.pair(0, 0)) - self.centre**2 + norm.epsilon)

    # functions of one slot

    def _made(self, *terms: Any) -> NeuronFunction:
        return NeuronFunction(self.layer, list(terms))

    def u(self, slot: int) -> NeuronFunction:
        """z/r."""
        return self._made((1.0, ((slot, None),)))

    def sigma(self, slot: int, order: int = 0) -> NeuronFunction:
        return self._made((1.0, ((slot, order),)))

    def z(self, slot: int) -> NeuronFunction:
        return self.u(slot).times(_along(self.root, slot))

    def one(self, value: float = 1.0) -> NeuronFunction:
        return self._made((value, ()))

    def s(self, slot: int) -> NeuronFunction:
        """What a neuron passes on, at infinite width."""
        if not self.after:
            return self.sigma(slot)
        inverse = _along(1.0 / self.spread, slot)
        return self._made((inverse, ((slot, 0),)), (-inverse * _along(self.centre, slot), ()))

    def slope(self, slot: int) -> NeuronFunction:
        """s' = ds/dz at a fixed normaliser."""
        return self.derivative(slot, self.s(slot))

    def feature(self, alpha: str, slot: int) -> NeuronFunction:
        """f_α, whose mean over neurons is the collective variable."""
        v = self.s(slot) if self.after else self.u(slot)
        return v * v if alpha == "m" else v

    def s_by(self, alpha: str, slot: int) -> NeuronFunction:
        """s^α: how s changes with a collective variable."""
        if self.after:
            return self.s(slot).times(-0.5) if alpha == "m" else self.one(-1.0)
        slope = self.sigma(slot, 1)
        return (self.u(slot) * slope).times(-0.5) if alpha == "m" else slope.times(-1.0)

    def s_by_two(self, alpha: str, beta: str, slot: int) -> NeuronFunction:
        """s^αβ."""
        both = alpha + beta
        if self.after:
            return self.one(0.5) if alpha != beta else self.s(slot).times(0.75 if alpha == "m" else 1.0)
        u, slope, bend = self.u(slot), self.sigma(slot, 1), self.sigma(slot, 2)
        if both == "mm":
            return (u * u * bend).times(0.25) + (u * slope).times(0.75)
        return bend + u * slope if both == "νν" else (u * bend).times(0.5) + slope.times(0.5)

    def slope_by(self, alpha: str, slot: int) -> NeuronFunction:
        return self.derivative(slot, self.s_by(alpha, slot))

    def slope_by_two(self, alpha: str, beta: str, slot: int) -> NeuronFunction:
        return self.derivative(slot, self.s_by_two(alpha, beta, slot))

    def derivative(self, slot: int, f: NeuronFunction) -> NeuronFunction:
        """∂f/∂z at a slot."""
        inverse, terms = _along(1.0 / self.root, slot), []
        for c, factors in f.terms:
            for place, (at, order) in enumerate(factors):
                if at == slot:
                    derived = () if order is None else ((at, order + 1),)
                    terms.append((c * inverse, factors[:place] + derived + factors[place + 1 :]))
        return self._made(*terms)

    # features of the step (theory §12)

    def total(self, g: SlotFunction, g_by: SlotFunction) -> NeuronFunction:
        """What the mean over neurons of g_a g_b is to first order: with the fluctuations of the normaliser."""
        found = g(0) * g(1)
        for alpha in self.alphas:
            found += self.feature(alpha, 0).times(self.expect.mean(g_by(alpha, 0) * g(1)))
            found += self.feature(alpha, 1).times(self.expect.mean(g(0) * g_by(alpha, 1)))
        return found

    @cached_property
    def q(self) -> NeuronFunction:
        return self.total(self.s, self.s_by)

    @cached_property
    def p(self) -> NeuronFunction:
        return self.total(self.slope, self.slope_by)

    @cached_property
    def slopes(self) -> NeuronFunction:
        """s'_a s'_b."""
        return self.slope(0) * self.slope(1)

    @cached_property
    def bent(self) -> NeuronFunction:
        """s''_a s'_b."""
        return self.derivative(0, self.slopes)

    @cached_property
    def omega(self) -> NeuronFunction:
        """ω_ab = λ_W q_ab + C H_ab p_ab."""
        return self.q.times(self.lam) + self.p.times(self.C * self.H)

    @cached_property
    def X(self) -> NeuronFunction:
        return self.derivative(1, self.q)

    @cached_property
    def X2(self) -> NeuronFunction:
        return self.derivative(1, self.X)

    @cached_property
    def psi(self) -> NeuronFunction:
        return self.derivative(0, self.omega)

    @cached_property
    def x(self) -> NeuronFunction:
        return self.derivative(0, self.psi)

    @cached_property
    def y(self) -> NeuronFunction:
        return self.derivative(1, self.psi)

    # means and legs at letters

    def mean(self, f: NeuronFunction, first: str, second: str) -> np.ndarray:
        return on(self.expect.mean(f), first + second)

    def e(self, a: str, b: str) -> Any:
        """γ² + C⟨s'_a s'_b⟩."""
        return self.gamma**2 + self.C * self.mean(self.slopes, a, b)

    def h(self, a: str, b: str) -> np.ndarray:
        return on(self.H, a + b)

    def legs_g(self, b: str, c: str, read: Callable[[str, str], Any]) -> Any:
        """½Σ⟨∂_e∂_f g_bc⟩ M_ef with g = γ² z z + C q."""
        ends = self.mean(self.X2, c, b) * read(b, b) + self.mean(self.X2, b, c) * read(c, c)
        return self.e(b, c) * read(b, c) + 0.5 * self.C * ends

    def legs_omega(self, b: str, c: str, read: Callable[[str, str], Any]) -> Any:
        """½Σ⟨∂_e∂_f ω_bc⟩ M_ef."""
        ends = self.mean(self.x, b, c) * read(b, b) + self.mean(self.x, c, b) * read(c, c)
        return 0.5 * ends + self.mean(self.y, b, c) * read(b, c)

    def legs_m(self, e: str, c: str, read: Callable[[str], Any]) -> Any:
        """Σ_u m_ec,u M_u."""
        return self.e(e, c) * read(e) + self.C * self.mean(self.X2, e, c) * read(c)

    def legs_alpha(self, a: str, b: str, read: Callable[[str], Any]) -> Any:
        """Σ_e α_abe M_e."""
        return self.mean(self.x, a, b) * read(a) + self.mean(self.y, a, b) * read(b)


def _along(vector: Any, slot: int) -> Any:
    """A number of each input, at the input of a slot; a single number is that of all."""
    if not np.ndim(vector):
        return vector
    return vector[:, None] if slot == 0 else vector[None, :]
