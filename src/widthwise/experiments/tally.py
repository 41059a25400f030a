"""Sums over many networks, and means with standard errors, in memory that does not grow with their number.

A job has parts, each a kind of network, and a number of networks that make a chunk. Called with a chunk it gives sums:
arrays by name, to be added up, and short lists of network numbers under names that end in `_indices`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, overload

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.devices import library
from widthwise.errors import InvalidInput
from widthwise.experiments.estimators import connected

#: Network i belongs to block i mod JACKKNIFE_BLOCKS; errors come from leaving out one block at a time.
JACKKNIFE_BLOCKS = 64
#: Control variates are used once there are this many networks for each of them.
NETWORKS_PER_CONTROL = 8
#: Indices of networks that went wrong which are remembered; all are counted.
REMEMBERED = 16

Sums = dict[str, np.ndarray]


class Chunk(NamedTuple):
    """Networks start, …, stop − 1 of one part."""

    part: int
    start: int
    stop: int


class NetworkJob(Protocol):
    """What is done to networks: how many kinds of them, how many at a time, and what a saved run is known by."""

    @property
    def parts(self) -> Sequence[Any]: ...

    @property
    def chunk(self) -> int: ...

    def __call__(self, chunk: Chunk) -> Sums: ...

    def fingerprint(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Chunks(Sequence[Chunk]):
    """Chunks of all parts in the order in which they are added up: by range of networks, then by part.

    Each is made when it is asked for, so that any number of networks takes no memory.
    """

    parts: int
    size: int
    networks: int
    numbers: range

    @classmethod
    def of(cls, job: NetworkJob, networks: int) -> Chunks:
        parts = len(job.parts)
        return cls(parts, job.chunk, networks, range(-(-networks // job.chunk) * parts))

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> Chunks: ...
    def __getitem__(self, index: int | slice) -> Chunk | Chunks:
        if isinstance(index, slice):
            return replace(self, numbers=self.numbers[index])
        block, part = divmod(self.numbers[index], self.parts)
        return Chunk(part, block * self.size, min((block + 1) * self.size, self.networks))


def merged(one: Sums | None, other: Sums) -> Sums:
    """Sums over both sets of networks, neither of which is changed: an interrupt in the middle does no harm."""
    if one is None:
        return other
    both = {name: one[name] + other[name] for name in one if name in other and not name.endswith("_indices")}
    lists = {name: np.concatenate([one[name], other[name]])[:REMEMBERED] for name in one.keys() & other.keys() - both}
    return one | other | both | lists


def went_wrong(name: str, indices: np.ndarray, wrong: np.ndarray) -> Sums:
    """How many networks went wrong, and which, under a name.

    >>> went_wrong("late", np.arange(3), np.array([True, False, True]))
    {'late': array(2), 'late_indices': array([0, 2])}
    """
    return {name: np.asarray(wrong.sum()), f"{name}_indices": indices[wrong][:REMEMBERED]}


#: Numbers from here on count as not finite: sums of their squares are not.
_SQUARED_IS_FINITE = 1e150


def finite_networks(seen: Any) -> Any:
    """Which networks have finite numbers only, and finite squares, in arrays with the networks first.

    >>> finite_networks({"K": np.array([[1.0, np.inf], [2.0, 3.0]]), "z": np.zeros(2)}).tolist()
    [False, True]
    """
    xp = library(*jax.tree.leaves(seen))
    flat = [abs(rows.reshape(len(rows), -1)) for rows in jax.tree.leaves(seen)]
    return xp.all(xp.stack([(rows < _SQUARED_IS_FINITE).all(axis=1) for rows in flat]), axis=0)


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

    >>> from widthwise.experiments.estimators import check_statistics, draw_batch, observe_drawn
    >>> from widthwise.experiments.reference import reference
    >>> from widthwise.network import MLP
    >>> net, X = MLP([2, 32, 1], "tanh", C_W=1.5), np.array([[1.0, 0.2]])
    >>> names, tally = check_statistics(net.activation, ["V"]), Tally(net.n)
    >>> for start in range(0, 400, 100):
    ...     indices = np.arange(start, start + 100)
    ...     tally.add(indices, *observe_drawn(net, names, *draw_batch(net, 1, 0, indices), X, reference(net, X)))
    >>> V = tally.estimates()["V"]
    >>> tally.networks, V.value.shape, bool(V.error.item() < 0.05 * V.value.item())
    (400, (1, 1, 1, 1), True)
    """

    n: int
    blocks: int = JACKKNIFE_BLOCKS
    sums: Sums = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.blocks < 2:
            raise InvalidInput("blocks", str(self.blocks), "at least 2, of which one is left out at a time")

    @property
    def networks(self) -> int:
        return int(np.sum(self.sums.get("counts", 0)))

    def add(self, indices, tensors: Mapping[str, Any], controls, plain: Mapping[str, Any] | None = None) -> None:
        """Take in networks `indices`, whose tensors (networks, …) and controls (networks, controls) were observed.

        What is `plain` is averaged as it is, without controls.
        """
        blocks, controls = np.asarray(indices) % self.blocks, np.asarray(controls)

        def flat(values: np.ndarray, rows: int) -> np.ndarray:
            return values.reshape(rows, int(np.prod(values.shape[1:])))

        added = {"counts": np.ones(len(blocks)), "controls": controls}
        added |= {f"sum:{name}": np.asarray(value) for name, value in {**tensors, **(plain or {})}.items()}
        for name, values in added.items():
            if name not in self.sums:
                self.sums[name] = np.zeros((self.blocks, *values.shape[1:]))
            np.add.at(flat(self.sums[name], self.blocks), blocks, flat(values, len(blocks)))
        products = {"squares": controls} | {f"product:{name}": added[f"sum:{name}"] for name in tensors}
        for name, values in products.items():
            self.sums[name] = self.sums.get(name, 0.0) + contract(controls, flat(values, len(blocks)))

    def add_on_device(self, indices: Any, counted: Any, tensors, controls, plain) -> Any:
        """`add` for arrays of jax, of the networks that are `counted` and finite; returns which are finite.

        Sums stay on the device until they are read.
        """
        more, finite = _device_sums(self.blocks, indices, counted, tensors, controls, plain)
        self.sums = more if not self.sums else _both_sums(self.sums, more)
        return finite

    def merge(self, other: Tally) -> None:
        """Add the sums of another tally of the same observations."""
        if (self.n, self.blocks) != (other.n, other.blocks):
            raise InvalidInput("other", f"n={other.n}, blocks={other.blocks}", f"n={self.n}, blocks={self.blocks}")
        self.sums = merged(self.sums, other.sums)

    def estimates(self) -> dict[str, Estimate]:
        """Every tensor with its standard error."""
        return {name: jackknife(values) for name, values in self.replicates().items()}

    def replicates(self) -> dict[str, np.ndarray]:
        """`mean_replicates`, with the products of means taken off V, D and A."""
        return connected(mean_replicates(self.sums), self.n)


@jax.jit
def _both_sums(one, other):
    return jax.tree.map(jnp.add, one, other)


@partial(jax.jit, static_argnums=0)
def _device_sums(blocks: int, indices, counted, tensors, controls, plain) -> tuple[dict[str, Any], Any]:
    """What `Tally.add` adds to its sums, and which networks are finite: one program, as starting each takes time."""
    finite = finite_networks((tensors, controls, plain))
    used = finite & counted
    member = (indices[:, None] % blocks == jnp.arange(blocks)) & used[:, None]
    member = member.astype(controls.dtype)

    def flat(values):
        return jnp.where(used[:, None], values.reshape(len(used), -1), 0.0)

    controls, values = flat(controls), {name: flat(value) for name, value in {**tensors, **plain}.items()}
    shapes = {name: value.shape[1:] for name, value in {**tensors, **plain}.items()}
    found = {"counts": member.sum(axis=0), "controls": member.T @ controls, "squares": controls.T @ controls}
    found |= {f"sum:{name}": (member.T @ value).reshape(blocks, *shapes[name]) for name, value in values.items()}
    return found | {f"product:{name}": controls.T @ values[name] for name in tensors}, finite


def mean_replicates(sums: Sums) -> dict[str, np.ndarray]:
    """For each tensor the mean over all networks, then those without one block each: (1 + blocks used, …).

    Any function of several tensors has its error from these: `jackknife` of the function's values.
    """
    networks = sums.get("counts", np.zeros(0))
    used = networks > 0
    if used.sum() < 2:
        raise InvalidInput("networks", f"{networks.sum():.0f}", "at least 2", "Errors come from their scatter.")
    counts, total = leaving_one_out(networks[used]), sums["controls"].sum(axis=0)
    luck = leaving_one_out(sums["controls"][used]) / counts[:, None]
    inverse, inflation = regression(networks.sum(), total, sums["squares"])
    means = {}
    for name in (key.removeprefix("sum:") for key in sums if key.startswith("sum:")):
        left = leaving_one_out(sums[f"sum:{name}"][used])
        mean = left / counts.reshape(-1, *[1] * (left.ndim - 1))
        if f"product:{name}" in sums:
            covariance = sums[f"product:{name}"] - np.outer(total, mean[0])
            mean = mean - (luck @ (inverse @ covariance)).reshape(mean.shape)
            mean = mean[0] + inflation * (mean - mean[0])
        means[name] = mean
    return means


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
