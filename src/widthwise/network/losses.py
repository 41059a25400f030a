"""Losses: what theory and experiment agree on. A loss is a sum over inputs of one function of outputs and targets.

    squared        ½ Σ (z − y)²
    huber          Σ ½ e² within |e| = |z − y| ≤ 1, |e| − ½ beyond
    log_cosh       Σ log cosh(z − y)
    logistic       Σ log(1 + e^{−yz}),  y = ±1
    exponential    Σ e^{−yz},  y = ±1
    cross_entropy  −Σ y_i log softmax(z)_i,  y the probabilities of the classes

The first three, and any function of (z, y) for which (z − y)·∂ℓ/∂z > 0 wherever z ≠ y, have one stationary point,
z = y: (z − y)ᵀΘ⁻¹(z − y) falls along every path. The next have their least value at infinity, and end nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise import precision as _precision  # noqa: F401  (float64 before any array is made)
from widthwise.errors import InvalidInput, UnknownName, one_line

#: Where a loss of one's own is looked at: distances from the targets, close enough to each other for a loss that falls
#: and rises again to be seen, on both sides along a direction that is drawn for each.
DISTANCES = np.geomspace(1e-3, 100.0, 96)
#: How far from a target slopes on its two sides are compared, and how much they may differ.
KINK_DISTANCE, JUMP = 1e-6, 0.05
#: Sums of probabilities that are off by more are refused.
OFF_ONE = 1e-6


@dataclass(frozen=True)
class Loss:
    """A function of the outputs z (outputs,) and targets y (outputs,) of one input, and whether it ends at z = y.

    `curvature` bounds the second derivative; for a loss of one's own it is that at the targets.
    """

    name: str
    function: Callable[[Any, Any], Any]
    ends_at_targets: bool
    curvature: float = 1.0

    def __repr__(self) -> str:
        return self.name

    @property
    def is_squared(self) -> bool:
        return self.function is _squared

    @property
    def only_end(self) -> str:
        """How it is known that a loss ends at its targets."""
        known = "" if self.name in NAMED_LOSSES else f", as seen at {2 * len(DISTANCES)} points about each target"
        return f"the only stationary point is z = y{known}"

    def value(self, z: Any, y: Any) -> Any:
        """Of one input: a number."""
        return jnp.sum(self.function(z, y))

    def slope(self, z: Any, y: Any) -> Any:
        """∂ℓ/∂z for z, y (outputs, inputs)."""
        if self.is_squared:
            return z - y
        return jax.vmap(jax.grad(self.value), in_axes=1, out_axes=1)(z, y)

    def hessian(self, z: Any, y: Any) -> Any:
        """∂²ℓ/∂z∂z for z, y (outputs, inputs): (inputs, outputs, outputs)."""
        return jax.vmap(jax.hessian(self.value), in_axes=1)(z, y)

    def root_curvature(self, z: Any, y: Any) -> Any:
        """The square root of the Hessian, of which what is negative is left out: (inputs, outputs, outputs)."""
        values, vectors = jnp.linalg.eigh(self.hessian(z, y))
        return jnp.einsum("aik,ak,ajk->aij", vectors, jnp.sqrt(jnp.maximum(values, 0.0)), vectors)


# A loss has no leaves: compiled code belongs to it.
jax.tree_util.register_pytree_node(Loss, lambda loss: ((), loss), lambda loss, _: loss)


def _squared(z, y):
    return 0.5 * (z - y) ** 2


def _huber(z, y):
    size = jnp.abs(z - y)
    return jnp.where(size <= 1.0, 0.5 * size**2, size - 0.5)


def _log_cosh(z, y):
    # log cosh e = |e| + log(1 + e^{−2|e|}) − log 2, written without the kink
    return jnp.logaddexp(z - y, y - z) - jnp.log(2.0)


SQUARED = Loss("squared", _squared, True)
NAMED_LOSSES = {
    loss.name: loss
    for loss in (
        SQUARED,
        Loss("huber", _huber, True),
        Loss("log_cosh", _log_cosh, True),
        Loss("logistic", lambda z, y: jax.nn.softplus(-y * z), False, 0.25),
        Loss("exponential", lambda z, y: jnp.exp(-y * z), False, np.inf),
        Loss("cross_entropy", lambda z, y: -jnp.sum(y * jax.nn.log_softmax(z)), False, 0.5),
    )
}


def check_loss(loss: Any, y: np.ndarray) -> Loss:
    """A loss by name, or any function of (z, y) in jax.numpy, that suits the targets (inputs, outputs).

    >>> check_loss("huber", np.zeros((2, 1))), check_loss(lambda z, y: (z - y) ** 4, np.zeros((2, 1))).ends_at_targets
    (huber, True)
    """
    if isinstance(loss, Loss):
        found = loss
    elif callable(loss):
        return _own_loss(loss, y)
    elif isinstance(loss, str) and loss in NAMED_LOSSES:
        found = NAMED_LOSSES[loss]
    else:
        raise UnknownName.of("loss", loss, NAMED_LOSSES, ", or a function of (z, y) in jax.numpy")
    if found.name in ("logistic", "exponential"):
        remedy = "Write 2y − 1 for labels 0 and 1."
        _refuse_rows(np.any(np.abs(y) != 1.0, axis=1), y, f"targets 1 or −1 for loss={found.name!r}", remedy)
    if found.name == "cross_entropy":
        if y.shape[1] < 2:
            got = "one output with loss='cross_entropy'"
            raise InvalidInput("y_train", got, "one output for each class", "Use loss='logistic' with targets ±1.")
        off = np.any(y < 0.0, axis=1) | (np.abs(y.sum(axis=1) - 1.0) > OFF_ONE)
        remedy = "np.eye(classes)[labels] makes them from labels 0, 1, …"
        _refuse_rows(off, y, "probabilities of the classes, which are not negative and add up to 1", remedy)
    return found


def require_an_end(algorithm: Any, loss: Loss) -> None:
    """Refuse training to convergence under a loss that does not end at the targets."""
    if not loss.ends_at_targets:
        raise InvalidInput(
            "algorithm", f"{algorithm!r}, to convergence, with loss={loss.name!r}", "a number of steps, or a time",
            "This loss does not end at z = y: its least value is elsewhere, or at infinity.",
        )  # fmt: skip


def _refuse_rows(wrong: np.ndarray, y: np.ndarray, expected: str, remedy: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        values = ", ".join(f"{value:g}" for value in y[row, :8])
        raise InvalidInput("y_train", f"row {row}: {values}", expected, remedy)


def _own_loss(function: Callable[[Any, Any], Any], y: np.ndarray) -> Loss:
    """A function of one's own, evaluated about the targets: finite, differentiable, and where it ends."""
    name = getattr(function, "__name__", "loss")
    name = "own loss" if name == "<lambda>" else name
    loss = Loss(name, function, False)
    # every row of targets, moved in the same way
    directions = np.random.default_rng(0).standard_normal((len(DISTANCES), y.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    away = DISTANCES[:, None] * directions
    moves = np.concatenate([np.zeros((1, y.shape[1])), away, -away])
    z = (y[:, None, :] + moves).reshape(-1, y.shape[1]).T
    targets = np.repeat(y, len(moves), axis=0).T
    expected = "a function of z and y, one number for each output, in jax.numpy"
    example = "For example lambda z, y: jnp.cosh(z - y)."
    try:
        shape = jax.eval_shape(function, z[:, 0], targets[:, 0]).shape
        values = jax.vmap(loss.value, in_axes=1)(z, targets)
        slopes, at_targets = np.asarray(loss.slope(z, targets)), np.asarray(loss.hessian(y.T, y.T))
        sides = [
            np.asarray(loss.slope(y.T + side * KINK_DISTANCE * directions[0][:, None], y.T)) for side in (1.0, -1.0)
        ]
    except Exception as error:
        raise InvalidInput("loss", f"{name}, which raises {one_line(error)}", expected, example) from None
    if shape not in ((), y.shape[1:]):
        got = f"{name}, which gives numbers of shape {shape} for {y.shape[1]} outputs"
        raise InvalidInput("loss", got, f"{expected}, or their sum", example)
    values = np.asarray(values).reshape(len(y), -1)
    by_row = slopes.T.reshape(len(y), -1, y.shape[1])
    finite = np.isfinite(values), np.isfinite(by_row).all(axis=2)
    bounded = "Write it so that it stays finite, as jnp.logaddexp does where log(exp) would not."
    smooth = "Round it off: 'huber' and 'log_cosh' are smooth forms of |z − y|."
    near = f"within {DISTANCES[-1]:g} of"
    _refuse_at(np.any(~finite[0], axis=1), f"{name}, which is not finite {near}", "a loss that is finite", bounded)
    _refuse_at(
        np.any(~finite[1], axis=1), f"{name}, which has no finite derivative {near}", "a differentiable loss", smooth
    )
    scale = np.abs(by_row).max(axis=(1, 2))
    if not scale.any():
        raise InvalidInput(
            "loss", f"{name}, whose slope is zero everywhere {near} the targets", "a loss with a slope",
            "A count of errors has no slope: 'logistic' and 'cross_entropy' stand in for it.",
        )  # fmt: skip
    kinked = np.abs(sides[0] - sides[1]).max(axis=0) > JUMP * np.minimum(
        scale, np.abs(by_row[:, 1:]).min(axis=(1, 2)) + 1.0
    )
    _refuse_at(kinked, f"{name}, which has a kink at", "a differentiable loss", smooth)
    outward = np.einsum("rmi,mi->rm", by_row, moves)
    ends = bool((np.abs(by_row[:, 0]) <= 1e-9 * (1.0 + scale[:, None])).all() and (outward[:, 1:] > 0.0).all())
    return Loss(name, function, ends, float(np.abs(np.linalg.eigvalsh(at_targets)).max()))


def _refuse_at(wrong: np.ndarray, what: str, expected: str, remedy: str) -> None:
    if wrong.any():
        raise InvalidInput("loss", f"{what} the targets of row {int(np.argmax(wrong))}", expected, remedy)
