"""Means over many networks, with standard errors, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.experiments.estimators import connected

#: Control variates are used once there are this many networks for each of them.
NETWORKS_PER_CONTROL = 8


class Estimate(NamedTuple):
    """A tensor and its standard error, entry by entry."""

    value: np.ndarray
    error: np.ndarray


@dataclass
class Tally:
    """Sums over networks, kept in blocks: network i belongs to block i mod `blocks`.

    The mean of an observation minus β times the mean of its controls, which is zero in expectation, has the same
    expectation and less noise; β is the regression over all networks. `n` is the width that 1/n refers to. Errors
    come from leaving out one block at a time, so they hold for the products of means in V, D, A too.

    >>> from widthwise.experiments.estimators import check_statistics, observe_batch
    >>> from widthwise.experiments.reference import reference
    >>> from widthwise.network import MLP
    >>> net, X = MLP([2, 32, 1], "tanh", C_W=1.5), np.array([[1.0, 0.2]])
    >>> names, tally = check_statistics(net.activation, ["V"]), Tally(net.n)
    >>> for start in range(0, 400, 100):
    ...     indices = np.arange(start, start + 100)
    ...     tally.add(indices, *observe_batch(net, 0, indices, X, names, reference(net, X)))
    >>> V = tally.estimates()["V"]
    >>> tally.networks, V.value.shape, bool(V.error.item() < 0.05 * V.value.item())
    (400, (1, 1, 1, 1), True)
    """

    n: int
    blocks: int = 64
    counts: np.ndarray = field(init=False)
    sums: dict[str, np.ndarray] = field(init=False, default_factory=dict)
    control_sums: np.ndarray = field(init=False)
    control_squares: np.ndarray = field(init=False)
    products: dict[str, np.ndarray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.blocks < 2:
            raise InvalidInput("blocks", str(self.blocks), "at least 2, of which one is left out at a time")
        self.counts = np.zeros(self.blocks)
        self.control_sums, self.control_squares = np.zeros((self.blocks, 0)), np.zeros((0, 0))

    @property
    def networks(self) -> int:
        return int(self.counts.sum())

    def add(self, indices, tensors: Mapping[str, Any], controls) -> None:
        """Take in networks `indices`, whose tensors (networks, …) and controls (networks, controls) were observed."""
        controls = np.asarray(controls)
        if not self.sums:
            self._allocate(tensors, controls)
        blocks = np.asarray(indices) % self.blocks
        np.add.at(self.counts, blocks, 1.0)
        np.add.at(self.control_sums, blocks, controls)
        self.control_squares += contract(controls, controls)
        for name, value in tensors.items():
            flat = np.reshape(value, (len(controls), self.products[name].shape[1]))
            np.add.at(self.sums[name].reshape(self.blocks, -1), blocks, flat)
            self.products[name] += contract(controls, flat)

    def _allocate(self, tensors: Mapping[str, Any], controls: np.ndarray) -> None:
        count = controls.shape[1]
        self.control_sums, self.control_squares = np.zeros((self.blocks, count)), np.zeros((count, count))
        for name, value in tensors.items():
            shape = np.shape(value)[1:]
            self.sums[name] = np.zeros((self.blocks, *shape))
            self.products[name] = np.zeros((count, int(np.prod(shape))))

    def merge(self, other: Tally) -> None:
        """Add the sums of another tally of the same observations."""
        if (self.n, self.blocks) != (other.n, other.blocks):
            raise InvalidInput("other", f"n={other.n}, blocks={other.blocks}", f"n={self.n}, blocks={self.blocks}")
        if not other.sums:
            return
        if not self.sums:
            self._allocate(other.sums, other.control_sums)
        self.counts += other.counts
        self.control_sums += other.control_sums
        self.control_squares += other.control_squares
        for name in self.sums:
            self.sums[name] += other.sums[name]
            self.products[name] += other.products[name]

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, which may be added to those of other networks; none where there are no networks."""
        if not self.sums:
            return {}
        held = {name: getattr(self, name) for name in ("counts", "control_sums", "control_squares")}
        held |= {f"sums/{name}": value for name, value in self.sums.items()}
        return held | {f"products/{name}": value for name, value in self.products.items()}

    @classmethod
    def restored(cls, n: int, arrays: Mapping[str, np.ndarray]) -> Tally:
        """The inverse of `arrays`."""
        tally = cls(n)
        for key, value in arrays.items():
            group, _, name = key.partition("/")
            if name:
                getattr(tally, group)[name] = value
            else:
                setattr(tally, group, value)
        return tally

    def estimates(self) -> dict[str, Estimate]:
        """Every tensor with its standard error."""
        return {name: jackknife(values) for name, values in self.replicates().items()}

    def replicates(self) -> dict[str, np.ndarray]:
        """For each tensor the estimate from all networks, then those without one block each: (1 + blocks used, …).

        Any function of several tensors has its error from these: `jackknife` of the function's values.
        """
        used = self.counts > 0
        if used.sum() < 2:
            raise InvalidInput("networks", str(self.networks), "at least 2", "Errors come from their scatter.")
        counts = leaving_one_out(self.counts[used])
        luck = leaving_one_out(self.control_sums[used]) / counts[:, None]
        inverse, inflation = regression(self.networks, self.control_sums.sum(axis=0), self.control_squares)
        means = {}
        for name, blocks in self.sums.items():
            sums = leaving_one_out(blocks[used])
            mean = sums / counts.reshape(-1, *[1] * (sums.ndim - 1))
            covariance = self.products[name] - np.outer(self.control_sums.sum(axis=0), mean[0])
            mean = mean - (luck @ (inverse @ covariance)).reshape(mean.shape)
            means[name] = mean[0] + inflation * (mean - mean[0])
        return connected(means, self.n)


def regression(networks: float, sums: np.ndarray, squares: np.ndarray) -> tuple[np.ndarray, float]:
    """The inverse covariance of controls over the number of networks, and what fitting them adds to errors.

    `sums` (controls,) and `squares` (controls, controls) are the sums over networks of the controls and their products.
    Without enough networks for the fit, the inverse is zero.

    >>> regression(100.0, np.array([0.0]), np.array([[50.0]]))[0]
    array([[0.02]])
    """
    if NETWORKS_PER_CONTROL * len(sums) > networks:
        return np.zeros_like(squares), 1.0
    covariance = squares - np.outer(sums, sums) / networks
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0.0)
    inverse = np.linalg.pinv(covariance * np.outer(scale, scale), rcond=1e-8, hermitian=True)
    return inverse * np.outer(scale, scale), float(np.sqrt((networks - 1) / (networks - 1 - len(sums))))


def jackknife(replicates: np.ndarray) -> Estimate:
    """Value and standard error from (all, without block 1, without block 2, …) along the first axis.

    >>> sample = np.array([1.0, 2.0, 6.0])
    >>> found = jackknife(np.array([sample.mean(), *((sample.sum() - sample) / 2)]))
    >>> bool(np.isclose(found.error, sample.std(ddof=1) / np.sqrt(3)))
    True
    """
    left_out = replicates[1:]
    spread = left_out - left_out.mean(axis=0)
    with np.errstate(over="ignore"):  # an error past the largest number is infinite
        square = np.sum(spread**2, axis=0)
    return Estimate(replicates[0], np.sqrt((len(left_out) - 1) / len(left_out) * square))


def contract(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """leftᵀ right, added up row by row: the last bits of a library's matrix product depend on its number of threads."""
    return np.einsum("xi,xj->ij", left, right)


def leaving_one_out(blocks: np.ndarray) -> np.ndarray:
    """The sum of all blocks, then of all but one each."""
    total = blocks.sum(axis=0)
    return np.concatenate([total[None], total - blocks])
