"""Deep linear networks exactly, at every width: all tensors of theory §3 without expanding in 1/n.

Averaged over the weights of one layer, the fourth moments of a linear network are again combinations of the three
pairings of neurons (theory §3), with coefficients 1 and 1/n: K and Θ carry no correction at any width, and each tensor
is a short linear map of the ones below. The maps below hold full moments, E[Ĝ_ab Ĝ_cd], E[Ĝ_ab Ĥ_cd], …; a tensor of
theory §3 is n_{l−1} times the connected part. To leading order in 1/n they are the recursions of theory §4 with
σ'' = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from widthwise.activations.closed_forms import MonomialForm
from widthwise.errors import InvalidInput
from widthwise.flow.tensors.tensor_rules import entries, on
from widthwise.gaussian.kernel_rules import dense_step
from widthwise.network import MLP, check_inputs

NAMES = ("V", "D", "A", "B", "F", "P", "Q", "R", "S", "T", "U")

Moments = dict[str, np.ndarray]


@dataclass(frozen=True)
class DeepLinear:
    """K, Θ (layers, a, b) and every tensor of theory §3 (layers, a, b, c, d), exact at the widths of the network.

    E[zz] = K and E[Ĥ] = Θ exactly: G1 = H1 = 0. The index order of a tensor is that of theory §3: `tensors["T"][-1]`
    at [a, c, d, b] is T_acdb of the output layer.
    """

    layers: tuple[int, ...]
    K: np.ndarray
    Theta: np.ndarray
    tensors: dict[str, np.ndarray]


def deep_linear(net: MLP, X: ArrayLike) -> DeepLinear:
    """Exact kernels and tensors of a linear network at the inputs X (inputs, features), any biases and learning rates.

    >>> flow = deep_linear(MLP([1, 2, 2, 1], "linear"), [[1.0]])
    >>> flow.tensors["V"].ravel()  # n Var Ĝ = n (Π (1 + 2/n_l) − 1); the leading order is 0, 2, 4
    array([0., 2., 6.])
    """
    check_linear(net)
    inputs = check_inputs(X, net.widths[0])
    gram = inputs @ inputs.T / net.widths[0]
    K, Theta = dense_step(net.dense[0], gram, 0.0)
    moments: Moments = {name: np.zeros((len(gram),) * 4) for name in NAMES}
    moments |= {"V": _product(K, K), "D": _product(K, Theta), "A": _product(Theta, Theta)}
    kernels, tensors = [(K, Theta)], [_tabulated(moments, K, Theta, net.widths[0])]
    for layer in range(1, net.depth):
        step = _Step(net, layer, K, Theta)
        moments, (K, Theta) = step.apply(moments), step.kernels()
        kernels.append((K, Theta))
        tensors.append(_tabulated(moments, K, Theta, net.widths[layer]))
    Ks, Thetas = (np.stack(column) for column in zip(*kernels, strict=True))
    return DeepLinear(
        tuple(range(1, net.depth + 1)), Ks, Thetas, {name: np.stack([t[name] for t in tensors]) for name in NAMES}
    )


def check_linear(net: MLP) -> None:
    """Refuse any activation but the identity."""
    form = net.activation.closed
    if not (isinstance(form, MonomialForm) and form.degree == 1):
        raise InvalidInput(
            "net", f"a network with activation {net.activation.name}", "activation 'linear'",
            "For other activations use the expansion in 1/n, or the exact law of one input.",
        )  # fmt: skip


def _product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return on(first, "ab") * on(second, "cd")


def _tabulated(moments: Moments, K: np.ndarray, Theta: np.ndarray, n: int) -> Moments:
    """n times the connected part."""
    means = {"V": _product(K, K), "D": _product(K, Theta), "A": _product(Theta, Theta)}
    return {name: n * (moment - means.get(name, 0.0)) for name, moment in moments.items()}


class _Step:
    """From layer l to l+1: averages over the n = n_l neurons, and over the weights and biases of layer l+1.

    A sum over neurons of a moment M with pairings M_1 (the one that is summed), M_2, M_3 gives M_1 + (M_2 + M_3)/n.
    """

    def __init__(self, net: MLP, layer: int, K: np.ndarray, Theta: np.ndarray):
        self.n = net.widths[layer]
        self.C_b, self.C, self.lam_b, self.lam = (
            values[layer] for values in (net.C_b, net.C_W, net.lambda_b, net.lambda_W)
        )
        self.dense, self.K, self.Theta = net.dense[layer], K, Theta

    def kernels(self) -> tuple[np.ndarray, np.ndarray]:
        """K' = C_b + C_W K, Θ' = λ_b + λ_W K + C_W Θ (theory §2, exact here)."""
        return dense_step(self.dense, self.K, self.Theta)

    def apply(self, t: Moments) -> Moments:
        return self._kernel_moments(t) | self._differentials(t)

    def _summed(self, first, *others):
        return first + sum(others) / self.n

    def _kernel_moments(self, t: Moments) -> Moments:
        """V, D, A, F, B as full moments: E[ĜĜ], E[ĜĤ], E[ĤĤ] and the crossed pairings of the last two."""
        C_b, C, lam_b, lam, K, Theta = self.C_b, self.C, self.lam_b, self.lam, self.K, self.Theta
        zz = self._summed(t["V"], entries(t["V"], "acbd"), entries(t["V"], "adbc"))
        zh = self._summed(t["D"], entries(t["F"], "acbd"), entries(t["F"], "adbc"))
        hh = self._summed(t["A"], entries(t["B"], "acbd"), entries(t["B"], "adbc"))
        K_ab, K_cd, Theta_ab, Theta_cd = on(K, "ab"), on(K, "cd"), on(Theta, "ab"), on(Theta, "cd")
        through = lam_b * (Theta_ab + Theta_cd) + lam * (zh + entries(zh, "cdab"))
        return {
            "V": C_b**2 + C_b * C * (K_ab + K_cd) + C**2 * zz,
            "D": C_b * (lam_b + lam * K_cd + C * Theta_cd) + C * (lam_b * K_ab + lam * zz + C * zh),
            "A": lam_b**2 + lam_b * lam * (K_ab + K_cd) + lam**2 * zz + C * through + C**2 * hh,
            "F": C**2 * self._crossed_F(t),
            "B": C**2 * self._crossed_B(t),
        }

    def _crossed_F(self, t: Moments):
        """(1/n²) Σ_pq E[z_pa z_qc Ĥ_pq;bd], in the slots of F."""
        return self._summed(t["F"], entries(t["D"], "acbd"), entries(t["F"], "adcb"))

    def _crossed_B(self, t: Moments):
        """(1/n²) Σ_pq E[Ĥ_pq;ac Ĥ_pq;bd], in the slots of B."""
        return self._summed(t["B"], entries(t["A"], "acbd"), entries(t["B"], "adcb"))

    def _differentials(self, t: Moments) -> Moments:
        """P … U: the differentials of Ĥ, through the layer below and through one or two weights of this layer."""
        C, mixed, P, Q, S, T, U = self.C, self.lam * self.C, t["P"], t["Q"], t["S"], t["T"], t["U"]
        crossed_F, crossed_B = self._crossed_F(t), self._crossed_B(t)
        paired_Q = self._summed(Q, P, entries(Q, "acbd"))
        paired_P = self._summed(P, Q, entries(Q, "acbd"))
        R = self._summed(t["R"], entries(t["R"], "acdb"), entries(t["R"], "adbc"))
        through_T = entries(paired_Q, "dcab") + entries(paired_Q, "abdc")
        return {
            "P": C**2 * paired_P,
            "Q": C**2 * paired_Q + mixed * entries(crossed_F, "badc"),
            "R": C**2 * R + mixed * entries(paired_P, "acdb"),
            "S": C**2 * self._summed(S, entries(T, "acdb"), entries(U, "adbc")) + mixed * crossed_B,
            "T": C**2 * self._summed(T, entries(S, "adbc"), entries(U, "acdb"))
            + mixed * through_T
            + self.lam**2 * entries(crossed_F, "bacd"),
            "U": C**2 * self._summed(U, entries(S, "acdb"), entries(T, "adbc")),
        }
