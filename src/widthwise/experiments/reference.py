"""Infinite width, as the point about which sampled networks scatter (theory §2)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from widthwise.activations import Activation
from widthwise.errors import InvalidInput
from widthwise.gaussian.kernel_rules import Kept, Pair, kernel_rule
from widthwise.gaussian.pair import generic_pair, pair_matrix
from widthwise.gaussian.sites import raw_kernel, sites_of
from widthwise.memory import require_memory
from widthwise.network import Network

#: Inputs whose remaining variance is below this fraction count as parallel.
PARALLEL_REST = 1e-9
#: Inputs whose squares, and sums of many, are below the largest number.
LARGEST_INPUT = 1e150


class Reference(NamedTuple):
    """K and Θ of infinite width at layers 1..L, over pairs of inputs a ≤ b: each (layers, pairs).

    `roots` are those of the kernels of layers 1..L−1: numbers of infinite width alone, so that no program makes them.
    """

    K: np.ndarray
    Theta: np.ndarray
    roots: tuple[KernelRoot, ...]


class KernelRoot(NamedTuple):
    """L with LLᵀ = K of every pair, lower triangular (pairs, 2, 2), and its derivatives by K_aa, K_ab, K_bb.

    `apart` (pairs,) says whether the second input is not determined by the first.
    """

    apart: np.ndarray
    L: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @classmethod
    def of(cls, K_aa: np.ndarray, K_ab: np.ndarray, K_bb: np.ndarray) -> KernelRoot:
        """Zero, with zero derivatives, where nothing varies.

        >>> KernelRoot.of(np.array([4.0]), np.array([2.0]), np.array([2.0])).L.tolist()
        [[[2.0, 0.0], [1.0, 1.0]]]
        """
        varies = K_aa > 0.0
        variance, slope = np.where(varies, K_aa, 1.0), np.where(varies, K_ab / np.where(varies, K_aa, 1.0), 0.0)
        rest = K_bb - slope * K_ab
        apart = rest > PARALLEL_REST * K_bb
        first_root, rest_root = np.sqrt(variance), np.sqrt(np.where(apart, rest, 1.0))
        L, first, second = (np.zeros((*shape, len(K_aa))) for shape in ((2, 2), (2, 2, 3), (2, 2, 3, 3)))
        L[0, 0], L[1, 0], L[1, 1] = first_root, slope * first_root, rest_root
        first[0, 0, 0], first[1, 0, 0], first[1, 0, 1] = 0.5 / first_root, -0.5 * slope / first_root, 1.0 / first_root
        second[0, 0, 0, 0] = -0.25 / first_root**3
        second[1, 0, 0, 0], second[1, 0, 0, 1] = 0.75 * slope / first_root**3, -0.5 / first_root**3
        second[1, 0, 1, 0] = second[1, 0, 0, 1]
        # of the rest K_bb − K_ab²/K_aa itself, then of its root
        gradient, zero = np.stack([slope**2, -2.0 * slope, np.ones_like(slope)]), np.zeros_like(slope)
        curvature = (
            np.stack([[-2.0 * slope**2, 2.0 * slope, zero], [2.0 * slope, zero - 2.0, zero], [zero] * 3]) / variance
        )
        first[1, 1] = 0.5 * gradient / rest_root
        second[1, 1] = 0.5 * curvature / rest_root - 0.25 * gradient[:, None] * gradient[None] / rest_root**3
        for whole in (L, first, second):
            whole[:, 0] *= varies
            whole[1, 1] *= apart
        # the rest does not depend on K_aa and K_ab where the first input does not vary
        first[1, 1, :2] *= varies
        second[1, 1, :2] *= varies
        second[1, 1, :, :2] *= varies
        return cls(apart, *(np.moveaxis(whole, -1, 0) for whole in (L, first, second)))


def pairs(inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of inputs a ≤ b."""
    return np.triu_indices(inputs)


def pair_number(inputs: int) -> np.ndarray:
    """Where the pair of a and b, in either order, stands in `pairs`.

    >>> pair_number(2)
    array([[0, 1],
           [1, 2]])
    """
    number = np.zeros((inputs, inputs), int)
    a, b = pairs(inputs)
    number[a, b] = number[b, a] = np.arange(len(a))
    return number


def _pair_mean(K: np.ndarray, activation: Activation, p: int, independent: bool = False) -> np.ndarray:
    """⟨σ^(p)_a σ^(p)_b⟩ on (a, b), or the product of the means."""
    if not independent:
        return pair_matrix(activation, p, p, K)[0]
    variance = np.diag(K)
    first, second = (side.ravel() for side in np.meshgrid(variance, variance, indexing="ij"))
    return generic_pair(activation, p, p, first, 0.0 * first, second).value.reshape(K.shape)


def _of_rows(net: Network, X: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """K and Θ on (a, b) behind every layer."""
    K, Theta, kernels, kept = (X @ X.T) / net.widths[0], np.zeros((len(X), len(X))), [], Kept()
    for block in net.blocks:
        for step in block:
            variance = np.diag(K)
            mean = partial(_pair_mean, K)
            K, Theta = kernel_rule(step, Pair(variance[:, None], K, variance[None, :], Theta, mean, kept))
        kernels.append((K, Theta))
    return kernels


def _of_images(net: Network, X: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same where inputs have positions: means over equal ones (theory §13), all inputs and positions at once."""
    sites = sites_of(net.steps, net.shapes(X.shape[1:-1]))
    largest = max(one.entries for one in sites) * len(X) ** 2
    require_memory(96 * largest, f"kernels between all positions of {len(X)} inputs", "Take fewer inputs.")
    K = raw_kernel(X, X, sites[0])
    Theta, kernels, kept, place = np.zeros_like(K), [], Kept(), 0
    for block in net.blocks:
        for step in block:
            here, behind = sites[place : place + 2]
            variance = np.diagonal(here.equal_positions(K), axis1=-2, axis2=-1)
            first, second = here.of_first(variance[..., :, None]), here.of_second(variance[..., None, :])
            own = np.diagonal(K, axis1=-2, axis2=-1)
            mean = partial(_site_mean, first, K, second)
            pair = Pair(first, K, second, Theta, mean, kept, here, behind, own=(own, own))
            K, Theta = (behind.wanted(np.asarray(kernel), 2) for kernel in kernel_rule(step, pair))
            place += 1
        kernels.append((sites[place].mean(K), sites[place].mean(Theta)))
    return kernels


def _site_mean(first, K: np.ndarray, second, activation: Activation, p: int, independent: bool = False) -> np.ndarray:
    """⟨σ^(p) σ^(p)⟩ between sites, or the product of the means."""
    both = np.broadcast_arrays(first, 0.0 * K if independent else K, second)
    return generic_pair(activation, p, p, *(one.ravel() for one in both)).value.reshape(K.shape)


def reference(net: Network, X: np.ndarray) -> Reference:
    """K and Θ of every layer (theory §2).

    >>> from widthwise.network import MLP
    >>> net = MLP([1, 8, 8, 1], "linear", lambda_W=0.5)
    >>> found = reference(net, np.array([[2.0]]))
    >>> found.K[:, 0].tolist(), found.Theta[:, 0].tolist()
    ([4.0, 4.0, 4.0], [3.0, 6.0, 9.0])
    """
    largest = float(np.abs(X).max())
    if largest > LARGEST_INPUT:
        raise InvalidInput("X", f"numbers up to {largest:.3g}", f"at most {LARGEST_INPUT:g}", "Scale the inputs down.")
    a, b = pairs(len(X))
    kernels = _of_images(net, X) if X.ndim > 2 else _of_rows(net, X)
    roots = tuple(KernelRoot.of(np.diag(K)[a], K[a, b], np.diag(K)[b]) for K, _ in kernels[:-1])
    K, Theta = (np.stack([kernel[a, b] for kernel in column]) for column in zip(*kernels, strict=True))
    return Reference(K, Theta, roots)
