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
from widthwise.memory import require_memory
from widthwise.network import MLP, PER_LAYER, Network, check_inputs, plain

LINEAR_TENSORS = ("V", "D", "A", "B", "F", "P", "Q", "R", "S", "T", "U")

PairMoments = dict[str, np.ndarray]


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
    net = check_linear(net)
    inputs = check_inputs(X, net.widths[0])
    gram = inputs @ inputs.T / net.widths[0]
    K, Theta = dense_step(net.dense[0], gram, 0.0)
    needed = 8 * (net.depth + 4) * len(LINEAR_TENSORS) * len(gram) ** 4
    require_memory(
        needed,
        f"moments of {len(gram)} inputs, {len(gram)}⁴ entries each",
        lambda limit: f"What would fit: {int(len(gram) * (limit / needed) ** 0.25)} inputs.",
    )
    moments: PairMoments = {name: np.zeros((len(gram),) * 4) for name in LINEAR_TENSORS} | first_moments(K, Theta)
    kernels, tensors = [(K, Theta)], [_connected(moments, K, Theta, net.widths[0])]
    for layer in range(1, net.depth):
        step = MomentStep(net, layer, K, Theta)
        moments, (K, Theta) = step.kernel_moments(moments) | step.differentials(moments), step.kernels()
        kernels.append((K, Theta))
        tensors.append(_connected(moments, K, Theta, net.widths[layer]))
    Ks, Thetas = (np.stack(column) for column in zip(*kernels, strict=True))
    stacked = {name: np.stack([layer[name] for layer in tensors]) for name in LINEAR_TENSORS}
    return DeepLinear(tuple(range(1, net.depth + 1)), Ks, Thetas, stacked)


def check_linear(net: Network) -> MLP:
    """The network, if it has no activation but the identity; any other is refused."""
    net = plain(net, "the exact law of linear networks")
    form = net.activation.closed
    if not (isinstance(form, MonomialForm) and form.degree == 1):
        raise InvalidInput(
            "net", f"a network with activation {net.activation.name}", "activation 'linear'",
            "For other activations use the expansion in 1/n, or the exact law of one input.",
        )  # fmt: skip
    return net


def first_moments(K: np.ndarray, Theta: np.ndarray) -> PairMoments:
    """E[ĜĜ], E[ĜĤ], E[ĤĤ] without fluctuation: those of the first layer, and what is not connected in any other."""
    return {"V": on(K, "ab") * on(K, "cd"), "D": on(K, "ab") * on(Theta, "cd"), "A": on(Theta, "ab") * on(Theta, "cd")}


def _connected(moments: PairMoments, K: np.ndarray, Theta: np.ndarray, n: int) -> PairMoments:
    """n times the connected part."""
    means = first_moments(K, Theta)
    return {name: n * (moment - means.get(name, 0.0)) for name, moment in moments.items()}


class MomentStep:
    """From layer l to l+1: averages over the n = n_l neurons, and over the weights and biases of layer l+1.

    A sum over neurons of a moment M with pairings M_1 (the one that is summed), M_2, M_3 gives M_1 + (M_2 + M_3)/n. A
    gate of mean square A_2 and mean fourth power A_4 in every neuron weighs different neurons by A_2² and equal ones by
    A_4; at one input, fair gates of a ReLU layer do (theory §10).
    """

    def __init__(self, net: MLP, layer: int, K: np.ndarray, Theta: np.ndarray, gates: tuple[float, float] = (1.0, 1.0)):
        A_2, A_4 = gates
        self.same, self.first = A_4 / net.widths[layer], A_2**2 + (A_4 - A_2**2) / net.widths[layer]
        self.dense, self.K, self.Theta = net.dense[layer], A_2 * K, A_2 * Theta

    def kernels(self) -> tuple[np.ndarray, np.ndarray]:
        """K' = C_b + C_W K, Θ' = λ_b + λ_W K + C_W Θ (theory §2, exact here)."""
        return dense_step(self.dense, self.K, self.Theta)

    def _summed(self, first, *others):
        return self.first * first + self.same * sum(others)

    def kernel_moments(self, t: PairMoments) -> PairMoments:
        """V, D, A, F, B as full moments: E[ĜĜ], E[ĜĤ], E[ĤĤ] and the crossed pairings of the last two."""
        C_b, C, lam_b, lam = (getattr(self.dense, name) for name in PER_LAYER)
        zz = self._summed(t["V"], entries(t["V"], "acbd"), entries(t["V"], "adbc"))
        zh = self._summed(t["D"], entries(t["F"], "acbd"), entries(t["F"], "adbc"))
        hh = self._summed(t["A"], entries(t["B"], "acbd"), entries(t["B"], "adbc"))
        (K_ab, K_cd), (Theta_ab, Theta_cd) = ((on(T, "ab"), on(T, "cd")) for T in (self.K, self.Theta))
        through = lam_b * (Theta_ab + Theta_cd) + lam * (zh + entries(zh, "cdab"))
        return {
            "V": C_b**2 + C_b * C * (K_ab + K_cd) + C**2 * zz,
            "D": C_b * (lam_b + lam * K_cd + C * Theta_cd) + C * (lam_b * K_ab + lam * zz + C * zh),
            "A": lam_b**2 + lam_b * lam * (K_ab + K_cd) + lam**2 * zz + C * through + C**2 * hh,
            "F": C**2 * self._crossed_F(t),
            "B": C**2 * self._crossed_B(t),
        }

    def _crossed_F(self, t: PairMoments):
        """(1/n²) Σ_pq E[z_pa z_qc Ĥ_pq;bd], in the slots of F."""
        return self._summed(t["F"], entries(t["D"], "acbd"), entries(t["F"], "adcb"))

    def _crossed_B(self, t: PairMoments):
        """(1/n²) Σ_pq E[Ĥ_pq;ac Ĥ_pq;bd], in the slots of B."""
        return self._summed(t["B"], entries(t["A"], "acbd"), entries(t["B"], "adcb"))

    def differentials(self, t: PairMoments) -> PairMoments:
        """P … U: the differentials of Ĥ, through the layer below and through one or two weights of this layer."""
        C, lam = self.dense.C_W, self.dense.lambda_W
        mixed, P, Q, S, T, U = lam * C, t["P"], t["Q"], t["S"], t["T"], t["U"]
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
            + lam**2 * entries(crossed_F, "bacd"),
            "U": C**2 * self._summed(U, entries(S, "acdb"), entries(T, "adbc")),
        }
