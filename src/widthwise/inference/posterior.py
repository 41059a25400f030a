"""Bayesian inference as Datasets: `posterior`, `evidence_grid`, `sample_prior` and `sample_posterior` (theory §9)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from scipy import linalg

from widthwise.activations import Activation
from widthwise.errors import InvalidInput
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.tensor_flow import FiniteFlow, finite_flow
from widthwise.inference import corrections
from widthwise.inference.infinite_width import GaussianProcess, posterior_corrections
from widthwise.memory import require_layers, require_memory
from widthwise.network import (
    MLP,
    Network,
    check_inputs,
    check_integer,
    check_network,
    check_seed,
    check_targets,
    real_array,
)
from widthwise.progress import DelayedProgress
from widthwise.results.labels import label

_GRID_DIMS = ("C_b", "C_W", "noise", "depth")


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
    net = corrections.network_for(order, net)
    X, y, X_test = corrections.check_data(net, X_train, y_train, X_test)
    noise = corrections.check_noise(noise)
    if order == 1:
        corrections.require_tensors(net, len(X) + len(X_test), corrections.PRIOR_TENSORS)
    process, K_xA, K_xx = _condition(net, X, X_test, noise)
    means, covariances = [process.mean(K_xA, y).T], [corrections.per_output(process.covariance(K_xx, K_xA), y.shape[1])]
    evidences, details = [process.log_evidence(y)], {"kind": "posterior", "order": order, "noise": noise}
    if order == 1:
        flow = corrections.joint_flow(net, X, X_test, corrections.PRIOR_TENSORS)
        details |= {"route": flow.route, "numerical_error": flow.error}
        first = posterior_corrections(y=y, noise=noise, **corrections.at_output(flow))
        means.append(first.mean)
        covariances.append(first.covariance)
        evidences.append(first.log_evidence)
    variables = corrections.moment_variables(net, means, covariances, np.linalg.norm(K_xx))
    return label(variables | corrections.expansion("log_evidence", (), evidences, net.n), net, **details)


def evidence_grid(
    activation: str | Activation | Any,
    X_train: Any,
    y_train: Any,
    *,
    depth: Any,
    width: Any,
    C_b: Any = 0.0,
    C_W: Any = 1.0,
    noise: Any = 0.0,
    order: int = 1,
) -> xr.Dataset:
    """Log evidence of the training targets for every network of a grid, to order 1/n (theory §9).

    Networks have equal hidden layers, and one C_b and C_W in all layers. `posterior` gives the evidence of any other.

    Parameters
    ----------
    X_train, y_train : (inputs, features), and (inputs, outputs) or (inputs,) for one output.
    depth : numbers of weight layers, at least 1; one number or several, as for all that follow.
    width : hidden widths n.
    C_b, C_W : variances at initialisation.
    noise : variances of the observation noise.
    order : 0, infinite width, where `width` changes nothing; 1, with the correction of order 1/n.

    Returns
    -------
    Dataset with log_evidence0 and, with order=1, its coefficient of 1/n, log_evidence1, on (C_b, C_W, noise, depth),
    and log_evidence = log_evidence0 + log_evidence1/n on (C_b, C_W, noise, depth, width). One run of the recursions to
    the greatest depth serves all depths, widths and noises.

    >>> import widthwise as ww
    >>> data = [[-1.0], [1.0]], [0.5, -0.3]
    >>> e = evidence_grid("erf", *data, depth=[2, 3], width=[32, 64], C_b=0.1, C_W=1.5, noise=0.01)
    >>> same = ww.posterior(ww.MLP([1, 64, 64, 1], "erf", C_b=0.1, C_W=1.5), *data, [[0.0]], noise=0.01, order=1)
    >>> bool(np.isclose(e["log_evidence"].sel(depth=3, width=64).item(), same["log_evidence"].item()))
    True
    """
    corrections.check_order(order)
    X = check_inputs(X_train, None, "X_train")
    y = real_array(y_train, "y_train")
    y = check_targets(y, len(X), y.shape[1] if y.ndim == 2 else 1)
    axes = {name: _grid_axis(name, real_array(values, name), float) for name, values in (("C_b", C_b), ("C_W", C_W))}
    axes["noise"] = _grid_axis("noise", real_array(noise, "noise"), corrections.check_noise)
    whole = "one positive integer, or a list of them"
    for name, values in (("depth", depth), ("width", width)):
        axes[name] = _grid_axis(name, values, partial(check_integer, name, least=1, expected=whole), whole)
    points = math.prod(len(axes[name]) for name in _GRID_DIMS)
    require_memory(
        8 * (2 + order) * points * len(axes["width"]), f"a grid of {points * len(axes['width'])} networks",
        "Take fewer values of depth, width, C_b, C_W or noise.",
    )  # fmt: skip
    require_layers(max(axes["depth"]))
    deepest = MLP([X.shape[1], *[max(axes["width"])] * (max(axes["depth"]) - 1), y.shape[1]], activation)
    if order == 1:
        corrections.require_tensors(deepest, len(X), corrections.PRIOR_TENSORS)
    found = np.zeros((1 + order, *(len(axes[name]) for name in _GRID_DIMS)))
    points = list(product(enumerate(axes["C_b"]), enumerate(axes["C_W"])))
    with DelayedProgress("evidence", None) as progress:
        for done, ((i, C_b), (j, C_W)) in enumerate(points, start=1):
            found[:, i, j] = _over_depths(deepest.replace(C_b=C_b, C_W=C_W), X, y, axes["depth"], axes["noise"], order)
            progress(done, len(points))
    variables: dict[str, Any] = {f"log_evidence{power}": (_GRID_DIMS, values) for power, values in enumerate(found)}
    powers = np.asarray(axes["width"], dtype=float) ** -np.arange(1 + order)[:, None]
    variables["log_evidence"] = ((*_GRID_DIMS, "width"), np.einsum("p...,pn->...n", found, powers))
    result = label(variables, deepest, axes, kind="evidence_grid", order=order, activation=deepest.activation.name)
    for one_network in ("network", "n"):
        del result.attrs[one_network]
    return result


def _over_depths(net: MLP, X: np.ndarray, y: np.ndarray, depths: list[int], noises: list[float], order: int):
    """Coefficients of powers of 1/n on (power, noise, depth)."""
    names = corrections.PRIOR_TENSORS
    flow = kernel_flow(net, X, with_theta=False) if order == 0 else finite_flow(net, X, names, with_theta=False)
    found = np.zeros((1 + order, len(noises), len(depths)))
    for (i, noise), (j, depth) in product(enumerate(noises), enumerate(depths)):
        K = flow.K[depth - 1]
        found[0, i, j] = GaussianProcess.condition(K, noise, X).log_evidence(y)
        if isinstance(flow, FiniteFlow):
            tensors = {name: flow.tensors[name][depth - 1] for name in names}
            found[1, i, j] = posterior_corrections(K, y=y, noise=noise, **tensors).log_evidence
    return found


def _grid_axis(
    name: str, values: Any, check: Callable[[Any], Any], expected: str = "one number, or a list of them"
) -> list[Any]:
    try:
        array = np.atleast_1d(np.asarray(values))
    except ValueError:
        raise InvalidInput(name, "rows of unequal length", expected) from None
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(name, f"an array of shape {array.shape}", expected)
    return [check(value) for value in array.tolist()]


def sample_prior(net: Network, X: Any, samples: int = 1, seed: int = 0) -> xr.DataArray:
    """Functions drawn from the infinite-width prior N(0, K), on (sample, output, test).

    >>> import widthwise as ww
    >>> ww.sample_prior(ww.MLP([1, 8, 2], "relu", C_W=2.0), [[1.0], [2.0]], samples=3).shape
    (3, 2, 2)
    """
    X = check_network(net).check_inputs(X)
    K = kernel_flow(net, X, with_theta=False, last_only=True).K[0]
    return _drawn_functions(np.zeros((len(X), net.widths[-1])), K, samples, seed, net, "prior")


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
    X, y, X_test = corrections.check_data(net, X_train, y_train, X_test)
    process, K_xA, K_xx = _condition(net, X, X_test, corrections.check_noise(noise))
    return _drawn_functions(process.mean(K_xA, y), process.covariance(K_xx, K_xA), samples, seed, net, "posterior")


def _condition(net: Network, X: np.ndarray, X_test: np.ndarray, noise: float):
    """The prior conditioned on training inputs, with K_xA and K_xx."""
    blocks = ((X, None), (X_test, X), (X_test, None))
    K_AA, K_xA, K_xx = (kernel_flow(net, a, b, with_theta=False, last_only=True).K[0] for a, b in blocks)
    return GaussianProcess.condition(K_AA, noise, X), K_xA, K_xx


def _drawn_functions(mean: np.ndarray, covariance: np.ndarray, samples: Any, seed: Any, net: Network, name: str):
    """Gaussian functions on (sample, output, test), independent outputs with means (inputs, outputs)."""
    samples = check_integer("samples", samples, 1, expected="a positive integer")
    rng = np.random.default_rng(check_seed(seed))
    what, each = f"{samples} functions at {mean.size} points", 16 * mean.size
    require_memory(each * samples, what, lambda limit: f"What would fit: {limit // each} samples.")
    variances, vectors = linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(variances, 0.0))
    values = mean.T + rng.standard_normal((samples, mean.shape[1], len(covariance))) @ root.T
    return xr.DataArray(values, dims=("sample", "output", "test"), name=name, attrs={"network": net.to_json()})
