"""`measure`: the variables of `theory`, estimated on sampled networks, with standard errors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from widthwise.activations import require_derivatives
from widthwise.errors import InvalidInput, NonFiniteWarning, NoRule, NotDifferentiable, shown
from widthwise.experiments.accumulation import accumulate
from widthwise.experiments.estimators import check_statistics
from widthwise.experiments.initialisations import check_initialisation, described
from widthwise.experiments.programme import Part, Programme
from widthwise.experiments.reference import reference
from widthwise.experiments.tables import cancelled_sizes, measured_variables
from widthwise.experiments.tally import Tally
from widthwise.memory import require_memory
from widthwise.network import (
    Dense,
    Network,
    Residual,
    WeightLayer,
    check_integer,
    check_networks,
    check_seed,
    simplified,
)
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.validation import check_names, is_one_of
from widthwise.results.labels import label, layer_coordinate
from widthwise.tensors import CORRECTIONS, KERNELS, SINGLE_LEGS, TENSORS


def measure(
    net: Network,
    X: Any,
    networks: int = 1000,
    seed: int = 0,
    *,
    statistics: str | Sequence[str] | None = None,
    layers: str = "last",
    widths: Sequence[int] | None = None,
    initialisation: str | Sequence[str] = "gaussian",
    engine: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """The variables of `theory` on really sampled networks, each with a standard error.

    K and Theta are means over networks of width n, that is K + G1/n and Theta + H1/n of the theory. The others are
    the coefficients themselves, such as V = n × covariance, and differ from the theory's by a relative O(1/n)
    (theory §3); `widths` removes that.

    Parameters
    ----------
    X : array (inputs, features).
    networks : how many to sample, at least 2. Network i of a seed is always the same network.
    seed : non-negative integer.
    statistics : names out of K, Theta, G1, H1, V, A, B, D, F, P, Q, R, S, T, U, or "all" that exist for the
        activation; K and Theta unless given. v3, d3, f3, q3 (theory §11) are measured at layers that end with a
        residual connection, where alone they are not zero, and the others of order 1/n at dense layers.
    layers : "last", or "all": each layer as the output of the network that ends there.
    widths : last hidden widths, the other hidden widths in proportion, from which every statistic is extrapolated to
        infinite width: its remainder c/n as NAME_slope, and from three widths on the fitted order of the remainder
        as NAME_order, NaN where noise hides it. Two widths: linear in 1/n; more: quadratic. NAME_by_width holds what
        was measured at each width.
    initialisation : "gaussian", "uniform", "truncated_normal", "orthogonal" or "sparse", or a sequence with one name
        per weight layer; all have the variances C_W/fan_in and C_b. Theory is about "gaussian". Statistics are those
        of theory §3 for hidden layers so drawn and an output layer whose rows are independent of each other: of that
        layer only the variances matter.
    engine : None for this process, a number of processes, the address of a Dask scheduler, or a `distributed.Client`.
        The result is the same to the last bit from any number of workers.
    checkpoint : a file for the partial sums. If it exists, the run goes on from there.
    batch : networks observed at once; chosen by size unless given. It changes results by rounding only.

    Returns
    -------
    Dataset with NAME and NAME_se on (layer, a, b) to (layer, a, b, c, d), and NAME_traces: tr R, tr R², tr R³ of the
    correlation matrix R of the errors of the tensor's distinct entries, which `compare` needs for probabilities.
    Ctrl-C returns what is done so far, with the attribute `interrupted`.

    >>> import widthwise as ww
    >>> net = ww.MLP([2, 64, 1], "relu", C_W=2.0)
    >>> ms = ww.measure(net, [[1.0, 0.0]], networks=200, seed=1)
    >>> bool(abs(ms["K"] - 1.0) < 4 * ms["K_se"])
    True
    """
    net = simplified(net)
    X = net.check_inputs(X)
    networks, seed = check_networks(networks), check_seed(seed)
    batch = None if batch is None else check_integer("batch", batch, 1)
    names, drawn = _statistic_names(net, statistics), check_initialisation(net, initialisation)
    if not is_one_of(layers, ("last", "all")):
        raise InvalidInput("layers", repr(layers), "'last' or 'all'")
    kept = (net.depth,) if layers == "last" else tuple(range(1, net.depth + 1))
    sizes = _check_widths(net, widths)
    parts = []
    for width in sizes:
        whole, own_seed = (net, seed) if widths is None else (net.with_width(width), _seed(seed, width))
        parts += [_part_of(whole.up_to(k, net.widths[-1]), X, names, own_seed, drawn) for k in kept]
    slots = [TENSORS[name].slots for part in parts for name in (*part.kernels, *part.tensors)]
    # sums of 64 blocks, those of a chunk beside them
    require_memory(
        8 * 130 * sum(len(X) ** count for count in slots),
        f"sums of {len(names)} statistics of {len(X)} inputs, up to {len(X)}{'²³⁴'[max(slots) - 2]} entries each",
        "Take fewer inputs, fewer statistics or layers='last'.",
    )
    programme = Programme.of(tuple(parts), X, batch)
    found, interrupted = accumulate(programme, networks, engine, checkpoint, progress, "measure")
    sums = [Tally(part.net.n, sums=own) for part, own in zip(parts, found, strict=True)]
    attrs = _nonfinite_report(programme, sums) | {"networks": min(part.networks for part in sums), "seed": seed}
    attrs |= {"blocks": min(int(np.sum(part.sums["counts"] > 0)) for part in sums), "initialisation": described(drawn)}
    by_width = [sums[start : start + len(kept)] for start in range(0, len(sums), len(kept))]
    scales, coords = [cancelled_sizes(part) for part in parts[-len(kept) :]], layer_coordinate(kept)
    variables = measured_variables(names, sizes, by_width, len(X), scales)
    if widths is not None:
        coords = coords.assign(width=sizes)
        attrs |= {"widths": sizes, "seeds": [_seed(seed, width) for width in sizes]}
    return label(variables, net, coords, kind="measure", interrupted=int(interrupted), **attrs)


def _nonfinite_report(programme: Programme, sums: Sequence[Tally]) -> dict[str, Any]:
    """Attributes about networks that are not finite, and a warning where there are any."""
    by_part = [int(part.sums["nonfinite"]) for part in sums]
    broken, worst = sum(by_part), int(np.argmax(by_part))
    if not broken:
        return {"nonfinite": 0}
    part, where = programme.parts[worst], sums[worst].sums["nonfinite_indices"].tolist()
    if min(part.networks for part in sums) < 2:
        bare = any(isinstance(step, Normalisation) and step.epsilon == 0.0 for step in part.net.steps)
        raise InvalidInput(
            "net",
            f"{part.net}, of which {by_part[worst]} networks have numbers that are not finite (indices {where} "
            f"of seed {part.seed})",
            "at least 2 networks with finite kernels and tensors",
            ("Give normalisations an epsilon above zero, reduce" if bare else "Reduce")
            + " C_W or the depth, or use an activation that does not grow as fast.",
        )
    warnings.warn(
        f"measure: {broken} networks have numbers that are not finite. They are left out, which biases the results; "
        f"the first of {part.net} have indices {where} of seed {part.seed}. To repeat one of them: "
        f"widthwise.experiments.sampler.sample_parameters(net, network_key({part.seed}, {where[0]}), "
        f"{part.initialisation})",
        NonFiniteWarning,
        stacklevel=3,
    )
    return {"nonfinite": broken, "nonfinite_networks": where, "nonfinite_seed": part.seed}


def _statistic_names(net: Network, statistics: str | Sequence[str] | None) -> tuple[str, ...]:
    """Statistics to measure, in the library's order; those that do not exist for the activation are refused."""
    if isinstance(statistics, str) and statistics == "all":
        return tuple(name for name in TENSORS if _exists(net, name) and (name not in SINGLE_LEGS or _on_stream(net)))
    asked = KERNELS if statistics is None else check_names("statistics", statistics, TENSORS, ', or "all"')
    for name in asked:
        _require_statistic(net, name)
    return tuple(name for name in TENSORS if name in asked)


def _require_statistic(net: Network, name: str) -> None:
    if name == "Theta":
        for sigma in net.activations:
            require_derivatives(sigma, 1, name)
    elif name not in KERNELS:
        if not isinstance(net.layers[-1], Dense) and not (name in SINGLE_LEGS and _on_stream(net)):
            raise NoRule(
                "statistics", f"{name} of a network that ends with {type(net.layers[-1]).__name__}",
                "a Dense layer at the end", "Tensors are measured with the last weights averaged over.",
            )  # fmt: skip
        last = net.layers[-1]
        if isinstance(last, Dense) and last.inputs != net.n:
            raise NoRule(
                "statistics", f"{name} of a network whose last layer reads {last.inputs} numbers of {net.n} channels",
                "a last layer that reads as many as there are channels", "Take GlobalAvgPool instead of Flatten.",
            )  # fmt: skip
        check_statistics(net.activations, [name], "statistics")


def _on_stream(net: Network) -> bool:
    return isinstance(net.layers[-1], Residual)


def _exists(net: Network, name: str) -> bool:
    try:
        _require_statistic(net, name)
    except (NotDifferentiable, NoRule):
        return False
    return True


def _part_of(net: Network, X: np.ndarray, names: Sequence[str], seed: int, initialisation: tuple[str, ...]) -> Part:
    kernels = tuple(name for name in names if name in KERNELS)
    net = simplified(net)
    # tensors with a single leg are odd in the weights of a dense last layer: nothing is to be measured there
    asked = [name for name in names if name in (CORRECTIONS + SINGLE_LEGS if _on_stream(net) else CORRECTIONS)]
    tensors = check_statistics(net.activations, asked) if net.depth > 1 else ()
    at_dense = [name for name in asked if name in CORRECTIONS]
    if tensors and at_dense and not isinstance(net.layers[-1], Dense):
        raise NoRule(
            "layers", f"'all', with {', '.join(at_dense)} at {net.layers[-1]!r}", "these tensors at dense layers alone",
            f"Take layers='last', or statistics={[*KERNELS, *SINGLE_LEGS]}.",
        )  # fmt: skip
    # something to count networks by where no tensor fluctuates
    counted = kernels if kernels or tensors else ("K",)
    drawn = initialisation[: sum(isinstance(step, WeightLayer) for step in net.steps)]
    return Part(net, seed, counted, tensors, reference(net, X) if tensors else None, drawn)


def _seed(seed: int, width: int) -> int:
    """A seed of its own for every width: with one key, wide and narrow networks would share some of their numbers."""
    return int(np.random.SeedSequence([seed, width]).generate_state(1)[0])


def _check_widths(net: Network, widths: Sequence[int] | None) -> list[int]:
    if widths is None:
        return [net.n]
    if net.depth < 2:
        raise InvalidInput("widths", repr(widths), "None for a network without hidden layers")
    try:
        listed = np.atleast_1d(np.asarray(widths, object))
    except Exception:  # of the caller's object
        raise InvalidInput("widths", shown(widths), "widths, such as [64, 128, 256]") from None
    sizes = [check_integer("widths", width, 2) for width in listed]
    if len(set(sizes)) < 2:
        raise InvalidInput("widths", repr(widths), "at least two different widths, such as [64, 128, 256]")
    return sorted(set(sizes))
