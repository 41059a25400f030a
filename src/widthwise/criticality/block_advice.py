"""What `advise` recommends for networks with skips or normalisation: C_b and C_W, layer by layer (theory §11, §12).

A dense layer behind an activation takes C_b and C_W from the critical point of that activation, normalised before it
or not; one behind no activation passes kernels on, C_W = 1. At the end of a residual branch both are multiplied by
1 − γ², or with γ = 1 by 1/N, N the number of residual layers: then K and squared gradients change by a factor of about
e at most from the first to the last, whatever N is, and V/K² stays finite (theory §11). The first layer gives the
inputs the kernel at which the others are critical, one with normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from widthwise.activations import Activation
from widthwise.criticality.blocks import BlockForm, Norm
from widthwise.criticality.critical import HALF_STABLE, MARGINAL, Critical, critical
from widthwise.criticality.depth_laws import DepthGrowth, depth_growth
from widthwise.errors import InvalidInput
from widthwise.flow.tensors.block_flow import no_rule
from widthwise.network import Affine, Dense, Elementwise, Network
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.layers.residual import Fork, Join


@dataclass(frozen=True)
class BlockDesign:
    """The network to use instead, or None with the reason; the lines of the report that say so.

    `block` is what the last hidden layer is made of, `point` its critical point as a plain layer, `growth` the law of
    layers like it; `residual` counts residual layers.
    """

    block: BlockForm
    residual: int
    network: Network | None
    point: Critical | None
    growth: DepthGrowth | None
    reason: str
    activation: Activation | None
    lines: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What the network has beside dense layers, for a headline."""
        norm = "" if self.block.norm is None else f", {'LayerNorm' if self.block.norm.kind == 'ln' else 'RMSNorm'}"
        return (f", {self.residual} of them residual" if self.residual else "") + norm


@dataclass(frozen=True)
class _Reading:
    """A dense layer with what stands before it, and the skip γ past it; `alone` in its branch or not."""

    dense: Dense
    activation: Activation | None
    norm: Norm | None
    skip: float = 0.0
    alone: bool = True


def block_design(net: Network, x_square: float) -> BlockDesign:
    """The design for inputs of mean x·x/n_0 = x_square.

    >>> from widthwise.network import ResMLP
    >>> design = block_design(ResMLP([2, *[64] * 11, 1], "relu", norm="rms"), 1.0)
    >>> round(design.network.layers[1].body[2].C_W, 4), design.growth.kernel.kind
    (0.2, 'power')
    """
    readings = list(_readings(net))
    residual = [one for one in readings if one.skip]
    main = (residual or readings[1:-1] or readings)[-1]
    growth = None
    if main.activation is not None and main.alone:
        with suppress(InvalidInput):  # kernels at which the activation is not tabulated
            growth = depth_growth(main.activation, main.dense.C_b, main.dense.C_W, skip=main.skip, norm=main.norm,
                                  x_square=x_square)  # fmt: skip
    points, reasons = _points(readings)
    point, block = points.get((main.activation, main.norm)), BlockForm(main.skip, main.norm)
    design = BlockDesign(block, len(residual), None, point, growth, "; ".join(reasons), main.activation)
    if point is None and main.norm is None and main.activation is not None:
        return replace(design, lines=(f"No critical initialisation: {design.reason}",))
    numbers = _Numbers(points, point, any(one.norm is not None for one in readings), len(residual), x_square)
    better = iter([numbers.first(readings[0].dense), *(numbers.behind(one) for one in readings[1:])])
    network = net.with_learned(next(better) if isinstance(layer, Dense) else layer for layer in net.learned)
    return replace(design, network=network, lines=tuple(_lines(design, numbers.behind(main))))


def _readings(net: Network) -> Iterator[_Reading]:
    for block in net.blocks:
        joined = block[-1].scale if isinstance(block[-1], Join) else 0.0
        last = max(place for place, step in enumerate(block) if isinstance(step, Dense))
        dense = sum(isinstance(step, Dense) for step in block)
        activation, norm = None, None
        for place, step in enumerate(block):
            if isinstance(step, Normalisation):
                norm = Norm.of_layer(step, activation is not None)
            elif isinstance(step, Elementwise):
                activation = step.activation
            elif isinstance(step, Dense):
                yield _Reading(step, activation, norm, joined if place == last else 0.0, dense == 1)
                activation, norm = None, None
            elif not isinstance(step, Fork | Join | Affine):
                position = next(at for at, layer in enumerate(net.layers) if step in getattr(layer, "inner", [layer]))
                raise no_rule(net, position, "criticality", step.no_order_one)


def _points(readings: list[_Reading]) -> tuple[dict[tuple[Activation | None, Norm | None], Critical], list[str]]:
    """Critical points by activation and normalisation, and why there are none of the others."""
    points, reasons = {}, []
    for kind in dict.fromkeys((one.activation, one.norm) for one in readings if one.activation is not None):
        try:
            points[kind] = critical(kind[0], norm=kind[1])
        except InvalidInput as error:
            reasons.append(str(error))
    return points, reasons


@dataclass(frozen=True)
class _Numbers:
    """C_b and C_W of every dense layer."""

    points: dict[tuple[Activation | None, Norm | None], Critical]
    point: Critical | None
    normalised: bool
    residual: int
    x_square: float

    def first(self, dense: Dense) -> Dense:
        if self.normalised or self.point is None:
            return replace(dense, C_b=0.0, C_W=1.0 / self.x_square)
        C_b, C_W = self.point.C_b, self.point.C_W
        if self.point.universality in (HALF_STABLE, MARGINAL):
            C_W = (self.point.K_star - C_b) / self.x_square
        return _with(dense, C_b, C_W)

    def behind(self, one: _Reading) -> Dense:
        """Behind an activation: its critical point; where that needs C_b < 0, C_b = 0 and K = 1."""
        fresh = 1.0 if not one.skip else 1.0 - one.skip**2 if one.skip < 1.0 else 1.0 / self.residual
        point = self.points.get((one.activation, one.norm))
        if point is not None:
            return _with(one.dense, fresh * point.C_b, fresh * point.C_W)
        if one.activation is None:
            return _with(one.dense, 0.0, fresh)
        square = BlockForm(norm=one.norm).profile(one.activation).moments(1.0).square
        return _with(one.dense, 0.0, fresh / float(square))


def _with(dense: Dense, C_b: float, C_W: float) -> Dense:
    """Biases that the network has not stay away."""
    return replace(dense, C_b=C_b if dense.C_b or dense.lambda_b else 0.0, C_W=C_W)


def _lines(design: BlockDesign, dense: Dense) -> Iterator[str]:
    """What is recommended for the blocks, and why."""
    block, count, point = design.block, design.residual, design.point
    numbers = f"C_b = {dense.C_b:.6g}, C_W = {dense.C_W:.6g}"
    kind = "" if point is None else f" ({point.universality})"
    if design.reason:
        yield f"No critical initialisation: {design.reason}"
    if not block.skip:
        yield f"Recommended for the hidden layers: {numbers}{kind}."
    elif block.skip < 1.0:
        share = f"1 − γ² = {block.fresh:.4g} times those of a plain layer"
        yield f"Recommended for the residual layers: {numbers}, {share}{kind}."
    else:
        yield (f"Recommended for the residual layers: {numbers}, 1/{count} of a plain layer's{kind}: a factor "
               f"1/sqrt({count}) on the branch. Or a skip of {math.sqrt(1.0 - 1.0 / count):.6g} with the same numbers, "
               "which keeps K where it is.")  # fmt: skip
    if block.skip and block.norm is None and design.activation is not None and point is not None:
        rate = (
            critical(design.activation, skip=min(block.skip, math.sqrt(1.0 - 1.0 / max(count, 2))))
            .laws()
            .coefficient["V"]
        )
        yield f"Then V/K² grows by {rate:.4g} a block; it stays finite with depth as long as 1 − γ² falls like 1/L."
    if block.norm is not None:
        yield ("Normalisation keeps the fluctuations of kernels at their one-layer value at any depth, not those of "
               "the tangent kernel, which grow with depth (theory §12).")  # fmt: skip
