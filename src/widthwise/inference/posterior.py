"""`posterior`, `sample_prior`, `sample_posterior`: Bayesian inference, as labelled Datasets (theory §9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.inference.arguments import check_data, check_noise, network_for
from widthwise.inference.corrections import PRIOR_TENSORS, at_output, require_tensors
from widthwise.inference.gaussian_process import GaussianProcess, draw_functions
from widthwise.inference.labelled import corrected, joint_flow, labelled_moments
from widthwise.inference.posterior_corrections import posterior_corrections
from widthwise.inference.training_kernel import coinciding_rows, refuse_singular
from widthwise.network import Network, check_inputs, check_network
from widthwise.network.validation import check_integer
from widthwise.results.labels import label


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
    net = network_for(order, net)
    X, y, X_test = check_data(net, X_train, y_train, X_test)
    noise = check_noise(noise)
    if order == 1:
        require_tensors(net, len(X) + len(X_test), PRIOR_TENSORS)
    K_AA, K_xA, K_xx = _prior(net, X, X_test)
    process = condition(K_AA, noise, X)
    evidence, change = process.log_evidence(y), {}
    variables = labelled_moments(process.mean(K_xA, y), process.covariance(K_xx, K_xA), y.shape[1])
    details = {"kind": "posterior", "order": order, "noise": noise}
    if order == 1:
        flow = joint_flow(net, X, X_test, PRIOR_TENSORS)
        details |= {"route": flow.route, "numerical_error": flow.error}
        mean1, cov1, evidence1 = posterior_corrections(y=y, noise=noise, **at_output(flow))
        variables = corrected(net, variables, mean1, cov1, np.linalg.norm(K_xx))
        change = {"log_evidence1": ((), evidence1)}
        evidence += evidence1 / net.n
    variables |= {"log_evidence0": ((), process.log_evidence(y)), **change, "log_evidence": ((), evidence)}
    return label(variables, net, **details)


def sample_prior(net: Network, X: Any, samples: int = 1, seed: int = 0) -> xr.DataArray:
    """Functions drawn from the infinite-width prior N(0, K), on (sample, output, test).

    >>> import widthwise as ww
    >>> ww.sample_prior(ww.MLP([1, 8, 2], "relu", C_W=2.0), [[1.0], [2.0]], samples=3).shape
    (3, 2, 2)
    """
    X = check_inputs(X, check_network(net).widths[0])
    K = kernel_flow(net, X, with_theta=False, last_only=True).K[0]
    values = draw_functions(
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
    values = draw_functions(
        process.mean(K_xA, y),
        process.covariance(K_xx, K_xA),
        *_draws(samples, seed),
    )
    return xr.DataArray(values, dims=("sample", "output", "test"), name="posterior", attrs={"network": net.to_json()})


def condition(K_AA: np.ndarray, noise: float, X: np.ndarray) -> GaussianProcess:
    if noise == 0.0 and coinciding_rows(X):
        raise refuse_singular(K_AA, X, "K", "set noise > 0")
    return GaussianProcess.condition(K_AA, noise, X)


def _prior(net: Network, X: np.ndarray, X_test: np.ndarray) -> list[np.ndarray]:
    blocks = ((X, None), (X_test, X), (X_test, None))
    return [kernel_flow(net, a, b, with_theta=False, last_only=True).K[0] for a, b in blocks]


def _draws(samples: Any, seed: Any) -> tuple[int, int]:
    """How many samples, and from which seed."""
    return (
        check_integer("samples", samples, 1, expected="a positive integer"),
        check_integer("seed", seed, 0, expected="a non-negative integer"),
    )
