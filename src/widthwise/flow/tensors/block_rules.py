"""Tensors of order 1/n of networks with residual connections and normalisation (theory §11, §12).

Without a skip and a normalisation every line is that of a plain layer (theory §4, §5). Indices are written as letters
that stand for inputs; a value over letters has the axes (a, b, c, d).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from widthwise.flow.tensors.block_step import BlockStep, SlotFunction
from widthwise.flow.tensors.neuron_functions import NeuronExpectations, NeuronFunction, PlacedFunction
from widthwise.flow.tensors.tensor_rules import entries, on

Tensors = dict[str, Any]
INDEX_LETTERS = "abcd"
#: Functionals by name: how many inputs they are read at, and their power of Θ.
FUNCTIONALS = {
    "v": (2, 0), "d": (2, 1), "b": (4, 2), "r": (3, 1), "pi": (4, 2), "kappa": (3, 2), "rho": (4, 3),
    "varsigma": (4, 3), "omega": (5, 3),
}  # fmt: skip


class BlockRules:
    """The recursions of functionals and tensors over the steps of a network, in the order of its layers.

    A functional X[φ] takes a function φ of a neuron of layer l, or of a later one, and sums its correlations with what
    the same neuron has put into averages at earlier layers (theory §11). It is zero behind a
    plain layer. `without` names terms that are left out, for tests that must fail: "memory", "normaliser".
    """

    def __init__(self, expect: NeuronExpectations, steps: list[BlockStep], without: frozenset[str] = frozenset()):
        self.expect, self.steps, self.without = expect, steps, without
        self.known: dict[Any, Any] = {}

    def functional(self, name: str, layer: int, phi: PlacedFunction, *own: str) -> Any:
        """X[φ] at the letters `own`, of the tensors of a layer."""
        if layer == 1 or self.steps[layer - 2].gamma == 0.0 or "memory" in self.without:
            return 0.0
        key = (name, layer, phi.key, own)
        if key not in self.known:
            rule = getattr(self, f"_functional_{name}")

            def low(other: str, *letters: str) -> Any:
                return self.functional(other, layer - 1, phi, *letters)

            self.known[key] = rule(self.steps[layer - 2], phi, low, *own)
        return self.known[key]

    def _functional_v(self, x: BlockStep, phi, low, b, c):
        return x.legs_g(b, c, lambda e, f: low("v", e, f)) + x.C * self.expect.covariance(phi, x.q(b, c))

    def _functional_d(self, x: BlockStep, phi, low, b, c):
        carried = x.legs_omega(b, c, lambda e, f: low("v", e, f)) + x.e(b, c) * low("d", b, c)
        return carried + self.expect.covariance(phi, x.omega(b, c))

    def _functional_b(self, x: BlockStep, phi, low, a, c, b, d):
        source = x.C * self.expect.covariance(phi, x.slopes(a, c)) * x.h(a, b) * x.h(c, d)
        return x.gamma**2 * (x.e(a, c) * low("b", a, c, b, d) + source)

    def _functional_r(self, x: BlockStep, phi, low, e, c, d):
        source = x.C * self.expect(phi, x.X(e, c)) * x.h(c, d)
        return x.gamma * (x.legs_m(e, c, lambda u: low("r", u, c, d)) + source)

    def _functional_pi(self, x: BlockStep, phi, low, e, a, b, c):
        source = x.C * self.expect.covariance(phi, x.X2(e, a)) * x.h(a, b) * x.h(a, c)
        carried = x.legs_m(e, a, lambda u: low("pi", u, a, b, c)) + x.C * x.mean(x.X2, e, a) * low("b", a, a, b, c)
        return x.gamma**2 * (carried + source)

    def _functional_kappa(self, x: BlockStep, phi, low, a, b, c):
        source = self.expect(phi, x.psi(a, b)) * x.h(a, c)
        carried = x.e(a, b) * low("kappa", a, b, c) + x.legs_alpha(a, b, lambda e: low("r", e, a, c))
        return x.gamma * (carried + source)

    def _functional_rho(self, x: BlockStep, phi, low, a, b, c, d):
        source = self.expect.covariance(phi, x.x(a, b)) * x.h(a, c) * x.h(a, d)
        carried = x.e(a, b) * low("rho", a, b, c, d) + x.mean(x.x, a, b) * low("b", a, a, c, d)
        return x.gamma**2 * (carried + x.legs_alpha(a, b, lambda e: low("pi", e, a, c, d)) + source)

    def _functional_varsigma(self, x: BlockStep, phi, low, a, b, c, d):
        source = self.expect.covariance(phi, x.y(a, b)) * x.h(a, c) * x.h(b, d)
        carried = x.e(a, b) * low("varsigma", a, b, c, d) + x.mean(x.y, a, b) * low("b", a, b, c, d)
        return x.gamma**2 * (carried + source)

    def _functional_omega(self, x: BlockStep, phi, low, a, b, c, f, g):
        source = x.C * self.expect(phi, x.bent(a, f)) * x.h(a, b) * x.h(a, c) * x.h(f, g)
        return x.gamma**3 * (x.e(a, f) * low("omega", a, b, c, f, g) + source)

    # functionals of two functions on two neurons of the inputs a and b

    def _legs(self, x: BlockStep, f: NeuronFunction) -> list[tuple[str, Any]]:
        """⟨∂_e∂_f φ⟩ by the letters e, f from ab, where it is not zero by itself."""
        found = []
        for e in (0, 1):
            for g in (0, 1):
                twice = x.derivative(e, x.derivative(g, f))
                found += [(INDEX_LETTERS[e] + INDEX_LETTERS[g], x.mean(twice, "a", "b"))] if twice.terms else []
        return found

    def correlated(self, x: BlockStep, t: Tensors, phi: NeuronFunction, chi: NeuronFunction) -> Any:
        """𝒞[φ, χ]: n times the covariance of their means over neurons."""
        first, second = phi("a", "b"), chi("a", "b")
        left, right = self._legs(x, phi), self._legs(x, chi)
        carried: Any = 0.0
        for ef, A in left:
            carried = carried + 0.5 * A * self.functional("v", x.layer, second, *ef)
            for gh, B in right:
                carried = carried + 0.25 * A * B * entries(t["V"], ef + gh)
        for gh, B in right:
            carried = carried + 0.5 * B * self.functional("v", x.layer, first, *gh)
        return self.expect.covariance(first, second) + x.r * carried

    def shifted(self, x: BlockStep, t: Tensors, phi: NeuronFunction) -> Any:
        """𝒮[φ]: n times the change of the mean of φ, by G1, V and memory."""
        total: Any = 0.0
        for e in (0, 1):
            for f in (0, 1):
                twice, ef = x.derivative(e, x.derivative(f, phi)), INDEX_LETTERS[e] + INDEX_LETTERS[f]
                if twice.terms:
                    total = total + 0.5 * x.mean(twice, "a", "b") * on(t["G1"], ef)
                    total = total + 0.5 * self.functional("v", x.layer, twice("a", "b"), *ef)
                    for gh, fourth in self._legs(x, twice):
                        total = total + 0.125 * fourth * entries(t["V"], ef + gh)
        return total

    def coherent(self, x: BlockStep, t: Tensors, phi: NeuronFunction, chi: NeuronFunction) -> Any:
        """𝓕[φ, χ]_ab: Ĥ contracted with a function of neurons on each side."""
        first, second = phi("a", "b"), chi("a", "b")
        left, right = (
            [(INDEX_LETTERS[e], x.mean(x.derivative(e, f), "a", "b")) for e in (0, 1) if x.derivative(e, f).terms]
            for f in (phi, chi)
        )
        carried: Any = 0.0
        for e, A in left:
            carried = carried + A * self.functional("r", x.layer, second, e, "a", "b")
            for f, B in right:
                carried = carried + A * B * entries(t["F"], e + "a" + f + "b")
        for f, B in right:
            carried = carried + B * self.functional("r", x.layer, first, f, "b", "a")
        return self.expect(first, second) * x.h("a", "b") + x.r * carried

    def shifted_product(self, x: BlockStep, t: Tensors, g: SlotFunction, by: SlotFunction, by_two: SlotFunction) -> Any:
        """𝒢[g]: n times the change of the mean over neurons of g_a g_b, the normaliser fluctuating with them."""
        total, f = x.r * self.shifted(x, t, x.total(g, by)), x.feature

        def mean(product: NeuronFunction) -> Any:
            return x.mean(product, "a", "b")

        for alpha in x.alphas:
            total = total + self.correlated(x, t, by(alpha, 0) * g(1), f(alpha, 0))
            total = total + self.correlated(x, t, g(0) * by(alpha, 1), f(alpha, 1))
            for beta in x.alphas:
                own = 0.5 * mean(by_two(alpha, beta, 0) * g(1)) * self.correlated(x, t, f(alpha, 0), f(beta, 0))
                other = 0.5 * mean(g(0) * by_two(alpha, beta, 1)) * self.correlated(x, t, f(alpha, 1), f(beta, 1))
                both = mean(by(alpha, 0) * by(beta, 1)) * self.correlated(x, t, f(alpha, 0), f(beta, 1))
                total = total + own + other + both
        return total

    def through_normaliser(self, x: BlockStep, t: Tensors) -> Any:
        """Y_ab: the part of the mean NTK that runs through the normaliser once."""
        total: Any = 0.0

        def changed(alpha: str, slot: int) -> NeuronFunction:
            return x.derivative(slot, x.feature(alpha, slot))

        for alpha in x.alphas:
            total = total + self.coherent(x, t, x.slope(0) * x.s_by(alpha, 1), changed(alpha, 1))
            total = total + self.coherent(x, t, changed(alpha, 0), x.s_by(alpha, 0) * x.slope(1))
            for beta in x.alphas:
                weight = x.mean(x.s_by(alpha, 0) * x.s_by(beta, 1), "a", "b")
                total = total + weight * self.coherent(x, t, changed(alpha, 0), changed(beta, 1))
        return total

    # tensors of the next layer: parts that are stored, by the letters of their slots

    def next_tensor(self, name: str, x: BlockStep, t: Tensors) -> np.ndarray:
        """A tensor of the next layer, of V, D, F, Q the part that the recursions carry."""
        letters, value = getattr(self, f"_next_{name}")(x, t, *INDEX_LETTERS)
        return _laid_out(value, letters, len(x.H))

    def _next_V(self, x: BlockStep, t: Tensors, a, b, c, d):
        def memory(a, b, c, d):
            return x.C * x.legs_g(a, b, lambda e, f: self.functional("v", x.layer, x.q(c, d), e, f))

        carried = x.legs_g(a, b, lambda e, f: x.legs_g(c, d, lambda g, h: entries(t["V"], e + f + g + h)))
        source = x.C**2 * self.expect.covariance(x.q(a, b), x.q(c, d))
        return "abcd", source + x.r * (carried + memory(a, b, c, d) + memory(c, d, a, b))

    def _next_D(self, x: BlockStep, t: Tensors, a, b, c, d):
        functional = self.functional
        carried = x.legs_g(a, b, lambda e, f: x.legs_omega(c, d, lambda g, h: entries(t["V"], e + f + g + h)))
        carried = carried + x.e(c, d) * x.legs_g(a, b, lambda e, f: entries(t["D"], e + f + c + d))
        carried = carried + x.legs_g(a, b, lambda e, f: functional("v", x.layer, x.omega(c, d), e, f))
        carried = carried + x.C * x.legs_omega(c, d, lambda g, h: functional("v", x.layer, x.q(a, b), g, h))
        carried = carried + x.C * x.e(c, d) * functional("d", x.layer, x.q(a, b), c, d)
        return "abcd", x.C * self.expect.covariance(x.q(a, b), x.omega(c, d)) + x.r * carried

    def _next_A(self, x: BlockStep, t: Tensors, a, b, c, d):
        functional = self.functional

        def bracket(a, b, c, d):
            by_D = x.e(c, d) * x.legs_omega(a, b, lambda e, f: entries(t["D"], e + f + c + d))
            by_v = x.legs_omega(a, b, lambda e, f: functional("v", x.layer, x.omega(c, d), e, f))
            return by_D + by_v + x.e(a, b) * functional("d", x.layer, x.omega(c, d), a, b)

        carried = x.legs_omega(a, b, lambda e, f: x.legs_omega(c, d, lambda g, h: entries(t["V"], e + f + g + h)))
        carried = carried + x.e(a, b) * x.e(c, d) * entries(t["A"], "abcd")
        carried = carried + bracket(a, b, c, d) + bracket(c, d, a, b)
        return "abcd", self.expect.covariance(x.omega(a, b), x.omega(c, d)) + x.r * carried

    def _next_B(self, x: BlockStep, t: Tensors, a, b, c, d):
        first, second = x.slopes(a, c), x.slopes(b, d)
        source = x.C**2 * self.expect(first, second) + x.gamma**2 * x.C * (self.expect(first) + self.expect(second))
        carried = x.e(a, c) * x.e(b, d) * entries(t["B"], "acbd")
        carried = carried + x.C * x.e(a, c) * self.functional("b", x.layer, second, a, c, b, d)
        carried = carried + x.C * x.e(b, d) * self.functional("b", x.layer, first, b, d, a, c)
        return "acbd", source * x.h(a, b) * x.h(c, d) + x.r * carried

    def _next_F(self, x: BlockStep, t: Tensors, a, b, c, d):
        first, second = x.X(a, c), x.X(b, d)
        carried = x.legs_m(a, c, lambda u: x.legs_m(b, d, lambda w: entries(t["F"], u + c + w + d)))
        carried = carried + x.C * x.legs_m(a, c, lambda u: self.functional("r", x.layer, second, u, c, d))
        carried = carried + x.C * x.legs_m(b, d, lambda w: self.functional("r", x.layer, first, w, d, c))
        return "acbd", x.C**2 * self.expect(first, second) * x.h(c, d) + x.r * carried

    def _next_P(self, x: BlockStep, t: Tensors, a, b, c, d):
        functional, twice, slopes = self.functional, x.X2(d, a), x.slopes(b, c)
        source = x.C * (x.gamma**2 * self.expect(twice) + x.C * self.expect(twice, slopes)) * x.h(a, b) * x.h(a, c)
        own = x.legs_m(d, a, lambda u: entries(t["P"], a + b + c + u))
        own = own + x.C * self.expect(twice) * entries(t["B"], "aabc")
        own = own + x.C * functional("b", x.layer, twice, b, c, a, a)
        memory = x.legs_m(d, a, lambda u: functional("pi", x.layer, slopes, u, a, b, c))
        memory = memory + x.C * self.expect(twice) * functional("b", x.layer, slopes, a, a, b, c)
        return "abcd", source + x.r * (x.e(b, c) * own + x.C * memory)

    def _next_Q(self, x: BlockStep, t: Tensors, a, b, c, d):
        functional, psi, X = self.functional, x.psi(a, b), x.X(d, c)
        own = x.legs_m(d, c, lambda u: entries(t["Q"], a + b + c + u))
        carried = x.e(a, b) * (own + x.C * functional("kappa", x.layer, X, a, b, c))

        def with_F(u):
            by_F = x.legs_alpha(a, b, lambda e: entries(t["F"], e + a + u + c))
            return by_F + functional("r", x.layer, psi, u, c, a)

        carried = carried + x.legs_m(d, c, with_F)
        carried = carried + x.C * x.legs_alpha(a, b, lambda e: functional("r", x.layer, X, e, a, c))
        return "abcd", x.C * self.expect(psi, X) * x.h(a, c) + x.r * carried

    def _next_R(self, x: BlockStep, t: Tensors, a, b, c, d):
        functional, twice, slopes = self.functional, x.x(a, b), x.slopes(c, d)
        source = (x.gamma**2 * self.expect(twice) + x.C * self.expect(twice, slopes)) * x.h(a, c) * x.h(a, d)
        own = x.e(a, b) * entries(t["R"], "abcd") + self.expect(twice) * entries(t["B"], "aacd")
        own = own + functional("b", x.layer, twice, c, d, a, a)
        own = own + x.legs_alpha(a, b, lambda e: entries(t["P"], a + c + d + e))
        memory = x.e(a, b) * functional("rho", x.layer, slopes, a, b, c, d)
        memory = memory + self.expect(twice) * functional("b", x.layer, slopes, a, a, c, d)
        memory = memory + x.legs_alpha(a, b, lambda e: functional("pi", x.layer, slopes, e, a, c, d))
        return "abcd", source + x.r * (x.e(c, d) * own + x.C * memory)

    def _next_S(self, x: BlockStep, t: Tensors, a, b, c, d):
        functional, crossed, slopes = self.functional, x.y(a, b), x.slopes(c, d)
        source = (x.gamma**2 * self.expect(crossed) + x.C * self.expect(crossed, slopes)) * x.h(a, c) * x.h(b, d)
        own = x.e(a, b) * entries(t["S"], "abcd") + self.expect(crossed) * entries(t["B"], "abcd")
        own = own + functional("b", x.layer, crossed, c, d, a, b)
        memory = x.e(a, b) * functional("varsigma", x.layer, slopes, a, b, c, d)
        memory = memory + self.expect(crossed) * functional("b", x.layer, slopes, a, b, c, d)
        return "abcd", source + x.r * (x.e(c, d) * own + x.C * memory)

    def _next_T(self, x: BlockStep, t: Tensors, a, b, c, d):
        first, second = x.psi(a, c), x.psi(b, d)

        def half(a, c, b, d, psi):
            """The terms that the mirror image (a c ↔ b d) has as well."""
            by_r = x.legs_alpha(a, c, lambda e: self.functional("r", x.layer, psi, e, a, b))
            by_Q = x.legs_alpha(b, d, lambda h: entries(t["Q"], a + c + b + h))
            return by_r + x.e(a, c) * (by_Q + self.functional("kappa", x.layer, psi, a, c, b))

        carried = x.legs_alpha(a, c, lambda e: x.legs_alpha(b, d, lambda h: entries(t["F"], e + a + h + b)))
        carried = carried + x.e(a, c) * x.e(b, d) * entries(t["T"], "acdb")
        carried = carried + half(a, c, b, d, second) + half(b, d, a, c, first)
        return "acdb", self.expect(first, second) * x.h(a, b) + x.r * carried

    def _next_U(self, x: BlockStep, t: Tensors, a, b, c, d):
        first, second = x.bent(a, d), x.bent(b, c)
        carried = x.e(a, d) * x.e(b, c) * entries(t["U"], "adbc")
        carried = carried + x.C * x.e(a, d) * self.functional("omega", x.layer, second, a, b, c, d, b)
        carried = carried + x.C * x.e(b, c) * self.functional("omega", x.layer, first, b, a, d, c, a)
        return "adbc", x.C**2 * self.expect(first, second) * x.h(a, b) * x.h(a, c) * x.h(b, d) + x.r * carried

    def _next_G1(self, x: BlockStep, t: Tensors, a, b, c, d):
        mean = self.shifted_product(x, t, x.s, x.s_by, x.s_by_two)
        return "ab", x.r * x.gamma**2 * on(t["G1"], "ab") + x.C * mean

    def _next_H1(self, x: BlockStep, t: Tensors, a, b, c, d):
        values = self.shifted_product(x, t, x.s, x.s_by, x.s_by_two)
        slopes = self.shifted_product(x, t, x.slope, x.slope_by, x.slope_by_two)
        fluctuating = self.functional("d", x.layer, x.p("a", "b"), a, b)
        for ef, leg in self._legs(x, x.p):
            fluctuating = fluctuating + 0.5 * leg * entries(t["D"], ef + "ab")
        for (e, f), leg in self._legs(x, x.slopes):
            fluctuating = fluctuating + leg * entries(t["F"], e + "a" + f + "b")
        for slot, e in enumerate("ab"):
            bent = x.derivative(slot, x.slopes)("a", "b")
            for first, second in ("ab", "ba"):
                fluctuating = fluctuating + self.functional("r", x.layer, bent, e, first, second)
        own = x.e(a, b) * on(t["H1"], "ab") + x.C * fluctuating
        total = x.lam * values + x.C * (x.h(a, b) * slopes + self.through_normaliser(x, t))
        return "ab", total + x.r * own

    def completed(self, name: str, x: BlockStep, t: Tensors) -> np.ndarray:
        """A tensor as theory §3 defines it, at the layer that comes into a step: on a stream some have more parts."""
        letters, more = self.on_stream(name, x)
        return t[name] + _laid_out(more, letters, len(x.H)) if letters else t[name]

    def on_stream(self, name: str, x: BlockStep) -> tuple[str, Any]:
        """What a stream adds to the stored part of a tensor, and the letters of its slots; no letters for nothing."""
        functional, (a, b, c, d) = self.functional, INDEX_LETTERS
        zz = x.z(0) * x.z(1)
        if name == "V":
            return "abcd", functional("v", x.layer, zz(a, b), c, d) + functional("v", x.layer, zz(c, d), a, b)
        if name == "D":
            return "abcd", functional("d", x.layer, zz(a, b), c, d)
        if name == "F":
            more = functional("r", x.layer, x.z(0)(b, b), a, c, d) + functional("r", x.layer, x.z(0)(a, a), b, d, c)
            return "acbd", more
        if name == "Q":
            return "abcd", functional("kappa", x.layer, x.z(0)(d, d), a, b, c)
        if name in ("v3", "d3"):
            return "abc", functional(name[0], x.layer, x.z(0)(a, a), b, c)
        if name in ("f3", "q3"):
            return "abc", functional({"f3": "r", "q3": "kappa"}[name], x.layer, x.one()(a, a), a, b, c)
        return "", 0.0


def _laid_out(value: Any, letters: str, inputs: int) -> np.ndarray:
    """A value over (a, b, c, d) with its axes in the order of the letters."""
    whole = np.broadcast_to(value, (inputs,) * len(letters) + (1,) * (4 - len(letters)))
    kept = whole.reshape((inputs,) * len(letters))
    return np.ascontiguousarray(kept.transpose([INDEX_LETTERS.index(letter) for letter in letters]))
