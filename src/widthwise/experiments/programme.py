"""What `measure` does to a range of networks, and the sums that come out of it.

Ranges have borders that depend on the network, the inputs and the statistics alone, and the sums of one range are made
in one place in one order. Added up by index they are the same numbers from any engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.devices import by_device, on_accelerator, power_of_two
from widthwise.errors import TooLarge
from widthwise.experiments.checkpoints import activation_digest, digest
from widthwise.experiments.estimators import draw_batch, observe_drawn
from widthwise.experiments.initialisations import is_gaussian
from widthwise.experiments.reference import Reference
from widthwise.experiments.sampler import on_device, output_kernel, tangent_kernel
from widthwise.experiments.tally import Chunk, Sums, Tally, finite_networks, went_wrong
from widthwise.memory import require_memory
from widthwise.network import MLP, Network, WeightLayer
from widthwise.network.layered import parameter_count
from widthwise.quick_programs import quickly_compiled
from widthwise.tensors import TENSORS

#: Numbers held for a batch of networks: what suits the caches of a processor, and the memory of an accelerator.
BATCH_NUMBERS = {"cpu": 1 << 22, "gpu": 1 << 28}
#: Operations in a chunk: about a second of one processor.
CHUNK_OPERATIONS = 1 << 31


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

    def cost(self, inputs: int, positions: int = 1) -> tuple[float, float]:
        """Numbers held for one network, and operations spent on it; to within a few times."""
        net, order = self.net, max((TENSORS[name].derivatives for name in self.tensors), default=-1)
        parameters, neurons = parameter_count(net), sum(net.widths[1:])
        outputs = net.widths[-1] if "Theta" in self.kernels else 1
        held = parameters + neurons * inputs * outputs
        spent = parameters * inputs * (1 + outputs)
        if positions > 1:  # windows stand beside the activations, and gradients of every input beside the parameters
            window = max(step.fan_in / step.inputs for step in net.steps if isinstance(step, WeightLayer))
            held += (1 + window) * positions * neurons * inputs * outputs + parameters * inputs
            spent *= positions
        if order >= 0:
            held += 16 * neurons * inputs**2
            spent += 8 * (parameters + 64 * neurons) * inputs**2
        if order >= 2:
            held += 30 * neurons * inputs**3
            spent += 16 * parameters * inputs**3
        if order >= 0 and not isinstance(net, MLP):  # Jacobians of all rows, and Hessians along some
            held += (6 * inputs**2 + inputs) * parameters
            spent += 64 * parameters * inputs**3
        dense = (step for step in net.steps if isinstance(step, WeightLayer))
        sizes = ((step.fan_in, step.outputs, name) for step, name in zip(dense, self.initialisation, strict=True))
        spent += sum(8 * a * b * min(a, b) for a, b, name in sizes if name == "orthogonal")
        return held, spent * (1 if order < 3 else inputs)


#: Networks that are drawn are compiled layer by layer: already a thousand layers take minutes.
MOST_COMPILED_LAYERS = 10_000


def require_networks(batch: int, bytes_each: float, net: Network, inputs: int) -> None:
    """Refuse networks that are too deep to be compiled, or of which a batch does not fit, before the first is drawn."""
    if net.depth > MOST_COMPILED_LAYERS:
        raise TooLarge(
            "net", f"{net.depth} layers, which are compiled one by one", f"at most {MOST_COMPILED_LAYERS} layers",
            "`single_input`, `theory` and `predict` take deeper networks.",
        )  # fmt: skip

    def fitting(limit: int) -> str:
        share = limit / bytes_each
        smaller = f"narrower networks or fewer inputs, in all {share:.2g} of this"
        return f"What would fit: {f'batch={int(share)}' if share >= 1.0 else smaller}."

    what = f"networks of {parameter_count(net)} parameters at {inputs} inputs, {batch} at once"
    require_memory(int(batch * bytes_each), what, fitting)


@dataclass(frozen=True)
class Programme:
    """All parts, the inputs, and how many networks are observed at once."""

    parts: tuple[Part, ...]
    X: np.ndarray
    batch: int
    chunk: int

    @classmethod
    def of(cls, parts: tuple[Part, ...], X: np.ndarray, batch: int | None) -> Programme:
        positions = int(np.prod(X.shape[1:-1]))
        held, spent = (max(costs) for costs in zip(*(part.cost(len(X), positions) for part in parts), strict=True))
        fitting = power_of_two(by_device(BATCH_NUMBERS) / held, 1, by_device({"cpu": 64, "gpu": 4096}))
        require_networks(batch or fitting, 8 * held, max((part.net for part in parts), key=parameter_count), len(X))
        return cls(parts, X, batch or fitting, power_of_two(CHUNK_OPERATIONS / spent, max(64, fitting), 4096))

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for sums to be continued; the number of networks need not be."""
        parts = self.parts
        return {
            "networks' specification": [part.net.to_json() for part in parts],
            "activation": activation_digest(parts[0].net),
            "inputs": digest(self.X),
            "initialisation": [list(part.initialisation) for part in parts],
            "seed": [part.seed for part in parts],
            "statistics": [[*part.kernels, *part.tensors] for part in parts],
            "batch": self.batch,
            "chunk size": self.chunk,
        }

    def __call__(self, chunk: Chunk) -> Sums:
        """The sums of one chunk. A network with a number that is not finite is left out of all but its count."""
        part, on_device = self.parts[chunk.part], on_accelerator()
        tally, wrong = Tally(part.net.n), []
        for start in range(chunk.start, chunk.stop, self.batch):
            # the last batch is filled up, so that one compiled program serves all
            indices = np.arange(start, start + self.batch)
            kernels, tensors, controls = seen = _observe(part, self.X, indices)
            counted = indices < chunk.stop
            if on_device:  # networks are summed where they are observed
                finite = tally.add_on_device(indices, counted, tensors, controls, kernels)
            else:
                kernels, tensors, controls = seen = jax.tree.map(np.asarray, seen)
                finite = finite_networks(seen)
                some = jax.tree.map(lambda value, used=finite & counted: value[used], (tensors, controls, kernels))
                tally.add(indices[finite & counted], *some)
            wrong.append((indices, finite, counted))
        # all that is read comes in one go: copies begin together
        sums, wrong = jax.device_get((tally.sums, wrong))
        lost = np.concatenate([indices[~finite & counted] for indices, finite, counted in wrong])
        return sums | went_wrong("nonfinite", lost, np.ones(len(lost), bool))


def _observe(part: Part, X: np.ndarray, indices: np.ndarray):
    """Kernels, tensors and controls of networks, with the networks first."""
    layers, signs = draw_batch(part.net, 1 if part.tensors else 0, part.seed, indices, part.initialisation)
    inputs = jnp.asarray(X)
    net = on_device(part.net)
    kernels = observe_kernels(net, part.kernels, layers, inputs) if part.kernels else {}
    tensors, controls = {}, jnp.zeros((len(indices), 0))
    if part.tensors:
        assert part.reference is not None
        gaussian = is_gaussian(part.initialisation)
        tensors, controls = observe_drawn(net, part.tensors, layers, signs, inputs, part.reference, gaussian=gaussian)
    return kernels, tensors, controls


@quickly_compiled(static_argnums=(1,))
def observe_kernels(net: Network, names: tuple[str, ...], layers, X) -> dict[str, Any]:
    """What networks drawn by `draw_batch` say about K and Θ at the output layer: each (networks, a, b)."""

    def one(some):
        found = {"K": output_kernel(net, some, X)}
        if "Theta" in names:
            found["Theta"] = tangent_kernel(net, some, X)
        return {name: found[name] for name in names}

    return jax.vmap(one)(layers)
