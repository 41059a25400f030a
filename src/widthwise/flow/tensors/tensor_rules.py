"""The recursions of all tensors at order 1/n, one function a tensor, each a sum of named terms (theory §4, §5).

Rules are written in indices: `on(M, "ac")` lays a matrix M_ac out over (a, b, c, d), and a tensor is read in another
order with `entries`. They use arithmetic and indexing only, so numpy and jax arrays both go through them, and so does a
`QuadrupleMatrix` or `QuadrupleTensor`: lists of quadruples instead of all of them (see `quadruple_flow`).

What a layer does to small changes of the kernel are derivatives of two-point functions, leg by leg: a sum
Σ_ef ⟨∂_e∂_f F_ab⟩ X_ef over inputs touches only e, f ∈ {a, b}, and for F = f_a f_b it is
    aa_ab X_aa + 2 ab_ab X_ab + aa_ba X_bb,      aa = ⟨f''_a f_b⟩,  ab = ⟨f'_a f'_b⟩.
Where a kinked activation meets one variable twice (the same input, or a parallel one) the legs do not exist apart, but
the sum does: half of the total derivative then stands in aa, and ab is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations
from typing import Any

import jax
import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.four_points import Orders
from widthwise.gaussian.pair import is_parallel, line_derivative, pair_matrix
from widthwise.network import MLP


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Legs:
    """⟨σ^(p)_a σ^(p)_b⟩ differentiated: twice as (aa, ab), four times as (aaaa, aaab, aabb); each (inputs, inputs).

    Fourth derivatives are None where nothing reads them.
    """

    value: Any
    aa: Any
    ab: Any
    aaaa: Any
    aaab: Any
    aabb: Any
    error: float


def legs(activation: Activation, K: np.ndarray, fourth: bool, with_slopes: bool) -> list[Legs]:
    """Derivatives of ⟨σ_a σ_b⟩, and of ⟨σ'_a σ'_b⟩ if wanted, with respect to preactivations; fourth ones if asked."""
    # σσ and σ'σ' have three two-point matrices in common
    pair = cache(partial(pair_matrix, activation, K=K))
    found = []
    for p in range(1 + with_slopes):
        wanted = [(p, p), (p + 2, p), (p + 1, p + 1)]
        if fourth:
            wanted += [(p + 4, p), (p + 3, p + 1), (p + 2, p + 2)]
        matrices: list[Any] = [pair(*orders)[0].copy() for orders in wanted]
        if activation.kinks:
            _join(activation, p, K, matrices)
        matrices += [None] * (6 - len(matrices))
        found.append(Legs(*matrices, error=max(pair(*orders)[1] for orders in wanted)))
    return found


def _join(activation: Activation, p: int, K: np.ndarray, matrices: list[np.ndarray]) -> None:
    """Replace legs that do not exist apart by half of the total derivative."""
    scale = np.sqrt(np.diag(K))
    diagonal = np.diag(K)
    a, b = np.nonzero(is_parallel(diagonal[:, None], np.where(np.eye(len(K)) > 0, diagonal, K), diagonal[None, :]))
    for order, places in ((2, (1, 2)), (4, (3, 4, 5)))[: 1 + (len(matrices) > 3)]:
        if 2 * p + order <= 2 * activation.first_jump:
            continue  # every leg exists by itself
        for i, j in zip(a, b, strict=True):
            sign = -1.0 if K[i, j] < 0 else 1.0
            whole = line_derivative(activation, p, p, order, scale[i], sign * scale[j])
            for place in places:
                matrices[place][i, j] = 0.0
            matrices[places[0]][i, j] = 0.5 * whole


Terms = dict[str, Any]


class QuadrupleMatrix:
    """A matrix that lays M_pair out over all quadruples (a, b, c, d) there are, in whatever shape these are kept.

    It can also be added to its like, and multiplied by it or by numbers, entry by entry.
    """

    def on(self, pair: str) -> Any:
        raise NotImplementedError


class QuadrupleTensor:
    """A tensor over four inputs that reads itself, at some letters from abcd, over all quadruples there are."""

    def entries(self, indices: str) -> Any:
        raise NotImplementedError


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerStep:
    """All that the step from layer l to l+1 uses, besides the tensors of layer l.

    C = C_W and lam = λ_W of layer l+1, a number or a matrix over the two inputs whose gradients it joins;
    r = n_l / n_{l−1}, H = Θ of layer l. `sigma` and `slope` are ⟨σσ⟩ and ⟨σ'σ'⟩ with their derivatives; `fours` the
    four-point expectations that the rules read: fours[o_1, o_2, o_3, o_4] is ⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩.
    """

    C: float
    lam: Any
    r: float
    H: Any
    sigma: Legs
    slope: Legs
    fours: Mapping[Orders, Any]

    @classmethod
    def of(cls, net: MLP, layer: int, K, Theta, fourth: bool = True, with_slopes: bool = True, lam=None) -> LayerStep:
        """The step from a layer of a network, counted from 1, without four-point expectations; λ_W may be another.

        With or without fourth derivatives of ⟨σσ⟩, and with or without derivatives of ⟨σ'σ'⟩, which ⟨σσ⟩ then replaces.
        """
        lam = net.lambda_W[layer] if lam is None else lam
        ratio = net.widths[layer] / net.widths[layer - 1]
        sigma, *slope = legs(net.activations[layer - 1], K, fourth, with_slopes)
        return cls(
            C=net.C_W[layer], lam=lam, r=ratio, H=Theta, sigma=sigma, slope=slope[0] if slope else sigma, fours={}
        )

    @property
    def error(self) -> float:
        return max(self.sigma.error, self.slope.error)

    @property
    def slopes(self):
        """⟨σ'_aσ'_b⟩."""
        return self.slope.value

    def rate(self, pair: str):
        """λ_W of the gradients at a pair of inputs, over (a, b, c, d)."""
        return on(self.lam, pair) if np.ndim(self.lam) else self.lam

    @property
    def alpha_first(self):
        """α_ab,e for e = a: C_W H_ab ⟨σ'''_aσ'_b⟩ + λ_W ⟨σ''_aσ_b⟩; also the leg aa of Ω."""
        return self.C * self.H * self.slope.aa + self.lam * self.sigma.aa

    @property
    def alpha_second(self):
        """α_ab,e for e = b: C_W H_ab ⟨σ''_aσ''_b⟩ + λ_W ⟨σ'_aσ'_b⟩; also the leg ab of Ω."""
        return self.C * self.H * self.slope.ab + self.lam * self.sigma.ab


def on(matrix, pair: str):
    """M_pair over (a, b, c, d): on(M, "ca")[a, b, c, d] = M[c, a]; the same letter twice is the diagonal."""
    if isinstance(matrix, QuadrupleMatrix):
        return matrix.on(pair)
    first, second = pair
    if first == second:
        return vector_on(matrix.diagonal(), first)
    return (matrix if first < second else matrix.T)[_AXES[pair]]


def vector_on(vector: np.ndarray, letter: str) -> np.ndarray:
    """v_letter over (a, b, c, d)."""
    return vector[_AXES[letter]]


#: By one or two letters: where an array over their inputs has its axes among those of (a, b, c, d).
_AXES = {
    "".join(letters): tuple(slice(None) if letter in letters else None for letter in "abcd")
    for letters in (*"abcd", *permutations("abcd", 2))
}


def entries(tensor, indices: str):
    """A tensor at other or repeated indices: entries(F, "aafc"… ) with letters from abcd, over (a, b, c, d).

    entries(B, "aabc")[a, b, c, d] = B[a, a, b, c]. Repeated letters take a diagonal; missing ones are broadcast.
    """
    if isinstance(tensor, QuadrupleTensor):
        return tensor.entries(indices)
    if len(set(indices)) == 4:
        return tensor.transpose([indices.index(letter) for letter in "abcd"])
    axes = dict(zip("abcd", np.ix_(*[np.arange(len(tensor))] * 4), strict=True))
    return tensor[tuple(axes[letter] for letter in indices)]


def second_legs(value: Callable[[str], Any], aa, ab, pair: str, at: str = "abcd"):
    """Σ_ef ⟨∂_e∂_f F_pair⟩ X over the first or the last two slots of X, at the letters `at`; value(letters) reads X."""
    x, y = at[:2] if pair == "ab" else at[2:]

    def both(letter: str) -> str:
        return 2 * letter + at[2:] if pair == "ab" else at[:2] + 2 * letter

    return on(aa, x + y) * value(both(x)) + 2.0 * on(ab, x + y) * value(at) + on(aa, y + x) * value(both(y))


def through_V(V, first: tuple[Any, Any], second: tuple[Any, Any]):
    """Σ ⟨∂_e∂_f F_ab⟩ V_(ef)(gh) ⟨∂_g∂_h G_cd⟩, with the legs (aa, ab) of F and of G."""

    def inner(at: str):
        return second_legs(partial(entries, V), *second, "cd", at)

    return second_legs(inner, *first, "ab")


def rule_V(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    sigma = x.sigma.aa, x.sigma.ab
    return {"four": x.C**2 * _cov_ss_ss(x), "V": 0.25 * x.r * x.C**2 * through_V(t["V"], sigma, sigma)}


def _cov_ss_ss(x: LayerStep):
    """cov(σ_aσ_b, σ_cσ_d)."""
    return x.fours[0, 0, 0, 0] - on(x.sigma.value, "ab") * on(x.sigma.value, "cd")


def _cov_ss_ww(x: LayerStep):
    """cov(σ_aσ_b, σ'_cσ'_d)."""
    return x.fours[0, 0, 1, 1] - on(x.sigma.value, "ab") * on(x.slopes, "cd")


def rule_D(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    cov = x.rate("cd") * _cov_ss_ss(x) + x.C * on(x.H, "cd") * _cov_ss_ww(x)
    sigma, omega = (x.sigma.aa, x.sigma.ab), (x.alpha_first, x.alpha_second)
    return {
        "four": x.C * cov,
        "V": 0.25 * x.r * x.C * through_V(t["V"], sigma, omega),
        "D": 0.5 * x.r * x.C**2 * on(x.slopes, "cd") * second_legs(partial(entries, t["D"]), *sigma, "ab"),
    }


def rule_A(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    def mixed(first: str, second: str, orders: Orders):
        """λ_W C_W H cov(σσ, σ'σ') with σσ at the first pair of inputs and σ'σ' at the second."""
        cov = x.fours[orders] - on(x.sigma.value, first) * on(x.slopes, second)
        return x.rate(first) * x.C * on(x.H, second) * cov

    def through_D(first: str, second: str):
        legs = second_legs(partial(entries, t["D"]), *omega, "ab", first + second)
        return 0.5 * x.r * x.C * on(x.slopes, second) * legs

    cov = x.rate("ab") * x.rate("cd") * _cov_ss_ss(x)
    cov = cov + mixed("ab", "cd", (0, 0, 1, 1)) + mixed("cd", "ab", (1, 1, 0, 0))
    four_slopes = x.fours[1, 1, 1, 1] - on(x.slopes, "ab") * on(x.slopes, "cd")
    cov = cov + x.C**2 * on(x.H, "ab") * on(x.H, "cd") * four_slopes
    omega = x.alpha_first, x.alpha_second
    return {
        "four": cov,
        "V": 0.25 * x.r * through_V(t["V"], omega, omega),
        "D": through_D("ab", "cd"),
        "D transposed": through_D("cd", "ab"),
        "A": x.r * x.C**2 * on(x.slopes, "ab") * on(x.slopes, "cd") * entries(t["A"], "abcd"),
    }


def rule_B(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    # slots (a, b, c, d) here are B's own; the theory page writes them a, c, b, d
    return {
        "four": x.C**2 * x.fours[1, 1, 1, 1] * on(x.H, "ac") * on(x.H, "bd"),
        "B": x.r * x.C**2 * on(x.slopes, "ab") * on(x.slopes, "cd") * entries(t["B"], "abcd"),
    }


def rule_F(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    # slots (a, b, c, d) are F's own: σ_a σ'_b σ_c σ'_d; ∂_e(σ_aσ'_b) is ⟨σ'_aσ'_b⟩ at e = a, ⟨σ_aσ''_b⟩ at e = b
    def inner(first: str):
        own, both = (entries(t["F"], first + last) for last in ("cd", "dd"))
        return on(x.slopes, "cd") * own + on(x.sigma.aa, "dc") * both

    return {
        "four": x.C**2 * x.fours[0, 1, 0, 1] * on(x.H, "bd"),
        "F": x.r * x.C**2 * (on(x.slopes, "ab") * inner("ab") + on(x.sigma.aa, "ba") * inner("bb")),
    }


def rule_P(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    outer = x.r * x.C**2 * on(x.slopes, "bc")
    moved = on(x.sigma.aa, "ad") * entries(t["P"], "abca") + on(x.slopes, "ad") * entries(t["P"], "abcd")
    return {
        "four": x.C**2 * x.fours[2, 1, 1, 0] * on(x.H, "ab") * on(x.H, "ac"),
        "B": outer * on(x.sigma.aa, "ad") * entries(t["B"], "aabc"),
        "P": outer * moved,
    }


def _with_F(x: LayerStep, F, last: str):
    """Σ_e α_abe F_ea.. with the last two slots at the given letters."""
    return on(x.alpha_first, "ab") * entries(F, "aa" + last) + on(x.alpha_second, "ab") * entries(F, "ba" + last)


def rule_Q(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    # Σ_f ⟨∂_f(σ'_cσ_d)⟩ X_f…c : f = c reads X[…, c, c], f = d reads X[…, d, c]
    over_f = on(x.sigma.aa, "cd") * _with_F(x, t["F"], "cc") + on(x.slopes, "cd") * _with_F(x, t["F"], "dc")
    own = on(x.sigma.aa, "cd") * entries(t["Q"], "abcc") + on(x.slopes, "cd") * entries(t["Q"], "abcd")
    return {
        "four curved": x.C**2 * x.fours[2, 1, 1, 0] * on(x.H, "ab") * on(x.H, "ac"),
        "four": x.rate("ab") * x.C * x.fours[1, 0, 1, 0] * on(x.H, "ac"),
        "F": x.r * x.C * over_f,
        "Q": x.r * x.C**2 * on(x.slopes, "ab") * own,
    }


def rule_R(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    outer = x.r * on(x.slopes, "cd")
    with_P = on(x.alpha_first, "ab") * entries(t["P"], "acda") + on(x.alpha_second, "ab") * entries(t["P"], "acdb")
    return {
        "four curved": x.C**2 * x.fours[3, 1, 1, 1] * on(x.H, "ab") * on(x.H, "ac") * on(x.H, "ad"),
        "four": x.rate("ab") * x.C * x.fours[2, 0, 1, 1] * on(x.H, "ac") * on(x.H, "ad"),
        "B": outer * x.C * on(x.alpha_first, "ab") * entries(t["B"], "aacd"),
        "P": outer * x.C * with_P,
        "R": outer * x.C**2 * on(x.slopes, "ab") * entries(t["R"], "abcd"),
    }


def rule_S(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    outer = x.r * on(x.slopes, "cd")
    return {
        "four curved": x.C**2 * x.fours[2, 2, 1, 1] * on(x.H, "ab") * on(x.H, "ac") * on(x.H, "bd"),
        "four": x.rate("ab") * x.C * x.fours[1, 1, 1, 1] * on(x.H, "ac") * on(x.H, "bd"),
        "B": outer * x.C * on(x.alpha_second, "ab") * entries(t["B"], "abcd"),
        "S": outer * x.C**2 * on(x.slopes, "ab") * entries(t["S"], "abcd"),
    }


def rule_T(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    # slots (a, b, c, d) are T's own; the theory page writes them a, c, d, b: pairs (a, b) and (d, c), H between a and d
    F, Q = t["F"], t["Q"]
    over_f = on(x.alpha_first, "dc") * _with_F(x, F, "dd") + on(x.alpha_second, "dc") * _with_F(x, F, "cd")
    # Q_{d c a e}: slots (b, d, a, e) of the page
    with_Q = on(x.alpha_first, "ab") * entries(Q, "dcaa") + on(x.alpha_second, "ab") * entries(Q, "dcab")
    with_Q_too = on(x.alpha_first, "dc") * entries(Q, "abdd") + on(x.alpha_second, "dc") * entries(Q, "abdc")
    four = x.C**2 * on(x.H, "ab") * on(x.H, "dc") * x.fours[2, 1, 1, 2]
    four = four + x.rate("dc") * x.C * on(x.H, "ab") * x.fours[2, 1, 0, 1]
    four = four + x.rate("ab") * x.C * on(x.H, "dc") * x.fours[1, 0, 1, 2]
    return {
        "four": (four + x.rate("ab") * x.rate("dc") * x.fours[1, 0, 0, 1]) * on(x.H, "ad"),
        "F": x.r * over_f,
        "Q": x.r * x.C * on(x.slopes, "dc") * with_Q,
        "Q mirrored": x.r * x.C * on(x.slopes, "ab") * with_Q_too,
        "T": x.r * x.C**2 * on(x.slopes, "ab") * on(x.slopes, "dc") * entries(t["T"], "abcd"),
    }


def rule_U(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    # slots (a, b, c, d) are U's own; the theory page writes them a, d, b, c
    return {
        "four": x.C**2 * x.fours[2, 1, 2, 1] * on(x.H, "ac") * on(x.H, "ad") * on(x.H, "cb"),
        "U": x.r * x.C**2 * on(x.slopes, "ab") * on(x.slopes, "cd") * entries(t["U"], "abcd"),
    }


def shift(legs: Legs, G1, V) -> tuple[Any, Any]:
    """Means of K and Θ (theory §5): the two parts of S[f_a f_b] = ½ Σ ⟨∂∂F⟩ G1 + ⅛ Σ ⟨∂∂∂∂F⟩ V."""
    first = on(legs.aa, "ab") * on(G1, "aa") + 2.0 * on(legs.ab, "ab") * on(G1, "ab") + on(legs.aa, "ba") * on(G1, "bb")
    second = on(legs.aaaa, "ab") * entries(V, "aaaa") + on(legs.aaaa, "ba") * entries(V, "bbbb")
    second = second + 4.0 * (on(legs.aaab, "ab") * entries(V, "aaab") + on(legs.aaab, "ba") * entries(V, "bbab"))
    both = 2.0 * entries(V, "aabb") + 4.0 * entries(V, "abab")
    return 0.5 * first, 0.125 * (second + on(legs.aabb, "ab") * both)


def rule_G1(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    mean, fluctuation = shift(x.sigma, t["G1"], t["V"])
    return {"G1": x.r * x.C * mean, "V": x.r * x.C * fluctuation}


def rule_H1(x: LayerStep, t: Mapping[str, Any]) -> Terms:
    values, slopes = shift(x.sigma, t["G1"], t["V"]), shift(x.slope, t["G1"], t["V"])
    D, F = partial(entries, t["D"]), partial(entries, t["F"])
    first = D("aaab") + 2.0 * F("aaab")
    middle = D("abab") + F("aabb") + F("abba")
    last = D("bbab") + 2.0 * F("babb")
    correlated = on(x.slope.aa, "ab") * first + 2.0 * on(x.slope.ab, "ab") * middle + on(x.slope.aa, "ba") * last
    return {
        "values G1": x.r * x.rate("ab") * values[0],
        "values V": x.r * x.rate("ab") * values[1],
        "slopes G1": x.r * x.C * on(x.H, "ab") * slopes[0],
        "slopes V": x.r * x.C * on(x.H, "ab") * slopes[1],
        "H1": x.r * x.C * on(x.slopes, "ab") * on(t["H1"], "ab"),
        "D and F": 0.5 * x.r * x.C * correlated,
    }


#: Rules by the name of their tensor, in the order in which they are applied: each reads the layer below.
RULES: dict[str, Callable[[LayerStep, Mapping[str, Any]], Terms]] = {
    rule.__name__.removeprefix("rule_"): rule
    for rule in (
        *(rule_V, rule_D, rule_A, rule_B, rule_F, rule_P, rule_Q, rule_R, rule_S, rule_T, rule_U),
        *(rule_G1, rule_H1),
    )
}
