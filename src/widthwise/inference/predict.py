"""`predict` and `max_learning_rate`: trained networks at infinite width and to order 1/n (theory §8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from widthwise.criticality.learning_rates import largest_stable_step
from widthwise.errors import InvalidInput
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.quadruple_flow import QuadrupleFlow
from widthwise.inference.arguments import check_algorithm, check_data, check_loss, network_for
from widthwise.inference.corrections import (
    TRAINING_TENSORS,
    at_output,
    choose_method,
    require_tensors,
    warn_if_inaccurate,
)
from widthwise.inference.labelled import corrected, joint_flow, labelled_moments, per_output
from widthwise.inference.linear_training import Kernels, trained
from widthwise.inference.tiled.contracted_moments import contracted_moments
from widthwise.inference.tiled.quadruple_tiles import count_quadruples
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import Basis, OutputMoments, moments_at_tests, moments_at_training
from widthwise.inference.training_kernel import Algorithm, Spectrum
from widthwise.network import MLP, Network, check_inputs, check_network, plain
from widthwise.progress import DelayedProgress
from widthwise.results.labels import label

_TRAIN_PAIRS = ("output", "train", "output_", "train_")


def predict(
    net: Network,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    algorithm: Algorithm | None = None,
    *,
    order: int = 0,
    loss: str = "squared",
    method: str = "auto",
) -> xr.Dataset:
    """Mean and covariance, over initialisations, of the trained network's outputs (theory §8).

    Parameters
    ----------
    X_train, y_train : (inputs, features), and (inputs, outputs) or (inputs,) for one output.
    X_test : (tests, features).
    algorithm : `GradientFlow()` (default) or `GradientDescent(learning_rate)`, to convergence or for a given
        time; or `NewtonStep()`, which fits the training data in one step.
    order : 0, infinite width; 1, with the corrections of order 1/n, n the last hidden width.
    loss : "squared", ½Σ(z−y)², the one loss under which training is solved.
    method : how order 1 is summed. "full" holds every tensor on all training and test inputs, memory like N⁴; "tiles"
        carries a part of the quadruples of inputs to the output at a time, sums it and drops it, memory like N³.
        "auto" takes "full" where that is smaller, up to 67 inputs in all at depth 3, and for activations too sharp for
        tiles; otherwise "tiles". The attribute `method` says which. Results agree to the tolerance of the tensors.

    Returns
    -------
    Dataset with mean0, mean on (output, test), cov0, cov on (output, test, output_, test_), and the same at the
    training inputs as train_mean0 on (output, train), train_cov0 on (output, train, output_, train_). With order=1
    mean1, cov1, train_mean1, train_cov1 are the coefficients of 1/n, and mean = mean0 + mean1/n, cov = cov0 + cov1/n.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5)
    >>> p = ww.predict(net, [[-1.0], [1.0]], [0.5, -0.5], [[-1.0], [0.0]])
    >>> bool(abs(p["mean"] - [[0.5, 0.0]]).max() < 1e-9)
    True
    >>> p = ww.predict(net, [[-1.0], [1.0]], [0.5, 0.5], [[0.0]], order=1)
    >>> bool(p["mean"] == p["mean0"] + p["mean1"] / 64)
    True
    """
    check_loss(loss)
    net = network_for(order, net)
    X, y, X_test = check_data(net, X_train, y_train, X_test)
    algorithm = check_algorithm(algorithm)
    chosen = choose_method(net, len(X) + len(X_test), method) if order == 1 else method
    kernels = _kernel_blocks(net, X, X_test)
    spectrum = Spectrum.of(kernels.Theta_AA)
    spectrum.check(algorithm, kernels.Theta_AA, X)
    at_test, at_train = trained(kernels, y, spectrum.response(algorithm))
    variables = labelled_moments(at_test.mean, at_test.covariance, y.shape[1]) | {
        "train_mean0": (("output", "train"), at_train.mean.T),
        "train_cov0": (_TRAIN_PAIRS, per_output(at_train.covariance, y.shape[1])),
    }
    details = {"kind": "predict", "order": order, "algorithm": repr(algorithm)}
    if order == 1:
        tests, training, how = _order_one(
            plain(net, "order=1"), X, y, X_test, spectrum, Clock.of(algorithm), chosen, method
        )
        details |= how
        variables = corrected(net, variables, tests.mean, tests.covariance, np.linalg.norm(kernels.K_xx))
        variables["train_mean1"] = (("output", "train"), training.mean)
        variables["train_cov1"] = (_TRAIN_PAIRS, training.covariance)
    return label(variables, net, **details)


def _order_one(
    net: MLP,
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    spectrum: Spectrum,
    clock: Clock,
    method: str,
    asked: str,
) -> tuple[OutputMoments, OutputMoments, dict[str, Any]]:
    """Coefficients of 1/n at test and at training inputs, and how they were computed."""
    if method == "tiles":
        total = count_quadruples(len(X), len(X_test), net.depth)
        with DelayedProgress("tiles of order 1/n", None) as bar:
            inputs = np.concatenate([X, X_test])
            tiled = QuadrupleFlow(net, inputs, TRAINING_TENSORS, progress=lambda done: bar(done, total))
            if tiled.possible:
                tests, training = contracted_moments(tiled, spectrum, y, clock)
                warn_if_inaccurate(tiled.error, 4)
                return tests, training, {"route": "Hermite planes", "numerical_error": tiled.error, "method": "tiles"}
        if asked == "tiles":
            names = dict.fromkeys(sigma.name for sigma in net.activations)
            raise InvalidInput(
                "method",
                f"'tiles' for {' and '.join(names)}, too sharp at these kernels for Hermite planes",
                "'auto' or 'full'",
                "Such expectations are sampled, for all inputs at once.",
            )
        require_tensors(net, len(inputs), TRAINING_TENSORS)
    flow = joint_flow(net, X, X_test, TRAINING_TENSORS)
    basis = Basis.of(spectrum, flow.Theta[-1], at_output(flow), y)
    (_, tests), (_, training) = moments_at_tests(basis, clock), moments_at_training(basis, clock)
    return tests, training, {"route": flow.route, "numerical_error": flow.error, "method": "full"}


def max_learning_rate(net: Network, X_train: Any) -> float:
    """2/λ_max of Θ on the training inputs: gradient descent with a smaller step converges (theory §8).

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "linear")
    >>> round(ww.max_learning_rate(net, [[1.0]]), 6)
    0.5
    """
    X = check_inputs(X_train, check_network(net).widths[0], "X_train")
    return largest_stable_step(net, X)


def _kernel_blocks(net: Network, X: np.ndarray, X_test: np.ndarray) -> Kernels:
    AA, xA = (kernel_flow(net, a, b, last_only=True) for a, b in ((X, None), (X_test, X)))
    xx = kernel_flow(net, X_test, with_theta=False, last_only=True)
    assert AA.Theta is not None
    assert xA.Theta is not None
    return Kernels(AA.K[0], xA.K[0], xx.K[0], AA.Theta[0], xA.Theta[0])
