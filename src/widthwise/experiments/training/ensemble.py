"""Many networks trained side by side. Network i of a seed starts from the key (seed, i), whatever its batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.devices import by_device, power_of_two
from widthwise.experiments.checkpoints import activation_digest, digest
from widthwise.experiments.initialisations import is_gaussian
from widthwise.experiments.programme import require_networks
from widthwise.experiments.sampler import Parameters, drawn_alike, network_key, on_device, sample_parameters
from widthwise.experiments.tally import Chunk, Sums, Tally, finite_networks, went_wrong
from widthwise.experiments.training.control import Guide, TrainedObservation, guide, is_quiet, observe
from widthwise.experiments.training.descent import decay_centre, descend
from widthwise.experiments.training.flows import Pull, Trained, flow, newton_step
from widthwise.network import GradientFlow, Network, NewtonStep
from widthwise.network.layered import parameter_count
from widthwise.network.losses import SQUARED, Loss
from widthwise.quick_programs import quickly_compiled

#: Folded into a network's key for the order of its inputs; far from the small numbers that the parameters use.
_ORDER_KEY = 0x5EED_0002
#: Numbers held for a batch of networks, and the largest batch.
ROOM = {"cpu": (1 << 23, 128), "gpu": (1 << 29, 4096)}


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What is trained, and how: X (inputs, features) are `train` training inputs and then tests, y (output, train)."""

    net: Network
    algorithm: Any
    X: np.ndarray
    y: np.ndarray
    known: Guide
    seed: int
    tolerance: float
    accuracy: float
    max_steps: int
    batch: int
    initialisation: tuple[str, ...] | None = None
    loss: Loss = SQUARED

    @classmethod
    def of(cls, net: Network, algorithm: Any, X, y, X_test, batch: int | None = None, **how: Any) -> Ensemble:
        joint = np.concatenate([X, X_test])
        batch = batch or fitting_batch(net, len(joint), len(X_test))
        require_networks(batch, 8 * _numbers_held(net, len(joint), len(X_test)), net, len(joint))
        known = guide(net, joint, len(X), algorithm)
        if not is_gaussian(how.get("initialisation") or ()):
            known = known._replace(layers=None)
        gaussian_end = (how.get("initialisation") or ("gaussian",))[-1] == "gaussian"
        known = known._replace(gaussian_end=float(gaussian_end))
        return cls(net, algorithm, joint, y, known, batch=batch, **how)

    @property
    def centre(self) -> np.ndarray:
        """k_x y, about which the outputs at the tests are summed: (output, test)."""
        return self.y @ self.known.k.T

    @property
    def parts(self) -> tuple[Network]:
        return (self.net,)

    @property
    def chunk(self) -> int:
        """Networks that are trained side by side."""
        return self.batch

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for sums to be continued; the number of networks need not be."""
        return {
            "network": self.net.to_json(),
            "activation": activation_digest(self.net),
            "algorithm": repr(self.algorithm),
            "loss": self.loss.name,
            "inputs": digest(self.X),
            "targets": digest(self.y),
            "initialisation": repr(self.initialisation),
            "seed": str(self.seed),
            "tolerance": repr((self.tolerance, self.accuracy, self.max_steps)),
            "batch": str(self.batch),
        }

    def __call__(self, chunk: Chunk) -> Sums:
        """Sums over the networks start..stop−1, with the indices of those that did not converge or are not finite.

        Networks that did not converge count in the sums; those with a number that is not finite cannot.

        >>> from widthwise.network import MLP
        >>> net, X, y = MLP([1, 16, 1], "tanh"), np.array([[1.0]]), np.array([[0.5]])
        >>> how = dict(seed=0, tolerance=1e-6, accuracy=1e-5, max_steps=1000, batch=4)
        >>> found = Ensemble.of(net, GradientFlow(), X, y, np.array([[0.5]]), **how)(Chunk(0, 0, 3))
        >>> int(found["counts"].sum()), int(found["unconverged"])
        (3, 0)
        """
        return self.sums(chunk, *self.observed(chunk))

    def observed(self, chunk: Chunk) -> tuple[TrainedObservation, np.ndarray, np.ndarray]:
        """What networks start..stop−1 say once they are trained, their steps, and which of them converged."""
        indices = np.arange(chunk.start, chunk.stop)
        padded = np.resize(indices, self.batch)
        layers, keys = _draw_with_keys(drawn_alike(self.net), self.initialisation, self.seed, jnp.asarray(padded))
        how = (self.tolerance, self.accuracy, self.max_steps)
        return jax.tree.map(
            lambda value: np.asarray(value)[: len(indices)],
            _train(on_device(self.net), self.algorithm, how, layers, keys, self.X, self.y, self.known, self.loss),
        )

    def sums(self, chunk: Chunk, seen: TrainedObservation, steps: np.ndarray, converged: np.ndarray) -> Sums:
        """What is kept of a chunk."""
        indices = np.arange(chunk.start, chunk.stop)
        finite, tally = finite_networks(seen), Tally(self.net.n)
        controlled, plain, controls = jax.tree.map(lambda rows: rows[finite], seen)
        tally.add(indices[finite], controlled, controls, {f"plain_{name}": rows for name, rows in plain.items()})
        late = went_wrong("unconverged", indices, finite & ~converged)
        found = tally.sums | {"steps": np.array(float(steps.sum()))}
        return found | late | went_wrong("nonfinite", indices, ~finite)


def fitting_batch(net: Network, inputs: int, tests: int) -> int:
    """How many networks are trained side by side: a power of two that suits the caches or the accelerator's memory."""
    room, most = by_device(ROOM)
    return power_of_two(room / _numbers_held(net, inputs, tests), 1, most)


def _numbers_held(net: Network, inputs: int, tests: int) -> int:
    """Of one network while it is trained; to within a few times."""
    parameters, outputs, neurons = parameter_count(net), net.widths[-1], sum(net.widths[1:])
    held = 16 * parameters + 8 * neurons * inputs * outputs + 6 * (outputs * inputs) ** 2 + 8 * (outputs * tests) ** 2
    if is_quiet(net, inputs):
        held += 16 * neurons * inputs**2 + inputs**4
    return held


def train_one(
    net: Network, algorithm: Any, layers: Parameters, X, y, key, how: tuple[Any, Any, Any], loss: Loss = SQUARED
) -> Trained:
    """One network, trained; `how` is tolerance, accuracy and the largest number of steps."""
    tolerance, accuracy, max_steps = how
    if isinstance(algorithm, GradientFlow):
        by = Pull(loss, algorithm.weight_decay, decay_centre(algorithm, layers))
        return flow(net, layers, X, y, algorithm.time, tolerance, accuracy, max_steps, by)
    if isinstance(algorithm, NewtonStep):
        return newton_step(net, layers, X, y, tolerance, max_steps)
    return descend(net, layers, X, y, algorithm, jax.random.fold_in(key, _ORDER_KEY), tolerance, max_steps, loss)


@quickly_compiled(static_argnums=(1,))
def _draw_with_keys(net: Network, initialisation: tuple[str, ...] | None, seed, indices):
    keys = jax.vmap(partial(network_key, seed))(indices)
    return jax.vmap(partial(sample_parameters, net, initialisation=initialisation))(keys), keys


@quickly_compiled()
def _train(
    net: Network, algorithm: Any, how, layers, keys, X, y, known: Guide, loss: Loss
) -> tuple[TrainedObservation, Any, Any]:
    inputs = X[: y.shape[1]]

    def one(start, key):
        end = train_one(net, algorithm, start, inputs, y, key, how, loss)
        return observe(net, algorithm, start, end.layers, X, y, known), end.steps, end.converged

    return jax.vmap(one)(layers, keys)
