"""Order 1/n for every loss that ends at z = y, and for momentum: what the path adds to a single step (theory §8).

An optimiser that is linear in the gradients moves the parameters to θ₀ − λ Σ_t w(t) J_tᵀ s_t, with s = ∂ℓ/∂z at its
time and weights w that do not depend on the network: dt for flow, η for descent, filtered by momentum. J_t is expanded
about θ₀. With sums over training inputs, outputs and times understood,
    a = Σ w s,    B_jb,kc = Σ w s_jb a_kc,    C_jb,kc,md = Σ w s_jb B_kc,md,    E_jb,kc,md = Σ w s_jb a_kc a_md,
a, B on the right at the time of s, the outputs end at
    z*_x = z_x − Ĥ_xA a + ½ dĤ_ijk;xbc a_jb a_kc − ⅙ ddI_ijkm;xbcd a_jb a_kc a_md
         + dĤ_jik;bxc B_jb,kc − ddII_jkim;bcxd C_jb,kc,md − ½ ddI_jikm;bxcd E_jb,kc,md − ddII_ikjm;xcbd a_jb B_kc,md.
Trained to convergence z*_A = y, whatever the loss: that fixes a, and the first line is that of `NewtonStep`. In the
second line M acts on the slot x, and B, C, E are those of infinite width. They depend on loss and optimiser, and are
functions of the initial outputs z_A alone, so to order 1/n
    E[dĤ B] = E[dĤ z_m] ⟨∂B/∂z_m⟩,    E[z dĤ B] = E[dĤ z] ⟨B⟩ + E[dĤ z_m] ⟨z ∂B/∂z_m⟩,    E[ddĤ C] = E[ddĤ] ⟨C⟩,
with ⟨ ⟩ over N(0, K). Under squared loss these are polynomials of degree 4 at most, for which a rule of degree 5 is
exact. Under another loss draws give its difference from squared loss. Stopped early nothing fixes a, and derivatives of
the path by Ĥ would be needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.errors import InvalidInput
from widthwise.inference.function_space import GAMMA, MOST_PATH_STEPS, Problem, root, rosenbrock
from widthwise.inference.trained.cumulants import Cumulants, Factor, Monomial, average
from widthwise.inference.trained.einsum import Operand
from widthwise.inference.trained.trained_moments import OutputMoments
from widthwise.memory import require_memory
from widthwise.network import GradientFlow, Momentum
from widthwise.network.losses import SQUARED
from widthwise.network.schedules import rate_at
from widthwise.network.stability import unstable_step

#: Blocks of draws: their scatter gives standard errors.
PATH_BLOCKS = 16
#: Slopes of the loss below which a path has ended, relative to those at its start.
ENDED = 1e-10
_B = Factor("dH", "JIK", "paq")
_CUBES = (
    (Factor("ddII", "JKIM", "pqar"), 1.0),
    (Factor("ddI", "JIKM", "paqr"), 0.5),
    (Factor("ddII", "IKJM", "aqpr"), 1.0),
)


class PathCorrections(NamedTuple):
    """Coefficients of 1/n, and standard errors over draws: zero under squared loss, where the sums are exact."""

    moments: OutputMoments
    errors: OutputMoments


def path_corrections(
    problem: Problem, tensors: Mapping[str, np.ndarray], k: np.ndarray, draws: int, seed: int
) -> PathCorrections:
    """The second line above at the tests: `tensors` on training, then test inputs; k_x (tests, train)."""
    outputs, train = problem.y.shape
    size = outputs * train
    each = 8 * (size + 4) * size**3
    require_memory(
        each * 64, f"paths of {train} training inputs and {outputs} outputs with order=1", "Take fewer inputs."
    )
    K = tensors["K"]
    readout = np.concatenate([-k, np.eye(len(K) - train)], axis=1)
    # z at the tests, given that at the training inputs
    seen = K[train:, :train] @ np.linalg.pinv(K[:train, :train], rcond=1e-12, hermitian=True) - k
    contracted = partial(_contracted, tensors=tensors, seen=seen, readout=readout)
    squared, R = problem._replace(loss=SQUARED), root(K[:train, :train])
    exact = OutputMoments.zero(outputs, len(K) - train)
    if problem.loss.is_squared or _is_stable(squared):
        points, weights = fifth_degree_rule(size)
        start = points.reshape(-1, outputs, train) @ R
        exact = contracted(_converged_paths(squared, start), start, weights)
    if problem.loss.is_squared:
        return PathCorrections(exact, OutputMoments.zero(*exact.mean.shape))
    found, rng, pairs = [], np.random.default_rng(seed), -(-draws // (2 * PATH_BLOCKS))
    for _ in range(PATH_BLOCKS):
        normal = rng.standard_normal((pairs, outputs, train))
        start = np.concatenate([normal, -normal]) @ R
        paths = _converged_paths(problem, start)
        if _is_stable(squared):
            paths = Paths(*map(np.subtract, paths, _converged_paths(squared, start)))
        found.append(contracted(paths, start, np.full(len(start), 1.0 / len(start))))
    blocks = [np.array([getattr(part, name) for part in found]) for name in OutputMoments._fields]
    total = OutputMoments(*(known + part.mean(axis=0) for known, part in zip(exact, blocks, strict=True)))
    return PathCorrections(total, OutputMoments(*(part.std(axis=0, ddof=1) / np.sqrt(PATH_BLOCKS) for part in blocks)))


def _is_stable(problem: Problem) -> bool:
    """Whether every path ends."""
    return unstable_step(problem.algorithm, float(np.linalg.eigvalsh(problem.Theta)[-1]), problem.loss) is None


def _converged_paths(problem: Problem, start: np.ndarray) -> Paths:
    paths = Paths(*(np.asarray(part) for part in _paths(problem, jnp.asarray(start))))
    if not all(np.isfinite(part).all() for part in paths):
        raise InvalidInput(
            "algorithm", f"{problem.algorithm!r} with loss={problem.loss.name!r}, whose path does not converge",
            "a path that ends at the targets", "Take other steps, or measure it with `train`.",
        )  # fmt: skip
    return paths


def fifth_degree_rule(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights that average polynomials of up to degree 5 over `size` normal numbers exactly.

    >>> points, weights = fifth_degree_rule(3)
    >>> [round(float(weights @ (points[:, 0] ** 2 * points[:, k] ** 2)), 12) for k in (0, 1)]
    [3.0, 1.0]
    """
    one = np.eye(size)
    signs = (1, 1), (1, -1), (-1, 1), (-1, -1)
    pairs = [left * one[i] + right * one[j] for i, j in combinations(range(size), 2) for left, right in signs]
    axes = np.sqrt(size + 2.0) * np.concatenate([one, -one])
    points = [np.zeros((1, size)), axes, np.sqrt(size / 2.0 + 1.0) * np.reshape(pairs, (-1, size))]
    sizes = 2.0 / (size + 2.0), (4.0 - size) / (2.0 * (size + 2.0) ** 2), 1.0 / (size + 2.0) ** 2
    weights = np.concatenate([np.full(len(part), value) for part, value in zip(points, sizes, strict=True)])
    return np.concatenate(points), weights


class Paths(NamedTuple):
    """B (draws, j, b, k, c), its derivative (…, m, d) and the three cubes (draws, j, b, k, c, m, d): C, E and a B."""

    B: Any
    slope: Any
    cubes: Any


@jax.jit
def _paths(problem: Problem, start) -> Paths:
    outputs, train = start.shape[1:]
    square, size = (outputs, train) * 2, outputs * train

    def one(z):
        def quadratic(at):
            return _to_the_end(problem, at, thirds=False)[size:].reshape(square)

        end = _to_the_end(problem, z, thirds=True)
        a, B = end[:size], end[size : size + size**2]
        C, E = end[size + size**2 :].reshape(2, size, size, size)
        cubes = jnp.stack([C, E, a[:, None, None] * B.reshape(size, size)]).reshape(3, *square, outputs, train)
        return Paths(B.reshape(square), jax.jacfwd(quadratic)(z), cubes)

    return jax.lax.map(one, start, batch_size=16)


def _to_the_end(problem: Problem, start, thirds: bool):
    """(a, B), or with `thirds` (a, B, C, E), when the path has ended: one flat array; not finite where it does not."""
    size = start.size

    def slope(flat):
        return problem.loss.slope(start - flat[:size].reshape(start.shape) @ problem.Theta, problem.y).ravel()

    def force(flat):
        a, s = flat[:size], slope(flat)
        parts = [s, jnp.outer(s, a)]
        if thirds:
            parts += [jnp.outer(s, flat[size : size + size**2]), s[:, None, None] * a[:, None] * a]
        return jnp.concatenate([part.ravel() for part in parts])

    begin = jnp.zeros(size + size**2 + (2 * size**3 if thirds else 0))
    least = ENDED * jax.lax.stop_gradient(jnp.max(jnp.abs(slope(begin))))

    def unended(flat):
        return jnp.max(jnp.abs(slope(flat))) > least

    if isinstance(problem.algorithm, GradientFlow):
        solver = partial(_triangular_solver, problem, start, force)
        first = 1e-3 / jnp.trace(problem.Theta)
        end = rosenbrock(force, solver, begin, first, lambda state: unended(state.at))
        return jnp.where(end.steps < MOST_PATH_STEPS, end.at, jnp.nan)
    at, _, steps = jax.lax.while_loop(
        lambda state: unended(state[0]) & (state[2] < MOST_PATH_STEPS),
        partial(_filtered_step, problem.algorithm, force),
        (begin, jnp.zeros_like(begin), 0),
    )
    return jnp.where(steps < MOST_PATH_STEPS, at, jnp.nan)


def _filtered_step(algorithm: Any, force, state):
    """One step of descent or momentum, which filters every sum over times as it filters the gradient."""
    at, v, number = state
    momentum = algorithm.momentum if isinstance(algorithm, Momentum) else 0.0
    q = force(at)
    v = momentum * v + q
    ahead = q + momentum * v if getattr(algorithm, "nesterov", False) else v
    return at + rate_at(algorithm.learning_rate, number) * ahead, v, number + 1


def _triangular_solver(problem: Problem, start, force, flat, h):
    """Solves with the whole Jacobian: a alone is stiff, B follows from it, C and E from both."""
    size = start.size
    factor = problem.shifted(flat[:size].reshape(start.shape), start, h)
    ends = [size, size + size**2, len(flat)]

    def solve(right):
        found = jnp.zeros_like(right).at[:size].set(jax.scipy.linalg.lu_solve(factor, right[:size]))
        for low, high in pairwise(ends):
            moved = jax.jvp(force, (flat,), (found,))[1]
            found = found.at[low:high].set(GAMMA * h * (right[low:high] + moved[low:high]))
        return found

    return solve


def _contracted(
    paths: Paths,
    start: np.ndarray,
    weights: np.ndarray,
    *,
    tensors: Mapping[str, np.ndarray],
    seen: np.ndarray,
    readout: np.ndarray,
) -> OutputMoments:
    """Averages of the paths from `start` (draws, outputs, train) against the tensors.

    `seen` (tests, train) is the expectation of z_x − k_x z_A given the outputs at the training inputs.
    """
    z = start @ seen.T
    cumulants = Cumulants(tensors, np.zeros((z.shape[1], len(tensors["K"]))))
    at, other = Operand(readout, "xa"), Operand(readout, "yb")

    def mean(values: np.ndarray, letters: str) -> Operand:
        return Operand(np.tensordot(weights, values, 1), letters)

    def with_z(values: np.ndarray, letters: str) -> Operand:
        products = np.tensordot(weights[:, None, None] * z, values, ((0,), (0,)))
        return Operand(products, "Ay" + letters)

    Z = Factor("z", "M", "d")
    first = [Monomial((at, mean(paths.slope, "JpKqMd")), (_B, Z))]
    second = [
        Monomial((at, other, mean(paths.B, "JpKq")), (_B, Factor("z", "A", "b"))),
        Monomial((at, with_z(paths.slope, "JpKqMd")), (_B, Z)),
    ]
    for number, (factor, count) in enumerate(_CUBES):
        cube = -count * paths.cubes[:, number]
        first.append(Monomial((at, mean(cube, "JpKqMr")), (factor,)))
        second.append(Monomial((at, with_z(cube, "JpKqMr")), (factor,)))
    covariance = average(second, "IxAy", cumulants).order1
    return OutputMoments(average(first, "Ix", cumulants).order1, covariance + covariance.transpose(2, 3, 0, 1))
