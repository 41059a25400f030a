"""Decompositions of matrices that are safe under `jax.vmap` on a processor.

jax cuts a batch of matrices into pieces for its pool of threads, and waits for them in a thread of that pool. Several
batches at the same time, of one program or of two, can hold all threads and wait for ever. Here the matrices of a batch
are taken one after the other in the thread that asks. An accelerator gets them as a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise import devices


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays that `jax.vmap` on a processor calls again and again; it is not to be differentiated.

    >>> root = one_by_one(jnp.linalg.cholesky)
    >>> jax.vmap(root)(jnp.array([[[4.0]], [[9.0]]])).ravel().tolist()
    [2.0, 3.0]
    """
    alone = jax.custom_batching.sequential_vmap(function)

    @wraps(function)
    def call(*arrays):
        plain = devices.library(*arrays) is np
        return function(*arrays) if plain or devices.on_accelerator() else alone(*arrays)

    return call


@one_by_one
def eigh(matrix):
    """Eigenvalues, in rising order, and eigenvectors (columns) of a symmetric matrix, one of numpy by numpy.

    >>> values, vectors = eigh(jnp.array([[2.0, 0.0], [0.0, 1.0]]))
    >>> values.tolist(), abs(vectors).tolist()
    ([1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    xp = devices.library(matrix)
    if xp is np and not np.isfinite(matrix).all():  # as jax has it
        return np.full(len(matrix), np.nan), np.full_like(matrix, np.nan)
    return tuple(xp.linalg.eigh(matrix))


@one_by_one
def eigvalsh(matrix):
    """Eigenvalues of a symmetric matrix, in rising order.

    >>> jax.vmap(eigvalsh)(jnp.array([[[2.0, 0.0], [0.0, 1.0]]])).tolist()
    [[1.0, 2.0]]
    """
    return jnp.linalg.eigvalsh(matrix)
