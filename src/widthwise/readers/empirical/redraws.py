"""Fresh draws of a model's weights from the laws that its entries have, and kernels as averages over such draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput, one_line
from widthwise.network import check_integer, check_seed
from widthwise.progress import DelayedProgress
from widthwise.readers.empirical.model_functions import ModelFunction, NamedTensors, function_of
from widthwise.readers.empirical.model_kernels import theory_beside
from widthwise.results.labels import label

#: A mean of entries within so many of its standard errors is zero.
_NO_MEAN = 4.0
#: Fresh draws of a model, each of which is run forward: more would take days.
_MOST_DRAWS = 1_000_000


@dataclass(frozen=True, eq=False)
class EntriesLaw:
    """The law that the entries of one tensor look drawn from, with their mean and standard deviation."""

    name: str
    mean: float
    spread: float
    entries: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> EntriesLaw:
        """By the fourth moment and the extremes.

        >>> EntriesLaw.of(np.random.default_rng(0).normal(size=(64, 64))).name
        'normal'
        """
        flat = np.asarray(values, float).ravel()
        with np.errstate(invalid="ignore", over="ignore"):
            mean, spread = (float(flat.mean()), float(flat.std())) if flat.size else (0.0, 0.0)
        if not math.isfinite(spread):
            return cls("not finite", mean, spread, values)
        if spread <= 1e-12 * max(1e-300, float(np.abs(flat).max(initial=0.0))):
            return cls("constant", mean, spread, values)
        if flat.size < 16:
            return cls("few entries", mean, spread, values)
        centred = (flat - mean) / spread
        extreme = float(np.abs(centred).max())
        squares = np.square(centred, out=centred)
        kurtosis, error = float(squares @ squares) / flat.size, math.sqrt(24.0 / flat.size)
        if abs(kurtosis - 1.8) < max(4 * error, 0.05) and extreme < 1.9:
            return cls("uniform", mean, spread, values)
        if abs(kurtosis - 3.0) < max(4 * error, 0.05):
            return cls("normal", mean, spread, values)
        return cls("truncated normal" if 1.8 < kurtosis < 3.0 and extreme < 3.2 else "other", mean, spread, values)

    def fresh(self, generator: np.random.Generator) -> np.ndarray:
        """Independent entries; constant tensors, as gains of one, and those with entries that are no numbers stay.

        Of a law that is neither uniform nor normal, entries are drawn from those that there are, with replacement.

        >>> rng = np.random.default_rng(0)
        >>> fresh = EntriesLaw.of(rng.uniform(-0.1, 0.1, size=(64, 64))).fresh(rng)
        >>> bool(abs(fresh).max() < 0.11), bool(abs(fresh.std() * 3**0.5 / 0.1 - 1) < 0.05)
        (True, True)
        """
        shape, mean, spread = self.entries.shape, self.mean, self.spread
        if self.name in ("constant", "not finite"):
            return self.entries
        if self.name == "few entries" or abs(mean) < _NO_MEAN * spread / math.sqrt(self.entries.size):
            mean, spread = 0.0, math.hypot(mean, spread)
        kind: Any = np.float32 if self.entries.dtype == np.float32 else np.float64
        if self.name == "uniform":
            bound = kind(math.sqrt(3.0) * spread)
            return (kind(2.0) * generator.random(shape, kind) - kind(1.0)) * bound + kind(mean)
        if self.name in ("normal", "few entries"):
            return generator.standard_normal(shape, kind) * kind(spread) + kind(mean)
        return generator.choice(self.entries.ravel(), size=shape)


class FreshDraws:
    """Draws of all tensors that a model trains, from the laws that its entries have."""

    def __init__(self, f: ModelFunction, seed: int):
        self.function, self.generator = f, np.random.default_rng(seed)
        self.laws = {name: EntriesLaw.of(f.numpy(value)) for name, value in f.parameters.items()}

    def draw(self) -> NamedTensors:
        return {name: self.function.array(law.fresh(self.generator)) for name, law in self.laws.items()}


def model_nngp(
    model: Any, X: Any, *, draws: int = 100, make: Callable[[int], Any] | None = None, seed: int = 0
) -> xr.Dataset:
    """The covariance of a model's outputs over fresh draws of its weights, K_ab = E[(1/outputs) Σ_i z_ia z_ib].

    Parameters
    ----------
    model : any torch, Flax (nnx) or Equinox module; see `model_ntk`. Frozen tensors stay as they are.
    X : array (inputs, …), or a tuple or dict of such arrays.
    draws : of all trained weights, each tensor from the law that its entries have (uniform, normal, or any other by
        drawing from the entries themselves); structure within a tensor, such as orthogonality, is lost.
    make : make(seed) returns a freshly initialised model of the same kind, drawn by its own rules instead.

    Returns
    -------
    Dataset with `K_model` and its standard error `K_model_se` on (a, b), `mean_model` on (output, a), and where the
    model can be read as a network `K` of infinite width (theory §2); otherwise `no_theory`, an attribute, says why not.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 8))
    >>> ds = model_nngp(model, [[1.0, 0.3]], draws=200)
    >>> bool(abs(ds["K_model"] - ds["K"]).item() < 6 * ds["K_model_se"].item())
    True
    """
    draws = check_integer("draws", draws, 2, _MOST_DRAWS, f"an integer from 2 to {_MOST_DRAWS}")
    seed = check_seed(seed)
    if make is not None and not callable(make):
        raise InvalidInput("make", repr(make), "a function make(seed) that returns a model, or None")
    f = function_of(model)
    arguments = f.read(X, "X")
    shape = f.outputs(arguments).shape
    total, squares, mean = np.zeros((shape[0],) * 2), np.zeros((shape[0],) * 2), np.zeros(shape)
    fresh = FreshDraws(f, seed)
    with DelayedProgress("draws of the model") as bar:
        for draw in range(draws):
            drawn = fresh.draw() if make is None else _parameters_of_fresh(make, seed + draw, f)
            z = f.numpy(f.call(drawn, arguments))
            if not np.isfinite(z).all():
                raise InvalidInput("model", "outputs that are NaN or infinite after a fresh draw", "finite outputs")
            K = z @ z.T / shape[1]
            total, squares, mean = total + K, squares + K**2, mean + z
            bar(draw + 1, draws)
    K = total / draws
    error = np.sqrt(np.maximum(squares / draws - K**2, 0.0) / (draws - 1))
    variables = {"K_model": (("a", "b"), K), "K_model_se": (("a", "b"), error)}
    variables["mean_model"] = (("output", "a"), mean.T / draws)
    net, of_theory, attrs = theory_beside(model, X, None, "K")
    return label({**variables, **of_theory}, net, None, kind="model_nngp", draws=draws, seed=seed, **attrs)


def _parameters_of_fresh(make: Callable[[int], Any], seed: int, like: ModelFunction) -> NamedTensors:
    try:
        model = make(seed)
    except Exception as error:  # the caller's own code
        raise InvalidInput("make", f"{make!r}, which raises {one_line(error)}", "a function make(seed)") from error
    found = function_of(model).parameters
    shapes = [{name: tuple(value.shape) for name, value in each.items()} for each in (found, like.parameters)]
    if shapes[0] != shapes[1]:
        raise InvalidInput("make", "a function whose models have other tensors", "models with the tensors of `model`")
    return found
