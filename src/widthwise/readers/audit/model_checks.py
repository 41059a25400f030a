"""Findings: what speaks against an initialisation, each with its tensor, its kind and the line that mends it.

A finding is raised by what is certainly wrong (entries that are no numbers, layers that are copies), by a variance that
matches a known rule applied to the wrong fan, or by what was measured: signals, gradients and units. A variance that is
merely unusual is no finding.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from textwrap import fill
from typing import Any

import numpy as np

from widthwise.readers.audit.observations import Observations, TensorFacts
from widthwise.readers.audit.remedies import Remedies, attribute
from widthwise.text import TERMINAL

#: Gains of fan-in rules that people use: LeCun or Xavier, and He; the default of torch, which is uniform, has 1/3.
KNOWN_GAINS, UNIFORM_GAIN = (1.0, 2.0), 1.0 / 3.0
#: C_W beyond which a product multiplies sizes by more than three.
LARGE_C = 10.0
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class AuditFinding:
    """One finding: in which `tensor` (or layer), of what `kind`, how severe, in words, and the line that mends it."""

    tensor: str
    kind: str
    severity: str
    message: str
    remedy: str

    def __str__(self) -> str:
        said = fill(f"{self.severity}: {self.tensor}: {self.message}", TERMINAL)
        return said + (f"\n    {self.remedy}" if self.remedy else "")  # code stays on its line


def all_findings(
    seen: Observations, values: Mapping[str, np.ndarray], tied: Mapping[str, list[str]], lines: Remedies
) -> list[AuditFinding]:
    """Every finding, errors first, with `lines` of code in the package of the model."""
    checks: tuple[Callable[..., Iterator[AuditFinding]], ...] = (
        lambda: _not_finite(values, lines),
        lambda: _copied_layers(values, lines),
        lambda: _each_tensor(seen, values, lines),
        lambda: _packed_fans(seen, lines),
        lambda: _depth_scaled_fans(seen, lines),
        lambda: _tied_weights(seen, tied, lines),
        lambda: _units(seen, values, lines),
        lambda: _signal_sizes(seen, lines),
    )
    found = [finding for check in checks for finding in check()]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _not_finite(values: Mapping[str, np.ndarray], lines: Remedies) -> Iterator[AuditFinding]:
    for name, value in values.items():
        bad = int((~np.isfinite(value)).sum())
        if bad:
            message = f"{bad} of {value.size} entries are NaN or infinite"
            yield AuditFinding(name, "not_finite", "error", message, lines.start_again(name, value.shape))


def _copied_layers(values: Mapping[str, np.ndarray], lines: Remedies) -> Iterator[AuditFinding]:
    """Random tensors that are equal entry by entry: layers made by copying start, and stay, alike."""
    beginnings: dict[tuple, list[str]] = defaultdict(list)
    for name, value in values.items():
        if value.size >= 4:
            beginnings[value.shape, value.ravel()[:16].tobytes()].append(name)
    groups: dict[bytes, list[str]] = defaultdict(list)
    for names in (names for names in beginnings.values() if len(names) > 1):
        for name in names:
            value = values[name]
            if np.isfinite(value).all() and float(value.std()) > 0.0:
                groups[blake2b(np.ascontiguousarray(value).data).digest()].append(name)
    layers: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for names in groups.values():
        if len(names) > 1:
            layers[_copied_parts(names)].append(names[1:])
    for parts, copies in layers.items():
        shown = ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")
        message = f"{shown} start equal: the same entries in {len(copies)} tensor{'s' * (len(copies) > 1)} of each"
        tensors = [(name, float(values[name].std())) for names in copies for name in names]
        yield AuditFinding(copies[0][0], "copied_layers", "error", message, lines.separate(parts[1:], tensors))


def _copied_parts(names: list[str]) -> tuple[str, ...]:
    """The modules that hold equal tensors: names up to the last place where they differ."""
    pieces = [name.split(".") for name in names]
    ends = [i for i, column in enumerate(zip(*pieces, strict=False)) if len(set(column)) > 1]
    keep = (ends[-1] if ends else 0) + 1
    return tuple(".".join(piece[:keep]) for piece in pieces)


def _each_tensor(seen: Observations, values: Mapping[str, np.ndarray], lines: Remedies) -> Iterator[AuditFinding]:
    for facts in seen.tensors:
        name = facts.name
        if not np.isfinite(values[name]).all():
            continue
        if not facts.trained:
            yield AuditFinding(name, "frozen", "note", "is frozen: it takes no part in training", "")
        elif seen.gradients and math.isnan(facts.gradient):
            yield AuditFinding(name, "unused", "note", "does not reach the output on this batch", "")
        if not facts.is_weight or facts.entries < 4:
            continue
        if facts.distribution == "constant":
            yield from _constant(facts, lines)
        elif facts.use != "recurrent" or facts.fan_in:
            yield from _entry_findings(facts, values[name], lines)


def _constant(facts: TensorFacts, lines: Remedies) -> Iterator[AuditFinding]:
    reset = lines.redraw(facts.name, 1.0 / math.sqrt(facts.fan_in or 1.0))
    if facts.mean != 0.0:
        message = f"all weights are {facts.mean:.4g}: units that start equal stay equal"
        yield AuditFinding(facts.name, "constant_weights", "error", message, reset)
    elif facts.gradient == 0.0:
        message = "all weights are zero, and so is their gradient: they never learn"
        yield AuditFinding(facts.name, "dead_tensor", "error", message, reset)
    else:
        yield AuditFinding(
            facts.name, "zero_weights", "note", "all weights start at zero and learn from the first step", ""
        )


def _entry_findings(facts: TensorFacts, value: np.ndarray, lines: Remedies) -> Iterator[AuditFinding]:
    assert facts.fan_in is not None
    name, error = facts.name, math.sqrt(facts.variance / facts.entries)
    redraw = lines.redraw(name, math.sqrt(1.0 / facts.fan_in))
    coherent = facts.mean**2 * facts.fan_in
    if abs(facts.mean) > 6 * error and coherent > facts.variance and facts.fan_in >= 4:
        message = (
            f"mean {facts.mean:.3g} is not zero ({facts.mean / error:+.0f} standard errors): all units share a signal "
            f"{math.sqrt(coherent / facts.variance):.2g} times their own"
        )
        yield AuditFinding(name, "nonzero_mean", "warning", message, redraw)
    rows = value.reshape(value.shape[0], -1)
    random = rows[rows.std(axis=1) > 0] if rows.shape[1] > 1 else rows[:0]
    if len(random) > 1 and rows.shape[1] >= 4:
        copies = len(random) - len({row.tobytes() for row in random})
        if copies:
            message = f"{copies} of {len(rows)} rows are copies of others: units that start equal stay equal"
            yield AuditFinding(name, "copied_units", "error", message, redraw)
    if facts.C > LARGE_C and facts.uses == 1:
        message = f"weight variance is C_W/fan-in with C_W = {facts.C:.3g}: sizes grow {math.sqrt(facts.C):.3g}-fold"
        severity = "error" if facts.C > 100 else "warning"
        yield AuditFinding(name, "large_variance", severity, message, redraw)


def _matches(value: float, target: float, entries: int) -> bool:
    """Equal within four standard errors of a variance of so many entries."""
    return abs(value / target - 1.0) < max(4.0 * math.sqrt(2.0 / entries), 1e-3)


def _packed_fans(seen: Observations, lines: Remedies) -> Iterator[AuditFinding]:
    """Query, key and value in one matrix whose variance is that of Xavier with the fan-out of all three together."""
    for facts in seen.tensors:
        if facts.pieces != 3 or facts.use == "recurrent" or not facts.fan_in or facts.fan_out is None:
            continue
        whole = 2.0 / (facts.fan_in + 3 * facts.fan_out)
        if facts.entries >= 192 and _matches(facts.variance, whole, facts.entries):
            own = 2.0 / (facts.fan_in + facts.fan_out)
            message = (
                f"packs query, key and value; its variance {facts.variance:.4g} is Xavier's with fan-out "
                f"{3 * facts.fan_out:.0f}, that of all three: each has {facts.variance / own:.2g} of the variance "
                f"{own:.4g} of a projection with fan-in {facts.fan_in:.0f} and fan-out {facts.fan_out:.0f}"
            )
            yield AuditFinding(facts.name, "packed_fan", "warning", message, lines.pieces(facts.name))


def _depth_scaled_fans(seen: Observations, lines: Remedies) -> Iterator[AuditFinding]:
    """Output projections of blocks with variance gain/(fan·L) or gain/(fan·2L), where fan is not the fan-in.

    Square projections of the same blocks, whose fans agree, say which scale is meant: 2/(fan-in·L) with the right fan
    and 1/(fan-out·2L) with the wrong one are the same number where the fan-in is four times the fan-out.
    """
    depths = _blocks([facts.name for facts in seen.tensors])
    meant: dict[str, set[float]] = defaultdict(set)
    candidates = []
    for facts in seen.tensors:
        container, fan_in, fan_out = _container(facts.name), facts.fan_in, facts.fan_out
        if container is None or depths[container] < 2 or not facts.is_weight or not fan_in or not fan_out:
            continue
        gains = (*KNOWN_GAINS, UNIFORM_GAIN) if facts.distribution == "uniform" else KNOWN_GAINS
        scales = [gain / (times * depths[container]) for gain in gains for times in (1, 2)]
        by_out = {scale for scale in scales if _matches(facts.variance * fan_out, scale, facts.entries)}
        if fan_in == fan_out:
            unscaled = any(_matches(facts.variance * fan_in, gain, facts.entries) for gain in gains)
            meant[container] |= set() if unscaled else by_out
        elif by_out and facts.pieces == 1:
            usual = {*gains, *scales, 2.0 * fan_in / (fan_in + fan_out)}
            by_in = {scale for scale in usual if _matches(facts.variance * fan_in, scale, facts.entries)}
            candidates.append((facts, container, by_in, by_out))
    for facts, container, by_in, by_out in candidates:
        common = by_out & meant[container]
        if (common and not by_in & meant[container]) or not (by_in or meant[container]):
            yield _depth_scaled(facts, depths[container], min(common or by_out), lines)


def _depth_scaled(facts: TensorFacts, blocks: int, scale: float, lines: Remedies) -> AuditFinding:
    assert facts.fan_in is not None
    assert facts.fan_out is not None
    message = (
        f"variance {facts.variance:.4g} is {scale:.3g}/{facts.fan_out:.0f}, scaled for {blocks} blocks but with the "
        f"fan-out in place of the fan-in {facts.fan_in:.0f}: it is {facts.fan_in / facts.fan_out:.3g} times too large"
    )
    remedy = lines.redraw(facts.name, math.sqrt(scale / facts.fan_in))
    return AuditFinding(facts.name, "depth_scaled_fan", "warning", message, remedy)


def _container(name: str) -> str | None:
    """What stands before the first number in a name: that of the list of blocks."""
    match = re.match(r"(.*?)\.?\d+\.", name)
    return None if match is None else match.group(1)


def _blocks(names: list[str]) -> dict[str, int]:
    numbers: dict[str, set[str]] = defaultdict(set)
    for name in names:
        match = re.match(r"(.*?)\.?(\d+)\.", name)
        if match:
            numbers[match.group(1)].add(match.group(2))
    return {container: len(found) for container, found in numbers.items()}


def _tied_weights(seen: Observations, tied: Mapping[str, list[str]], lines: Remedies) -> Iterator[AuditFinding]:
    for facts in seen.tensors:
        uses = seen.uses.tensors.get(facts.name, [])
        products = [use for use in uses if use.operation != "embedding"]
        if len(products) < len(uses) and products:
            C = products[-1].fan_in * facts.variance
            if C > 4.0:
                message = (
                    f"is embedding and output at once, with an embedding's variance {facts.variance:.3g}: logits start "
                    f"{math.sqrt(C):.3g} times as large as the features, and grow with width"
                )
                remedy = lines.redraw(facts.name, math.sqrt(1.0 / products[-1].fan_in))
                severity = "error" if C > 100 else "warning"
                yield AuditFinding(facts.name, "tied_scale", severity, message, remedy)
        names = tied.get(facts.name, [])
        if len(names) > 1:
            message = f"is one tensor under {len(names)} names: {', '.join(names)}"
            yield AuditFinding(facts.name, "tied", "note", message, "")


def _units(seen: Observations, values: Mapping[str, np.ndarray], lines: Remedies) -> Iterator[AuditFinding]:
    for use in seen.uses.activations:
        bias = f"{use.after.rpartition('.')[0]}.bias".lstrip(".")
        remedy = lines.layer_before(use.after, bias if bias in values else "", use.rectifies)
        # signs at random leave half of the units dead if all rows are alike, with a deviation of √(1/4 units)
        beyond = use.dead == 1.0 or use.dead > 0.5 + 2.0 / math.sqrt(max(use.units, 1))
        if beyond and use.rows >= 8:
            message = f"{100 * use.dead:.0f}% of units after {use.name} are zero on all {use.rows} rows"
            yield AuditFinding(use.where, "dead_units", "warning", message, remedy)
        if use.saturated > 0.5:
            message = f"{100 * use.saturated:.0f}% of values after {use.name} are saturated: gradients stop there"
            yield AuditFinding(use.where, "saturated_units", "warning", message, remedy)


def _signal_sizes(seen: Observations, lines: Remedies) -> Iterator[AuditFinding]:
    """Signals and gradients from the first layer with weights to the last."""
    layers = [layer for layer in seen.layers if layer.signal > 0.0]
    saturating = any(not use.rectifies for use in seen.uses.activations)
    remedy = lines.everywhere(rectified=not saturating)
    if not math.isfinite(seen.outputs) and seen.layers:
        bad = next((layer.name for layer in seen.layers if not math.isfinite(layer.signal)), "the model")
        yield AuditFinding(bad, "not_finite_signal", "error", "signals are NaN or infinite from here on", remedy)
        return
    if len(layers) < 2:
        return
    first, last = layers[0], layers[-1]
    largest = max(layers, key=lambda layer: layer.signal)
    if largest.signal > 1e3 * max(first.signal, seen.inputs if math.isfinite(seen.inputs) else 0.0, 1e-30):
        message = f"signals grow {largest.signal / first.signal:.3g}-fold from {first.name} to {largest.name}"
        yield AuditFinding(
            largest.name,
            "signals_explode",
            "error",
            message,
            remedy,
        )
    if last.signal < 1e-4 * first.signal:
        message = f"signals shrink {first.signal / last.signal:.3g}-fold from {first.name} to {last.name}"
        yield AuditFinding(
            last.name,
            "signals_vanish",
            "warning",
            message,
            remedy,
        )
    if first.gradient > 0.0 and last.gradient > 0.0:
        ratio = first.gradient / last.gradient
        if ratio > 1e4 or ratio < 1e-4:
            grow = ratio > 1.0
            what = f"{'grow' if grow else 'shrink'} {max(ratio, 1 / ratio):.3g}-fold"
            message = f"gradients {what} from {last.name} back to {first.name}"
            kind = "gradients_explode" if grow else "gradients_vanish"
            yield AuditFinding(first.name, kind, "warning", message, remedy)


def optimiser_findings(optimizer: Any, names: Mapping[int, str], vectors: set[str]) -> Iterator[AuditFinding]:
    """What a torch optimiser does that an initialisation cannot mend: decayed biases and gains, tensors left out."""
    listed: set[str] = set()
    for group in optimizer.param_groups:
        own = [names[id(value)] for value in group["params"] if id(value) in names]
        listed |= set(own)
        decayed = [name for name in own if name in vectors] if group.get("weight_decay", 0.0) else []
        if decayed:
            shown = ", ".join(decayed[:3])
            message = f"weight decay {group['weight_decay']:g} pulls {len(decayed)} biases and gains to zero: {shown}"
            remedy = Remedies().without_decay(type(optimizer).__name__, group["lr"], group["weight_decay"])
            yield AuditFinding(decayed[0], "decayed_vectors", "warning", message, remedy)
    for name in names.values():
        if name not in listed:
            remedy = f'optimizer.add_param_group({{"params": [{attribute(name)}]}})'
            yield AuditFinding(name, "not_optimised", "warning", "is trained by no group of the optimiser", remedy)
