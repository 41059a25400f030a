"""the length of a deep linear network is a product of chi-squares

‖θ‖² of a deep linear network is a product of independent χ²_n/n over its L hidden layers, so that log ‖θ‖ tends to
N(−L/2n, L/2n) as L, n → ∞ together: width first gives ‖θ‖ = 1, depth first ‖θ‖ → 0 while E ‖θ‖² = 1. Singular values of
the product follow the free product of laws of Marchenko and Pastur (theory §10).
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from widthwise.experiments.sampler import network_key
from widthwise.labs.base import Outcome, Outcomes
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import log_variance
from widthwise.plots.style import COLOURS, style
from widthwise.special.linear_products import product_law
from widthwise.special.random_spectra import product_spectrum

SIZES = (8, 16, 24)
SIZE = "width"
NETWORKS, MATRICES = 3_000, 60
#: Below this length a network counts as collapsed.
COLLAPSED = 0.1
#: Layers of the product whose singular values are looked at, and their widths over the size.
FACTORS, PER_SIZE = 3, 6
#: Seeds of the spectra lie this far from those of the lengths.
OTHER_SEED = 1_000_003


@partial(jax.jit, static_argnums=(0, 1, 3))
def _log_lengths(width: int, depth: int, seed, count: int):
    """log |W^{L+1} ⋯ W²| of `count` linear networks with `depth` hidden layers, multiplied out matrix by matrix."""

    def one(index):
        def step(carry, key):
            row, log_length = carry
            row = row @ jax.random.normal(key, (width, width)) / math.sqrt(width)
            length = jnp.linalg.norm(row)
            return (row / length, log_length + jnp.log(length)), None

        first, rest = jax.random.split(network_key(seed, index))
        row = jax.random.normal(first, (width,)) / math.sqrt(width)
        length = jnp.linalg.norm(row)
        (_, total), _ = jax.lax.scan(step, (row / length, jnp.log(length)), jax.random.split(rest, depth - 1))
        return total

    return jax.lax.map(one, jnp.arange(count), batch_size=200)


def _eigenvalues(widths: tuple[int, ...], seed: int) -> np.ndarray:
    """Eigenvalues of AᵀA (matrices, n_0) for A = W^L ⋯ W¹."""
    rng = np.random.default_rng(seed + OTHER_SEED)
    A = np.broadcast_to(np.eye(widths[0]), (MATRICES, widths[0], widths[0]))
    for below, above in itertools.pairwise(widths):
        A = rng.normal(size=(MATRICES, above, below)) / math.sqrt(below) @ A
    return np.linalg.eigvalsh(A.swapaxes(1, 2) @ A)


def experiment(width: int, seed: int) -> Outcome:
    law, deep = product_law([width] * width), product_law([width] * (4 * width))
    logs, very = (np.asarray(_log_lengths(width, depth, seed, NETWORKS)) for depth in (width, 4 * width))
    n = PER_SIZE * width
    equal, unequal = product_spectrum([n] * (FACTORS + 1)), product_spectrum([n, n // 2, 2 * n])
    spectra = [_eigenvalues(some.widths, seed) for some in (equal, unequal)]
    second = [np.mean(values**2, axis=1) for values in spectra]
    claims = (
        Claim.mean("E log ‖θ‖, L = n", law.log_mean, logs).rejects({"−L/4n": -0.25, "n → ∞ first": 0.0}),
        Claim("log variance of log ‖θ‖, L = n", math.log(law.log_variance), *log_variance(logs)).rejects(
            {"L/4n": math.log(0.25), "twice": math.log(2 * law.log_variance)}
        ),
        Claim.mean("P(‖θ‖² > E ‖θ‖²), L = n", law.sf(0.0), logs > 0.0).rejects({"a half, as for shallow ones": 0.5}),
        Claim.mean("P(‖θ‖ < 0.1), L = 4n", deep.cdf(math.log(COLLAPSED)), very < math.log(COLLAPSED)).rejects(
            {"n → ∞ first": 0.0, "L → ∞ first": 1.0}
        ),
        Claim.mean("tr (AᵀA)²/n, three equal layers", equal.exact_second_moment(), second[0]).rejects(
            {"Marchenko–Pastur, one layer": 2.0}
        ),
        Claim.mean("tr (AᵀA)²/n, widths 1 : ½ : 2", unequal.exact_second_moment(), second[1]).rejects(
            {"equal widths": product_spectrum([n] * 3).exact_second_moment()}
        ),
    )
    return Outcome(claims, {"logs": logs, "law": law, "eigenvalues": spectra[0].ravel(), "spectrum": equal})


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    sizes = list(outcomes)
    grid = np.linspace(-4.0, 2.0, 121)
    for number, size in enumerate((sizes[0], sizes[-1])):
        curves, colour = [o.curves for o in outcomes[size]], COLOURS[number]
        logs = np.concatenate([c["logs"] for c in curves])
        left.hist(logs, bins=60, range=(-4, 2), density=True, alpha=0.25, histtype="stepfilled", color=colour)
        left.plot(grid, curves[0]["law"].density(grid), color=colour, label=f"L = n = {size}, exact")
    left.plot(grid, norm.pdf(grid, -0.5, math.sqrt(0.5)), color=COLOURS[2], linestyle="--", label="N(−L/2n, L/2n)")
    left.plot(grid, norm.pdf(grid, -0.25, 0.5), color=COLOURS[3], linestyle=":", label="N(−L/4n, L/4n)")
    left.set(xlabel=r"$\log\,\|\theta\|$", ylabel="density", title="length of a deep linear network")
    left.set_ylim(0.0, 0.95)
    left.legend(loc="upper left", fontsize=9)
    largest = outcomes[sizes[-1]][0].curves
    x = np.linspace(0.02, 10.0, 400)
    values = np.concatenate([o.curves["eigenvalues"] for o in outcomes[sizes[-1]]])
    bins = np.linspace(0.0, 10.0, 81)
    shares = np.histogram(values, bins)[0] / len(values) / np.diff(bins)
    right.stairs(shares, bins, fill=True, alpha=0.25, color=COLOURS[0])
    for layers in range(1, FACTORS + 1):
        density, name = product_spectrum([1] * (layers + 1)).density(x), f"{layers} layer{'s' * (layers > 1)}"
        right.plot(x, density, label=name, **style(FACTORS - layers))
    right.set(yscale="log", ylim=(3e-3, 5.0), xlabel="squared singular value", ylabel="density")
    right.set_title(f"product of {FACTORS} matrices, n = {largest['spectrum'].widths[0]}")
    right.legend()
