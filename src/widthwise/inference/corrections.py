"""What `predict` and `posterior` share: checked arguments, tensors of order 1/n on training and test inputs together,
moments under their names, and a word when 1/n is not small.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from widthwise import devices
from widthwise.errors import AccuracyWarning, ExpansionWarning, InvalidInput, NoRule, NotDifferentiable, UnknownName
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.block_flow import with_order_one
from widthwise.flow.tensors.tensor_flow import FiniteFlow, PairRates, check_existence, finite_flow
from widthwise.inference.infinite_width import Algorithm
from widthwise.inference.linear_training import LinearAlgorithm, duration
from widthwise.memory import require_memory
from widthwise.network import (
    MLP,
    Adam,
    Dense,
    GradientDescent,
    GradientFlow,
    Momentum,
    Network,
    check_network,
    check_real,
    check_targets,
)
from widthwise.network.stability import decay_of, decays_to_zero
from widthwise.network.validation import is_one_of
from widthwise.progress import DelayedProgress
from widthwise.results.labels import TEST_PAIRS
from widthwise.tensors import CORRECTIONS, DIFFERENTIALS, WITHOUT_THETA

#: Mean and covariance of trained outputs hold no four outputs at initialisation; those of the prior, no gradients.
TRAINING_TENSORS = tuple(name for name in CORRECTIONS if name != "V")
PRIOR_TENSORS = WITHOUT_THETA
#: What the mean of a kernel, and its change under training, are made of.
CHANGE_TENSORS = ("H1", *DIFFERENTIALS)
SUMMATION_METHODS = ("auto", "full", "tiles")
#: On an accelerator, where tiles are quicker, full tensors are taken up to this many bytes, about 31 inputs in all.
SMALL_TENSORS = 1 << 28
#: Bytes for each plane and layer (tables of eleven functions up to degree 128), and for each triple of inputs: 6.2 GB
#: were seen at 68 inputs and depth 3.
PLANE_BYTES, TILE_BYTES = 1_200_000, 1500
#: Corrections above this share of the leading term are worth a warning.
LARGE_CORRECTION = 0.5
#: Estimated relative errors of the tensors above this are worth a warning.
INACCURATE = 1e-8
#: Leading terms below this share of their scale are rounding.
LEADING_ROUNDING = 1e-9


def require_tensors(net: Network, inputs: int, wanted: tuple[str, ...]) -> None:
    """Refuse kinked activations and what does not fit into memory before anything is computed."""
    check_smooth(net, wanted)
    _require_bytes(full_bytes(inputs, wanted), 4, inputs, f", {len(wanted)} tensors of up to {inputs}⁴ entries")


def _require_bytes(needed: int, power: int, inputs: int, how: str) -> None:
    """Refuse what does not fit, and say how many inputs would: memory grows like inputs^power."""

    def fitting(limit: int) -> str:
        most = int(inputs * (limit / needed) ** (1.0 / power))
        return f"Take up to {most} inputs in all, for example fewer test inputs at a time, or order=0."

    require_memory(needed, f"order=1 on {inputs} training and test inputs{how}", fitting)


def check_smooth(net: Network, wanted: tuple[str, ...]) -> None:
    """Refuse activations for which the tensors do not exist, with a neighbour for which they do."""
    remedy = "Take order=0, or a smooth neighbour: gelu or swish for relu, erf for a step."
    if "R" in wanted:
        remedy += " `posterior(order=1)` needs no derivatives, and `train` measures trained networks of any activation."
    for sigma in net.activations:
        try:
            check_existence((sigma,), wanted)
        except NotDifferentiable as error:
            raise NotDifferentiable(
                "net",
                f"{sigma.name} with order=1: {error.got}",
                error.expected,
                remedy,
            ) from None


def full_bytes(inputs: int, wanted: tuple[str, ...]) -> int:
    """Memory of the tensors: those of two layers, or in two bases, what one rule reads with its temporaries, weights
    of the algorithm."""
    return (2 * len(wanted) + 12) * 8 * inputs**4


def tiled_bytes(net: Network, inputs: int) -> int:
    """Memory without them: tables of planes at every layer, and a tile with faces and weights."""
    return (net.depth - 1) * inputs * (inputs + 1) // 2 * PLANE_BYTES + TILE_BYTES * inputs**3


def check_cumulants(cumulants: Any) -> int:
    """2, 3 or 4."""
    if not is_one_of(cumulants, (2, 3, 4)):
        raise InvalidInput(
            "cumulants", repr(cumulants), "2, 3 or 4: those above the fourth are of higher order in 1/width"
        )
    return cumulants


def tensors_up_to(highest: int) -> tuple[str, ...]:
    """What cumulants of trained outputs are made of: only from the fourth on, of four outputs at initialisation."""
    return TRAINING_TENSORS if highest < 4 else CORRECTIONS


def choose_method(net: Network, inputs: int, method: str, highest: int = 2) -> str:
    """ "full" or "tiles" for `predict`: full tensors unless they are larger than all that tiles need.

    Up to there they are also quicker on a processor. What does not fit is refused.
    """
    if not is_one_of(method, SUMMATION_METHODS):
        raise UnknownName.of("method", method, SUMMATION_METHODS)
    check_smooth(net, TRAINING_TENSORS)
    if not isinstance(net, MLP):
        if method == "tiles":
            raise NoRule(
                "method", "'tiles' for a network with skips or normalisation", "'auto' or 'full'",
                "Its neurons have a memory, which is followed for all inputs together.",
            )  # fmt: skip
        method = "full"
    if highest > 2:
        if method == "tiles":
            raise InvalidInput(
                "method", f"'tiles' with cumulants={highest}", "'auto' or 'full'", "Or take cumulants=2."
            )
        method = "full"
    largest = SMALL_TENSORS if devices.on_accelerator() else tiled_bytes(net, inputs)
    if method == "full" or (method == "auto" and full_bytes(inputs, TRAINING_TENSORS) <= largest):
        require_tensors(net, inputs, tensors_up_to(highest))
        return "full"
    _require_bytes(tiled_bytes(net, inputs), 3, inputs, " in tiles")
    return "tiles"


def joint_tensors(net: Network, X: np.ndarray, wanted: tuple[str, ...], progress=None) -> FiniteFlow:
    """The tensors of the output layer on all inputs."""
    flow = finite_flow(net, X, wanted, with_theta="H1" in wanted, last_only=True, progress=progress)
    warn_if_inaccurate(flow.error, 5)
    return flow


def warn_if_inaccurate(error: float, level: int) -> None:
    """A word, `level` calls up, about tensors whose estimated error is above what averages need."""
    if error > INACCURATE:
        warnings.warn(
            f"estimated relative error {error:.1e} of the tensors of order 1/n: nearly parallel inputs at a "
            "kernel so large that the activation oscillates or saturates within it",
            AccuracyWarning,
            stacklevel=level,
        )


def layer_flows(net: MLP, X: np.ndarray, training: int) -> Iterator[FiniteFlow]:
    """For each layer the tensors on X, training inputs first, of a kernel at the tests that this layer makes alone.

    The kernel is a sum Ĥ = Σ_l Ĥ^(l), l the layer whose parameters are differentiated (theory §3, §8). Training moves
    Ĥ^(l) by the equations of theory §8 with λ^(l), the rates of layer l alone, between its two slots, and the full λ
    wherever a slot meets an error ε:
        Ĥ^(l)_ij;ab → Ĥ^(l) − η (dH_ijk;abc + dH_jik;bac) ε_kc + …,    λ_1 = λ^(l) between a and b,  λ_2 = λ to c.
    With the kernel at test inputs and the errors at training inputs that is one network with `PairRates`: λ^(l) between
    two tests, λ otherwise. The parts add up to the whole.

    >>> net = MLP([1, 8, 8, 1], "tanh", C_b=0.1)
    >>> X = np.array([[0.5], [-1.0]])
    >>> parts = [flow.Theta[-1][1, 1] for flow in layer_flows(net, X, 1)]
    >>> bool(np.isclose(sum(parts), kernel_flow(net, X).Theta[-1][1, 1]))
    True
    """
    whole, at_tests = kernel_flow(net, X).Theta, np.arange(len(X)) >= training
    between_tests = at_tests[:, None] & at_tests
    full = np.array(net.lambda_W)[:, None, None]
    for layer in range(net.depth):
        alone = np.arange(net.depth) == layer
        part = kernel_flow(net.replace(lambda_b=alone * net.lambda_b, lambda_W=alone * net.lambda_W), X).Theta
        lambda_W = np.where(between_tests, full * alone[:, None, None], full)
        rates = PairRates(lambda_W, np.where(between_tests, part, whole))
        yield finite_flow(net, X, CHANGE_TENSORS, last_only=True, rates=rates)


def at_output(flow: FiniteFlow) -> dict[str, np.ndarray]:
    """K and the tensors of the last layer, by name."""
    return {"K": flow.K[-1]} | {name: tensor[-1] for name, tensor in flow.tensors.items()}


def warn_if_large(net: Network, what: str, leading: float, correction: float, scale: float) -> None:
    """An expansion whose first correction is of the size of the leading term says little.

    Nothing is said where the leading term vanishes against the `scale`, as it does at training inputs.
    """
    size = abs(correction) / net.n
    if abs(leading) > LEADING_ROUNDING * scale and size > LARGE_CORRECTION * abs(leading):
        warnings.warn(
            f"order=1: at n = {net.n} the correction to the {what} is {size / abs(leading):.2g} of the leading term: "
            "1/n is not small here; widen the network, or make it shallower",
            ExpansionWarning,
            stacklevel=4,
        )


def check_data(net: Network, X_train: Any, y_train: Any, X_test: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    outputs = check_network(net).widths[-1]
    X = net.check_inputs(X_train, "X_train")
    y, tests = check_targets(y_train, len(X), outputs), net.check_inputs(X_test, "X_test")
    # the kernel of the test inputs, their covariance, and that by outputs
    of_a_pair = 8 * (2 + outputs**2)
    require_memory(
        of_a_pair * len(tests) ** 2,
        f"covariances of {len(tests)} test inputs",
        lambda limit: f"What would fit: {math.isqrt(limit // of_a_pair)} test inputs at a time.",
    )
    return X, y, tests


def check_algorithm(algorithm: Any, finite: bool = True, *, momentum: bool = False) -> Any:
    """An algorithm that is solved at infinite width, or with `finite` to order 1/n; `momentum` to convergence too."""
    if algorithm is None:
        return GradientFlow()
    if isinstance(algorithm, Adam):
        raise InvalidInput(
            "algorithm", repr(algorithm), "an algorithm that is linear in the gradient",
            "Adam divides each parameter's gradient by its size: `train` measures where it ends.",
        )  # fmt: skip
    if not isinstance(algorithm, LinearAlgorithm):
        names = "GradientFlow(), GradientDescent(learning_rate), Momentum, SGD or NewtonStep()"
        raise InvalidInput("algorithm", repr(algorithm), names)
    if decays_to_zero(algorithm):
        if finite or not isinstance(algorithm, GradientFlow | GradientDescent) or duration(algorithm) is None:
            asked = " with order=1" if finite else ""
            raise InvalidInput(
                "algorithm", f"{algorithm!r}{asked}",
                'GradientFlow for a time, or GradientDescent for a number of steps, with order=0; or '
                'decay_to="initialisation"',
                "Decay towards zero moves parameters, and the kernel with them, at order one: no network that is "
                "linear about its start describes it, and nothing is left of it in the end. `train` measures it.",
            )  # fmt: skip
        return algorithm
    solved = isinstance(algorithm, Algorithm) or (
        momentum and isinstance(algorithm, Momentum) and algorithm.steps is None and algorithm.batch_size is None
    )
    if finite and (not solved or decay_of(algorithm) > 0.0):
        more = ", or Momentum on full batches to convergence" if momentum else ""
        raise InvalidInput(
            "algorithm", f"{algorithm!r} with order=1",
            f"GradientFlow, GradientDescent or NewtonStep{more}, undecayed",
            "Take order=0, or measure it with `train`.",
        )  # fmt: skip
    return algorithm


def check_order(order: int) -> None:
    if not is_one_of(order, (0, 1)):
        raise InvalidInput("order", repr(order), "0 or 1: the expansion in 1/width ends at its first order")


def network_for(order: int, net: Network) -> Network:
    """The network, whose layers must have a rule where order 1 is asked for, the last of them a plain one."""
    check_order(order)
    if order == 0:
        return check_network(net)
    net = with_order_one(net, "order=1")
    if not isinstance(net.layers[-1], Dense):
        raise NoRule(
            "net", f"outputs read from the stream itself, layers[{len(net.layers) - 1}], with order=1",
            "a plain output layer", "Add an activation and a Dense layer, or take order=0.",
        )  # fmt: skip
    return net


def check_noise(noise: float) -> float:
    return check_real("noise", noise, "a finite non-negative variance")


AT_TESTS = ("output", "test")


def joint_flow(net: Network, X: np.ndarray, X_test: np.ndarray, wanted: tuple[str, ...]) -> FiniteFlow:
    """Tensors of order 1/n on training inputs, then test inputs, behind a progress bar."""
    with DelayedProgress("tensors of order 1/n", None) as progress:
        return joint_tensors(net, np.concatenate([X, X_test]), wanted, progress)


def expansion(name: str, dims: tuple[str, ...], coefficients: Sequence[Any], n: int) -> dict[str, tuple]:
    """Coefficients of powers of 1/n as variables name0, name1, and their sum at this width.

    >>> expansion("error", (), [2.0, 6.0], 3)
    {'error0': ((), 2.0), 'error1': ((), 6.0), 'error': ((), 4.0)}
    """
    if not all(np.isfinite(value).all() for value in coefficients):
        raise InvalidInput(
            "X_train, y_train", f"numbers at which {name} overflows", "kernels that are not tiny beside the targets",
            "Rescale the inputs or the targets.",
        )  # fmt: skip
    powers = {f"{name}{power}": (dims, value) for power, value in enumerate(coefficients)}
    return powers | {name: (dims, sum(value / n**power for power, value in enumerate(coefficients)))}


def moment_variables(net: Network, means: Sequence[np.ndarray], covariances: Sequence[np.ndarray], scale: Any):
    """Coefficients of mean and covariance as variables; a warning where those of 1/n are not small.

    `scale` is the size of the prior's covariance, against which leading terms may vanish.
    """
    (mean0, *mean1), (cov0, *cov1) = means, covariances
    if mean1:
        typical = math.sqrt(np.sum(mean0**2) + max(np.einsum("ixix->", cov0), 0.0))
        warn_if_large(net, "mean", typical, float(np.linalg.norm(mean1)), math.sqrt(scale))
        warn_if_large(net, "covariance", float(np.linalg.norm(cov0)), float(np.linalg.norm(cov1)), scale)
    return expansion("mean", AT_TESTS, means, net.n) | expansion("cov", TEST_PAIRS, covariances, net.n)


def per_output(covariance: np.ndarray, outputs: int) -> np.ndarray:
    """δ_ij times the covariance, on (output, input, output', input')."""
    return np.einsum("ij,xy->ixjy", np.eye(outputs), covariance)
