"""Which route computes which four-point expectations, and how well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.activations import Activation, evaluate, require_derivatives, require_functions, resolve
from widthwise.activations.closed_forms import homogeneous
from widthwise.blas_threads import with_one_blas_thread
from widthwise.errors import InvalidInput, UnknownName
from widthwise.gaussian.four_points.accelerated import AcceleratedSeries
from widthwise.gaussian.four_points.families import FAMILIES, Orders, assignments, full, quadruples
from widthwise.gaussian.four_points.orthants import orthant_route
from widthwise.gaussian.four_points.planes import PlaneSeries
from widthwise.gaussian.four_points.sampling import grid_route, sample_route
from widthwise.gaussian.quadrature import check_tails, trapezoidal
from widthwise.network.validation import LEAST, check_covariances, check_integer, check_real, is_one_of

#: Relative errors of the orthant route, and of inputs that are all but parallel in it.
_ORTHANT_ERROR, _ORTHANT_ERROR_CLOSE, _CLOSE = 1e-9, 1e-8, 1e-5
FOUR_POINT_METHODS = ("auto", "planes", "orthants", "sample")


@dataclass(frozen=True)
class FourPoint:
    """Values and error bounds on (sorted quadruples, assignments); full tensors on request.

    Both are arrays of jax where an accelerator has made them. `route` names what was used, `error` is the largest error
    bound of a family relative to its largest value.
    """

    inputs: int
    placed: tuple[Orders, ...]
    values: Any
    errors: Any
    route: str

    def full(self, *orders: int) -> np.ndarray:
        """⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩ on (a, b, c, d)."""
        orders = tuple(check_integer("orders", order, 0) for order in orders)
        if orders not in self.placed:
            computed = ", ".join(map(str, dict.fromkeys(tuple(sorted(placed)) for placed in self.placed)))
            raise InvalidInput("orders", repr(orders), f"those of a family that was computed: {computed}, in any order")
        lookup = [np.asarray(part) for part in quadruples(self.inputs).lookup]
        return np.asarray(full(self.values, lookup, orders, self.placed, self.inputs))

    @property
    def error(self) -> float:
        largest, least, error = map(
            np.asarray, (self.values.max(axis=0), self.values.min(axis=0), self.errors.max(axis=0))
        )
        return relative_error(self.placed, error, np.maximum(largest, -least))


def relative_error(placed: tuple[Orders, ...], error: np.ndarray, value: np.ndarray) -> float:
    """The largest error bound of a family relative to its largest value, from the largest of each assignment."""
    families: dict[Orders, list[int]] = {}
    for column, orders in enumerate(placed):
        families.setdefault(tuple(sorted(orders)), []).append(column)
    return float(max(error[c].max() / max(value[c].max(), 1e-300) for c in families.values()))


@with_one_blas_thread
def four_point(
    activation: Activation,
    K: np.ndarray,
    families: tuple[Orders, ...] = FAMILIES,
    tolerance: float = 1e-9,
    method: str = "auto",
    progress: Callable[[float], None] | None = None,
) -> FourPoint:
    """Expectations of four factors for all quadruples of the inputs of a kernel K (inputs, inputs) (theory §4).

    "planes" expands pairs in Hermite polynomials of their plane, "sample" uses a shared low-discrepancy sample,
    "orthants" is exact for the relu family; "auto" picks by smoothness and tolerance. `progress` is called with the
    share that is done.

    >>> from widthwise.activations import resolve
    >>> result = four_point(resolve("linear"), np.array([[1.0, 0.5], [0.5, 2.0]]), ((0, 0, 0, 0),))
    >>> result.full(0, 0, 0, 0)[0, 0, 1, 1].round(9)          # K_aa K_bb + 2 K_ab² by Wick's theorem
    np.float64(2.5)
    """
    if not is_one_of(method, FOUR_POINT_METHODS):
        raise UnknownName.of("method", method, FOUR_POINT_METHODS)
    activation, K, families = resolve(activation), _checked_kernel(K), _checked_families(families)
    tolerance = check_real("tolerance", tolerance, "a positive number", least=LEAST)
    highest = max(order for orders in families for order in orders)
    require_derivatives(activation, highest, "four-point expectations")
    require_functions(activation, highest, "families", "four-point expectations at coinciding inputs")
    if progress is not None:
        try:
            progress(0.0)
        except Exception as error:  # of the caller's function, before the work and not in the middle of it
            raise InvalidInput("progress", repr(progress), "a function of the share that is done, or None") from error
    placed = assignments(families)
    # the linear activation has no kink: its planes end at the second degree, and its higher derivatives are there
    linear = homogeneous(activation.closed) if activation.kinks else None
    if linear is None:
        check_fourth_moments(activation, K, highest)
    if method == "orthants" or (method == "auto" and linear is not None):
        if linear is None:
            raise UnknownName.of(
                "method", method, [m for m in FOUR_POINT_METHODS if m != "orthants"], " for this activation"
            )
        values = orthant_route(activation.closed, K, placed)
        square = np.outer(np.diag(K), np.diag(K))
        apart = 1.0 - np.divide(K * K, square, out=np.zeros_like(K), where=square > 0.0)
        error = _ORTHANT_ERROR_CLOSE if np.any((apart > 1e-12) & (apart < _CLOSE)) else _ORTHANT_ERROR
        errors = np.broadcast_to(error * np.abs(values).max(axis=0), values.shape)
        return FourPoint(len(K), placed, values, errors, "orthants")
    found = grid_route(activation, K, placed) if method == "auto" else None
    if found is not None:
        return FourPoint(len(K), placed, *found, "grid on a plane")
    found = plane_route(activation, K, placed, tolerance, progress) if method != "sample" else None
    if found is not None:
        result = FourPoint(len(K), placed, *found, "Hermite planes")
        if method == "planes" or result.error <= 10.0 * tolerance:
            return result
        # where the planes did not reach the tolerance, the sample's value if its error is smaller
        values, errors = sample_route(activation, K, placed)
        better = errors < result.errors
        if not better.any():
            return result
        values, errors = np.where(better, values, result.values), np.where(better, errors, result.errors)
        return FourPoint(len(K), placed, values, errors, "Hermite planes and low-discrepancy sample")
    if method == "planes":
        raise InvalidInput(
            "method",
            f"{method!r} for {activation.name} on {len(K)} inputs with kernels up to {np.diag(K).max():.3g}",
            "a case that this route can resolve",
            "Use method='auto'.",
        )
    values, errors = sample_route(activation, K, placed)
    return FourPoint(len(K), placed, values, errors, "low-discrepancy sample")


def plane_route(
    activation: Activation,
    K: np.ndarray,
    placed: tuple[Orders, ...],
    tolerance: float,
    progress: Callable[[float], None] | None = None,
) -> tuple[Any, Any] | None:
    """Values (sorted quadruples, assignments) and bounds on their errors, both absolute; on an accelerator left there.

    `tolerance` is relative to √⟨f²⟩√⟨g²⟩ of the two plane functions. None where the activation is too sharp for the
    kernel to be resolved at so many inputs.
    """
    series, quads = PlaneSeries(activation, K, placed, tolerance), quadruples(len(K)).sorted
    if series.for_accelerator:
        series.kept = {}  # for all lists
        return AcceleratedSeries(series).in_lists(quads, progress)
    return series(quads, progress) if series.possible else None


def _checked_kernel(K: np.ndarray) -> np.ndarray:
    array = check_covariances(K, "K")
    eigenvalues = np.linalg.eigvalsh(array)
    if eigenvalues[0] < -1e-8 * eigenvalues[-1]:
        got = f"a matrix with eigenvalues from {eigenvalues[0]:.3g} to {eigenvalues[-1]:.3g}"
        raise InvalidInput("K", got, "a matrix of covariances (inputs, inputs), positive semidefinite")
    return array


def _checked_families(families: Any) -> tuple[Orders, ...]:
    expected = "tuples of four orders of derivatives, such as ((0, 0, 1, 1),)"
    if not isinstance(families, list | tuple) or not families:
        raise InvalidInput("families", repr(families), expected)
    for orders in families:
        if not isinstance(orders, list | tuple) or len(orders) != 4 or not all(is_one_of(k, range(5)) for k in orders):
            raise InvalidInput("families", repr(orders), expected + ", each from 0 to 4")
    return tuple(map(tuple, families))


def check_fourth_moments(activation: Activation, K: np.ndarray, highest: int) -> None:
    """By Hölder's inequality every product of four exists where the fourth moments do."""
    scale, grid = np.sqrt(np.diag(K).max(keepdims=True)), trapezoidal(400)
    for order in range(highest + 1):
        moment = evaluate(activation, order, scale[:, None] * grid.u) ** 4 @ grid.weight
        check_tails(activation, order, scale, moment, power=4)
