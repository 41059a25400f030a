"""Weight decay towards zero at infinite width: kernels between networks that shrink (theory §8).

Decay multiplies the initial parameters by c(t), e^{−wt} or Π(1 − η w), and what was learned at time s by c(t)/c(s):
    θ(t) = c(t) θ₀ − λ Σ_s w(t, s) J_sᵀ ε_s,    w(t, s) = c(t)/c(s) ds for flow, η_s Π_{s<j<t} (1 − η_j w) for descent.
What was learned is small in every parameter, so that J_s is that of the network at c(s)θ₀, and with f_t its outputs
    ε_t = f_t − y − Σ_{s<t} w(t, s) Θ_ts ε_s,    Θ_ts = J_t λ J_sᵀ.
f is Gaussian over times and inputs. Its covariance and Θ_ts flow from layer to layer as K and Θ of theory §2 do, with
c(t)c(s) in front of C_b and C_W. So trained outputs are linear in (f, y), by one linear system. What does not learn,
λ = 0, does not decay. Sums over times of the flow are integrals of polynomials between Gauss's nodes, on panels that
grow with the time gone by and stay shorter than 1/w.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from widthwise.errors import NoRule
from widthwise.flow.kernels.kernel_flow import Hyper
from widthwise.gaussian.kernel_rules import dense_step
from widthwise.gaussian.pair import pair_matrix
from widthwise.memory import require_memory
from widthwise.network import MLP, GradientDescent, GradientFlow, Network, simplified
from widthwise.network.schedules import scheduled_rates
from widthwise.network.stability import decay_of

#: Nodes in a panel of the flow; and the first panel, in units of the quickest mode.
NODES_OF_A_PANEL, FIRST_PANEL = 10, 0.5
#: Matrices of all inputs at all times that are held at once.
HELD_MATRICES = 16


class Times(NamedTuple):
    """c at the times at which gradients are taken, and in the end; w(t, s) between them, and from them to the end."""

    scales: np.ndarray
    last_scale: float
    weights: np.ndarray
    last_weights: np.ndarray

    @classmethod
    def of(cls, algorithm: GradientFlow | GradientDescent, largest_eigenvalue: float) -> Times:
        """
        >>> found = Times.of(GradientDescent(0.5, steps=2, weight_decay=0.2, decay_to="zero"), 1.0)
        >>> found.scales.tolist(), found.weights.tolist(), found.last_weights.tolist()
        ([1.0, 0.9], [[0.0, 0.0], [0.5, 0.0]], [0.45, 0.5])
        """
        decay = decay_of(algorithm)
        if isinstance(algorithm, GradientDescent):
            changing = scheduled_rates(algorithm)
            rates = np.full(algorithm.steps, algorithm.learning_rate) if changing is None else changing  # pyright: ignore[reportArgumentType, reportCallIssue]
            shrunk = np.concatenate([[1.0], np.cumprod(1.0 - rates * decay)])
            rows = [np.zeros(len(rates))]
            for step, rate in enumerate(rates):
                rows.append((1.0 - rate * decay) * rows[-1])
                rows[-1][step] = rate
            return cls(shrunk[:-1], float(shrunk[-1]), np.array(rows[:-1]), rows[-1])
        time = float(algorithm.time or 0.0)
        edges = [0.0]
        while edges[-1] < time:
            longest = min(max(edges[-1], FIRST_PANEL / largest_eigenvalue), 1.0 / decay)
            edges.append(min(edges[-1] + longest, time))
        nodes, to_nodes, to_end = _integrals(np.array(edges))
        return cls(
            np.exp(-decay * nodes),
            float(np.exp(-decay * time)),
            to_nodes * np.exp(-decay * (nodes[:, None] - nodes)),
            to_end * np.exp(-decay * (time - nodes)),
        )


def _integrals(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gauss's nodes on panels, and weights of the integrals from the first edge to each node and to the last edge."""
    x, w = legendre.leggauss(NODES_OF_A_PANEL)
    degrees = np.arange(NODES_OF_A_PANEL)
    higher = legendre.legvander(x, NODES_OF_A_PANEL)
    # ∫_{−1}^x P_k = (P_{k+1} − P_{k−1})/(2k + 1), and x + 1 for k = 0
    lower = np.concatenate([-np.ones((NODES_OF_A_PANEL, 1)), higher[:, : NODES_OF_A_PANEL - 1]], axis=1)
    within = (higher[:, 1:] - lower) / (2 * degrees + 1) @ np.linalg.inv(higher[:, :-1])
    half = 0.5 * np.diff(edges)
    nodes = ((edges[:-1] + half)[:, None] + half[:, None] * x).ravel()
    to_end = (half[:, None] * w).ravel()
    panel = np.repeat(np.arange(len(half)), NODES_OF_A_PANEL)
    to_nodes = np.where(panel[:, None] > panel, to_end, 0.0)
    to_nodes += np.kron(np.diag(half), within)
    return nodes, to_nodes, to_end


def shrinking_kernels(net: MLP, X: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K and Θ between networks whose parameters are those of the initialisation times `scales`, one for each row of X.

    >>> K, Theta = shrinking_kernels(MLP([1, 8, 1], "linear", C_b=0.0), np.ones((2, 1)), np.array([1.0, 0.5]))
    >>> K.tolist(), Theta.tolist()
    ([[1.0, 0.25], [0.25, 0.0625]], [[4.0, 2.5], [2.5, 1.75]])
    """
    Q, T = X @ X.T / net.widths[0], np.zeros((len(X), len(X)))
    square, layers = np.outer(scales, scales), Hyper.of(net)
    K = Theta = T
    for number in range(net.depth):
        if number:
            sigma = net.activations[number - 1]
            Q, T = pair_matrix(sigma, 0, 0, K)[0], pair_matrix(sigma, 1, 1, K)[0] * Theta
        here = layers[number]
        C_b, C_W = (
            C * (square if rate > 0.0 else 1.0) for C, rate in ((here.C_b, here.lambda_b), (here.C_W, here.lambda_W))
        )
        K, Theta = dense_step(Hyper(C_b, C_W, here.lambda_b, here.lambda_W), Q, T)
    return K, Theta


def shrinking_solution(
    net: Network,
    X: np.ndarray,
    X_test: np.ndarray,
    y: np.ndarray,
    algorithm: GradientFlow | GradientDescent,
    largest: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (outputs, inputs) and covariance (inputs, inputs) of one output, at training inputs, then tests.

    `largest` is the largest eigenvalue of Θ on the training inputs before training.
    """
    net = simplified(net)
    if not isinstance(net, MLP):
        raise NoRule(
            "net", f"a network of other layers than dense ones and activations, with {algorithm!r}", "a plain network",
            'Take decay_to="initialisation", or measure it with `train`.',
        )  # fmt: skip
    times, inputs = Times.of(algorithm, largest), np.concatenate([X, X_test])
    size = len(times.scales) * len(X)
    require_memory(
        8 * HELD_MATRICES * (size + len(inputs)) ** 2,
        f"kernels of {len(X)} training inputs between {len(times.scales)} times, for decay towards zero",
        "Take fewer steps or a shorter time, or measure it with `train`.",
    )
    scales = np.concatenate([np.repeat(times.scales, len(X)), np.full(len(inputs), times.last_scale)])
    K, Theta = shrinking_kernels(net, np.concatenate([*[X] * len(times.scales), inputs]), scales)
    learned = np.eye(size) + np.repeat(np.repeat(times.weights, len(X), 0), len(X), 1) * Theta[:size, :size]
    to_end = np.repeat(times.last_weights, len(X)) * Theta[size:, :size]
    fitted = np.linalg.solve(learned.T, to_end.T).T
    readout = np.concatenate([-fitted, np.eye(len(inputs))], axis=1)
    return (fitted @ np.tile(y, (len(times.scales), 1))).T, readout @ K @ readout.T
