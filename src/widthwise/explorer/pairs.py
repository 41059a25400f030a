"""K and Θ of two inputs together, fast enough to follow a slider (theory §2).

Activations with a closed form take the library's own route. For the others one program is compiled an activation: all
layers in one loop, ⟨σ_aσ_b⟩ and ⟨σ'_aσ'_b⟩ by the trapezoidal rule in the plane. It converges geometrically where σ
varies on the scale of the nodes: correlations are accurate to 1e-6, and to 1e-5 at kernels in the thousands, where
softplus and swish are nearly kinked. Downloads do not use it.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.explorer.settings import DEEPEST
from widthwise.flow.kernels.hyper import Hyper
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.gaussian.kernel_rules import dense_step
from widthwise.network import MLP
from widthwise.network.mlp import PER_LAYER

#: Nodes of one axis of the plane, and of an input with itself, and how many standard deviations they reach.
_PLANE, _LINE, _REACH = 145, 2049, 6.0


def continued(net: MLP) -> MLP:
    """The network, going on to the page's largest depth through layers of kernel one, which cannot explode."""
    more = DEEPEST - net.depth
    after = {"C_b": 1.0, "C_W": 0.0, "lambda_b": 1.0, "lambda_W": 1.0}
    hyper = {name: [*getattr(net, name), *[after[name]] * more] for name in PER_LAYER}
    return MLP([*net.widths[:-1], *[net.n] * more, net.widths[-1]], net.activation, **hyper)


def pair_kernels(net: MLP, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K and Θ (layer, 2, 2) of the two rows of X.

    >>> K, Theta = pair_kernels(MLP([2, 8, 8, 1], "tanh", C_W=2.0), np.eye(2))
    >>> Theta[0].tolist(), bool(np.all(np.abs(K[:, 0, 1]) < 1e-12))
    ([[1.5, 1.0], [1.0, 1.5]], True)
    """
    rows, longer = slice(net.depth), continued(net)
    if net.activation.closed is not None:
        flow = kernel_flow(longer, X)
        assert flow.Theta is not None
        return flow.K[rows], flow.Theta[rows]
    gram = X @ X.T / net.widths[0]
    K, Theta = _flow(net.activation, Hyper.of(longer), gram[[0, 0, 1], [0, 1, 1]])
    full = np.array([[0, 1], [1, 2]])
    return np.asarray(K)[rows][:, full], np.asarray(Theta)[rows][:, full]


def largest_step(net: MLP, X: np.ndarray) -> float:
    """2/λ_max of Θ on the two inputs (theory §8)."""
    largest = float(np.linalg.eigvalsh(pair_kernels(net, X)[1][-1])[-1])
    return 2.0 / largest if largest > 0.0 else float("inf")


def _rule(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for a standard normal variable."""
    u = np.linspace(-_REACH, _REACH, nodes)
    weights = np.exp(-0.5 * u**2)
    return u, weights / weights.sum()


@partial(jax.jit, static_argnums=0)
def _flow(activation: Activation, hyper: Hyper, gram):
    """K and Θ (layer, 3) of the pairs aa, ab, bb."""
    (line, line_weights), (u, weights) = _rule(_LINE), _rule(_PLANE)
    functions = activation.derivative(0), activation.derivative(1)

    def step(kernels, hyper):
        K, Theta = kernels
        a, b = jnp.sqrt(K[0]), jnp.sqrt(K[2])
        rho = jnp.clip(K[1] / jnp.where(a * b > 0.0, a * b, 1.0), -1.0, 1.0)
        z_b = b * (rho * u[:, None] + jnp.sqrt(1.0 - rho**2) * u)
        found = []
        for f in functions:
            aa, bb = (line_weights @ f(scale * line) ** 2 for scale in (a, b))
            found.append(jnp.stack([aa, (weights * f(a * u)) @ (f(z_b) @ weights), bb]))
        kernels = dense_step(hyper, found[0], found[1] * Theta)
        return kernels, kernels

    start = dense_step(hyper[0], gram, 0.0)
    _, above = jax.lax.scan(step, start, hyper[1:])
    return [jnp.concatenate([first[None], rest]) for first, rest in zip(start, above, strict=True)]
