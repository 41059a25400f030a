"""`expected_error`, `compare_algorithms` and `trained_kernel`, as labelled Datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.tensor_flow import FiniteFlow
from widthwise.inference.arguments import check_algorithm, check_data
from widthwise.inference.corrections import TRAINING_TENSORS, at_output, require_tensors
from widthwise.inference.labelled import joint_flow
from widthwise.inference.layer_kernels import layer_flows
from widthwise.inference.predict import predict
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.kernel_change import mean_kernel_change
from widthwise.inference.trained.trained_moments import Basis, moments_at_tests
from widthwise.inference.training_kernel import Algorithm, Spectrum
from widthwise.network import MLP
from widthwise.network.inputs import check_targets
from widthwise.results.labels import TEST_PAIRS, label, layer_coordinate

_AT_TESTS = ("output", "test")


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
    parts = {"bias0": off**2, "variance0": _diagonal(p["cov0"])}
    if order == 1:
        parts |= {"bias1": 2.0 * off * p["mean1"].values, "variance1": _diagonal(p["cov1"])}
    for power in range(order + 1):
        parts[f"error{power}"] = parts[f"bias{power}"] + parts[f"variance{power}"]
    for name in ("bias", "variance", "error"):
        parts[name] = sum((parts[f"{name}{power}"] / net.n**power for power in range(order + 1)), np.zeros(()))
    variables = {name: (_AT_TESTS, values) for name, values in parts.items()}
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
    X, y, X_test = check_data(net, X_train, y_train, X_test)
    algorithms = [check_algorithm(algorithm) for algorithm in algorithms]
    require_tensors(net, len(X) + len(X_test), TRAINING_TENSORS)
    spectrum = _checked_spectrum(net, X, algorithms)
    flow = joint_flow(net, X, X_test, TRAINING_TENSORS)
    basis, found = Basis.of(spectrum, flow.Theta[-1], at_output(flow), y), {}
    for clock in map(Clock.of, algorithms):
        orders = moments_at_tests(basis, clock)
        for power, moments in enumerate(orders):
            found.setdefault(f"mean{power}", []).append(moments.mean)
            found.setdefault(f"cov{power}", []).append(moments.covariance)
        found.setdefault("change1", []).append(mean_kernel_change(basis, clock)[:, len(y) :, :, len(y) :])
    values = {name: np.array(rows) for name, rows in found.items()}
    for name in ("mean", "cov"):
        values[name] = values[f"{name}0"] + values[f"{name}1"] / net.n
        values[f"{name}_difference"] = values[name] - values[name][0]
    dims = {name: ("algorithm", *(_AT_TESTS if name.startswith("mean") else TEST_PAIRS)) for name in values}
    coords = {"algorithm": [repr(algorithm) for algorithm in algorithms]}
    variables = {name: (dims[name], value) for name, value in values.items()}
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
    X, y, X_test = check_data(net, X_train, y_train, X_test)
    algorithm = check_algorithm(algorithm)
    require_tensors(net, len(X) + len(X_test), TRAINING_TENSORS)
    spectrum = _checked_spectrum(net, X, [algorithm])
    flow, clock = joint_flow(net, X, X_test, TRAINING_TENSORS), Clock.of(algorithm)
    parts = _kernel_parts(flow, spectrum, y, clock)
    total = parts["kernel0"] + (parts["initial1"] + parts["change1"]) / net.n
    variables: dict[str, Any] = {name: (TEST_PAIRS, value) for name, value in (parts | {"kernel": total}).items()}
    coords: Any = {}
    if by_layer:
        layers = [
            _kernel_parts(part, spectrum, y, clock) for part in layer_flows(net, np.concatenate([X, X_test]), len(X))
        ]
        coords = layer_coordinate(tuple(range(1, net.depth + 1)))
        for name in parts:
            variables[f"{name}_by_layer"] = (("layer", *TEST_PAIRS), np.array([layer[name] for layer in layers]))
    details = {"kind": "trained_kernel", "order": 1, "algorithm": repr(algorithm), "route": flow.route}
    return label(variables, net, coords, **details)


def _checked_spectrum(net: MLP, X: np.ndarray, algorithms: Sequence[Algorithm]) -> Spectrum:
    """Of Θ on the training inputs, on which each algorithm has to be stable."""
    Theta = kernel_flow(net, X, last_only=True).Theta
    assert Theta is not None
    spectrum = Spectrum.of(Theta[0])
    for algorithm in algorithms:
        spectrum.check(algorithm, Theta[0], X)
    return spectrum


def _kernel_parts(flow: FiniteFlow, spectrum: Spectrum, y: np.ndarray, clock: Clock) -> dict[str, np.ndarray]:
    """Θ, H1 and E[H* − Ĥ] at the tests, (output, test, output, test), from a flow over training, then test inputs."""
    basis = Basis.of(spectrum, flow.Theta[-1], at_output(flow), y)
    tests, identity = slice(len(y), None), np.eye(y.shape[1])
    kernel0, initial1 = (
        np.einsum("ij,xy->ixjy", identity, matrix[tests, tests]) for matrix in (basis.Theta, basis.tensors["H1"])
    )
    change = mean_kernel_change(basis, clock)[:, tests, :, tests]
    return {"kernel0": kernel0, "initial1": initial1, "change1": change}


def _diagonal(covariance: xr.DataArray) -> np.ndarray:
    return np.einsum("ixix->ix", covariance.values)
