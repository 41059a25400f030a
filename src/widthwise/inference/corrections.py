"""Tensors of order 1/n on training and test inputs together, and a word when 1/n is not small."""

from __future__ import annotations

import warnings

import numpy as np

from widthwise.errors import AccuracyWarning, ExpansionWarning, NotDifferentiable
from widthwise.flow.finite import FiniteFlow, check_existence, finite_flow
from widthwise.memory import available_bytes, require_memory
from widthwise.network import MLP

TRAINING = ("G1", "H1", "A", "B", "D", "F", "P", "Q", "R", "S", "T", "U")
PRIOR = ("G1", "V")
#: Corrections above this share of the leading term are worth a warning.
LARGE = 0.5
#: Estimated relative errors of the tensors above this are worth a warning.
INACCURATE = 1e-8
#: Leading terms below this share of their scale are rounding.
ROUNDING = 1e-9


def require_tensors(net: MLP, inputs: int, wanted: tuple[str, ...]) -> None:
    """Refuse kinked activations and what does not fit into memory before anything is computed."""
    try:
        check_existence(net.activation, wanted)
    except NotDifferentiable as error:
        raise NotDifferentiable(
            "net",
            f"{net.activation.name} with order=1: {error.got}",
            error.expected,
            "Take order=0, or a smooth neighbour: gelu or swish for relu, erf for a step.",
        ) from None
    full = 8 * inputs**4
    # tensors of two layers, or in two bases, what one rule reads with its temporaries, weights of the algorithm
    needed = (2 * len(wanted) + 12) * full
    most = int(inputs * (available_bytes() / needed) ** 0.25)
    require_memory(
        needed,
        f"order=1 on {inputs} training and test inputs, {len(wanted)} tensors of up to {inputs}⁴ entries",
        f"Take up to {most} inputs in all, for example fewer test inputs at a time, or order=0.",
    )


def joint_tensors(net: MLP, X: np.ndarray, wanted: tuple[str, ...], progress=None) -> FiniteFlow:
    """The tensors of the output layer on all inputs."""
    flow = finite_flow(net, X, wanted, with_theta="H1" in wanted, last_only=True, progress=progress)
    if flow.error > INACCURATE:
        warnings.warn(
            f"estimated relative error {flow.error:.1e} of the tensors of order 1/n: nearly parallel inputs at a "
            "kernel so large that the activation oscillates or saturates within it",
            AccuracyWarning,
            stacklevel=4,
        )
    return flow


def at_output(flow: FiniteFlow) -> dict[str, np.ndarray]:
    """K and the tensors of the last layer, by name."""
    return {"K": flow.K[-1]} | {name: tensor[-1] for name, tensor in flow.tensors.items()}


def warn_if_large(net: MLP, what: str, leading: float, correction: float, scale: float) -> None:
    """An expansion whose first correction is of the size of the leading term says little.

    Nothing is said where the leading term vanishes against the `scale`, as it does at training inputs.
    """
    size = abs(correction) / net.n
    if abs(leading) > ROUNDING * scale and size > LARGE * abs(leading):
        warnings.warn(
            f"order=1: at n = {net.n} the correction to the {what} is {size / abs(leading):.2g} of the leading term: "
            "1/n is not small here; widen the network, or make it shallower",
            ExpansionWarning,
            stacklevel=4,
        )
