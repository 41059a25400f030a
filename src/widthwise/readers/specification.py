"""From the weights of a model to its specification: measured variances, or the initialisation that made them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from widthwise.errors import WeightsWarning
from widthwise.network import MLP
from widthwise.readers.chains import LayerChain
from widthwise.readers.weights import Finding, SecondMoment, findings

#: A common variance of several layers is refused below this probability.
UNLIKELY = 0.01
#: A named initialisation must agree within so many standard errors.
NEAR = 4.0


@dataclass(frozen=True)
class Reading:
    """What was read from a model.

    `net` is the specification; `C_W`, `C_b` are the measured n_{l−1}·mean(W²) and mean(b²) of each layer with their
    standard errors; `initialisation` names the known initialisation that they are consistent with, if one is; and
    `findings` says what speaks against independent zero-mean entries. `chain` holds the weights themselves.
    """

    net: MLP
    chain: LayerChain
    C_W: tuple[SecondMoment, ...]
    C_b: tuple[SecondMoment, ...]
    initialisation: str | None
    findings: tuple[Finding, ...]

    def pulls(self, net: MLP) -> dict[str, np.ndarray]:
        """(measured − net's)/standard error for C_W and C_b, layer by layer; errors are those of Gaussian entries."""
        return {
            name: np.array([_pull(*pair) for pair in zip(getattr(self, name), getattr(net, name), strict=True)])
            for name in ("C_W", "C_b")
        }


def read_chain(
    chain: LayerChain,
    learning_rate: float,
    activation: Any,
    recognise: bool,
    rates: Sequence[tuple[float, float]] | None = None,
) -> Reading:
    """The specification of a chain; `rates` of weights and biases by layer are used instead of one for all."""
    C_W = tuple(SecondMoment.of(layer.W, layer.W.shape[1]) for layer in chain.dense)
    C_b = tuple(SecondMoment.of(np.zeros(len(layer.W)) if layer.b is None else layer.b) for layer in chain.dense)
    name, values = _recognised(chain, C_W, C_b) if recognise else (None, None)
    if values is None:
        values = _pooled(C_b), _pooled(C_W)
    if activation is None:
        activation = chain.activations or "linear"
    rates = rates or [(learning_rate, learning_rate)] * len(chain.dense)
    lambda_b = [0.0 if layer.b is None else rate for layer, (_, rate) in zip(chain.dense, rates, strict=True)]
    lambda_W = [rate * layer.W.shape[1] for layer, (rate, _) in zip(chain.dense, rates, strict=True)]
    net = MLP(chain.widths, activation, *values, lambda_b, lambda_W)
    found = findings([layer.W for layer in chain.dense], [layer.b for layer in chain.dense])
    return Reading(net, chain, C_W, C_b, name, tuple(found))


def net_or_warning(reading: Reading) -> MLP:
    """The specification, with a warning if the weights are no draw from any such specification."""
    if reading.findings:
        shown = "; ".join(map(str, reading.findings[:6]))
        more = f"; and {len(reading.findings) - 6} more" if len(reading.findings) > 6 else ""
        warnings.warn(
            f"the weights are not consistent with independent zero-mean entries of one variance per layer (trained, "
            f"orthogonal or tied weights?): {shown}{more}. C_W and C_b are their mean squares all the same",
            WeightsWarning,
            stacklevel=3,
        )
    return reading.net


def _pooled(moments: Sequence[SecondMoment]) -> list[float]:
    """One value for all layers where they agree with one (χ² law of Gaussian entries); else each its own."""
    total = sum(moment.entries for moment in moments)
    common = sum(moment.value * moment.entries for moment in moments) / total
    own = [moment.value for moment in moments]
    if common == 0.0:
        return own
    below = [stats.chi2.cdf(moment.entries * moment.value / common, moment.entries) for moment in moments]
    return own if min(min(p, 1.0 - p) for p in below) < UNLIKELY else [common] * len(own)


def _recognised(chain: LayerChain, C_W, C_b) -> tuple[str | None, tuple[list[float], list[float]] | None]:
    """A known initialisation, and its C_b and C_W, if the weights are consistent with exactly one."""
    widths = chain.widths
    uniform = MLP.torch_default(widths, "linear")
    bounded = all(_bounded(layer) for layer in chain.dense)
    if bounded and _agree(C_W, uniform.C_W) and any(layer.b is not None for layer in chain.dense):
        C = [0.0 if layer.b is None else C for layer, C in zip(chain.dense, uniform.C_b, strict=True)]
        return "uniform on ±1/√fan-in (the default of torch and Equinox)", (C, list(uniform.C_W))
    if any(moment.value for moment in C_b):
        return None, None
    candidates = {
        "He": MLP.he(widths, "relu").C_W,
        "LeCun (the default of Flax)": MLP.lecun(widths).C_W,
        "Glorot": MLP.glorot(widths).C_W,
    }
    fitting = {name: values for name, values in candidates.items() if _agree(C_W, values)}
    if len(set(fitting.values())) != 1:
        return None, None
    name, values = next(iter(fitting.items()))
    return name, ([0.0] * len(values), list(values))


def _bounded(layer) -> bool:
    """Entries within ±1/√fan-in, to the rounding of single precision."""
    bound = (1.0 + 1e-6) / math.sqrt(layer.W.shape[1])
    return bool(np.all(np.abs(layer.W) <= bound)) and (layer.b is None or bool(np.all(np.abs(layer.b) <= bound)))


def _agree(measured: Sequence[SecondMoment], values: Sequence[float]) -> bool:
    return all(abs(_pull(moment, value)) < NEAR for moment, value in zip(measured, values, strict=True))


def _pull(moment: SecondMoment, value: float) -> float:
    error = max(moment.error, math.sqrt(2.0 / moment.entries) * value if moment.entries <= 8 else 0.0)
    if moment.value == value:
        return 0.0
    return (moment.value - value) / error if error > 0 else math.copysign(math.inf, moment.value - value)
