"""Trained networks at infinite width and to order 1/n, as labelled Datasets (theory §8).

`predict`, `max_learning_rate`, `expected_error`, `compare_algorithms` and `trained_kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from widthwise.criticality.learning_rates import largest_stable_step
from widthwise.errors import InvalidInput
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.pair_flow import check_kernel, output_kernels
from widthwise.flow.tensors.quadruple_flow import QuadrupleFlow
from widthwise.flow.tensors.tensor_flow import FiniteFlow
from widthwise.inference import corrections
from widthwise.inference.cost import warn_of_cost
from widthwise.inference.infinite_width import Algorithm, KernelBlocks, Spectrum, TrainedMap
from widthwise.inference.linear_training import LinearAlgorithm, is_to_convergence
from widthwise.inference.path_solutions import AT_TRAINING, TRAIN_PAIRS, check_path_order, path_solution, with_path
from widthwise.inference.shrinking_networks import shrinking_solution
from widthwise.inference.tiled.contracted_moments import contracted_moments
from widthwise.inference.tiled.quadruple_tiles import count_quadruples
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import (
    Basis,
    OutputMoments,
    cumulants_at_tests,
    mean_kernel_change,
    moments_at_tests,
    moments_at_training,
)
from widthwise.network import (
    MLP,
    GradientDescent,
    GradientFlow,
    Momentum,
    Network,
    NewtonStep,
    check_network,
    check_targets,
    plain,
)
from widthwise.network.losses import Loss, check_loss
from widthwise.network.stability import decays_to_zero
from widthwise.network.validation import check_flag
from widthwise.progress import DelayedProgress
from widthwise.results.labels import TEST_PAIRS, label, layer_coordinate


def predict(
    net: Network,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    algorithm: LinearAlgorithm | None = None,
    *,
    order: int = 0,
    loss: str | Callable[[Any, Any], Any] = "squared",
    method: str = "auto",
    kernel: str = "infinite",
    cumulants: int = 2,
    draws: int = 1024,
    seed: int = 0,
) -> xr.Dataset:
    """Mean and covariance, over initialisations, of the trained network's outputs (theory §8).

    Parameters
    ----------
    X_train, y_train : (inputs, features), and (inputs, outputs) or (inputs,) for one output.
    X_test : (tests, features).
    algorithm : `GradientFlow()` (default), `GradientDescent(learning_rate)`, `Momentum` or `SGD`, to convergence or for
        a given time; or `NewtonStep()`, which fits the training data in one step. Trained to convergence all end at
        the same function at infinite width. The noise of `SGD`'s batches is part of the covariance. With order=1:
        flow, descent or a Newton step, or momentum on full batches to convergence; all without weight decay.
    order : 0, infinite width; 1, with the corrections of order 1/n, n the last hidden width.
    loss : "squared", ½Σ(z−y)² (default), "huber", "log_cosh", "logistic" or "exponential" (targets ±1), "cross_entropy"
        (targets are probabilities of the classes), or a function of z and y of one input, (outputs,) each, in
        jax.numpy. Trained to convergence, every loss whose only stationary point is z = y ends alike at infinite width,
        in closed form. For a given time, or steps, the path is integrated in function space. With order=1: "squared",
        or to convergence every other loss that ends at z = y: there its path counts (`inference.trained.path_terms`).
    method : how order 1 is summed. "full" holds every tensor on all training and test inputs, memory like N⁴; "tiles"
        carries a part of the quadruples of inputs to the output at a time, sums it and drops it, memory like N³.
        "auto" takes "full" where that is smaller, up to 67 inputs in all at depth 3, and for activations too sharp for
        tiles; otherwise "tiles". The attribute `method` says which. Results agree to the tolerance of the tensors.
    kernel : of order=0. "infinite"; or "mean", the means K + G1/n and Θ + H1/n over networks of this width in place of
        K and Θ, at a cost of N²: the part of the correction that a frozen kernel makes, without its fluctuations.
    cumulants : 2; or 3, 4 for cumulants of each output at each test up to this one. They vanish at infinite width, and
        their coefficients of 1/n are summed with method="full".
    draws, seed : of initial outputs, where a path is integrated.

    Returns
    -------
    Dataset with mean0, mean on (output, test), cov0, cov on (output, test, output_, test_), and the same at the
    training inputs as train_mean0 on (output, train), train_cov0 on (output, train, output_, train_). With order=1
    mean1, cov1, train_mean1, train_cov1 are the coefficients of 1/n, and mean = mean0 + mean1/n, cov = cov0 + cov1/n.
    With cumulants=4, kappa3 and kappa4 on (output, test): the third cumulant is kappa3/n, the fourth kappa4/n. Where a
    path is integrated also mean_se, cov_se, standard errors over draws, and but for batches from_zero: outputs that
    start at zero, whose path is not random; with order=1 mean1_se, cov1_se too, but for squared loss, whose sums are
    exact. The attribute `solution` says how the end was found.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5)
    >>> p = ww.predict(net, [[-1.0], [1.0]], [0.5, -0.5], [[-1.0], [0.0]])
    >>> bool(abs(p["mean"] - [[0.5, 0.0]]).max() < 1e-9)
    True
    >>> p = ww.predict(net, [[-1.0], [1.0]], [0.5, 0.5], [[0.0]], order=1)
    >>> bool(p["mean"] == p["mean0"] + p["mean1"] / 64)
    True
    """
    corrections.check_order(order)
    highest = corrections.check_cumulants(cumulants)
    finite = order == 1 or highest > 2
    net = corrections.network_for(int(finite), net)
    X, y, X_test = corrections.check_data(net, X_train, y_train, X_test)
    solved, chosen_loss = corrections.check_algorithm(algorithm, finite, momentum=highest == 2), check_loss(loss, y)
    by_path = finite and (isinstance(solved, Momentum) or not chosen_loss.is_squared)
    if by_path:
        method = check_path_order(solved, chosen_loss, method, highest)
    chosen = corrections.choose_method(net, len(X) + len(X_test), method, highest) if finite else method
    between = partial(output_kernels, net, kernel=check_kernel(kernel, order))
    (K_AA, Theta_AA, _), (K_xA, Theta_xA, _) = between(X), between(X_test, X)
    kernels = KernelBlocks(K_AA, K_xA, between(X_test, with_theta=False)[0], Theta_AA, Theta_xA)
    spectrum = Spectrum.of(kernels.Theta_AA)
    spectrum.check(solved, kernels.Theta_AA, X, chosen_loss)
    details = {
        "kind": "predict",
        "order": order,
        "algorithm": repr(solved),
        "kernel": kernel,
        "loss": chosen_loss.name,
    }
    if decays_to_zero(solved):
        (mean, cov), more = _decayed_solution(net, X, X_test, y, solved, spectrum, chosen_loss, kernel)
        details["solution"] = "closed form, by kernels between networks that shrink"
    elif chosen_loss.is_squared or is_to_convergence(solved):
        (mean, cov), more = _linear_solution(kernels, spectrum, solved, y)
        details["solution"] = "closed form"
        if not chosen_loss.is_squared:
            details["solution"] = f"closed form: {chosen_loss.only_end}, where every such loss ends"
    else:
        (mean, cov), more = path_solution(kernels, solved, y, chosen_loss, draws, seed)
        details |= {"solution": "integrated in function space", "draws": draws, "seed": seed}
    means, covariances = [mean], [cov]
    if finite:
        variance = float(np.einsum("ixix->", cov)) / mean.size
        warn_of_cost(net, len(X), len(X_test), solved, spectrum, variance)  # pyright: ignore[reportArgumentType]
        clocked: Any = NewtonStep() if by_path else solved
        clock = Clock.of(clocked)
        first = _order_one(net, X, y, X_test, spectrum, clock, chosen, method, highest)
        if by_path:
            tests, errors = with_path(first.tests, first.tensors, kernels, solved, y, chosen_loss, draws, seed)
            first = first._replace(tests=tests)
            drawn = () if chosen_loss.is_squared else (("mean", errors.mean), ("cov", errors.covariance))
            for name, error in drawn:
                dims = TEST_PAIRS[: error.ndim]
                more |= {f"{name}1_se": (dims, error), f"{name}_se": (dims, error / net.n)}
        details |= first.details
        more |= {f"kappa{degree}": (corrections.AT_TESTS, value) for degree, value in first.cumulants.items()}
    if order == 1:
        means.append(first.tests.mean)
        covariances.append(first.tests.covariance)
        more["train_mean1"] = (AT_TRAINING, first.training.mean)
        more["train_cov1"] = (TRAIN_PAIRS, first.training.covariance)
    variables = corrections.moment_variables(net, means, covariances, np.linalg.norm(kernels.K_xx))
    return label(variables | more, net, **details)


def _linear_solution(kernels: KernelBlocks, spectrum: Spectrum, algorithm: LinearAlgorithm, y: np.ndarray):
    """Mean and covariance at the tests, and variables at the training inputs."""
    by = TrainedMap.of(algorithm, spectrum, kernels.K_AA, kernels.Theta_AA, y)
    mean, cov = kernels.at_training.trained(y, by)
    return kernels.trained(y, by), {"train_mean0": (AT_TRAINING, mean), "train_cov0": (TRAIN_PAIRS, cov)}


def _decayed_solution(
    net: Network, X, X_test, y: np.ndarray, algorithm: LinearAlgorithm, spectrum: Spectrum, loss: Loss, kernel: str
):
    """The same where weight decay pulls the parameters towards zero."""
    if not loss.is_squared or kernel != "infinite":
        got = f"loss={loss.name!r}, kernel={kernel!r} with {algorithm!r}"
        raise InvalidInput(
            "algorithm", got, "loss='squared' and kernel='infinite' where parameters decay towards zero",
            'Take decay_to="initialisation", or measure it with `train`.',
        )  # fmt: skip
    assert isinstance(algorithm, GradientFlow | GradientDescent)
    mean, spread = shrinking_solution(net, X, X_test, y, algorithm, float(spectrum.values[-1]))
    train, cov = len(X), corrections.per_output(spread, y.shape[1])
    more = {
        "train_mean0": (AT_TRAINING, mean[:, :train]),
        "train_cov0": (TRAIN_PAIRS, cov[:, :train, :, :train]),
    }
    return (mean[:, train:], cov[:, train:, :, train:]), more


class _OrderOne(NamedTuple):
    """Coefficients of 1/n at test and at training inputs, those of higher cumulants by degree, and how they came.

    `tensors` of the output layer on all inputs are empty where they were summed in tiles.
    """

    tests: OutputMoments
    training: OutputMoments
    cumulants: dict[int, np.ndarray]
    details: dict[str, Any]
    tensors: dict[str, np.ndarray]


def _order_one(
    net: Network, X, y, X_test, spectrum: Spectrum, clock: Clock, method: str, asked: str, highest: int
) -> _OrderOne:
    if method == "tiles":
        total = count_quadruples(len(X), len(X_test), net.depth)
        with DelayedProgress("tiles of order 1/n", None) as bar:
            inputs = np.concatenate([X, X_test])
            assert isinstance(net, MLP)
            tiled = QuadrupleFlow(net, inputs, corrections.TRAINING_TENSORS, progress=lambda done: bar(done, total))
            if tiled.possible:
                tests, training = contracted_moments(tiled, spectrum, y, clock)
                corrections.warn_if_inaccurate(tiled.error, 4)
                details = {"route": "Hermite planes", "numerical_error": tiled.error, "method": "tiles"}
                return _OrderOne(tests, training, {}, details, {})
        if asked == "tiles":
            names = dict.fromkeys(sigma.name for sigma in net.activations)
            raise InvalidInput(
                "method",
                f"'tiles' for {' and '.join(names)}, too sharp at these kernels for Hermite planes",
                "'auto' or 'full'",
                "Such expectations are sampled, for all inputs at once.",
            )
        corrections.require_tensors(net, len(inputs), corrections.TRAINING_TENSORS)
    flow = corrections.joint_flow(net, X, X_test, corrections.tensors_up_to(highest))
    tensors = corrections.at_output(flow)
    basis = Basis.of(spectrum, flow.Theta[-1], tensors, y)
    (_, tests), (_, training) = moments_at_tests(basis, clock), moments_at_training(basis, clock)
    details = {"route": flow.route, "numerical_error": flow.error, "method": "full"}
    return _OrderOne(tests, training, cumulants_at_tests(basis, clock, highest), details, tensors)


def max_learning_rate(net: Network, X_train: Any) -> float:
    """2/λ_max of Θ on the training inputs: gradient descent with a smaller step converges (theory §8).

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "linear")
    >>> round(ww.max_learning_rate(net, [[1.0]]), 6)
    0.5
    """
    X = check_network(net).check_inputs(X_train, "X_train")
    return largest_stable_step(net, X)


def expected_error(
    net: MLP,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    y_test: Any,
    algorithm: Algorithm | None = None,
    *,
    order: int = 0,
) -> xr.Dataset:
    """Expected squared error of a trained network on given targets, split into bias and variance (theory §8).

    E(z − y)² = (E z − y)² + var z over initialisations. Arguments as in `predict`, and y_test (tests, outputs).

    Returns
    -------
    Dataset with bias0, variance0, error0 on (output, test): squared bias, variance, and their sum at infinite width.
    With order=1 also bias1, variance1, error1, the coefficients of 1/n; bias, variance, error include what is asked.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5)
    >>> e = expected_error(net, [[-1.0], [1.0]], [0.5, -0.5], [[1.0]], [0.0])
    >>> round(float(e["bias"][0, 0]), 6), bool(e["variance"] < 1e-9)     # the training target is −0.5
    (0.25, True)
    """
    p = predict(net, X_train, y_train, X_test, algorithm, order=order)
    off = p["mean0"].values - check_targets(y_test, p.sizes["test"], net.widths[-1], "y_test").T
    bias, variance = [off**2], [np.einsum("ixix->ix", p[f"cov{power}"].values) for power in range(order + 1)]
    if order == 1:
        bias.append(2.0 * off * p["mean1"].values)
    error = [sum(parts) for parts in zip(bias, variance, strict=True)]
    variables = {}
    for name, coefficients in (("bias", bias), ("variance", variance), ("error", error)):
        variables |= corrections.expansion(name, corrections.AT_TESTS, coefficients, net.n)
    return label(variables, net, kind="expected_error", order=order, algorithm=p.attrs["algorithm"])


def compare_algorithms(
    net: MLP, X_train: Any, y_train: Any, X_test: Any, algorithms: Sequence[Algorithm]
) -> xr.Dataset:
    """Where several algorithms end, to order 1/n, and how far each ends from the first of them (theory §8).

    Arguments as in `predict`, with a list of algorithms; the tensors are computed once for all of them. Trained to
    convergence they agree at infinite width, and what they differ by is of order 1/n.

    Returns
    -------
    Dataset with mean0, mean1, mean on (algorithm, output, test), cov0, cov1, cov on (algorithm, output, test, output_,
    test_), change1 as in `trained_kernel`, and mean_difference, cov_difference: mean and cov less those of the first.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5)
    >>> data = [[-1.0], [1.0]], [0.5, 0.7], [[0.3]]
    >>> c = compare_algorithms(net, *data, [ww.GradientFlow(), ww.GradientDescent(0.3), ww.NewtonStep()])
    >>> [bool(abs(c[name][k, 0, 0]) < 1e-9) for k in (1, 2) for name in ("mean_difference", "mean0")]
    [False, False, False, False]
    >>> bool(np.allclose(c["mean0"], c["mean0"][0]))
    True
    """
    if isinstance(algorithms, (str, bytes)) or not isinstance(algorithms, Sequence) or not algorithms:
        raise InvalidInput("algorithms", repr(algorithms), "a list of algorithms", "Use `predict` for one of them.")
    solved: list[Algorithm] = [corrections.check_algorithm(algorithm) for algorithm in algorithms]
    _, y, _, spectrum, flow = joint_problem(net, X_train, y_train, X_test, solved)
    basis, tests = Basis.of(spectrum, flow.Theta[-1], corrections.at_output(flow), y), slice(len(y), None)
    clocks = [Clock.of(algorithm) for algorithm in solved]
    outcomes = [moments_at_tests(basis, clock) for clock in clocks]
    means, covariances = (
        [np.array([getattr(orders[power], part) for orders in outcomes]) for power in (0, 1)]
        for part in ("mean", "covariance")
    )
    pairs = ("algorithm", *TEST_PAIRS)
    variables = corrections.expansion("mean", ("algorithm", *corrections.AT_TESTS), means, net.n)
    variables |= corrections.expansion("cov", pairs, covariances, net.n)
    changes = [mean_kernel_change(basis, clock)[:, tests, :, tests] for clock in clocks]
    variables["change1"] = (pairs, np.array(changes))
    for name in ("mean", "cov"):
        dims, values = variables[name]
        variables[f"{name}_difference"] = (dims, values - values[0])
    coords = {"algorithm": [repr(algorithm) for algorithm in solved]}
    return label(variables, net, coords, kind="compare_algorithms", order=1, route=flow.route)


def trained_kernel(
    net: MLP,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    algorithm: Algorithm | None = None,
    *,
    by_layer: bool = False,
) -> xr.Dataset:
    """How far training moves the neural tangent kernel on the test inputs, on average, to order 1/n (theory §8).

    At infinite width it does not move. Arguments as in `predict`; `by_layer` splits the kernel into what the
    parameters of each layer contribute, at the price of one more run of the recursions a layer.

    Returns
    -------
    Dataset on (output, test, output_, test_) with kernel0 (Θ at infinite width), initial1 and change1, the coefficients
    of 1/n of the mean at initialisation and of the mean change by training, and kernel, the mean after training. With
    by_layer also kernel0_by_layer, initial1_by_layer, change1_by_layer, on (layer, …), which add up to the others.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "linear", lambda_b=0.0)     # gradient flow conserves H² − 4z²/n: the change is y² − 1
    >>> k = trained_kernel(net, [[1.0]], [2.0], [[1.0]])
    >>> round(float(k["change1"][0, 0, 0, 0]), 9)
    3.0
    >>> k = trained_kernel(net, [[1.0]], [2.0], [[1.0]], by_layer=True)
    >>> k["change1_by_layer"].values.ravel().round(9).tolist()
    [1.5, 1.5]
    """
    solved: Algorithm = corrections.check_algorithm(algorithm)
    X, y, X_test, spectrum, flow = joint_problem(net, X_train, y_train, X_test, [solved])
    clock = Clock.of(solved)
    parts = _kernel_parts(flow, spectrum, y, clock)
    total = parts["kernel0"] + (parts["initial1"] + parts["change1"]) / net.n
    variables: dict[str, Any] = {name: (TEST_PAIRS, value) for name, value in (parts | {"kernel": total}).items()}
    coords: Any = {}
    if check_flag("by_layer", by_layer):
        flows = corrections.layer_flows(
            plain(net, "trained_kernel(by_layer=True)"), np.concatenate([X, X_test]), len(X)
        )
        layers = [_kernel_parts(part, spectrum, y, clock) for part in flows]
        coords = layer_coordinate(tuple(range(1, net.depth + 1)))
        for name in parts:
            variables[f"{name}_by_layer"] = (("layer", *TEST_PAIRS), np.array([layer[name] for layer in layers]))
    details = {"kind": "trained_kernel", "order": 1, "algorithm": repr(solved), "route": flow.route}
    return label(variables, net, coords, **details)


class JointProblem(NamedTuple):
    """Checked data, the spectrum of Θ on the training inputs, and the tensors on training, then test inputs."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    spectrum: Spectrum
    flow: FiniteFlow


def joint_problem(
    net: Network, X_train: Any, y_train: Any, X_test: Any, algorithms: Sequence[Algorithm]
) -> JointProblem:
    """Of a network on data on which each algorithm has to be stable."""
    X, y, X_test = corrections.check_data(net, X_train, y_train, X_test)
    corrections.require_tensors(net, len(X) + len(X_test), corrections.TRAINING_TENSORS)
    Theta = kernel_flow(net, X, last_only=True).Theta[0]
    spectrum = Spectrum.of(Theta)
    for algorithm in algorithms:
        spectrum.check(algorithm, Theta, X)
    flow = corrections.joint_flow(net, X, X_test, corrections.TRAINING_TENSORS)
    return JointProblem(X, y, X_test, spectrum, flow)


def _kernel_parts(flow: FiniteFlow, spectrum: Spectrum, y: np.ndarray, clock: Clock) -> dict[str, np.ndarray]:
    """Θ, H1 and E[H* − Ĥ] at the tests, (output, test, output, test), from a flow over training, then test inputs."""
    basis = Basis.of(spectrum, flow.Theta[-1], corrections.at_output(flow), y)
    tests, at_start = slice(len(y), None), (basis.Theta, basis.tensors["H1"])
    kernel0, initial1 = (corrections.per_output(matrix[tests, tests], y.shape[1]) for matrix in at_start)
    change = mean_kernel_change(basis, clock)[:, tests, :, tests]
    return {"kernel0": kernel0, "initial1": initial1, "change1": change}
