"""What one given model predicts after training, from derivatives at its start: the trained output of theory §8.

Nothing is averaged: Ĥ, dĤ, ddIĤ and ddIIĤ are those of the model itself, and errors decay in the eigenbasis of its
own Ĥ on the training data. Output and input make one index.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from widthwise.errors import ExpansionWarning, InvalidInput
from widthwise.inference.corrections import LARGE_CORRECTION, LEADING_ROUNDING, check_algorithm
from widthwise.inference.infinite_width import Algorithm, Spectrum
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.einsum import einsum
from widthwise.inference.trained.trained_moments import (
    DDH_TERMS,
    DH_TERMS,
    EventTerm,
    TermWeights,
    readout_at_tests,
    rotate,
)
from widthwise.network import Network, check_targets
from widthwise.readers.empirical.directional_derivatives import DirectionalDerivatives, directional_derivatives
from widthwise.readers.empirical.model_functions import CallArguments, count_inputs, function_of
from widthwise.readers.empirical.model_kernels import tensor_rates
from widthwise.readers.empirical.tangent_kernels import TangentRows
from widthwise.results.labels import label


def predict_model(
    model: Any, X: Any, y: Any, X_test: Any, algorithm: Algorithm | None = None, net: Network | None = None
) -> xr.Dataset:
    """The outputs of one given model after training on ½Σ(z−y)², to the order of the ddNTK (theory §8).

    z* = free + dNTK + ddNTK. The free part keeps the model's own Ĥ, the others are the first corrections as it moves;
    what is left out falls faster than 1/width. An `ExpansionWarning` says when the corrections are as large.

    Parameters
    ----------
    model : any torch, Flax (nnx) or Equinox module that can be differentiated three times, in evaluation mode.
    X, y : training inputs (inputs, …), and targets (inputs, outputs) or (inputs,) for one output.
    X_test : (tests, …).
    algorithm : `GradientFlow()` (default) or `GradientDescent(learning_rate)`, to convergence or for a given time; or
        `NewtonStep()`.
    net : the network whose λ are the learning rates by tensor, for a model that can be read; without it each is 1.

    Returns
    -------
    Dataset on (output, test): `initial`, the `free` part, the parts `dNTK` and `ddNTK`, and their sum `mean`, called as
    in `predict`; the same at the training inputs as `train_mean` on (output, train). `rate` on (mode,) are the
    eigenvalues of Ĥ on the training data. The algorithm's projectors, the weights of dĤ ε ε and ddĤ ε ε ε at a test
    input, are `projector_dNTK` on (dH_term, p, q) and `projector_ddNTK` on (ddH_term, p, q, r), the terms
    named by their slots: "apq" is dĤ_ijk;apq.

    >>> import torch, widthwise as ww
    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    >>> p = predict_model(model, [[-1.0], [1.0]], [0.5, -0.5], [[0.0], [1.0]])
    >>> bool(abs(p["mean"][0, 1] + 0.5) < 1e-6), p["projector_ddNTK"].shape   # the training data are fitted
    (True, (6, 2, 2, 2))
    """
    solved: Algorithm = check_algorithm(algorithm)
    f = function_of(model)
    train, test = f.read(X, "X"), f.read(X_test, "X_test")
    training, rates = count_inputs(train), tensor_rates(model, net)
    outputs = f.outputs(train).shape[1]
    f.outputs(test)  # what the model cannot be called on is refused in its own words
    rows = TangentRows(f, _train_then_test(f.library, train, test), rates)
    target = check_targets(y, training, outputs, "y").ravel()
    modes = training * outputs
    alone = TangentRows(f, train, rates).kernel()
    H = alone.transpose(1, 0, 3, 2).reshape(modes, modes)
    spectrum = Spectrum.of(H)
    # coinciding inputs and steps that are too large are refused before the costly derivatives
    spectrum.check(solved, H, _flat_inputs(f.numpy, train))
    found = _in_eigenbasis(directional_derivatives(rows, training), spectrum.vectors)
    clock, errors = Clock.of(solved), found.z.copy()
    errors[:modes] -= spectrum.vectors.T @ target
    others = len(errors) - modes
    at_tests = TermWeights(clock, dict.fromkeys("apqr", spectrum.values), others, at_training=False)
    readout = readout_at_tests(found.H, modes)
    parts = {name: readout @ part for name, part in _trained_parts(at_tests, found, errors, modes).items()}
    _warn_if_large(rows.outputs[training:].ravel(), parts)
    fitted = target
    if clock.duration is not None:
        weights = TermWeights(clock, dict.fromkeys("apqr", spectrum.values), 0, at_training=True)
        fitted = target + spectrum.vectors @ sum(_trained_parts(weights, found, errors, modes).values())

    def shaped(values: np.ndarray, at: str) -> tuple[tuple[str, str], np.ndarray]:
        return ("output", at), values.reshape(-1, outputs).T

    variables = {name: shaped(part, "test") for name, part in parts.items()}
    variables |= {"mean": shaped(np.sum(list(parts.values()), axis=0), "test"), "train_mean": shaped(fitted, "train")}
    variables |= {"initial": shaped(rows.outputs[training:].ravel(), "test"), "rate": (("mode",), spectrum.values)}
    variables |= {
        "projector_dNTK": (("dH_term", "p", "q"), _projectors(DH_TERMS, at_tests.dH())),
        "projector_ddNTK": (("ddH_term", "p", "q", "r"), -_projectors(DDH_TERMS, at_tests.ddH())),
    }
    names = {"dH_term": _term_names(DH_TERMS), "ddH_term": _term_names(DDH_TERMS)}
    return label(variables, net, names, kind="predict_model", algorithm=repr(solved), parameters=f.size)


def _warn_if_large(initial: np.ndarray, parts: dict[str, np.ndarray]) -> None:
    """Corrections as large as what the fixed kernel moves the outputs by say that the next ones are no smaller."""
    moved, added = np.linalg.norm(parts["free"] - initial), np.linalg.norm(parts["dNTK"] + parts["ddNTK"])
    if added > LARGE_CORRECTION * moved and added > LEADING_ROUNDING * np.linalg.norm(initial):
        warnings.warn(
            f"predict_model: the parts of dNTK and ddNTK are {added / max(moved, 1e-300):.2g} times what the fixed "
            "kernel moves the outputs by: what is left out is no smaller; widen the model, or train it for less",
            ExpansionWarning,
            stacklevel=3,
        )


def _train_then_test(library: Any, one: CallArguments, other: CallArguments) -> CallArguments:
    shapes = [[tuple(v.shape[1:]) for v in (*each[0], *each[1].values())] for each in (one, other)]
    if shapes[0] != shapes[1] or set(one[1]) != set(other[1]):
        raise InvalidInput("X_test", f"inputs of shapes {shapes[1]}", f"those of X, {shapes[0]}")
    join = library.cat if hasattr(library, "cat") else library.concatenate
    positional = tuple(join([a, b]) for a, b in zip(one[0], other[0], strict=True))
    return positional, {name: join([value, other[1][name]]) for name, value in one[1].items()}


def _flat_inputs(numpy: Any, arguments: CallArguments) -> np.ndarray:
    positional, named = arguments
    return np.concatenate([numpy(v).reshape(len(v), -1) for v in (*positional, *named.values())], axis=1)


def _in_eigenbasis(found: DirectionalDerivatives, U: np.ndarray) -> DirectionalDerivatives:
    return DirectionalDerivatives(*(rotate(part, U) for part in vars(found).values()))


def _trained_parts(
    weights: TermWeights, found: DirectionalDerivatives, errors: np.ndarray, modes: int
) -> dict[str, np.ndarray]:
    """Y_a of theory §8 with ΔĤ = 0, part by part, over the modes and then the test inputs that the weights have."""
    ends = modes + weights.others
    trained = errors[:modes]
    parts = {"free": weights.with_ends(weights.free()[0]) * errors[:ends]}
    for name, terms, orders, letters, sign in (
        ("dNTK", DH_TERMS, weights.dH(), "apq", 1.0),
        ("ddNTK", DDH_TERMS, weights.ddH(), "apqr", -1.0),
    ):
        total = np.zeros(ends)
        for term in terms:
            weight = _counted(term, orders)
            if weight is not None:
                tensor, slots = found.slots(term.factor.kind, term.factor.inputs)
                tensor = tensor[tuple(slice(ends) if slot == "a" else slice(None, modes) for slot in slots)]
                values = np.broadcast_to(weights.with_ends(weight), (ends, *weight.shape[1:]))
                each = [trained] * (len(letters) - 1)
                expression = f"{letters},{slots},{','.join(letters[1:])}->a"
                total += sign * einsum(expression, values, tensor, *each)
        parts[name] = total
    return parts


def _counted(term: EventTerm, orders: dict[int, np.ndarray]) -> np.ndarray | None:
    """The weight of one term, summed over the orders of events in which it counts."""
    counted = [term.counts[order] * values for order, values in orders.items() if term.counts[order]]
    return sum(counted[1:], counted[0]) if counted else None


def _projectors(terms: Sequence[EventTerm], orders: dict[int, np.ndarray]) -> np.ndarray:
    """Weights at a test input, which is the last along a, term by term."""
    like = np.zeros_like(next(iter(orders.values()))[-1])
    each = [_counted(term, orders) for term in terms]
    return np.stack([like if weight is None else weight[-1] for weight in each])


def _term_names(terms: Sequence[EventTerm]) -> list[str]:
    return [f"{term.factor.kind} {term.factor.inputs}" for term in terms]
