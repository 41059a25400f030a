"""Training at infinite width under any loss: the path of the outputs, over draws of their start (theory §8).

The parameters move by −λJᵀa, and with the frozen Θ the outputs on the training inputs are z₀ − Θa. Then
    da/dt = ∂ℓ/∂z(z₀ − Θa) − w a,    or steps of descent, momentum and batches with the same right-hand side,
and outputs at x end at z_x − Θ_xA a. a depends on the initial outputs at the training inputs alone, so of those at x
    z_x = B z_A + rest,   B = K_xA K_AA⁺,   rest ~ N(0, K_xx − B K_Ax) independent of z_A,
only B z_A is drawn. Draws come in pairs z₀, −z₀; standard errors come from leaving out one block of pairs at a time.

The flow is stiff: rates are eigenvalues of Θ times curvatures of the loss, which saturate. It is integrated by
Rosenbrock's method of fourth order with Shampine's coefficients, one linear solve with four right-hand sides a step.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.devices import power_of_two
from widthwise.errors import InvalidInput
from widthwise.memory import require_memory
from widthwise.network import GradientFlow, Momentum
from widthwise.network.losses import Loss
from widthwise.network.schedules import rate_at
from widthwise.network.stability import decay_of

#: Blocks of pairs of draws for standard errors, and numbers held for draws that are trained side by side.
PAIR_BLOCKS, DRAWS_ROOM = 32, 1 << 24
#: Error of a step relative to 1 + |a|, and steps after which a path is given up.
PATH_ACCURACY, MOST_PATH_STEPS = 1e-9, 100_000
#: Shampine's coefficients: γ, then stages, couplings, weights and weights of the error.
GAMMA = 0.5
_STAGES = ((), (2.0,), (48 / 25, 6 / 25), (48 / 25, 6 / 25, 0.0))
_COUPLINGS = ((), (-8.0,), (372 / 25, 12 / 5), (-112 / 125, -54 / 125, -2 / 5))
_WEIGHTS, _ERRORS = (19 / 9, 1 / 2, 25 / 108, 125 / 108), (17 / 54, 7 / 36, 0.0, 125 / 108)


class Draws(NamedTuple):
    """Initial outputs on the training inputs (draws, outputs, train), and a for each of them; both from zero first."""

    start: np.ndarray
    fitted: np.ndarray


class Problem(NamedTuple):
    """What does not change from draw to draw."""

    loss: Loss
    algorithm: Any
    Theta: Any
    y: Any

    def force(self, a, start):
        """∂ℓ/∂z − w a, without decay where there is none."""
        slope = self.loss.slope(start - a @ self.Theta, self.y)
        return slope - decay_of(self.algorithm) * a if self.algorithm.weight_decay is not None else slope

    def shifted(self, a, start, h):
        """1/(γh) + DΘ + w, D the second derivative of the loss, over (outputs, train) twice, factorised."""
        D, size = self.loss.hessian(start - a @ self.Theta, self.y), start.size
        decay = 0.0 if self.algorithm.weight_decay is None else self.algorithm.weight_decay
        curved = jnp.einsum("aij,ab->iajb", D, self.Theta).reshape(size, size)
        return jax.scipy.linalg.lu_factor((1.0 / (GAMMA * h) + decay) * jnp.eye(size) + curved)


def root(K: np.ndarray) -> np.ndarray:
    """R with RᵀR = K: normal numbers times R have the covariance K."""
    values, vectors = np.linalg.eigh(K)
    return (vectors * np.sqrt(np.maximum(values, 0.0))).T


def train_draws(
    loss: Loss, algorithm: Any, K: np.ndarray, Theta: np.ndarray, y: np.ndarray, draws: int, seed: int
) -> Draws:
    """Train from the outputs zero, and from pairs of draws of N(0, K); y is (train, outputs)."""
    each = 8 * 16 * y.size
    require_memory(each * draws, f"{draws} draws of outputs", lambda limit: f"What would fit: {limit // each} draws.")
    if not isinstance(algorithm, GradientFlow) and algorithm.steps > MOST_PATH_STEPS:
        raise InvalidInput(
            "algorithm", f"{algorithm!r} with loss={loss.name!r}", f"at most {MOST_PATH_STEPS} steps, taken one by one",
            "GradientFlow(time), time the sum of the rates, is where many small steps lead.",
        )  # fmt: skip
    normal = np.random.default_rng(seed).standard_normal((draws // 2, y.shape[1], len(y)))
    # each draw beside its opposite, so that a block holds whole pairs
    pairs = np.stack([normal, -normal], axis=1).reshape(-1, *normal.shape[1:])
    start = np.concatenate([np.zeros((1, *normal.shape[1:])), pairs]) @ root(K)
    keys = jax.random.split(jax.random.key(seed), len(start))
    together = power_of_two(DRAWS_ROOM / (4 * y.size**2 + 64 * y.size), 1, 1024)
    problem = Problem(loss, algorithm, jnp.asarray(Theta), jnp.asarray(y.T))
    fitted, steps = _train_all(problem, jnp.asarray(start), keys, together)
    steps = np.asarray(steps)
    if isinstance(algorithm, GradientFlow):
        where, lost = "", np.any(steps >= MOST_PATH_STEPS) or not np.isfinite(np.asarray(fitted)).all()
    else:
        where, lost = f" at step {steps.min()}", np.any(steps < algorithm.steps)
    if lost:
        raise InvalidInput(
            "algorithm",
            f"{algorithm!r} with loss={loss.name!r}, whose path in function space leaves all bounds{where}",
            "a path that stays finite", "Take a shorter time, or smaller steps.",
        )  # fmt: skip
    return Draws(start, np.asarray(fitted))


@partial(jax.jit, static_argnums=3)
def _train_all(problem: Problem, start, keys, together: int):
    one = _flow if isinstance(problem.algorithm, GradientFlow) else _descend
    return jax.lax.map(lambda each: one(problem, *each), (start, keys), batch_size=together)


def _descend(problem: Problem, start, key):
    """a after the algorithm's steps, on batches where it has them, and how many steps it stayed finite."""
    algorithm, inputs = problem.algorithm, start.shape[1]
    size = getattr(algorithm, "batch_size", None) or inputs
    momentum = algorithm.momentum if isinstance(algorithm, Momentum) else 0.0

    def step(number, state):
        a, v, finite = state
        slope = problem.loss.slope(start - a @ problem.Theta, problem.y)
        if size < inputs:
            drawn = jax.random.permutation(jax.random.fold_in(key, number), inputs)[:size]
            slope = inputs / size * jnp.zeros_like(slope).at[:, drawn].set(slope[:, drawn])
        q = slope if algorithm.weight_decay is None else slope - algorithm.weight_decay * a
        v = momentum * v + q
        ahead = q + momentum * v if getattr(algorithm, "nesterov", False) else v
        a = a + rate_at(algorithm.learning_rate, number) * ahead
        return a, v, finite + jnp.isfinite(a).all()

    a, _, finite = jax.lax.fori_loop(0, algorithm.steps, step, (jnp.zeros_like(start), jnp.zeros_like(start), 0))
    return a, finite


class _State(NamedTuple):
    at: Any
    time: Any
    step: Any
    steps: Any


def _flow(problem: Problem, start, _key):
    """a after the algorithm's time, and steps taken."""
    end = rosenbrock(
        lambda flat: problem.force(flat.reshape(start.shape), start).ravel(),
        lambda flat, h: partial(jax.scipy.linalg.lu_solve, problem.shifted(flat.reshape(start.shape), start, h)),
        jnp.zeros(start.size),
        1e-3 / (jnp.trace(problem.Theta) + 1e-300),
        lambda state: state.time < problem.algorithm.time,
        problem.algorithm.time,
    )
    return end.at.reshape(start.shape), end.steps


def rosenbrock(force, solver, start, first_step, unfinished, goal: Any = jnp.inf) -> _State:
    """Integrate d(at)/dt = force(at) up to a time, or for as long as it is `unfinished`.

    `solver(at, h)` is the function that solves (1/(γh) − Jacobian) g = right.
    """

    def advance(state: _State) -> _State:
        # a step has no derivative: paths that start elsewhere are followed by the same steps
        h = jax.lax.stop_gradient(jnp.minimum(state.step, goal - state.time))
        solve, stages = solver(state.at, h), []
        for stage, coupling in zip(_STAGES, _COUPLINGS, strict=True):
            at = state.at + sum(c * g for c, g in zip(stage, stages, strict=True))
            right = force(at) + sum(c * g for c, g in zip(coupling, stages, strict=True)) / h
            stages.append(solve(right))
        moved = state.at + sum(w * g for w, g in zip(_WEIGHTS, stages, strict=True))
        off = sum(w * g for w, g in zip(_ERRORS, stages, strict=True))
        wrong = jax.lax.stop_gradient(jnp.max(jnp.abs(off) / (1.0 + jnp.abs(state.at))) / PATH_ACCURACY)
        good = jnp.isfinite(wrong) & (wrong <= 1.0)
        # a fourth-order step, controlled by one of third order
        factor_of_step = jnp.clip(
            0.9 * jnp.where(jnp.isfinite(wrong), jnp.maximum(wrong, 1e-12), 1e12) ** -0.25, 0.2, 4.0
        )
        return _State(
            jnp.where(good, moved, state.at),
            jnp.where(good, state.time + h, state.time),
            h * factor_of_step,
            state.steps + 1,
        )

    return jax.lax.while_loop(
        lambda state: unfinished(state) & (state.steps < MOST_PATH_STEPS), advance, _State(start, 0.0, first_step, 0)
    )


class FunctionMoments(NamedTuple):
    """Mean (outputs, inputs), covariance (outputs, inputs, outputs, inputs), errors of both, and outputs from zero."""

    mean: np.ndarray
    cov: np.ndarray
    mean_se: np.ndarray
    cov_se: np.ndarray
    from_zero: np.ndarray


def path_moments(
    draws: Draws, K_AA: np.ndarray, K_xA: np.ndarray, K_xx: np.ndarray, Theta_xA: np.ndarray
) -> FunctionMoments:
    """Of the outputs at x, with what the initial outputs at the training inputs leave open added exactly."""
    B = K_xA @ np.linalg.pinv(K_AA, rcond=1e-12, hermitian=True)
    u = np.einsum("xa,dia->dix", B, draws.start) - np.einsum("xa,dia->dix", Theta_xA, draws.fitted)
    from_zero, u = u[0], u[1:]
    blocks = np.array_split(u.reshape(-1, 2, *u.shape[1:]), min(PAIR_BLOCKS, len(u) // 2))
    counts = np.array([2 * len(block) for block in blocks])
    first = np.array([block.sum(axis=(0, 1)) for block in blocks])
    second = np.array([np.einsum("dpix,dpjy->ixjy", block, block) for block in blocks])

    def moments(left_out: int | None) -> tuple[np.ndarray, np.ndarray]:
        keep = np.arange(len(blocks)) != left_out
        number = counts[keep].sum()
        mean = first[keep].sum(axis=0) / number
        return mean, second[keep].sum(axis=0) / number - np.einsum("ix,jy->ixjy", mean, mean)

    mean, cov = moments(None)
    left = [moments(k) for k in range(len(blocks))]
    errors = [np.sqrt((len(left) - 1) * np.var(np.array([part[k] for part in left]), axis=0)) for k in (0, 1)]
    rest = K_xx - B @ K_xA.T
    cov = cov + np.einsum("ij,xy->ixjy", np.eye(u.shape[1]), rest)
    return FunctionMoments(mean, cov, errors[0], errors[1], from_zero)
