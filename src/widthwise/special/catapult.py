"""Descent on one datum with one hidden layer is a map of two numbers, the residual and the curvature (theory §10).

In units s = η√c r and k = ηλ, and with target zero, it is s' = s(1 − k + s²), k' = k + s²(k − 4). A layer without
dead neurons has 2|s| ≤ k, so that the residual grows in the next step if and only if k > 2 + s², and k falls for ever
if k < 4: descent converges, at every width, and diverges above.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.network.inputs import real_array
from widthwise.network.validation import check_integer


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

    Returns
    -------
    r' and λ'.

    >>> catapult_map(1.0, 2.0, 0.5, 0.1)
    (0.025, 1.85)
    """
    z = residual + target
    moved = residual * (1.0 - learning_rate * curvature + coupling * learning_rate**2 * z * residual)
    bent = curvature + coupling * learning_rate * (learning_rate * curvature * residual**2 - 4.0 * z * residual)
    return moved, bent


def catapult_orbit(
    residual: Any, curvature: Any, learning_rate: Any, coupling: Any, target: Any = 0.0, *, steps: int = 100
) -> CatapultOrbit:
    """The map of `catapult_map`, again and again; what diverges ends as infinite or not a number.

    Parameters
    ----------
    residual, curvature, learning_rate, coupling, target : numbers or arrays that broadcast, see `catapult_map`.
    steps : how many steps.

    Returns
    -------
    CatapultOrbit of `residual` and `curvature`, each (steps + 1, …).

    >>> orbit = catapult_orbit(0.1, 1.0, [1.0, 3.0, 4.1], 0.01)         # lazy, catapult, divergent
    >>> abs(orbit.residual).max(axis=0).round(1)[:2], bool(abs(orbit.residual[-1, 2]) < 1e3)
    (array([0.1, 2.8]), False)
    >>> orbit.curvature[-1, :2].round(2)
    array([1.  , 0.07])
    """
    steps = check_integer("steps", steps, 1)
    names = ("residual", "curvature", "learning_rate", "coupling", "target")
    values = (residual, curvature, learning_rate, coupling, target)
    given = [real_array(value, name) for value, name in zip(values, names, strict=True)]
    for array, name in zip(given[1:4], names[1:4], strict=True):
        if (array <= 0.0).any():
            raise InvalidInput(name, f"{array.min():g}", "positive numbers")
    r, bend, eta, c, y = np.broadcast_arrays(*given)
    history = [(r, bend)]
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            history.append(catapult_map(*history[-1], eta, c, y))
    return CatapultOrbit(*(np.stack(part) for part in zip(*history, strict=True)))
