"""The phase diagram in (C_W, C_b): where signals converge, where they scatter, and the line between (theory §7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from scipy.interpolate import CubicHermiteSpline

from widthwise.activations import ActivationLike, resolve
from widthwise.criticality.blocks import BlockForm, checked_norm
from widthwise.criticality.kernel_fixed_points import CHI_IS_ONE, non_negative
from widthwise.criticality.moments import Profile
from widthwise.errors import InvalidInput
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.memory import require_memory
from widthwise.network import check_integer, real_array

PHASE_NAMES = ("ordered", "critical", "chaotic", "divergent")
_GRID_ROWS_AT_ONCE = 4096
#: Fixed points are bracketed on every so many-th kernel of the scan.
_COARSE = 4


@dataclass(frozen=True)
class PhaseDiagram:
    """On the grid (C_b, C_W): the kernel K* that an input reaches, χ_∥ and χ_⊥ there, the phase (index of PHASE_NAMES).

    K* is infinite and the phase "divergent" where the kernel grows past every kernel at which σ is tabulated.
    """

    C_W: np.ndarray
    C_b: np.ndarray
    K_star: np.ndarray
    chi_parallel: np.ndarray
    chi_perp: np.ndarray
    phase: np.ndarray

    @property
    def names(self) -> np.ndarray:
        """The phase of every point in words."""
        return np.array(PHASE_NAMES)[self.phase]


#: A point of the grid with what is computed for it, its phase in words among it.
_BYTES_OF_A_GRID_POINT = 256


def phase_grid(
    activation: ActivationLike, C_W: Any, C_b: Any, x_square: float = 1.0, *, skip: float = 0.0, norm: Any = None
) -> PhaseDiagram:
    """Which fixed point an input with x·x/n_0 = x_square reaches, and the phase there, on a grid (theory §7).

    C_W and C_b are one-dimensional; results are (len(C_b), len(C_W)). χ_⊥ < 1: nearby inputs converge and gradients
    vanish ("ordered"); χ_⊥ > 1: they part and gradients explode ("chaotic"). `skip` and `norm` are those of `critical`:
    both χ's contain γ².

    >>> diagram = phase_grid("tanh", C_W=[0.8, 1.4], C_b=[0.0, 0.05])
    >>> diagram.names.tolist()
    [['ordered', 'chaotic'], ['ordered', 'ordered']]
    >>> diagram.K_star.round(6).tolist()
    [[0.0, 0.224947], [0.13808, 0.364884]]
    """
    block = BlockForm.of(skip, norm, "phase")
    shape = block.profile(resolve(activation))
    C_W, C_b = _axis(C_W, "C_W"), _axis(C_b, "C_b")
    what, each = f"a grid of {C_W.size} × {C_b.size} points", _BYTES_OF_A_GRID_POINT
    require_memory(each * C_W.size * C_b.size, what, lambda limit: f"What would fit: {limit // each} points.")
    weights, biases = (x.ravel() for x in np.meshgrid(C_W, C_b))
    start = dense_kernel(biases, weights, non_negative(x_square, "x_square"))
    # the flow of residual layers has the fixed points of plain ones, and goes to them in the same direction
    weights, biases = weights / block.fresh, biases / block.fresh
    if shape.slopes is not None:
        K, growth, slope = _straight_grid(shape, weights, biases, start)
    else:
        parts = (slice(row, row + _GRID_ROWS_AT_ONCE) for row in range(0, len(weights), _GRID_ROWS_AT_ONCE))
        K = np.concatenate([_reached(shape, weights[part], biases[part], start[part]) for part in parts])
        m, at_zero = shape.scan, shape.moments(0.0)
        rate = np.stack([m.growth_rate, m.slope_rate], axis=1) * m.K[:, None]
        tables = CubicHermiteSpline(np.log(m.K), np.stack([m.growth, m.slope], axis=1), rate)
        growth, slope = tables(np.log(np.clip(K, m.K[0], shape.K_max))).T
        growth, slope = np.where(K == 0.0, at_zero.growth, growth), np.where(K == 0.0, at_zero.slope, slope)
    chi_parallel, chi_perp = (block.skip**2 + block.fresh * weights * one for one in (growth, slope))
    phase = np.where(chi_perp < 1.0, 0, 2)
    phase[np.abs(chi_perp - 1.0) < CHI_IS_ONE] = 1
    phase[np.isinf(K)] = 3
    grid = (len(C_b), len(C_W))
    return PhaseDiagram(C_W, C_b, *(x.reshape(grid) for x in (K, chi_parallel, chi_perp, phase)))


#: A kernel with the nodes at which its moments are integrated.
_BYTES_OF_A_KERNEL = 1 << 16


def critical_line(
    activation: ActivationLike, count: int = 400, *, skip: float = 0.0, norm: Any = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The line χ_⊥ = 1 as (K, C_W, C_b), by rising K: C_W = 1/⟨σ'²⟩ and C_b = K − C_W⟨σ²⟩ where that is not negative.

    Only kernels that attract (χ_∥ < 1) are kept. A critical point, χ_∥ = 1 as well, is an end of the line. A skip
    multiplies C_W and C_b by 1 − γ²; the line of a network normalised before its activations is straight.

    >>> K, C_W, C_b = critical_line("tanh")
    >>> bool(C_b[0] < 1e-6), bool(abs(C_W[0] - 1.0) < 1e-3)
    (True, True)
    """
    block = BlockForm.of(skip, norm, "critical line")
    shape = block.profile(resolve(activation))
    if shape.slopes is not None:
        raise InvalidInput("activation", shape.name, "one whose critical line is more than the point C_b = 0",
                           "Use widthwise.critical.")  # fmt: skip
    count = check_integer("count", count, 1)
    require_memory(_BYTES_OF_A_KERNEL * count, f"{count} points of the critical line", "Take fewer.")
    m = shape.moments(np.geomspace(1e-4, min(1e3, shape.K_max), count))
    C_W = 1.0 / m.slope
    C_b = m.K - C_W * m.square
    kept = (C_b >= -1e-12 * m.K) & (C_W * m.growth < 1.0)
    return m.K[kept], block.fresh * C_W[kept], block.fresh * np.maximum(C_b[kept], 0.0)


def _axis(values: Any, name: str) -> np.ndarray:
    array = np.atleast_1d(real_array(values, name))
    if array.ndim != 1 or not len(array) or np.any(array < 0.0):
        raise InvalidInput(name, f"shape {array.shape}, least value {array.min(initial=0.0):g}",
                           "a one-dimensional array of non-negative numbers")  # fmt: skip
    return array


def _reached(shape: Profile, C_W: np.ndarray, C_b: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The first fixed point in the direction in which K starts to move: zero of g(K) − K above or below the start."""
    m = shape.scan
    square = CubicHermiteSpline(np.log(m.K), m.square, m.growth * m.K)
    grid = np.append(m.K[:-1:_COARSE], m.K[-1])
    log_K = np.log(grid)
    start = np.clip(np.log(np.maximum(start, 1e-300)), log_K[0], log_K[-1])

    def excess(at):
        return dense_kernel(C_b, C_W, square(at)) - np.exp(at)

    sign = np.sign(dense_kernel(C_b[:, None], C_W[:, None], square(log_K)) - grid)
    upwards = excess(start) > 0.0
    place = np.searchsorted(log_K, start)
    index = np.arange(len(grid))
    ahead = np.where(upwards[:, None], (index >= place[:, None]) & (sign <= 0), (index < place[:, None]) & (sign >= 0))
    found = ahead.any(axis=1)
    hit = np.where(upwards, np.argmax(ahead, axis=1), len(index) - 1 - np.argmax(ahead[:, ::-1], axis=1))
    low = np.where(upwards, np.maximum(start, log_K[np.maximum(hit - 1, 0)]), log_K[hit])
    high = np.where(upwards, log_K[hit], np.minimum(start, log_K[np.minimum(hit + 1, len(index) - 1)]))
    for _ in range(38):
        middle = 0.5 * (low + high)
        above = excess(middle) > 0.0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    K = np.exp(0.5 * (low + high))
    return np.where(found, K, np.where(upwards, np.inf, 0.0))


def _straight_grid(shape: Profile, C_W, C_b, start: np.ndarray):
    """σ = a_± z: K* = C_b/(1 − χ) for χ < 1; at χ = 1 the input's own kernel if C_b = 0; infinite otherwise."""
    slope = float(shape.moments(1.0).slope) * np.ones(len(C_W))
    chi = C_W * slope
    with np.errstate(divide="ignore", invalid="ignore"):
        K = np.where(chi < 1.0, C_b / (1.0 - chi), np.inf)
    neutral = np.abs(chi - 1.0) < 1e-12
    K = np.where(neutral, np.where(C_b == 0.0, start, np.inf), K)
    return np.where((C_b == 0.0) & (chi > 1.0) & (start == 0.0), 0.0, K), slope, slope


def block_of_diagram(diagram: xr.Dataset) -> dict[str, Any]:
    """`skip` and `norm` of what `phase_diagram` made, as its attributes say."""
    kind, place, epsilon = diagram.attrs["norm"].split() if "norm" in diagram.attrs else ("", "", 0.0)
    return {"skip": diagram.attrs.get("skip", 0.0), "norm": (kind, place, float(epsilon)) if kind else None}


def phase_diagram(
    activation: ActivationLike, C_W: Any, C_b: Any, x_square: float = 1.0, *, skip: float = 0.0, norm: Any = None
) -> xr.Dataset:
    """Ordered, chaotic, critical or divergent: what depth does to signals, over a grid of C_W and C_b (theory §7).

    Variables on (C_b, C_W): `K_star`, the kernel that an input with x·x/n_0 = x_square reaches (infinity where it grows
    without bound); `chi_parallel` and `chi_perp` there; `phase` in words. `skip` and `norm` are those of `critical`.

    >>> ds = phase_diagram("tanh", C_W=[0.8, 1.8], C_b=[0.0, 0.05])
    >>> ds["phase"].sel(C_b=0.0).values.tolist()
    ['ordered', 'chaotic']
    >>> phase_diagram("tanh", C_W=[0.8, 1.8], C_b=[0.0], skip=0.9)["chi_perp"].values.round(3).tolist()
    [[1.074, 1.171]]
    """
    sigma = resolve(activation)
    grid = phase_grid(sigma, C_W, C_b, x_square, skip=skip, norm=norm)
    dims = ("C_b", "C_W")
    variables = {
        "K_star": (dims, grid.K_star, {"long_name": "kernel that is reached with depth"}),
        "chi_parallel": (dims, grid.chi_parallel, {"long_name": "χ_∥ there (theory §7)"}),
        "chi_perp": (dims, grid.chi_perp, {"long_name": "χ_⊥ there (theory §7)"}),
        "phase": (dims, grid.names, {"long_name": "phase"}),
    }
    attrs: dict[str, Any] = {"activation": sigma.spec, "x_square": x_square}
    if skip:
        attrs["skip"] = float(skip)
    found = checked_norm(norm)
    if found is not None:
        attrs["norm"] = f"{found.kind} {found.place} {found.epsilon!r}"
    return xr.Dataset(variables, {"C_b": grid.C_b, "C_W": grid.C_W}, attrs)
