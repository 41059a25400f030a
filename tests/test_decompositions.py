"""Batches of matrices at the same time: jax's own decompositions stand still, those taken one by one end."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from widthwise.decompositions import eigh, eigvalsh

#: As many batches that do not depend on each other as there are cores, again and again.
PROGRAM = """
import os, sys, jax, numpy as np
from widthwise.decompositions import eigh
jax.config.update("jax_enable_x64", True)
use = {"library": eigh, "jax": jax.numpy.linalg.eigh}[sys.argv[1]]

@jax.jit
@jax.vmap
def traces(many):
    return sum(part.sum() for matrix in many for part in use(matrix + matrix.T))

batches = np.random.default_rng(0).normal(size=(64, os.cpu_count(), 32, 32))
for _ in range(int(sys.argv[2])):
    jax.block_until_ready(traces(list(batches.swapaxes(0, 1))))
"""


def run(which, times, seconds):
    """With jax's own settings, whatever those of the tests are."""
    there = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "OMP_NUM_THREADS")}
    command = [sys.executable, "-c", PROGRAM, which, str(times)]
    subprocess.run(command, check=True, timeout=seconds, capture_output=True, env=there)


def test_many_batches_at_the_same_time_end():
    run("library", 200, 120)


@pytest.mark.full
def test_those_of_jax_do_not():
    """Negative control. On the day it is red, jax has been mended, and `one_by_one` can go."""
    with pytest.raises(subprocess.TimeoutExpired):
        run("jax", 2000, 90)


def test_a_batch_has_the_decompositions_of_its_matrices():
    some = np.random.default_rng(1).normal(size=(3, 4, 5, 5))
    symmetric = some + some.swapaxes(-1, -2)
    values, vectors = jax.vmap(jax.vmap(eigh))(symmetric)
    assert np.allclose(vectors * values[..., None, :] @ vectors.swapaxes(-1, -2), symmetric, atol=1e-12)
    assert np.allclose(jax.vmap(jax.vmap(eigvalsh))(symmetric), np.linalg.eigvalsh(symmetric), atol=1e-12)
