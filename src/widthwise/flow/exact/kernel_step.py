"""The law of a layer's kernel matrix given the one before, for several inputs (theory §1).

Given the kernel G of layer l, its n neurons are independent Gaussian vectors z_j ~ N(0, G), and
    Ĝ_ab = C_b + (C_W/n) Σ_j σ(z_ja) σ(z_jb)
is the kernel of layer l + 1: a mean of n independent matrices. Its mean and covariance are exact at every width,
    E[Ĝ] = C_b + C_W⟨σ_aσ_b⟩,    cov(Ĝ_ab, Ĝ_cd) = (C_W²/n) cov(σ_aσ_b, σ_cσ_d),
and so are draws. A sum of squares of neurons, each is positive semidefinite as it is, without a projection; with at
least as many neurons as inputs, and inputs that σ tells apart, it is definite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from widthwise.activations import Activation
from widthwise.errors import InvalidInput
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.memory import require_memory
from widthwise.network import MLP, check_integer, check_seed, real_array


@dataclass(frozen=True)
class KernelStep:
    """p(K^{l+1} | K^l) on some inputs: mean (a, b), covariance (a, b, c, d), and exact draws."""

    mean: np.ndarray
    covariance: np.ndarray
    _root: np.ndarray
    _sigma: Activation
    _numbers: tuple[float, float, int]

    def sample(self, draws: int = 1, seed: int = 0) -> np.ndarray:
        """Kernel matrices (draws, a, b)."""
        C_b, C_W, n = self._numbers
        draws, inputs = check_integer("draws", draws, 1, expected="a positive integer"), len(self.mean)
        each = 8 * (inputs**2 + n * inputs)
        require_memory(
            each * draws, f"{draws} kernels from {n} neurons", lambda limit: f"What fits: {limit // each} draws."
        )
        rng = np.random.default_rng(check_seed(seed))
        sigma = np.asarray(self._sigma.function(rng.standard_normal((draws, n, self._root.shape[1])) @ self._root.T))
        return C_b + C_W / n * sigma.swapaxes(1, 2) @ sigma


def kernel_step(net: MLP, kernel: Any, layer: int = 2) -> KernelStep:
    """The law of the kernel of `layer` given that of the layer before, `kernel` (inputs, inputs).

    Draws are sums over neurons, and so positive semidefinite: definite where there are as many neurons as inputs.

    >>> net = MLP([2, 50, 1], "linear")
    >>> step = kernel_step(net, [[1.0, 0.5], [0.5, 1.0]])          # a Wishart matrix: (G_ac G_bd + G_ad G_bc)/n
    >>> step.mean.round(9).tolist(), [round(float(step.covariance[at]), 9) for at in ((0, 0, 0, 0), (0, 1, 0, 1))]
    ([[1.0, 0.5], [0.5, 1.0]], [0.04, 0.025])
    """
    if not isinstance(net, MLP):
        raise InvalidInput("net", type(net).__name__, "an MLP, whose kernel is a mean over independent neurons")
    layer = check_integer("layer", layer, 2, net.depth, f"a layer from 2 to {net.depth}, the number of weight layers")
    G = real_array(kernel, "kernel")
    if G.ndim != 2 or G.shape[0] != G.shape[1] or G.size == 0 or not np.allclose(G, G.T, atol=1e-12 * np.abs(G).max()):
        remedy = "For example `theory(net, X)['K'].values[0]`."
        raise InvalidInput("kernel", f"an array of shape {G.shape}", "a symmetric matrix, inputs by inputs", remedy)
    require_memory(8 * 8 * len(G) ** 4, f"covariances of a kernel of {len(G)} inputs", "Take fewer inputs.")
    values, vectors = linalg.eigh(G)
    if values[0] < -1e-10 * max(values[-1], 0.0) or values[-1] <= 0.0:
        got, remedy = f"a matrix with the eigenvalue {values[0]:.3g}", "Add to its diagonal what rounding took away."
        raise InvalidInput("kernel", got, "a covariance matrix", remedy)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    C_b, C_W, n = (float(net.C_b[layer - 1]), float(net.C_W[layer - 1]), net.widths[layer - 1])
    # a network whose first layer has the kernel G
    below = MLP([len(G), n, 1], net.activations[layer - 2], C_b=[0.0, C_b], C_W=[1.0, C_W])
    flow = finite_flow(below, np.sqrt(len(G)) * root, ("V",), with_theta=False, last_only=True)
    return KernelStep(flow.K[-1], flow.tensors["V"][-1] / n, root, net.activations[layer - 2], (C_b, C_W, n))
