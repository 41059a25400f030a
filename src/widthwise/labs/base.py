"""What a lab is: a statement that could be false, an experiment, and claims that compare the two.

A lab file says in its docstring what it claims: a title and below an empty line the statement. Its `experiment(size,
seed)` runs real networks of one size from one seed and returns an `Outcome`: claims, and the arrays that its figure
shows, which `draw` does. The runner repeats it over the `SIZES`, in a quick run over the first two of them or over
`QUICK_SIZES`, and over seeds. Besides: means, ratios, limits and slopes of what was measured, with error bars, and what
figures share; many networks at once, and parameters in units of √λ, in which gradient descent has one learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import outputs, rates
from widthwise.network import MLP


def mean_and_error(samples: Any) -> tuple[float, float]:
    """Mean of independent samples along the first axis and its standard error.

    >>> mean_and_error([1.0, 2.0, 3.0])
    (2.0, 0.5773502691896258)
    """
    samples = np.asarray(samples, float)
    return float(samples.mean()), float(samples.std(ddof=1) / math.sqrt(len(samples)))


def ratio_and_error(above: Any, below: Any) -> tuple[float, float]:
    """⟨above⟩/⟨below⟩ over independent pairs, (samples,) each, and its standard error to first order in the scatter.

    >>> ratio_and_error(np.array([2.0, 4.0]), np.array([1.0, 2.0]))
    (2.0, 0.0)
    """
    ratio = float(np.mean(above) / np.mean(below))
    return ratio, mean_and_error((above - ratio * below) / np.mean(below))[1]


def over_blocks(statistic: Callable[[np.ndarray], Any], samples: np.ndarray, blocks: int) -> tuple[float, float]:
    """A statistic of samples, averaged over blocks of them, and its standard error.

    >>> over_blocks(np.max, np.array([1.0, 3.0, 2.0, 5.0]), 2)
    (4.0, 1.0)
    """
    return mean_and_error([statistic(block) for block in np.array_split(samples, blocks)])


def block_variance(samples: np.ndarray, blocks: int) -> tuple[float, float]:
    """Variance of samples and its standard error from blocks of them."""
    return over_blocks(lambda block: np.var(block, ddof=1), samples, blocks)


def extrapolated(once: np.ndarray, twice: np.ndarray, blocks: int = 30) -> tuple[float, float]:
    """2f(2n) − f(n), in which O(1/n) drops, and its standard error from blocks of networks.

    Parameters
    ----------
    once, twice : f of networks of width n and 2n, each (networks,), equally many; networks of the same number may
        be correlated.
    blocks : a divisor of the number of networks.

    Examples
    --------
    >>> n = 10.0
    >>> value, _ = extrapolated(np.full(60, 3.0 + 1 / n), np.full(60, 3.0 + 1 / (2 * n)))
    >>> round(value, 12)
    3.0
    """
    means = [np.asarray(values, float).reshape(blocks, -1).mean(axis=1) for values in (once, twice)]
    return mean_and_error(2.0 * means[1] - means[0])


def slope_with_error(x: Any, y: Any) -> tuple[float, float]:
    """Slope of a line through at least four points, x increasing or decreasing, and its error.

    The points of a deterministic law do not scatter but bend: the error is that of the least-squares fit and the
    range over which the slope between neighbouring points drifts, in quadrature, and never below 1e-12.

    >>> slope, error = slope_with_error([0, 1, 2, 3, 4, 5], [1, 3, 5, 7, 9, 11])
    >>> round(slope, 9), error < 1e-9
    (2.0, True)
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    drift = np.ptp(np.diff(y) / np.diff(x))
    return float(slope), math.hypot(math.sqrt(max(covariance[0, 0], 0.0)), float(drift), 1e-12)


ClaimKind = Literal["equals", "at most", "at least"]


@dataclass(frozen=True)
class Claim:
    """One prediction beside its measurement.

    Numbers may come as any scalar. `standard_error` is the scatter of the measurement; for a result without randomness
    it is the numerical tolerance, and `exact` says so. `wrong` holds perturbed predictions by name: the experiment must
    be able to reject them.

    >>> claim = Claim("slope", 2.0, 2.1, 0.05, wrong={"half the slope": 1.0})
    >>> round(claim.pull, 9), claim.pull_of("half the slope") > 5
    (2.0, True)
    """

    what: str
    predicted: float
    measured: float
    standard_error: float
    kind: ClaimKind = "equals"
    wrong: Mapping[str, float] = field(default_factory=dict)
    exact: bool = False

    def __post_init__(self) -> None:
        for name in ("predicted", "measured", "standard_error"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "wrong", {name: float(value) for name, value in self.wrong.items()})
        numbers = (self.predicted, self.measured, self.standard_error, *self.wrong.values())
        if not all(map(math.isfinite, numbers)) or self.standard_error <= 0.0:
            raise InvalidInput("claim", f"{self.what!r} with {numbers}", "finite numbers and a positive standard error")

    @property
    def pull(self) -> float:
        """(measured − predicted)/standard error; a bound that holds has pull 0."""
        return self._pull(self.predicted)

    @classmethod
    def exactly(cls, what: str, predicted: Any, measured: Any, tolerance: Any, kind: ClaimKind = "equals") -> Claim:
        """A claim about a result without randomness."""
        return cls(what, predicted, measured, tolerance, kind, exact=True)

    @classmethod
    def mean(cls, what: str, predicted: Any, samples: Any, kind: ClaimKind = "equals") -> Claim:
        """A claim about the mean of independent samples along the first axis."""
        return cls(what, predicted, *mean_and_error(samples), kind)

    def rejects(self, wrong: Mapping[str, Any]) -> Claim:
        """The same claim, with predictions that it must be able to reject.

        >>> Claim.exactly("ways", 2, 2, 0.1).rejects({"one": 1}).pull_of("one") > 5
        True
        """
        return replace(self, wrong=wrong)

    def pull_of(self, wrong: str) -> float:
        """The pull against a perturbed prediction."""
        return self._pull(self.wrong[wrong])

    def _pull(self, predicted: float) -> float:
        pull = (self.measured - predicted) / self.standard_error
        return {"equals": pull, "at most": max(pull, 0.0), "at least": min(pull, 0.0)}[self.kind]


@dataclass(frozen=True)
class Outcome:
    """What one run of an experiment found: claims, and named arrays or numbers for the figure."""

    claims: tuple[Claim, ...]
    curves: Mapping[str, Any] = field(default_factory=dict)


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
    sizes, quick_sizes : at least two sizes each, for a full and a quick run.
    draw : (figure, outcomes) → None; draws on a matplotlib figure in the library's look.
    """

    name: str
    title: str
    statement: str
    experiment: Callable[[int, int], Outcome]
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...]
    draw: Callable[[Any, Outcomes], None]


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
