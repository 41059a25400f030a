"""What `measure` does to a range of networks, and the sums that come out of it.

Ranges have borders that depend on the network, the inputs and the statistics alone, and the sums of one range are made
in one place in one order. Added up by index they are the same numbers from any engine.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.devices import by_device
from widthwise.experiments.estimators import draw_batch, observe_drawn
from widthwise.experiments.initialisations import is_gaussian
from widthwise.experiments.reference import Reference
from widthwise.experiments.sampler import conditional_kernel, forward, tangent_kernel
from widthwise.experiments.tally import Tally
from widthwise.network import Network
from widthwise.tensors import TENSORS

#: Networks with numbers that are not finite whose places are remembered; all are counted.
REMEMBERED = 16
#: Numbers held for a batch of networks: what suits the caches of a processor, and the memory of an accelerator.
BATCH_NUMBERS = {"cpu": 1 << 22, "gpu": 1 << 28}
#: Operations in a chunk: about a second of one processor.
CHUNK_OPERATIONS = 1 << 31


class Chunk(NamedTuple):
    """Networks start, …, stop − 1 of one part."""

    part: int
    start: int
    stop: int


@dataclass(frozen=True)
class Part:
    """One kind of network, measured at its output layer.

    `tensors` are names from `check_names`; `reference` is K and Θ of infinite width, which they need;
    `initialisation` has one name per weight layer.
    """

    net: Network
    seed: int
    kernels: tuple[str, ...]
    tensors: tuple[str, ...]
    reference: Reference | None
    initialisation: tuple[str, ...]

    def cost(self, inputs: int) -> tuple[float, float]:
        """Numbers held for one network, and operations spent on it; to within a few times."""
        net, order = self.net, max((TENSORS[name].derivatives for name in self.tensors), default=-1)
        parameters = sum(a * b + b for a, b in zip(net.widths[:-1], net.widths[1:], strict=True))
        neurons = sum(net.widths[1:])
        outputs = net.widths[-1] if "Theta" in self.kernels else 1
        held = parameters + neurons * inputs * outputs
        spent = parameters * inputs * (1 + outputs)
        if order >= 0:
            held += 16 * neurons * inputs**2
            spent += 8 * (parameters + 64 * neurons) * inputs**2
        if order >= 2:
            held += 30 * neurons * inputs**3
            spent += 16 * parameters * inputs**3
        layers = zip(net.widths[:-1], net.widths[1:], self.initialisation, strict=True)
        spent += sum(8 * a * b * min(a, b) for a, b, name in layers if name == "orthogonal")
        return held, spent * (1 if order < 3 else inputs)


@dataclass(frozen=True)
class Programme:
    """All parts, the inputs, and how many networks are observed at once."""

    parts: tuple[Part, ...]
    X: np.ndarray
    batch: int
    chunk: int

    @classmethod
    def of(cls, parts: tuple[Part, ...], X: np.ndarray, batch: int | None) -> Programme:
        held, spent = (max(costs) for costs in zip(*(part.cost(len(X)) for part in parts), strict=True))
        fitting = _power_of_two(by_device(BATCH_NUMBERS) / held, 1, by_device({"cpu": 64, "gpu": 4096}))
        return cls(parts, X, batch or fitting, _power_of_two(CHUNK_OPERATIONS / spent, max(64, fitting), 4096))

    def chunks(self, networks: int) -> list[Chunk]:
        """Chunks of all parts in the order in which they are added up: by range of networks, then by part."""
        starts = range(0, networks, self.chunk)
        return [
            Chunk(part, start, min(start + self.chunk, networks)) for start in starts for part in range(len(self.parts))
        ]

    def __call__(self, chunk: Chunk) -> Sums:
        """The sums of one chunk."""
        part = self.parts[chunk.part]
        sums = Sums.empty(part)
        for start in range(chunk.start, chunk.stop, self.batch):
            # the last batch is filled up, so that one compiled program serves all
            indices = np.arange(start, start + self.batch)
            kernels, tensors, controls = _observe(part, self.X, indices)
            kept = min(self.batch, chunk.stop - start)
            sums.add(indices[:kept], _first(kernels, kept), _first(tensors, kept), controls[:kept])
        return sums


def _power_of_two(value: float, least: int, most: int) -> int:
    return int(np.clip(2 ** np.floor(np.log2(max(value, 1.0))), least, most))


def _first(values: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    return {name: value[:count] for name, value in values.items()}


def _observe(part: Part, X: np.ndarray, indices: np.ndarray):
    """Kernels, tensors and controls of networks, as numpy arrays with the networks first."""
    layers, signs = draw_batch(part.net, 1, part.seed, indices, part.initialisation)
    inputs = jnp.asarray(X)
    kernels = observe_kernels(part.net, part.kernels, layers, inputs) if part.kernels else {}
    tensors, controls = {}, np.zeros((len(indices), 0))
    if part.tensors:
        assert part.reference is not None
        gaussian = is_gaussian(part.initialisation)
        tensors, controls = observe_drawn(
            part.net, part.tensors, layers, signs, inputs, part.reference, gaussian=gaussian
        )
    as_numpy = partial(jax.tree.map, np.asarray)
    return as_numpy(kernels), as_numpy(tensors), np.asarray(controls)


@partial(jax.jit, static_argnums=1)
def observe_kernels(net: Network, names: tuple[str, ...], layers, X) -> dict[str, Any]:
    """What networks drawn by `draw_batch` say about K and Θ at the output layer: each (networks, a, b)."""

    def one(some):
        found = {"K": conditional_kernel(net, forward(net, some, X)[0])}
        if "Theta" in names:
            found["Theta"] = tangent_kernel(net, some, X)
        return {name: found[name] for name in names}

    return jax.vmap(one)(layers)


@dataclass
class Sums:
    """Sums over networks of one part. K and Θ are plain means; the other tensors have controls (see `Tally`).

    A network with a number that is not finite is left out of all of them: `broken` counts these, `where` holds the
    indices of the first ones.
    """

    kernels: Tally
    tensors: Tally
    broken: int = 0
    where: tuple[int, ...] = ()

    @classmethod
    def empty(cls, part: Part) -> Sums:
        return cls(Tally(part.net.n), Tally(part.net.n))

    @property
    def networks(self) -> int:
        return max(self.kernels.networks, self.tensors.networks)

    @property
    def blocks(self) -> int:
        """Blocks that hold networks."""
        return int(max(np.sum(tally.counts > 0) for tally in (self.kernels, self.tensors)))

    def add(self, indices: np.ndarray, kernels: dict, tensors: dict, controls: np.ndarray) -> None:
        """Take in the networks `indices`, all values with the networks first."""
        values = (*kernels.values(), *tensors.values(), controls)
        finite = np.all([np.isfinite(value.reshape(len(indices), -1)).all(axis=1) for value in values], axis=0)
        if not finite.all():
            self.broken += int(np.sum(~finite))
            self.where = (*self.where, *indices[~finite].tolist())[:REMEMBERED]
            indices, controls = indices[finite], controls[finite]
            kernels, tensors = ({name: v[finite] for name, v in group.items()} for group in (kernels, tensors))
        if kernels:
            self.kernels.add(indices, kernels, controls[:, :0])
        if tensors:
            self.tensors.add(indices, tensors, controls)

    def plus(self, other: Sums) -> Sums:
        """The sums of both; neither is changed, so that an interrupt in the middle does no harm."""
        kernels, tensors = copy.deepcopy((self.kernels, self.tensors))
        kernels.merge(other.kernels)
        tensors.merge(other.tensors)
        return Sums(kernels, tensors, self.broken + other.broken, (*self.where, *other.where)[:REMEMBERED])

    def replicates(self) -> dict[str, np.ndarray]:
        """Every statistic from all networks, then without one block each (see `Tally.replicates`)."""
        return {
            name: values
            for tally in (self.kernels, self.tensors)
            if tally.sums
            for name, values in tally.replicates().items()
        }
