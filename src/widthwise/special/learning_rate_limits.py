"""Where descent stops being stable: the largest eigenvalue of a kernel, and the catapult beyond it (theory §10).

Descent on one datum with one hidden layer is a map of two numbers, the residual and the curvature. In units s = η√c r
and k = ηλ, and with target zero, it is s' = s(1 − k + s²), k' = k + s²(k − 4). A layer without dead neurons has
2|s| ≤ k, so that the residual grows in the next step if and only if k > 2 + s², and k falls for ever if k < 4: descent
converges, at every width, and diverges above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import lambertw

from widthwise.errors import InvalidInput
from widthwise.memory import require_memory
from widthwise.network import check_integer, real_array
from widthwise.network.validation import BELOW_ONE, check_covariances, check_real


@dataclass(frozen=True)
class EigenvalueBounds:
    """λ_max is at most `row`, the largest row sum of absolute values, `frobenius`, √ΣK², and `trace`.

    It is at least `mean_row`, ΣK/inputs.
    """

    row: float
    frobenius: float
    trace: float
    mean_row: float


def largest_eigenvalue_bounds(kernel: ArrayLike) -> EigenvalueBounds:
    """Bounds on the largest eigenvalue of a positive semi-definite kernel (inputs, inputs), without eigenvalues.

    >>> largest_eigenvalue_bounds([[2.0, 1.0], [1.0, 2.0]])
    EigenvalueBounds(row=3.0, frobenius=3.1622776601683795, trace=4.0, mean_row=3.0)
    """
    K = check_covariances(kernel, "kernel")
    return EigenvalueBounds(
        float(np.abs(K).sum(axis=1).max()), float(np.linalg.norm(K)), float(np.trace(K)), float(K.sum()) / len(K)
    )


def chernoff_bound(C_0: float, R: float, inputs: int, probability: float) -> float:
    """What λ_max of a sum of independent positive semi-definite matrices exceeds with at most the given probability.

    It is (1 + δ) C_0 for the least δ that the matrix Chernoff bound allows,
    P(λ_max ≥ (1 + δ) C_0) ≤ inputs · (e^δ/(1 + δ)^(1+δ))^(C_0/R). A tangent kernel is such a sum over neurons.

    Parameters
    ----------
    C_0 : largest eigenvalue of the expected sum.
    R : the largest eigenvalue that one summand can have.
    inputs : dimension of the matrices.
    probability : between 0 and 1.

    Examples
    --------
    >>> round(chernoff_bound(1.0, 0.01, 10, 0.05), 4)
    1.3427
    """
    inputs = check_integer("inputs", inputs, 1)
    given = (("C_0", C_0, 1e100), ("R", R, 1e100), ("probability", probability, BELOW_ONE))
    C_0, R, probability = (
        check_real(
            name, value, "positive numbers C_0, R up to 1e100 and probability below 1", least=1e-100, largest=bound
        )
        for name, value, bound in given
    )
    target = R / C_0 * math.log(inputs / probability)
    # (1 + δ) log(1 + δ) − δ = target, solved by Lambert's function W e^W for W = log(1 + δ) − 1
    # at target = 0, where two branches meet, W = −1 and rounding may step over the edge
    W = float(lambertw(max((target - 1.0) / math.e, -1.0 / math.e)).real)
    return C_0 * math.exp(1.0 + (-1.0 if math.isnan(W) else W))


class CatapultOrbit(NamedTuple):
    """r = z − y and λ = Θ̂ before each step, each (steps + 1, …)."""

    residual: np.ndarray
    curvature: np.ndarray


def catapult_map(
    residual: Any, curvature: Any, learning_rate: Any, coupling: Any, target: Any = 0.0
) -> tuple[Any, Any]:
    """One step of gradient descent on ½r² for z = Σ_j V_j σ(W_j·x), r = z − y (theory §10).

    r' = r[1 − ηλ + c η² z r] and λ' = λ + c η r² [ηλ − 4z/r], written without the division as
    λ' = λ + c η [η λ r² − 4 z r]. Exact for a linear hidden layer, and for a ReLU layer through every step in which no
    neuron changes side. Arguments broadcast.

    Parameters
    ----------
    residual, curvature : r, and λ, the NTK of the network at the datum.
    learning_rate : η.
    coupling : c = λ_W² ‖x‖²/(m n_0) for m neurons without learning biases.
    target : y.

    Examples
    --------
    >>> residual, curvature = catapult_map(1.0, 2.0, 0.5, 0.1)
    >>> float(residual), float(curvature)
    (0.025, 1.85)
    """
    found = _mapped(*_checked_orbits(residual, curvature, learning_rate, coupling, target))
    if not all(np.isfinite(part).all() for part in found):
        raise InvalidInput("residual", "numbers whose next step is not representable", "smaller ones, in all arguments")
    return found


def _checked_orbits(*values: Any) -> list[np.ndarray]:
    """The arguments of `catapult_map` as arrays that broadcast."""
    names = ("residual", "curvature", "learning_rate", "coupling", "target")
    given = [real_array(value, name) for value, name in zip(values, names, strict=True)]
    for array, name in zip(given[1:4], names[1:4], strict=True):
        if (array <= 0.0).any() or not array.size:
            raise InvalidInput(name, f"{array.min():g}" if array.size else "an empty array", "positive numbers")
    try:
        np.broadcast_shapes(*(array.shape for array in given))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for array, name in zip(given, names, strict=True))
        raise InvalidInput("residual", f"shapes {shapes}", "numbers, or arrays that broadcast") from None
    return given


def _mapped(residual: Any, curvature: Any, learning_rate: Any, coupling: Any, target: Any) -> tuple[Any, Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        z = residual + target
        moved = residual * (1.0 - learning_rate * curvature + coupling * learning_rate**2 * z * residual)
        bent = curvature + coupling * learning_rate * (learning_rate * curvature * residual**2 - 4.0 * z * residual)
    return moved, bent


def catapult_orbit(
    residual: Any, curvature: Any, learning_rate: Any, coupling: Any, target: Any = 0.0, *, steps: int = 100
) -> CatapultOrbit:
    """`catapult_map` so many times, with its arguments; what diverges ends as infinite.

    >>> orbit = catapult_orbit(0.1, 1.0, [1.0, 3.0, 4.1], 0.01)         # lazy, catapult, divergent
    >>> abs(orbit.residual).max(axis=0).round(1)[:2], bool(abs(orbit.residual[-1, 2]) < 1e3)
    (array([0.1, 2.8]), False)
    >>> orbit.curvature[-1, :2].round(2)
    array([1.  , 0.07])
    """
    steps = check_integer("steps", steps, 1)
    given = _checked_orbits(residual, curvature, learning_rate, coupling, target)
    r, bend, eta, c, y = np.broadcast_arrays(*given)
    each = 2 * 3 * 8 * r.size + 400  # numbers in the list and in the result, and what objects weigh
    what = f"{steps} steps of {r.size} orbits"
    require_memory(each * steps, what, lambda limit: f"What would fit: {limit // each} steps.")
    history = [(r, bend)]
    for _ in range(steps):
        r, bend = (np.where(np.isnan(part), np.inf, part) for part in _mapped(*history[-1], eta, c, y))
        history.append((r, bend))
    return CatapultOrbit(*(np.stack(part) for part in zip(*history, strict=True)))
