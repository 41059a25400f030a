"""The spectrum of the Hessian of a model's loss, by Lanczos iteration on Hessian-vector products (matfree)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree

from widthwise.experiments.tangent import kernel, outputs, rates, tangent
from widthwise.memory import require_memory
from widthwise.network import MLP
from widthwise.network.inputs import check_targets
from widthwise.network.validation import check_integer
from widthwise.readers.empirical import load_model, parameter_count
from widthwise.readers.packages import need
from widthwise.results.labels import label
from widthwise.results.theory import theory


def hessian_spectrum(
    model: Any, X: Any, y: Any, net: MLP | None = None, *, steps: int = 60, probes: int = 4, seed: int = 0
) -> xr.Dataset:
    """Eigenvalues of the Hessian of ½Σ(z−y)² at a model's parameters, beside those of its NTK and of Θ.

    The Hessian is taken in the coordinates θ/√λ, in which gradient descent has one rate: √λ (∂²L) √λ. There its
    Gauss–Newton part has the nonzero eigenvalues of Ĥ on the inputs, and 2/λ_max bounds the rate (theory §10).

    Parameters
    ----------
    model : a PyTorch, Flax (nnx) or Equinox model, see `from_torch`.
    X, y : (inputs, features), and (inputs, outputs) or (inputs,) for one output.
    net : the network whose λ and theory are used; by default what is read from the model, with λ = 1 per parameter.
    steps : Hessian-vector products for each probe. From the number of distinct eigenvalues on, each of them is exact.
    probes, seed : random starting vectors, over which the density is averaged.

    Returns
    -------
    Dataset with `node` and `weight` on (probe, step): the density of eigenvalues is the mean over probes of
    Σ weight δ(x − node), exact for polynomials of degree up to 2 steps − 1 in the mean; its extreme nodes converge to
    the extreme eigenvalues. `ntk` and `theta` on (mode,): eigenvalues of Ĥ and, for every output, of Θ, from the
    largest down. Attribute `parameters`.

    >>> from torch import nn
    >>> ds = hessian_spectrum(nn.Linear(2, 1), [[1.0, 2.0]], [0.0])        # the Hessian is (x, 1)(x, 1)ᵀ
    >>> round(float(ds["node"].max()), 9), round(float(ds["ntk"][0]), 9)
    (6.0, 6.0)
    """
    need("matfree", "interop", "hessian_spectrum")
    from widthwise.special.lanczos import hessian_product, lanczos_density

    layers, net, X = load_model(model, X, net)
    y = check_targets(y, len(X), net.widths[-1], "y")
    count, probes = parameter_count(net), check_integer("probes", probes, 1)
    steps = min(check_integer("steps", steps, 1), count)
    require_memory(8 * count * (steps + 20), f"{steps} Lanczos vectors of {count} parameters", "Take fewer steps.")
    flat, unravel = ravel_pytree(layers)
    roots = ravel_pytree(jax.tree.map(lambda rate, p: jnp.full(p.shape, jnp.sqrt(rate)), rates(net), layers))[0]

    def loss(shift):
        return 0.5 * jnp.sum((outputs(net, unravel(flat + roots * shift), X) - y.T) ** 2)

    rule = lanczos_density(
        hessian_product(loss, jnp.zeros(count)),
        count,
        steps=steps,
        probes=probes,
        key=jax.random.key(check_integer("seed", seed, 0)),
    )
    variables = {
        "node": (("probe", "step"), rule.node),
        "weight": (("probe", "step"), rule.weight),
        **_modes(net, layers, X),
    }
    return label(variables, net, kind="hessian_spectrum", parameters=count, steps=steps, seed=seed)


def _modes(net: MLP, layers: Any, X: np.ndarray) -> dict[str, Any]:
    """Eigenvalues of Ĥ over inputs and outputs, and of Θ once for every output."""
    size = net.widths[-1] * len(X)
    H = np.asarray(kernel(tangent(net, layers, X))).reshape(size, size)
    Theta = theory(net, X, order=0, layers="last")["Theta"].values[0]
    expected = np.repeat(np.linalg.eigvalsh(Theta), net.widths[-1])
    return {"ntk": (("mode",), np.linalg.eigvalsh(H)[::-1]), "theta": (("mode",), expected[::-1])}
