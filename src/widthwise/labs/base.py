"""What a lab is: a statement that could be false, an experiment, and claims that compare the two.

A lab file says in its docstring what it claims: a title and below an empty line the statement. Its `experiment(size,
seed)` runs real networks of one size from one seed and returns an `Outcome`: claims, and the arrays that its figure
shows, which `draw` does. The runner repeats it over the `SIZES`, in a quick run over the first two of them or over
`QUICK_SIZES`, and over seeds. Besides: what figures share; many networks at once, and parameters in units of √λ, in
which gradient descent has one learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import outputs, rates
from widthwise.labs.claims import Claim
from widthwise.network import MLP, check_integer


@dataclass(frozen=True)
class Outcome:
    """What one run of an experiment found: claims, and named arrays or numbers for the figure; its seed, once run."""

    claims: tuple[Claim, ...]
    curves: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


#: Of each size, the outcomes over seeds.
Outcomes = Mapping[int, list[Outcome]]


@dataclass(frozen=True)
class Lab:
    """A statement about networks with an experiment that could refute it.

    Parameters
    ----------
    name : as on the command line.
    title : one line.
    statement : the prediction in words and formulas, and where in the theory page it stands.
    experiment : (size, seed) → Outcome. Claims of the same name are combined over seeds, size by size.
    sizes, quick_sizes : for a full and a quick run, which takes the first two sizes unless told.
    draw : (figure, outcomes) → None; draws on a matplotlib figure in the library's look. Without it there is no figure.
    size_name : what the size is: "width", "classes", ….
    """

    name: str
    title: str
    statement: str
    experiment: Callable[[int, int], Outcome]
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...] = ()
    draw: Callable[[Any, Outcomes], None] | None = None
    size_name: str = "size"

    def __post_init__(self) -> None:
        sizes = tuple(check_integer("sizes", size, 1) for size in self.sizes)
        if not sizes:
            raise InvalidInput("sizes", "no sizes", "at least one positive integer")
        quick = tuple(check_integer("quick_sizes", size, 1) for size in self.quick_sizes) or sizes[:2]
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "quick_sizes", quick)


def only_ticks(axis: Any, values: Iterable[Any], form: str = "{:g}") -> None:
    """Ticks of a logarithmic horizontal axis at these values and nowhere else."""
    values = list(values)
    axis.set_xticks(values, [form.format(value) for value in values])
    axis.minorticks_off()


def over_networks(one: Callable[..., Any]) -> Callable[..., Any]:
    """From what is done with one network, `one(net, key, *more)`, the same of many: `many(net, seed, networks, *more)`.

    The program is compiled once for all networks of a structure. With `blocks=…` it is run on so many parts, a divisor
    of the number of networks, one after the other, which takes less memory. The results are numpy arrays, the networks
    0, 1, … of the seed along the first axis.

    >>> many_outputs = over_networks(lambda net, key, X: outputs(net, sample_parameters(net, key), X))
    >>> many_outputs(MLP([2, 3, 1], "tanh"), 0, 6, np.ones((4, 2)), blocks=2).shape
    (6, 1, 4)
    >>> ensemble(MLP([2, 3, 1], "tanh"), 0, 5)[0].W.shape
    (5, 3, 2)
    """

    @jax.jit
    def part(net, seed, numbers, more):
        return jax.vmap(lambda index: one(net, network_key(seed, index), *more))(numbers)

    def many(net: MLP, seed: int, networks: int, *more: Any, blocks: int = 1) -> Any:
        parts = [part(net, seed, numbers, more) for numbers in np.arange(networks).reshape(blocks, -1)]
        return jax.tree.map(lambda *some: np.concatenate(some), *parts)

    many.__doc__ = one.__doc__
    return many


#: Parameters of the networks 0, 1, … of a seed, stacked along the first axis: for `jax.vmap`.
ensemble = over_networks(sample_parameters)


def in_units(net: MLP, layers: list[Weights]) -> tuple[jax.Array, Callable[[Any], list[Weights]]]:
    """The parameters as one vector u = θ/√λ, and the way back to layers.

    Parameters that do not learn (λ = 0) stay where they are: their u is zero and moves nothing.

    >>> net = MLP([4, 2], "linear", lambda_W=4.0, lambda_b=0.25)        # λ = 1 on weights, 1/4 on biases
    >>> layers = sample_parameters(net, network_key(0, 0))
    >>> u, back = in_units(net, layers)
    >>> u.shape, bool(jnp.allclose(back(u)[0].W, layers[0].W)), back(u + 1.0)[0].b.tolist()
    ((10,), True, [0.5, 0.5])
    """
    flat, unravel = ravel_pytree(layers)
    roots = ravel_pytree(jax.tree.map(lambda rate, p: jnp.full(p.shape, jnp.sqrt(rate)), rates(net), layers))[0]
    learns = roots > 0.0
    fixed = jnp.where(learns, 0.0, flat)
    u = jnp.where(learns, flat / jnp.where(learns, roots, 1.0), 0.0)
    return u, lambda u: unravel(fixed + roots * u)


def outputs_in_units(net: MLP, layers: list[Weights], X: Any) -> tuple[jax.Array, Callable[[Any], jax.Array]]:
    """u = θ/√λ, and the outputs z (outputs, inputs) as a function of it."""
    u, back = in_units(net, layers)
    return u, lambda u: outputs(net, back(u), X)
