"""`expected_error` and `trained_kernel`, as labelled Datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from widthwise.flow import kernel_flow
from widthwise.inference.clock import Clock
from widthwise.inference.corrections import TRAINING, at_output, require_tensors
from widthwise.inference.labelled import check_algorithm, check_data, joint_flow, predict
from widthwise.inference.trained_kernel import mean_kernel_change
from widthwise.inference.trained_moments import Basis
from widthwise.inference.training_kernel import Algorithm, Spectrum
from widthwise.network import MLP
from widthwise.network.inputs import check_targets
from widthwise.results.labels import label

_PAIR = ("output", "test")
_PAIRS = ("output", "test", "output_", "test_")


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
    variables = {name: (_PAIR, values) for name, values in parts.items()}
    return label(variables, net, kind="expected_error", order=order, algorithm=p.attrs["algorithm"])


def trained_kernel(net: MLP, X_train: Any, y_train: Any, X_test: Any, algorithm: Algorithm | None = None) -> xr.Dataset:
    """How far training moves the neural tangent kernel on the test inputs, on average, to order 1/n (theory §8).

    At infinite width it does not move. Arguments as in `predict`.

    Returns
    -------
    Dataset on (output, test, output_, test_) with kernel0 (Θ at infinite width), initial1 and change1, the coefficients
    of 1/n of the mean at initialisation and of the mean change by training, and kernel, the mean after training.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "linear", lambda_b=0.0)     # gradient flow conserves H² − 4z²/n: the change is y² − 1
    >>> k = trained_kernel(net, [[1.0]], [2.0], [[1.0]])
    >>> round(float(k["change1"][0, 0, 0, 0]), 9)
    3.0
    """
    X, y, X_test = check_data(net, X_train, y_train, X_test)
    algorithm = check_algorithm(algorithm)
    require_tensors(net, len(X) + len(X_test), TRAINING)
    Theta = kernel_flow(net, X, last_only=True).Theta
    assert Theta is not None
    spectrum = Spectrum.of(Theta[0])
    spectrum.check(algorithm, Theta[0], X)
    flow = joint_flow(net, X, X_test, TRAINING)
    basis = Basis.of(spectrum, flow.Theta[-1], at_output(flow), y)
    tests, identity = slice(len(X), None), np.eye(y.shape[1])
    change = mean_kernel_change(basis, Clock.of(algorithm))[:, tests, :, tests]
    kernel0, initial1 = (
        np.einsum("ij,xy->ixjy", identity, matrix[tests, tests]) for matrix in (basis.Theta, basis.tensors["H1"])
    )
    variables = {
        "kernel0": (_PAIRS, kernel0),
        "initial1": (_PAIRS, initial1),
        "change1": (_PAIRS, change),
        "kernel": (_PAIRS, kernel0 + (initial1 + change) / net.n),
    }
    details = {"kind": "trained_kernel", "order": 1, "algorithm": repr(algorithm), "route": flow.route}
    return label(variables, net, **details)


def _diagonal(covariance: xr.DataArray) -> np.ndarray:
    return np.einsum("ixix->ix", covariance.values)
