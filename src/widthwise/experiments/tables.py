"""From sums over networks to the variables of a Dataset: values, standard errors, extrapolations, correlations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from widthwise.experiments.correlation import correlation_traces
from widthwise.experiments.extrapolation import extrapolate
from widthwise.experiments.programme import Part, PartTallies
from widthwise.experiments.symmetries import distinct_entries
from widthwise.experiments.tally import Estimate, jackknife
from widthwise.tensors import MEANS, PRODUCTS, TENSORS, dimensions

#: What is below this fraction of the numbers that it is the difference of is rounding.
CANCELLED = 1e-12

Variables = dict[str, tuple[tuple[str, ...], np.ndarray]]
#: Of each layer: the size of the numbers whose differences a tensor is, by name.
Sizes = Sequence[Mapping[str, float]]


def cancelled_sizes(part: Part) -> dict[str, float]:
    """n K where G1 = n(Ĝ − K) is small or vanishes, and the like: what rounding is measured by, besides the result."""
    if part.reference is None:
        return {}
    K, Theta = (float(np.abs(kernel[-1]).max()) for kernel in part.reference)
    powers = {name: TENSORS[name].scale for name in (*MEANS, *PRODUCTS)}
    return {name: part.net.n * math.prod([K] * i + [Theta] * j) for name, (i, j) in powers.items()}


def variables_at_one_width(names: Sequence[str], sums: Sequence[PartTallies], inputs: int, sizes: Sizes) -> Variables:
    """NAME, NAME_se and NAME_traces from the sums of every layer."""
    found = [part.replicates() for part in sums]
    variables: Variables = {}
    for name in names:
        by_layer = [part.get(name, _nothing(name, inputs)) for part in found]
        estimates = [
            _rounded(jackknife(replicates), size.get(name, 0.0))
            for replicates, size in zip(by_layer, sizes, strict=True)
        ]
        traces = [
            correlation_traces([_block_deviations(name, *both)]) for both in zip(by_layer, estimates, strict=True)
        ]
        variables |= _pair(name, estimates, _dims(name))
        variables[name + "_traces"] = (("layer", "power"), np.stack(traces))
    return variables


def extrapolated_variables(
    names: Sequence[str], widths: Sequence[int], by_width: Sequence[Sequence[PartTallies]], inputs: int, sizes: Sizes
) -> Variables:
    """NAME at infinite width, NAME_slope, NAME_order and NAME_traces, and what was measured as NAME_by_width."""
    found = [[part.replicates() for part in sums] for sums in by_width]
    variables: Variables = {}
    for name in names:
        by_layer = [[part.get(name, _nothing(name, inputs)) for part in parts] for parts in zip(*found, strict=True)]
        fits = [extrapolate(widths, replicates) for replicates in by_layer]
        least = [size.get(name, 0.0) for size in sizes]
        values = [_rounded(fit.value, size) for fit, size in zip(fits, least, strict=True)]
        measured = [
            [_rounded(jackknife(replicates), size) for replicates in layer]
            for layer, size in zip(by_layer, least, strict=True)
        ]
        traces = [
            correlation_traces(
                [c * _block_deviations(name, one, value) for c, one in zip(fit.coefficients, replicates, strict=True)]
            )
            for fit, replicates, value in zip(fits, by_layer, values, strict=True)
        ]
        variables |= _pair(name, values, _dims(name))
        variables |= _pair(name + "_slope", [fit.slope for fit in fits], _dims(name))
        variables |= _pair(name + "_order", [fit.order for fit in fits], ("layer",))
        variables |= _at_widths(name, measured)
        variables[name + "_traces"] = (("layer", "power"), np.stack(traces))
    return variables


def _pair(name: str, layers: Sequence[Estimate], dims: tuple[str, ...]) -> Variables:
    return {
        name: (dims, np.stack([layer.value for layer in layers])),
        name + "_se": (dims, np.stack([layer.error for layer in layers])),
    }


def _at_widths(name: str, measured: Sequence[Sequence[Estimate]]) -> Variables:
    """From estimates by layer, then width."""
    dims = ("width", *_dims(name))
    values, errors = (
        np.stack([np.stack([estimate[part] for estimate in layer]) for layer in measured], axis=1) for part in (0, 1)
    )
    return {f"{name}_by_width": (dims, values), f"{name}_by_width_se": (dims, errors)}


def _dims(name: str) -> tuple[str, ...]:
    return ("layer", *dimensions(name))


def _nothing(name: str, inputs: int) -> np.ndarray:
    """Replicates of nothing: nothing fluctuates before the first hidden layer (theory §3)."""
    return np.zeros((3, *(inputs,) * (len(_dims(name)) - 1)))


def _rounded(estimate: Estimate, size: float) -> Estimate:
    """Values and scatter that are only rounding are none."""
    least = CANCELLED * max(size, float(np.abs(estimate.value).max()))
    value, error = (np.where(np.abs(part) > least, part, 0.0) for part in estimate)
    return Estimate(value, error)


def _block_deviations(name: str, replicates: np.ndarray, estimate: Estimate) -> np.ndarray:
    """Of the distinct entries, block by block (blocks, entries); their squares add up to the jackknife's."""
    kept = distinct_entries(name, replicates.shape[-1])
    left_out = replicates[1:].reshape(len(replicates) - 1, -1)[:, kept]
    scale = np.sqrt((len(left_out) - 1) / len(left_out)) * (np.ravel(estimate.error)[kept] > 0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # past the largest number, as in `jackknife`
        return scale * (left_out - left_out.mean(axis=0))
