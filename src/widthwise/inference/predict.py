"""`predict`, `posterior` and their companions, as labelled Datasets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr

from widthwise.criticality.learning_rates import largest_stable_step
from widthwise.errors import InvalidInput
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.quadruple_flow import QuadrupleFlow
from widthwise.flow.tensors.tensor_flow import FiniteFlow
from widthwise.inference.corrections import (
    PRIOR,
    TRAINING,
    at_output,
    choose_method,
    joint_tensors,
    require_tensors,
    warn_if_inaccurate,
    warn_if_large,
)
from widthwise.inference.gaussian_process import GaussianProcess, draw
from widthwise.inference.linear_training import Kernels, trained
from widthwise.inference.posterior_corrections import posterior_corrections
from widthwise.inference.tiled.contracted_moments import contracted_moments
from widthwise.inference.tiled.quadruple_tiles import count_quadruples
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import Basis, OutputMoments, moments_at_tests, moments_at_training
from widthwise.inference.training_kernel import Algorithm, Spectrum, coinciding_rows, refuse_singular
from widthwise.network import GradientFlow, Network, check_inputs, check_network, plain
from widthwise.network.inputs import check_targets
from widthwise.network.validation import check_integer
from widthwise.progress import DelayedProgress
from widthwise.results.labels import TEST_PAIRS, label

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
    net = check_order(order, net)
    X, y, X_test = check_data(net, X_train, y_train, X_test)
    algorithm = check_algorithm(algorithm)
    chosen = choose_method(net, len(X) + len(X_test), method) if order == 1 else method
    kernels = _kernels(net, X, X_test)
    spectrum = Spectrum.of(kernels.Theta_AA)
    spectrum.check(algorithm, kernels.Theta_AA, X)
    at_test, at_train = trained(kernels, y, spectrum.response(algorithm))
    variables = _moments(at_test.mean, at_test.covariance, y.shape[1]) | {
        "train_mean0": (("output", "train"), at_train.mean.T),
        "train_cov0": (_TRAIN_PAIRS, _per_output(at_train.covariance, y.shape[1])),
    }
    details = {"kind": "predict", "order": order, "algorithm": repr(algorithm)}
    if order == 1:
        tests, training, how = _order_one(net, X, y, X_test, spectrum, Clock.of(algorithm), chosen, method)
        details |= how
        variables = _corrected(net, variables, tests.mean, tests.covariance, np.linalg.norm(kernels.K_xx))
        variables["train_mean1"] = (("output", "train"), training.mean)
        variables["train_cov1"] = (_TRAIN_PAIRS, training.covariance)
    return label(variables, net, **details)


def _order_one(
    net: Network,
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
            tiled = QuadrupleFlow(net, inputs, TRAINING, progress=lambda done: bar(done, total))
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
        require_tensors(net, len(inputs), TRAINING)
    flow = joint_flow(net, X, X_test, TRAINING)
    basis = Basis.of(spectrum, flow.Theta[-1], at_output(flow), y)
    (_, tests), (_, training) = moments_at_tests(basis, clock), moments_at_training(basis, clock)
    return tests, training, {"route": flow.route, "numerical_error": flow.error, "method": "full"}


def posterior(
    net: Network, X_train: Any, y_train: Any, X_test: Any, *, order: int = 0, noise: float = 0.0
) -> xr.Dataset:
    """Bayesian posterior over the network's outputs, and the log evidence (theory §9).

    At infinite width the prior is a Gaussian process with kernel K. `noise` is the variance of the observation
    noise; with none, the posterior interpolates. To order 1/n the kernel is random, and the data reweight it.

    Returns
    -------
    Dataset with mean0, mean on (output, test), cov0, cov on (output, test, output_, test_), and the scalars
    log_evidence0, log_evidence, summed over outputs. With order=1 mean1, cov1, log_evidence1 are the coefficients of
    1/n, included in mean, cov and log_evidence.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "erf", C_b=0.1, C_W=1.5)
    >>> b = ww.posterior(net, [[-1.0], [1.0]], [0.5, -0.5], [[0.0]], noise=0.01)
    >>> bool(abs(b["mean"][0, 0]) < 1e-9), bool(b["cov"] > 0)
    (True, True)
    """
    net = check_order(order, net)
    X, y, X_test = check_data(net, X_train, y_train, X_test)
    noise = check_noise(noise)
    if order == 1:
        require_tensors(net, len(X) + len(X_test), PRIOR)
    K_AA, K_xA, K_xx = _prior(net, X, X_test)
    process = condition(K_AA, noise, X)
    evidence, change = process.log_evidence(y), {}
    variables = _moments(process.mean(K_xA, y), process.covariance(K_xx, K_xA), y.shape[1])
    details = {"kind": "posterior", "order": order, "noise": noise}
    if order == 1:
        flow = joint_flow(net, X, X_test, PRIOR)
        details |= {"route": flow.route, "numerical_error": flow.error}
        mean1, cov1, evidence1 = posterior_corrections(y=y, noise=noise, **at_output(flow))
        variables = _corrected(net, variables, mean1, cov1, np.linalg.norm(K_xx))
        change = {"log_evidence1": ((), evidence1)}
        evidence += evidence1 / net.n
    variables |= {"log_evidence0": ((), process.log_evidence(y)), **change, "log_evidence": ((), evidence)}
    return label(variables, net, **details)


def max_learning_rate(net: Network, X_train: Any) -> float:
    """2/λ_max of Θ on the training inputs: gradient descent with a smaller step converges (theory §8).

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "linear")
    >>> round(ww.max_learning_rate(net, [[1.0]]), 6)
    0.5
    """
    X = check_inputs(X_train, check_network(net).widths[0], "X_train")
    return largest_stable_step(net, X)


def sample_prior(net: Network, X: Any, samples: int = 1, seed: int = 0) -> xr.DataArray:
    """Functions drawn from the infinite-width prior N(0, K), on (sample, output, test).

    >>> import widthwise as ww
    >>> ww.sample_prior(ww.MLP([1, 8, 2], "relu", C_W=2.0), [[1.0], [2.0]], samples=3).shape
    (3, 2, 2)
    """
    X = check_inputs(X, check_network(net).widths[0])
    K = kernel_flow(net, X, with_theta=False, last_only=True).K[0]
    values = draw(
        np.zeros((len(X), net.widths[-1])),
        K,
        *_draws(samples, seed),
    )
    return xr.DataArray(values, dims=("sample", "output", "test"), name="prior", attrs={"network": net.to_json()})


def sample_posterior(
    net: Network, X_train: Any, y_train: Any, X_test: Any, samples: int = 1, seed: int = 0, *, noise: float = 0.0
) -> xr.DataArray:
    """Functions drawn from the infinite-width posterior, on (sample, output, test).

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 8, 1], "relu", C_b=0.1, C_W=2.0)
    >>> s = ww.sample_posterior(net, [[1.0]], [0.3], [[1.0], [2.0]], samples=4)
    >>> bool(abs(s.isel(test=0) - 0.3).max() < 1e-6)
    True
    """
    X, y, X_test = check_data(net, X_train, y_train, X_test)
    noise = check_noise(noise)
    K_AA, K_xA, K_xx = _prior(net, X, X_test)
    process = condition(K_AA, noise, X)
    values = draw(
        process.mean(K_xA, y),
        process.covariance(K_xx, K_xA),
        *_draws(samples, seed),
    )
    return xr.DataArray(values, dims=("sample", "output", "test"), name="posterior", attrs={"network": net.to_json()})


def joint_flow(net: Network, X: np.ndarray, X_test: np.ndarray, wanted: tuple[str, ...]) -> FiniteFlow:
    """Tensors of order 1/n on training inputs, then test inputs, behind a progress bar."""
    with DelayedProgress("tensors of order 1/n", None) as progress:
        return joint_tensors(net, np.concatenate([X, X_test]), wanted, progress)


def _prior(net: Network, X: np.ndarray, X_test: np.ndarray) -> list[np.ndarray]:
    blocks = ((X, None), (X_test, X), (X_test, None))
    return [kernel_flow(net, a, b, with_theta=False, last_only=True).K[0] for a, b in blocks]


def _kernels(net: Network, X: np.ndarray, X_test: np.ndarray) -> Kernels:
    AA, xA = (kernel_flow(net, a, b, last_only=True) for a, b in ((X, None), (X_test, X)))
    xx = kernel_flow(net, X_test, with_theta=False, last_only=True)
    assert AA.Theta is not None
    assert xA.Theta is not None
    return Kernels(AA.K[0], xA.K[0], xx.K[0], AA.Theta[0], xA.Theta[0])


def condition(K_AA: np.ndarray, noise: float, X: np.ndarray) -> GaussianProcess:
    if noise == 0.0 and coinciding_rows(X):
        raise refuse_singular(K_AA, X, "K", "set noise > 0")
    return GaussianProcess.condition(K_AA, noise, X)


def _moments(mean: np.ndarray, covariance: np.ndarray, outputs: int) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    full = _per_output(covariance, outputs)
    return {
        "mean0": (("output", "test"), mean.T),
        "mean": (("output", "test"), mean.T.copy()),
        "cov0": (TEST_PAIRS, full),
        "cov": (TEST_PAIRS, full.copy()),
    }


def _corrected(
    net: Network, variables: dict[str, tuple], mean1: np.ndarray, cov1: np.ndarray, scale
) -> dict[str, tuple]:
    """Moments with their coefficients of 1/n put in; a warning where these are not small. `scale`: of the prior."""
    mean0, cov0 = variables["mean0"][1], variables["cov0"][1]
    typical = math.sqrt(np.sum(mean0**2) + max(np.einsum("ixix->", cov0), 0.0))
    warn_if_large(net, "mean", typical, float(np.linalg.norm(mean1)), math.sqrt(scale))
    warn_if_large(net, "covariance", float(np.linalg.norm(cov0)), float(np.linalg.norm(cov1)), scale)
    pair = ("output", "test")
    moments = {
        "mean0": (pair, mean0),
        "mean1": (pair, mean1),
        "mean": (pair, mean0 + mean1 / net.n),
        "cov0": (TEST_PAIRS, cov0),
        "cov1": (TEST_PAIRS, cov1),
        "cov": (TEST_PAIRS, cov0 + cov1 / net.n),
    }
    return moments | {name: value for name, value in variables.items() if name not in moments}


def _per_output(covariance: np.ndarray, outputs: int) -> np.ndarray:
    """δ_ij times the covariance, on (output, input, output', input')."""
    return np.einsum("ij,xy->ixjy", np.eye(outputs), covariance)


def check_data(net: Network, X_train: Any, y_train: Any, X_test: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    features, outputs = check_network(net).widths[0], net.widths[-1]
    X = check_inputs(X_train, features, "X_train")
    return X, check_targets(y_train, len(X), outputs), check_inputs(X_test, features, "X_test")


def check_algorithm(algorithm: Any) -> Algorithm:
    if algorithm is None:
        return GradientFlow()
    if not isinstance(algorithm, Algorithm):
        raise InvalidInput("algorithm", repr(algorithm), "GradientFlow() or GradientDescent(learning_rate)")
    return algorithm


def check_loss(loss: Any) -> None:
    if loss != "squared":
        raise InvalidInput(
            "loss",
            repr(loss),
            "'squared', ½Σ(z−y)²",
            "Under another loss errors do not evolve linearly even at infinite width, and there is no closed form.",
        )


def check_order(order: int, net: Network) -> Network:
    """The network, which must be plain where order 1 is asked for."""
    if isinstance(order, bool) or order not in (0, 1):
        raise InvalidInput("order", repr(order), "0 or 1: the expansion in 1/width ends at its first order")
    return plain(net, "order=1") if order == 1 else check_network(net)


def check_noise(noise: float) -> float:
    try:
        value = float(noise)
    except (TypeError, ValueError):
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise InvalidInput("noise", repr(noise), "a finite non-negative variance")
    return value


def _draws(samples: Any, seed: Any) -> tuple[int, int]:
    """How many samples, and from which seed."""
    return (
        check_integer("samples", samples, 1, expected="a positive integer"),
        check_integer("seed", seed, 0, expected="a non-negative integer"),
    )
