"""Real networks, sampled a batch at a time, and what they say so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput, TooLarge
from widthwise.experiments.sampler import conditional_kernel, forward, network_key, sample_parameters, tangent_kernel
from widthwise.experiments.tally import Estimate, Tally, jackknife
from widthwise.explorer.settings import Settings
from widthwise.network import MLP
from widthwise.results.labels import label, layer_coordinate

#: Parameters of one network, and of all networks of a run.
LARGEST_NETWORK, LARGEST_RUN = 2_000_000, 20_000_000_000
#: Parameters of a batch, and the largest batch.
_BATCH_PARAMETERS, _LARGEST_BATCH = 1 << 20, 128
_BINS, _REACH = 36, 4.5


@dataclass(frozen=True, eq=False)
class Sampled:
    """What the first `networks` networks say, each with a standard error.

    K (layer, 2, 2) is the mean of Ĝ; `correlation` (layer,) that of a and b in it; `fluctuation` (layer,) the variance
    of Ĝ_aa over its squared mean; Theta (2, 2) is at the output. `density` (bins,) is a histogram of the output at a
    between `edges`. `broken` networks had numbers that are not finite and are left out.
    """

    net: MLP
    seed: int
    networks: int
    K: Estimate
    correlation: Estimate
    fluctuation: Estimate
    Theta: Estimate
    edges: np.ndarray
    density: Estimate
    broken: int

    @property
    def centres(self) -> np.ndarray:
        return 0.5 * (self.edges[1:] + self.edges[:-1])

    def dataset(self) -> xr.Dataset:
        """Everything, labelled, with NAME_se."""
        pair, layer = ("layer", "a", "b"), ("layer",)
        parts = {
            "K": (pair, self.K),
            "correlation": (layer, self.correlation),
            "K_fluctuation": (layer, self.fluctuation),
            "Theta": (("a", "b"), self.Theta),
            "output_density": (("z",), self.density),
        }
        variables = {name: (dims, found.value) for name, (dims, found) in parts.items()}
        variables |= {f"{name}_se": (dims, found.error) for name, (dims, found) in parts.items()}
        layers = layer_coordinate(tuple(range(1, self.net.depth + 1))).assign(z=("z", self.centres))
        attrs = {"seed": self.seed, "networks": self.networks, "nonfinite": self.broken}
        return label(variables, self.net, layers, kind="measure", **attrs)


def check_size(settings: Settings) -> None:
    """Refuse runs that a page should not start."""
    net = settings.network()
    parameters = _parameters(net)
    if parameters > LARGEST_NETWORK:
        raise TooLarge("width, depth", f"{parameters:,} parameters a network", f"at most {LARGEST_NETWORK:,}",
                       "Take a smaller width or depth, or measure in Python.")  # fmt: skip
    if parameters * settings.networks > LARGEST_RUN:
        most = LARGEST_RUN // parameters
        raise TooLarge("networks", f"{settings.networks:,} of {parameters:,} parameters", f"at most {most:,}",
                       "Sample fewer or smaller networks, or measure in Python.")  # fmt: skip


def sample(settings: Settings, K: float) -> Iterator[Sampled]:
    """After every batch, what the networks so far say; K sets the range of the histogram.

    >>> settings = Settings(activation="relu", C_W=2.0, C_b=0.0, depth=2, width=16, networks=64)
    >>> *_, last = sample(settings, K=2.0)
    >>> last.networks, bool(abs(last.K.value[1, 0, 0] - 2.0) < 4 * last.K.error[1, 0, 0])
    (64, True)
    """
    check_size(settings)
    net, X = settings.network(), jnp.asarray(settings.inputs)
    edges = np.linspace(-_REACH, _REACH, _BINS + 1) * np.sqrt(K)
    room = max(1, min(_LARGEST_BATCH, _BATCH_PARAMETERS // _parameters(net)))
    batch, tally, counts, broken = 2 ** int(np.log2(room)), Tally(net.n), np.zeros(_BINS), 0
    for start in range(0, settings.networks, batch):
        indices = np.arange(start, start + batch)
        seen = jax.tree.map(np.asarray, _observe(net, settings.seed, jnp.asarray(indices), X))
        kept = np.arange(batch) < settings.networks - start
        finite = np.all([np.isfinite(x.reshape(batch, -1)).all(axis=1) for x in seen.values()], axis=0)
        broken += int(np.sum(kept & ~finite))
        rows = kept & finite
        outputs = seen.pop("z")[rows]
        tally.add(indices[rows], {name: x[rows] for name, x in seen.items()}, np.zeros((int(rows.sum()), 0)))
        counts += np.histogram(outputs, edges)[0]
        if tally.networks > 1:
            yield _summary(settings, net, tally, edges, counts, broken)
    if tally.networks < 2:
        raise InvalidInput("C_W", f"{settings.C_W:g}, at which {broken} networks have numbers that are not finite",
                           "networks that stay finite", "Reduce C_W or the depth.")  # fmt: skip


def _parameters(net: MLP) -> int:
    return sum(a * b + b for a, b in zip(net.widths[:-1], net.widths[1:], strict=True))


@jax.jit
def _observe(net: MLP, seed, indices, X) -> dict[str, jax.Array]:
    """Ĝ of every layer and its square (networks, layer, a, b), Θ and the output at a of the networks `indices`."""

    def one(index):
        layers = sample_parameters(net, network_key(seed, index))
        incoming, preactivations = forward(net, layers, X)
        K = jnp.stack([conditional_kernel(net.up_to(layer), incoming[:layer]) for layer in range(1, net.depth + 1)])
        Theta = tangent_kernel(net, layers, X)
        return {"K": K, "square": K**2, "Theta": Theta, "z": preactivations[-1][0, 0]}

    return jax.vmap(one)(indices)


def _summary(settings: Settings, net: MLP, tally: Tally, edges, counts, broken: int) -> Sampled:
    found, number = tally.replicates(), tally.networks
    K = found["K"]
    correlation = K[:, :, 0, 1] / np.sqrt(K[:, :, 0, 0] * K[:, :, 1, 1])
    fluctuation = number / (number - 1) * (found["square"][:, :, 0, 0] / K[:, :, 0, 0] ** 2 - 1.0)
    share, bins = counts / number, np.diff(edges)
    density = Estimate(share / bins, np.sqrt(np.maximum(share * (1.0 - share), 1.0 / number**2) / number) / bins)
    return Sampled(
        net, settings.seed, number, jackknife(K), jackknife(correlation), jackknife(fluctuation),
        jackknife(found["Theta"]), edges, density, broken,
    )  # fmt: skip
