"""Measures on a uniform lattice, and the law of a sum whose logarithm lives on one.

A measure on the line is kept as weights w_k at the points k·h so that Σ w_k f(k h) = E f for every f that is smooth
on a few spacings, whatever the measure: point masses, edges and integrable singularities included. Where the measure
has a density that the lattice resolves, w_k = h · density. Both follow from spreading with a smooth kernel that
reproduces polynomials below degree `ORDER`: a B-spline after the filter (arcsin x / x)^ORDER, x² = −δ²/4, which is
the inverse of the spline's own symbol (sin(ω/2) / (ω/2))^ORDER up to O(ω^ORDER).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.fft import next_fast_len
from scipy.interpolate import BSpline
from scipy.ndimage import correlate1d

from widthwise.memory import require_memory


class Resolution(NamedTuple):
    """Spacings of lattices, of tabulated kernels and of quadrature, and the weights at which laws are cut.

    `coarsest` is the largest lattice spacing of a sum of neurons, `per_deviation` the spacings in one standard
    deviation of its logarithm; `few` and `several` are the same for the laws of smooth layers, inside the chain and at
    its end. `kernel_step` is that of log g between tabulated rows. A row starts where its cumulated weight reaches
    `lower` and stops where its weights stay below `upper`; a law is cut below `top`. `lowest` and `lowest_alone` are
    the smallest log(Y/⟨Y⟩) of one neuron among others and alone; `panel`, `per_octave` and `nodes` set its quadrature.
    """

    coarsest: float
    per_deviation: float
    few: float
    several: float
    kernel_step: float
    lower: float
    upper: float
    top: float
    lowest: float
    lowest_alone: float
    panel: float
    per_octave: int
    nodes: int


#: Errors near rounding, tails included.
FINE = Resolution(2.0**-5, 12.0, 4.0, 8.0, 0.125, 1e-24, 1e-40, 1e-100, -40.0, -80.0, 0.2, 8, 12)
#: For drawing: densities to about 5e-5 of their height, ten times faster.
COARSE = Resolution(2.0**-2, 2.0, 1.5, 2.0, 0.25, 1e-6, 1e-8, 1e-8, -16.0, -30.0, 0.6, 2, 5)

ORDER = 12
HALF = ORDER // 2
#: Empty lattice points kept at both ends, so that no filter reaches over them.
LATTICE_MARGIN = 2 * ORDER
_REMEDY = "Take wider layers, other kernels, or the expansion in 1/n."

_SPLINE = BSpline.basis_element(np.arange(ORDER + 1) - HALF, extrapolate=False)


def spline(x: np.ndarray) -> np.ndarray:
    """The centred B-spline of order `ORDER` with knots on the integers."""
    return np.nan_to_num(_SPLINE(x))


@lru_cache(maxsize=1)
def _spline_polynomials() -> np.ndarray:
    """Polynomial coefficients (power, shift) of spline(f − shift), 0 ≤ f < 1, shift from 1 − HALF to HALF."""
    at = 0.5 - 0.5 * np.cos(np.pi * (np.arange(ORDER) + 0.5) / ORDER)
    values = spline(at[:, None] - np.arange(1 - HALF, HALF + 1))
    return np.linalg.solve(np.vander(2.0 * at - 1.0, increasing=True), values)


def taps(fraction: np.ndarray) -> np.ndarray:
    """spline(fraction − shift) for the `ORDER` lattice points around, which is the first axis."""
    centred = 2.0 * fraction.ravel() - 1.0
    require_memory(3 * 8 * ORDER * centred.size, f"a law on {centred.size} points", _REMEDY)
    powers = np.empty((ORDER, centred.size))
    powers[0] = 1.0
    for k in range(1, ORDER):
        np.multiply(powers[k - 1], centred, out=powers[k])
    return (_spline_polynomials().T @ powers).reshape(ORDER, *fraction.shape)


@lru_cache(maxsize=1)
def _filter() -> np.ndarray:
    arcsin = [math.comb(2 * k, k) / (4**k * (2 * k + 1)) for k in range(HALF)]
    series = np.array([1.0])
    for _ in range(ORDER):
        series = np.convolve(series, arcsin)[:HALF]
    taps, power = np.zeros(ORDER - 1), np.array([1.0])
    for k, coefficient in enumerate(series):
        taps[HALF - 1 - k : HALF + k] += coefficient * power
        power = np.convolve(power, [-0.25, 0.5, -0.25])
    return taps


def prefilter(weights: np.ndarray) -> np.ndarray:
    """Undo the smoothing of the spline to O(h^ORDER), along the last axis."""
    return correlate1d(weights, _filter(), axis=-1, mode="constant")


def spread_masses(x: np.ndarray, weights: np.ndarray, h: float, first: int, size: int) -> np.ndarray:
    """Point masses at x (rows, points) as lattice weights (rows, size) at (first + k) h; x outside moves inside."""
    rows = len(x)
    t = np.clip(x / h - first, LATTICE_MARGIN, size - 1 - LATTICE_MARGIN)
    cell = np.floor(t).astype(np.int64)
    values = taps(t - cell) * weights
    index = np.arange(rows)[:, None] * size + cell + np.arange(1 - HALF, HALF + 1)[:, None, None]
    return prefilter(np.bincount(index.ravel(), values.ravel(), rows * size).reshape(rows, size))


def refine(weights: np.ndarray) -> np.ndarray:
    """The same rows on half the spacing; point k of the old lattice is point 2k of the new one."""
    filtered = prefilter(weights)
    rows, size = weights.shape
    result = np.zeros((rows, 2 * size))
    at, between = (spline(offset - np.arange(-HALF, HALF + 1)) for offset in (0.0, 0.5))
    result[:, ::2] = 0.5 * correlate1d(filtered, at, axis=-1, mode="constant")
    result[:, 1::2] = 0.5 * correlate1d(filtered, between, axis=-1, mode="constant")
    return result


def add(u: np.ndarray, v: np.ndarray, h: float) -> np.ndarray:
    """Law of log(e^a + e^b) for independent a ~ u, b ~ v, rows on one lattice; the result is longer at the top.

    With a = i h the larger one and b = (i − d) h, the sum lies log(1 + e^(−dh)) above a: for every target i + τ the
    sum over d is a convolution, done by Fourier transform, and the one over i a product of two rows.
    """
    rows, size = u.shape
    # spline(log(1 + e^(−dh))/h − τ) for every τ from the least on, and every d
    rise = np.log1p(np.exp(-h * np.arange(size))) / h
    cell = np.floor(rise).astype(np.int64)
    lowest = int(cell[-1]) - HALF + 1
    targets = int(cell[0]) + HALF - lowest + 1
    require_memory(4 * 8 * targets * size, f"a sum of laws on {size} points", _REMEDY)
    kernels = np.zeros((targets, size))
    kernels[cell - lowest + np.arange(1 - HALF, HALF + 1)[:, None], np.arange(size)] = taps(rise - cell)
    length = next_fast_len(2 * size, real=True)
    result = np.zeros((rows, size + lowest + len(kernels) - 1 + LATTICE_MARGIN))
    same = u is v
    u_hat = np.fft.rfft(u, length)
    v_hat = u_hat if same else np.fft.rfft(v, length)
    for tau, (kernel, kernel_hat) in enumerate(zip(kernels, np.fft.rfft(kernels, length), strict=True), lowest):
        terms = u * np.fft.irfft(v_hat * kernel_hat, length)[:, :size]
        if same:
            terms = 2.0 * terms
        else:
            terms += v * np.fft.irfft(u_hat * kernel_hat, length)[:, :size]
        terms -= kernel[0] * u * v
        if tau >= 0:
            result[:, tau : tau + size] += terms
        else:
            result[:, : size + tau] += terms[:, -tau:]
    return prefilter(result)


def trim(weights: np.ndarray, first: int, resolution: Resolution = FINE) -> tuple[np.ndarray, int]:
    """Cut the ends that carry nothing in any row; margins stay."""
    size = np.abs(weights)
    below = np.cumsum(size, axis=-1).max(axis=0)
    low = int(np.searchsorted(below, resolution.lower))
    above = np.nonzero(size.max(axis=0) > resolution.upper)[0]
    high = int(above[-1]) + 1 if len(above) else low + 1
    kept = weights[:, low:high]
    return np.pad(kept, ((0, 0), (LATTICE_MARGIN, LATTICE_MARGIN))), first + low - LATTICE_MARGIN
