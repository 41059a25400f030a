"""Small classification problems, networks trained on them, how features and gradients divide by class (theory §10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits


class Labelled(NamedTuple):
    """Inputs X (inputs, features) and classes (inputs,) from 0 on."""

    X: np.ndarray
    labels: np.ndarray


def digit_classes(classes: int, per_class: int, seed: Any) -> tuple[Labelled, Labelled]:
    """Pictures of the digits 0, 1, … of scikit-learn: as many of each class to train on, and as many others to test.

    Pixels are centred over the training set and scaled to x·x/n_0 = 1 on average.

    >>> train, test = digit_classes(3, 20, 0)
    >>> train.X.shape, np.bincount(train.labels).tolist(), test.X.shape
    ((60, 64), [20, 20, 20], (60, 64))
    """
    pictures, digits = map(np.asarray, load_digits(return_X_y=True))
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(digits == c) for c in range(classes)]
    rows = np.array([rng.choice(some, 2 * per_class, replace=False) for some in members])
    first, second = rows[:, :per_class].ravel(), rows[:, per_class:].ravel()
    centre = pictures[first].mean(axis=0)
    scale = np.sqrt(np.mean((pictures[first] - centre) ** 2))
    train, test = (Labelled((pictures[some] - centre) / scale, digits[some]) for some in (first, second))
    return train, test


def cluster_classes(classes: int, per_class: int, features: int, spread: float, seed: Any) -> Labelled:
    """Gaussian clusters about random centres of length √features; `spread` is the standard deviation of a feature.

    The same seed gives the same centres and, times the spread, the same scatter.

    >>> cluster_classes(2, 3, 4, 0.1, 0).X.shape
    (6, 4)
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features))
    centres *= np.sqrt(features) / np.linalg.norm(centres, axis=1, keepdims=True)
    labels = np.repeat(np.arange(classes), per_class)
    return Labelled(centres[labels] + spread * rng.normal(size=(len(labels), features)), labels)


def cross_entropy(z: Any, labels: Any) -> jax.Array:
    """Mean of −log softmax(z)_label over inputs; z (outputs, inputs), as `outputs` gives it.

    >>> float(cross_entropy(jnp.zeros((4, 3)), np.array([0, 1, 2])).round(6)), float(np.log(4).round(6))
    (1.386294, 1.386294)
    """
    return optax.softmax_cross_entropy_with_integer_labels(z.T, jnp.asarray(labels)).mean()


def train_network(
    loss: Callable[[Any], Any],
    start: Any,
    optimiser: optax.GradientTransformation,
    *,
    blocks: int,
    every: int,
    observe: Callable[[Any], Any] = lambda now: (),
) -> tuple[Any, Any]:
    """Full-batch training by an optax optimiser, looked at every so many steps; may be jitted and batched.

    The trained parameters, and the records stacked along the first axis.

    Parameters
    ----------
    loss, start : a function of the parameters, and where they start; any pytree.
    optimiser : an optax transformation.
    blocks, every : so many times so many steps.
    observe : what to record of the parameters before every block.

    Examples
    --------
    >>> end, path = train_network(
    ...     lambda x: x**2, jnp.array(1.0), optax.sgd(0.25), blocks=2, every=1, observe=lambda x: x
    ... )
    >>> float(end), path.tolist()
    (0.25, [1.0, 0.5])
    """

    def step(_, state):
        now, memory = state
        moves, memory = optimiser.update(jax.grad(loss)(now), memory, now)
        return optax.apply_updates(now, moves), memory

    def block(state, _):
        return jax.lax.fori_loop(0, every, step, state), observe(state[0])

    (end, _), records = jax.lax.scan(block, (start, optimiser.init(start)), None, length=blocks)
    return end, records


class Collapse(NamedTuple):
    """How far features and classifier have collapsed (theory §10): NC1 to NC4.

    `within` is tr(Σ_W Σ_B⁺)/C; `mean_cosines` and `row_cosines` (pairs,) are those between class means, less the global
    mean, and between rows of the classifier; `mean_squares` (classes,) are squared lengths of the former; `duality`
    (classes,) is W_c·M_c/|M_c|², and `alignment` the cosine between W and M as vectors; `nearest` is the share of
    inputs for which the nearest class mean names the class that the outputs do, and `accuracy` that of right answers.
    """

    within: Any
    mean_cosines: Any
    row_cosines: Any
    mean_squares: Any
    duality: Any
    alignment: Any
    nearest: Any
    accuracy: Any


def collapse(features: Any, labels: Any, W: Any, z: Any) -> Collapse:
    """NC1 to NC4 of a classifier z = W features + b.

    Parameters
    ----------
    features, labels : (inputs, neurons) and (inputs,).
    W, z : rows of the classifier (classes, neurons), and its outputs (classes, inputs).

    Examples
    --------
    >>> frame = jnp.eye(3) - 1 / 3                                        # a simplex, and nothing within a class
    >>> found = collapse(jnp.repeat(frame, 2, axis=0), np.repeat(np.arange(3), 2), 2 * frame, jnp.eye(3).repeat(2, 1))
    >>> bool(found.within < 1e-12), found.row_cosines.round(9).tolist(), float(found.alignment.round(9))
    (True, [-0.5, -0.5, -0.5], 1.0)
    """
    classes = len(W)
    members = jax.nn.one_hot(labels, classes)
    means = (members / members.sum(axis=0)).T @ features
    centred, scatter = means - means.mean(axis=0), features - means[labels]
    between = centred.T @ centred / classes
    squares = jnp.sum(centred**2, axis=1)
    distances = jnp.sum((features[:, None] - means) ** 2, axis=2)
    said = jnp.argmax(z, axis=0)
    return Collapse(
        jnp.trace(scatter.T @ scatter / len(features) @ jnp.linalg.pinv(between, rtol=1e-8)) / classes,
        _cosines(centred),
        _cosines(W),
        squares,
        jnp.sum(W * centred, axis=1) / squares,
        jnp.sum(W * centred) / jnp.sqrt(jnp.sum(W**2) * jnp.sum(squares)),
        jnp.mean(jnp.argmin(distances, axis=1) == said),
        jnp.mean(said == labels),
    )


def _cosines(vectors: Any) -> jax.Array:
    unit = vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return (unit @ unit.T)[jnp.triu_indices(len(vectors), 1)]


class ClassParts(NamedTuple):
    """Vectors whose outer products add up to a second moment: Σ δδᵀ = Σ over the four parts of VᵀV.

    `between` (classes, size), `cross` (classes², size; zero where c' = c), `within` (inputs · classes, size; zero where
    c' is the label), `own` (inputs, size); each row is multiplied by the root of its weight.
    """

    between: Any
    cross: Any
    within: Any
    own: Any

    @property
    def traces(self) -> jax.Array:
        """tr VᵀV of each part."""
        return jnp.stack([jnp.sum(part**2) for part in self])


def class_parts(vectors: Any, weights: Any, labels: Any) -> ClassParts:
    """Divide M = Σ_{i,c'} w_ic' v_ic' v_ic'ᵀ by the class c of i and by c'.

    Means are weighted by w. With v_cc' the mean over inputs of class c ≠ c' and v_c that of v_cc' over c',
    M = Σ w_c v_c v_cᵀ + Σ w_cc' (v_cc' − v_c)(…)ᵀ + Σ w_ic' (v_ic' − v_cc')(…)ᵀ + Σ_i w_ic v_ic v_icᵀ (c' = c).

    Parameters
    ----------
    vectors, weights, labels : (inputs, classes, size), (inputs, classes) and not negative, (inputs,).

    Examples
    --------
    >>> v = jnp.arange(8.0).reshape(2, 2, 2)
    >>> parts = class_parts(v, jnp.ones((2, 2)), jnp.array([0, 1]))
    >>> float(parts.traces.sum()) == float((v**2).sum())
    True
    """
    inputs, classes, size = vectors.shape
    member = jax.nn.one_hot(labels, classes)  # (inputs, classes)
    other = weights * (1.0 - member)
    own = jnp.einsum("ic,icp->ip", jnp.sqrt(weights) * member, vectors)
    pair_weight = member.T @ other  # (c, c')
    pair_mean = _per_weight(jnp.einsum("ic,id,idp->cdp", member, other, vectors), pair_weight)
    class_weight = pair_weight.sum(axis=1)
    class_mean = _per_weight(jnp.einsum("cd,cdp->cp", pair_weight, pair_mean), class_weight)
    cross = jnp.sqrt(pair_weight)[..., None] * (pair_mean - class_mean[:, None])
    within = jnp.sqrt(other)[..., None] * (vectors - pair_mean[labels])
    between = jnp.sqrt(class_weight)[:, None] * class_mean
    return ClassParts(between, cross.reshape(-1, size), within.reshape(inputs * classes, size), own)


def _per_weight(sums: Any, weights: Any) -> jax.Array:
    """Sums over weights, zero where there is no weight."""
    return sums / jnp.where(weights > 0.0, weights, 1.0)[..., None]
