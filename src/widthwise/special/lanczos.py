"""Spectra of large symmetric matrices that are known by their products with vectors, by Lanczos iteration (matfree)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matfree import decomp, eig

Product = Callable[[Any], Any]


class Density(NamedTuple):
    """Nodes and weights (probes, steps): the density of eigenvalues is the mean over probes of Σ weight δ(x − node)."""

    node: np.ndarray
    weight: np.ndarray


def hessian_product(loss: Callable[[Any], Any], at: Any) -> Product:
    """v ↦ (∂²L)v at a point.

    >>> product = hessian_product(lambda x: x[0] ** 2 * x[1], jnp.array([1.0, 3.0]))
    >>> product(jnp.array([1.0, 0.0])).tolist()
    [6.0, 2.0]
    """
    return lambda v: jax.jvp(jax.grad(loss), (at,), (v,))[1]


def gauss_newton_product(outputs: Callable[[Any], Any], loss: Callable[[Any], Any], at: Any) -> Product:
    """v ↦ Jᵀ(∂²ℓ/∂z²)J v, the part G of the Hessian of ℓ(z(θ)) = G + E (theory §10).

    >>> product = gauss_newton_product(lambda x: x**2, lambda z: 0.5 * (z**2).sum(), jnp.array([1.0, 3.0]))
    >>> product(jnp.array([1.0, 1.0])).tolist()                     # J = diag(2x)
    [4.0, 36.0]
    """
    z, back = jax.vjp(outputs, at)
    curvature = hessian_product(loss, z)
    return lambda v: back(curvature(jax.jvp(outputs, (at,), (v,))[1]))[0]


def lanczos_density(product: Product, size: int, *, steps: int, probes: int, key: Any) -> Density:
    """Stochastic Lanczos quadrature: Gauss rules of the density of eigenvalues, one a random probe.

    Parameters
    ----------
    product : v ↦ Av for a symmetric matrix A.
    size : length of v.
    steps : products for each probe; from the number of distinct eigenvalues on, every node is an eigenvalue.
    probes, key : how many random starting vectors, and the jax key from which they come.

    Returns
    -------
    Density; in the mean over probes exact for polynomials of degree up to 2 steps − 1.

    >>> rule = lanczos_density(lambda v: jnp.array([1.0, 2.0, 5.0]) * v, 3, steps=3, probes=1, key=jax.random.key(0))
    >>> rule.node.round(9).tolist()
    [[1.0, 2.0, 5.0]]
    """
    run = decomp.tridiag_sym(steps, custom_vjp=False)

    @jax.jit
    def one(key):
        start = jax.random.normal(key, (size,))
        return run(product, start / jnp.linalg.norm(start)).J_small

    found = [_ritz(np.asarray(one(probe))) for probe in jax.random.split(key, probes)]
    return Density(*(np.stack(part) for part in zip(*found, strict=True)))


def _ritz(tridiagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and squared first components, up to where the iteration has exhausted its space.

    What comes after that has no weight, and repeats the largest node.
    """
    beside = np.diag(tridiagonal, 1)
    scale = np.nanmax(np.abs(tridiagonal[:2, :2]))
    ends = np.flatnonzero(~(beside > 1e-10 * scale))
    kept = len(tridiagonal) if not len(ends) else int(ends[0]) + 1
    values, vectors = np.linalg.eigh(tridiagonal[:kept, :kept])
    left = len(tridiagonal) - kept
    return np.pad(values, (0, left), mode="edge"), np.pad(vectors[0] ** 2, (0, left))


def smooth_density(rule: Density, at: np.ndarray, width: float) -> np.ndarray:
    """The density at some points, each node a Gaussian of that width in the coordinate of `at`.

    >>> rule = Density(np.array([[0.0]]), np.array([[1.0]]))
    >>> smooth_density(rule, np.array([0.0]), 1.0).round(4).tolist()
    [0.3989]
    """
    bumps = np.exp(-0.5 * ((at[:, None, None] - rule.node) / width) ** 2) / (width * np.sqrt(2.0 * np.pi))
    return (bumps * rule.weight).sum(axis=-1).mean(axis=-1)


def top_eigenpairs(product: Product, start: Any, steps: int, count: int) -> tuple[jax.Array, jax.Array]:
    """The largest eigenvalues (count,), from the largest down, and their unit vectors (count, size); may be jitted.

    >>> values, vectors = top_eigenpairs(lambda v: jnp.array([1.0, 2.0, 5.0]) * v, jnp.ones(3), 3, 2)
    >>> values.round(9).tolist(), abs(vectors).round(6).tolist()
    ([5.0, 2.0], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    """
    values, vectors = eig.eigh_partial(decomp.tridiag_sym(steps, custom_vjp=False))(product, start)
    return values[::-1][:count], vectors[::-1][:count]


def sharpness(loss: Callable[[Any], Any], at: Any, start: Any, steps: int = 12) -> jax.Array:
    """The largest eigenvalue of the Hessian of a loss, from below; may be jitted and batched.

    >>> float(sharpness(lambda x: (jnp.array([1.0, 3.0]) * x**2).sum(), jnp.zeros(2), jnp.ones(2), 2).round(9))
    6.0
    """
    return top_eigenpairs(hessian_product(loss, at), start, steps, 1)[0][0]
