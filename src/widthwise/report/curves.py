"""Learning curves of gradient descent: predicted to order 1/n, and of real networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from widthwise.experiments.outputs import descent_paths
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.inference.arguments import check_data
from widthwise.inference.corrections import TRAINING, at_output, require_tensors
from widthwise.inference.labelled import joint_flow
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import Basis, moments_at_tests
from widthwise.inference.training_kernel import Spectrum
from widthwise.network import MLP, GradientDescent
from widthwise.results.labels import label

STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def learning_curves(
    net: MLP,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    learning_rate: float,
    steps: Any = STEPS,
    networks: int = 64,
    seed: int = 0,
) -> tuple[xr.Dataset, xr.Dataset]:
    """Outputs at the test inputs after so many steps of gradient descent: predicted to order 1/n, and measured.

    Returns
    -------
    A Dataset with mean on (step, output, test) and cov on (step, output, test, output_, test_), and one with `path` on
    (network, step, output, test), for `plot_learning_curves`.

    >>> net, X = MLP([1, 64, 1], "tanh"), [[1.0]]
    >>> predicted, measured = learning_curves(net, X, [0.5], X, 0.3, steps=[0, 20], networks=4)
    >>> bool(abs(predicted["mean"][1, 0, 0] - 0.5) < 1e-3), measured["path"].shape
    (True, (4, 2, 1, 1))
    """
    X, y, tests = check_data(net, X_train, y_train, X_test)
    steps = np.asarray(steps, int)
    require_tensors(net, len(X) + len(tests), TRAINING)
    Theta = kernel_flow(net, X, last_only=True).Theta
    assert Theta is not None
    spectrum = Spectrum.of(Theta[0])
    spectrum.check(GradientDescent(learning_rate), Theta[0], X)
    flow = joint_flow(net, X, tests, TRAINING)
    basis = Basis.of(spectrum, flow.Theta[-1], at_output(flow), y)
    found = [moments_at_tests(basis, Clock.of(GradientDescent(learning_rate, int(k)))) for k in steps]
    mean = np.stack([zero.mean + one.mean / net.n for zero, one in found])
    cov = np.stack([zero.covariance + one.covariance / net.n for zero, one in found])
    paths = descent_paths(net, X, y, tests, learning_rate, steps, networks, seed)
    coords, common = {"step": steps}, {"kind": "learning curves", "learning_rate": learning_rate}
    moments = {
        "mean": (("step", "output", "test"), mean),
        "cov": (("step", "output", "test", "output_", "test_"), cov),
    }
    sampled = {"path": (("network", "step", "output", "test"), paths)}
    return label(moments, net, coords, **common), label(sampled, net, coords, seed=seed, **common)
