"""Gradient flow dθ/dt = −λJᵀ(z − y) of one network (theory §8), by an adaptive exponential Runge–Kutta method.

A wide network is almost linear in its parameters: about the start of a step dθ/dt = f + A·d + g(d), with d the
displacement, f = −λJᵀε, A = −λJᵀJ and g small. A has the rank of the training data, so its exponential is that of
the matrix Ĥ = JλJᵀ on them: φ(hA)v = φ(0)v − h λJᵀ φ₊(−hĤ) Jv, where φ₊ follows φ in φ_1(x) = (eˣ − 1)/x,
φ_{k+1}(x) = (φ_k(x) − 1/k!)/x. The linear part is then exact for any step, and stiffness, the ratio of the largest to
the least eigenvalue of Ĥ, costs nothing: steps grow in proportion to the time gone by.

Under another loss A = −λJᵀDJ with its Hessian D, and √D J stands for J; what D leaves out is in g, as weight decay is.

The tableau is Krogstad's fourth-order one, written for g(0) = 0. Its last stage against the same stage at the new
point gives the error of a step, which is held below `accuracy` times the length of the step. `newton_step` uses the
same Ĥ once.
"""

from __future__ import annotations

from math import factorial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.decompositions import eigh
from widthwise.experiments.sampler import Parameters
from widthwise.experiments.tangent import Tangent, added, gradient, kernel, length, outputs, pull, push, scaled, tangent
from widthwise.network import Network
from widthwise.network.losses import SQUARED, Loss

#: First step in units of 1/λ_max of Ĥ, and the largest later ones as a fraction of the time gone by.
FIRST_STEP, STEP_GROWTH = 0.25, 0.25
#: Steps are made smaller or larger by a factor within these, after a safety factor.
SMALLEST_CHANGE, LARGEST_CHANGE, SAFETY = 0.2, 2.0, 0.9
#: φ_k(−x) = Σ_j (−x)ʲ/(j + k)! up to j = 18.
_SERIES = np.array([[(-1.0) ** j / factorial(j + k) for j in range(19)] for k in range(1, 5)])


class Trained(NamedTuple):
    """Parameters at the end, steps taken, and whether training got where it should."""

    layers: Parameters
    steps: Any
    converged: Any


class _FlowState(NamedTuple):
    layers: Parameters
    time: Any
    step: Any
    first: Any
    steps: Any
    residual: Any


def phi(x) -> list[jax.Array]:
    """φ_1(−x), …, φ_4(−x) for x ≥ 0: a series below one, the recurrence above.

    >>> [round(float(value), 6) for value in phi(jnp.array(2.0))]
    [0.432332, 0.283834, 0.108083, 0.029292]
    """
    small = x < 1.0
    near, far = jnp.where(small, x, 0.0), jnp.where(small, 1.0, x)
    powers, value, found = near[..., None] ** jnp.arange(19.0), -jnp.expm1(-far) / far, []
    for k in range(1, 5):
        found.append(jnp.where(small, powers @ _SERIES[k - 1], value))
        value = (1.0 / factorial(k) - value) / far
    return found


class Pull(NamedTuple):
    """What moves the parameters: a loss, and weight decay towards some parameters, None where there is none."""

    loss: Loss = SQUARED
    decay: Any = 0.0
    centre: Parameters | None = None

    def of_decay(self, layers: Parameters) -> Parameters | None:
        """−decay (θ − centre), but for groups that do not learn."""
        if self.centre is None:
            return None
        return jax.tree.map(lambda p, c: -self.decay * (p - c), layers, self.centre)


SQUARED_ERROR = Pull()


class _Linear(NamedTuple):
    """The linear part at the start of a step: tangent, ε = ∂ℓ/∂z, Ĥ, √D (None where it is 1), √D Ĥ √D = U diag Uᵀ."""

    at: Tangent
    error: jax.Array
    H: jax.Array
    root: Any
    values: jax.Array
    vectors: jax.Array

    def weighted(self, error):
        """√D times a vector (i, a)."""
        return error if self.root is None else jnp.einsum("aij,ja->ia", self.root, error)

    def curved(self, error):
        """D times a vector (i, a)."""
        return self.weighted(self.weighted(error))

    def modes(self, error):
        """Uᵀ√D times vectors (…, i, a)."""
        weighted = error if self.root is None else jnp.einsum("aij,...ja->...ia", self.root, error)
        return weighted.reshape(*error.shape[:-2], -1) @ self.vectors

    def of_modes(self, amplitudes):
        """√D U times a vector over modes: (i, a)."""
        return self.weighted((self.vectors @ amplitudes).reshape(self.error.shape))

    def pushed(self, data, factors, seen):
        """J times λJᵀ data + Σ_j factors_j p_j, where `seen` are the J p_j."""
        return jnp.einsum("iajb,jb->ia", self.H, data) + jnp.tensordot(factors, seen, 1)


def _linear_part(net: Network, layers: Parameters, X, y, loss: Loss = SQUARED) -> _Linear:
    at = tangent(net, layers, X)
    H, root = kernel(at), None if loss.is_squared else loss.root_curvature(at.z, y)
    curved = H if root is None else jnp.einsum("aij,jakb,blk->ialb", root, H, root)
    values, vectors = eigh(curved.reshape(y.size, y.size))
    return _Linear(at, loss.slope(at.z, y), H, root, jnp.maximum(values, 0.0), vectors)


#: Of every stage, and of the error: whether φ's are of h/2 or h, the part φ_1 f that it has, and per earlier g the
#: weights of φ_2 and φ_3.
_OF_HALF = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
_FREE = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
_OF_EARLIER = np.zeros((5, 4, 2))
_OF_EARLIER[1, 0], _OF_EARLIER[2, 1], _OF_EARLIER[3, 0], _OF_EARLIER[3, 1] = (
    (1.0, 0.0),
    (2.0, 0.0),
    (2.0, -4.0),
    (2.0, -4.0),
)
_OF_EARLIER[3, 2], _OF_EARLIER[4, 2], _OF_EARLIER[4, 3] = (-1.0, 4.0), (1.0, -4.0), (-1.0, 4.0)


class _Stages(NamedTuple):
    """Every displacement d and every g is λJᵀ data + Σ_j factors_j p_j: only the p_j are as long as the parameters.

    p_0, …, p_3 are λ∇ at the stages, p_4 the force of weight decay where there is one. `data` (stages, i, a),
    `factors` (stages, p's) and `modes` = Uᵀ√D J g (stages, i·a) are those of g at the stages so far, `kept` the p's and
    `seen` the J p. `move` and `error` are d and ε at the last stage.
    """

    data: jax.Array
    factors: jax.Array
    modes: jax.Array
    kept: Parameters
    seen: jax.Array
    move: Parameters
    error: jax.Array


def flow_step(
    net: Network, layers: Parameters, part: _Linear, X, y, h, by: Pull = SQUARED_ERROR
) -> tuple[Parameters, Any, Any]:
    """Displacement over a time h, the length of its error, and ε at its end."""
    decay, strength, vectors = (None, 0.0, 4) if by.centre is None else (by.of_decay(layers), by.decay, 5)
    times = h * jnp.asarray(1.0 - 0.5 * _OF_HALF)
    functions = phi(times[:, None] * part.values)
    # φ_k(hA) v is v/k! less h λJᵀ √D U φ_{k+1} Uᵀ√D Jv
    through = -h * times[:, None, None] * jnp.einsum("sgk,ksm->sgm", _OF_EARLIER, jnp.stack(functions[2:]))
    unchanged = h * (_OF_EARLIER @ np.array([1 / 2, 1 / 6]))
    kept = jax.tree.map(lambda p: jnp.zeros((vectors, *p.shape), p.dtype), layers)
    seen, pulling, free = jnp.zeros((vectors, *y.shape)), jnp.zeros(vectors), times * _FREE
    if decay is not None:
        kept, seen = jax.tree.map(lambda rows, p: rows.at[4].set(p), kept, decay), seen.at[4].set(push(part.at, decay))
        pulling = pulling.at[4].set(1.0)
    if part.root is None and decay is None:
        free_data = jax.vmap(part.of_modes)(free[:, None] * functions[0] * part.modes(-part.error))
    else:
        force = -times[:, None] * functions[1] * part.modes(part.pushed(-part.error, pulling, seen))
        free_data = jax.vmap(part.of_modes)(free[:, None] * force) - free[:, None, None] * part.error

    def coordinates(k, now: _Stages):
        """data and factors of the displacement at a stage, or of the error."""
        modes = jnp.sum(through[k] * now.modes, axis=0)
        data = free_data[k] + jnp.tensordot(unchanged[k], now.data, 1) + part.of_modes(modes)
        return data, free[k] * pulling + unchanged[k] @ now.factors

    def displacement(data, factors, kept):
        return added(pull(net, part.at, data), jax.tree.map(lambda rows: jnp.tensordot(factors, rows, 1), kept))

    def stage(k, now: _Stages) -> _Stages:
        data, factors = coordinates(k, now)
        move = displacement(data, factors, now.kept)
        found, error = gradient(net, added(layers, move), X, y, by.loss)
        slope = scaled(net, found)
        seen = now.seen.at[k].set(push(part.at, slope))
        g = part.error + part.curved(part.pushed(data, factors, seen)) - strength * data
        g_factors = -strength * factors - (jnp.arange(vectors) == k)
        return _Stages(
            now.data.at[k].set(g),
            now.factors.at[k].set(g_factors),
            now.modes.at[k].set(part.modes(part.pushed(g, g_factors, seen))),
            jax.tree.map(lambda rows, p: rows.at[k].set(p), now.kept, slope),
            seen,
            move,
            error,
        )

    nothing = jnp.zeros((4, *y.shape))
    start = _Stages(nothing, jnp.zeros((4, vectors)), part.modes(nothing), kept, seen, layers, part.error)
    # one after the other in a loop, so that one stage is compiled and not four
    end = jax.lax.fori_loop(0, 4, stage, start)
    wrong = displacement(*coordinates(4, end), end.kept)
    return end.move, length(net, wrong), end.error


def flow(
    net: Network, layers: Parameters, X, y, time: float | None, tolerance, accuracy, max_steps, by: Pull = SQUARED_ERROR
) -> Trained:
    """Gradient flow for a time, or until every |∂ℓ/∂z| < tolerance when the time is None.

    Parameters
    ----------
    y : (i, a), one row per output.
    accuracy : error of a step relative to its length in parameter space (`tangent.length`).
    max_steps : steps after which a network counts as not converged.

    Examples
    --------
    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> from widthwise.network import MLP
    >>> net, X, y = MLP([2, 32, 1], "tanh"), jnp.array([[1.0, 0.2]]), jnp.array([[0.7]])
    >>> start = sample_parameters(net, network_key(0, 0))
    >>> end = jax.jit(lambda layers: flow(net, layers, X, y, None, 1e-6, 1e-6, 1000))(start)
    >>> bool(end.converged), bool(abs(tangent(net, end.layers, X).z[0, 0] - 0.7) < 1e-6)
    (True, True)
    """
    goal = jnp.inf if time is None else time

    def unfinished(state: _FlowState):
        going = state.time < goal if time is not None else state.residual >= tolerance
        return going & (state.steps < max_steps) & (state.step > 1e-12 * state.first) & jnp.isfinite(state.residual)

    def advance(state: _FlowState) -> _FlowState:
        part = _linear_part(net, state.layers, X, y, by.loss)
        begun = state.steps > 0
        # far from the targets a loss may have no curvature; that of squared loss is no more than the trace of Ĥ
        trace = 0.0 if by.loss.is_squared else jnp.einsum("iaia->", kernel(part.at))
        curvature = jnp.maximum(jnp.maximum(part.values[-1], trace), 1e-300)
        first = jnp.where(begun, state.first, FIRST_STEP / curvature)
        step = jnp.where(begun, state.step, first)
        h = jnp.minimum(step, goal - state.time)
        move, wrong, error = flow_step(net, state.layers, part, X, y, h, by)
        ratio = wrong / jnp.maximum(accuracy * length(net, move), 1e-300)
        accepted = ratio <= 1.0
        change = jnp.where(jnp.isfinite(ratio), SAFETY * jnp.maximum(ratio, 1e-12) ** (-1 / 3), SMALLEST_CHANGE)
        now = jnp.where(accepted, jnp.where(h < step, goal, state.time + h), state.time)
        wanted = jnp.clip(change, SMALLEST_CHANGE, LARGEST_CHANGE) * h
        return _FlowState(
            jax.tree.map(lambda old, m: jnp.where(accepted, old + m, old), state.layers, move),
            now,
            jnp.minimum(wanted, first + STEP_GROWTH * now),
            first,
            state.steps + 1,
            jnp.where(accepted, jnp.max(jnp.abs(error)), state.residual),
        )

    residual = jnp.max(jnp.abs(by.loss.slope(outputs(net, layers, X), y)))
    # the first step finds its own length, so that the linear part is compiled once
    state = _FlowState(layers, jnp.zeros(()), jnp.ones(()), jnp.ones(()), 0, residual)
    end = jax.lax.while_loop(unfinished, advance, state)
    return Trained(end.layers, end.steps, end.time >= goal if time is not None else end.residual < tolerance)


def newton_step(net: Network, layers: Parameters, X, y, tolerance, max_steps) -> Trained:
    """One step along λJᵀ that fits the training data (theory §8). y is (i, a).

    It is θ − λJᵀa with J at the start and the a that solves z(θ − λJᵀa) = y, found by a → a + Ĥ⁻¹(z − y).

    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> from widthwise.network import MLP
    >>> net, X, y = MLP([2, 32, 1], "tanh"), jnp.array([[1.0, 0.2]]), jnp.array([[0.7]])
    >>> end = newton_step(net, sample_parameters(net, network_key(0, 0)), X, y, 1e-9, 100)
    >>> bool(abs(outputs(net, end.layers, X)[0, 0] - 0.7) < 1e-9)
    True
    """
    at, start, _, _, values, vectors = _linear_part(net, layers, X, y)
    # directions that the network cannot move in are left alone
    there = values > 10.0 * y.size * jnp.finfo(y.dtype).eps * values[-1]
    inverse = (vectors * jnp.where(there, 1.0 / jnp.where(there, values, 1.0), 0.0)) @ vectors.T

    def stepped(a):
        return added(layers, pull(net, at, a), -1.0)

    def unfinished(state):
        _, error, steps = state
        size = jnp.max(jnp.abs(error))
        return (size >= tolerance) & (steps < max_steps) & jnp.isfinite(size)

    def correct(state):
        a, error, steps = state
        a = a + (inverse @ error.ravel()).reshape(y.shape)
        return a, outputs(net, stepped(a), X) - y, steps + 1

    a, error, steps = jax.lax.while_loop(unfinished, correct, (jnp.zeros_like(y), start, 0))
    return Trained(stepped(a), steps, jnp.max(jnp.abs(error)) < tolerance)
