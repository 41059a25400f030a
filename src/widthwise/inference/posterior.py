"""Bayesian inference as Datasets: `posterior` and `evidence_grid` (theory §9)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from widthwise.activations import Activation
from widthwise.errors import InvalidInput, NoRule, UnknownName
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.pair_flow import pair_flow
from widthwise.flow.tensors.tensor_flow import FiniteFlow, finite_flow
from widthwise.inference import corrections
from widthwise.inference.infinite_width import GaussianProcess, PosteriorCorrections, posterior_corrections
from widthwise.inference.sampled_neurons import SCRAMBLES, sampled_corrections
from widthwise.memory import require_layers, require_memory
from widthwise.network import (
    MLP,
    Network,
    check_inputs,
    check_integer,
    check_seed,
    check_targets,
    real_array,
)
from widthwise.network.validation import is_one_of
from widthwise.progress import DelayedProgress
from widthwise.results.labels import TEST_PAIRS, label

_GRID_DIMS = ("C_b", "C_W", "noise", "depth")
_METHODS = ("auto", "full", "sampled")
#: Inputs up to which V on all quadruples takes seconds.
MOST_FULL = 64
#: Neurons drawn at every layer: a correction of 300 inputs is then known to some percent, in seconds.
NEURONS = 1 << 15


def posterior(
    net: Network,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    *,
    order: int = 0,
    noise: float = 0.0,
    method: str = "auto",
    neurons: int = NEURONS,
    seed: int = 0,
) -> xr.Dataset:
    """Bayesian posterior over the network's outputs, and the log evidence (theory §9).

    At infinite width the prior is a Gaussian process with kernel K. `noise` is the variance of the observation
    noise; with none, the posterior interpolates. To order 1/n the kernel is random, and the data reweight it.
    `cov` is the covariance of the function; an observation y* at a test input has that and the noise.

    Parameters
    ----------
    X_train, y_train : (inputs, features), and (inputs, outputs) or (inputs,) for one output.
    X_test : (tests, features).
    method : how order 1 is computed. "full" holds V on all training and test inputs, N⁴ numbers; "sampled" averages
        over `neurons` drawn at every layer with `seed`, N² numbers and N² work for each, with standard errors; "auto"
        takes "full" up to 64 inputs in all, and "sampled" beyond for plain networks. The attribute `method` says which.

    Returns
    -------
    Dataset with mean0, mean on (output, test), cov0, cov on (output, test, output_, test_), and the scalars
    log_evidence0, log_evidence, summed over outputs; cov_y = cov + noise on equal outputs and tests, the covariance of
    an observation y*. With order=1 mean1, cov1, log_evidence1 are the coefficients of 1/n, included in mean, cov and
    log_evidence; where they are sampled, mean1_se, cov1_se, log_evidence1_se are their standard errors.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "erf", C_b=0.1, C_W=1.5)
    >>> b = ww.posterior(net, [[-1.0], [1.0]], [0.5, -0.5], [[0.0]], noise=0.01)
    >>> bool(abs(b["mean"][0, 0]) < 1e-9), bool(b["cov"] > 0)
    (True, True)
    >>> data = [[-1.0], [1.0]], [0.5, 0.3], [[0.0]]
    >>> exact, drawn = (ww.posterior(net, *data, noise=0.01, order=1, method=how) for how in ("full", "sampled"))
    >>> bool(abs(drawn["log_evidence1"] - exact["log_evidence1"]) < 5 * drawn["log_evidence1_se"])
    True
    """
    net = corrections.network_for(order, net)
    X, y, X_test = corrections.check_data(net, X_train, y_train, X_test)
    noise = corrections.check_noise(noise)
    neurons = check_integer("neurons", neurons, SCRAMBLES, expected=f"an integer of at least {SCRAMBLES}")
    seed, method = check_seed(seed), _prior_method(net, len(X) + len(X_test), method, order, neurons)
    process, K_xA, K_xx = condition_prior(net, X, X_test, noise)
    means, covariances = [process.mean(K_xA, y).T], [corrections.per_output(process.covariance(K_xx, K_xA), y.shape[1])]
    evidences, details = [process.log_evidence(y)], {"kind": "posterior", "order": order, "noise": noise}
    errors: dict[str, Any] = {}
    if order == 1:
        first = _first_order(net, np.concatenate([X, X_test]), y, noise, method, neurons, seed)
        details |= first.details
        means.append(first.values.mean)
        covariances.append(first.values.covariance)
        evidences.append(first.values.log_evidence)
        if first.errors is not None:
            dims = {"mean1_se": corrections.AT_TESTS, "cov1_se": TEST_PAIRS, "log_evidence1_se": ()}
            errors = {name: (dims[name], value) for name, value in zip(dims, first.errors, strict=True)}
    variables = corrections.moment_variables(net, means, covariances, np.linalg.norm(K_xx)) | errors
    dims, cov = variables["cov"]
    variables["cov_y"] = (dims, cov + noise * corrections.per_output(np.eye(len(X_test)), y.shape[1]))
    return label(variables | corrections.expansion("log_evidence", (), evidences, net.n), net, **details)


def _prior_method(net: Network, inputs: int, method: Any, order: int, neurons: int = NEURONS) -> str:
    """ "full" or "sampled", after what does not fit or has no rule is refused."""
    if not is_one_of(method, _METHODS):
        raise UnknownName.of("method", method, _METHODS)
    if order == 0:
        return "full"
    if method == "auto":
        method = "sampled" if inputs > MOST_FULL and isinstance(net, MLP) else "full"
    if method == "full":
        corrections.require_tensors(net, inputs, corrections.PRIOR_TENSORS)
    elif not isinstance(net, MLP):
        raise NoRule(
            "method", "'sampled' for a network with skips or normalisation", "'full'",
            "Its neurons have a memory: those of one layer are not independent of those of another.",
        )  # fmt: skip
    else:
        corrections.check_smooth(net, corrections.PRIOR_TENSORS)
        held = 8 * inputs * (inputs * (net.depth + 10) + 2 * neurons // SCRAMBLES)
        what = f"kernels of {inputs} inputs at {net.depth} layers and {neurons} neurons"
        require_memory(held, what, "Take fewer inputs, or fewer neurons.")
    return method


class _FirstOrder(NamedTuple):
    """Coefficients of 1/n, their standard errors where they were sampled, and how they were computed."""

    values: PosteriorCorrections
    errors: PosteriorCorrections | None
    details: dict[str, Any]


def _first_order(
    net: Network, X: np.ndarray, y: np.ndarray, noise: float, method: str, neurons: int, seed: int
) -> _FirstOrder:
    """Corrections on training inputs, then test inputs."""
    if method == "full":
        with DelayedProgress("tensors of order 1/n", None) as progress:
            flow = corrections.joint_tensors(net, X, corrections.PRIOR_TENSORS, progress)
        values = posterior_corrections(y=y, noise=noise, **corrections.at_output(flow))
        return _FirstOrder(values, None, {"route": flow.route, "numerical_error": flow.error, "method": method})
    assert isinstance(net, MLP)
    mean = pair_flow(net, X, None, {"G1": ("xy",)}, last_only=True)
    if mean is None:
        names = dict.fromkeys(sigma.name for sigma in net.activations)
        raise InvalidInput(
            "method", f"'sampled' for {' and '.join(names)}", "activations with a known mean kernel at pairs",
            "Take gelu or tanh, or method='full' with fewer inputs.",
        )  # fmt: skip
    with DelayedProgress("neurons", None) as progress:
        values, errors = sampled_corrections(
            net, X, mean.entries["G1"]["xy"][0], y, noise, neurons=neurons, seed=seed, progress=progress
        )
    return _FirstOrder(values, errors, {"route": "single neurons", "method": method, "neurons": neurons})


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
    the greatest depth serves all depths, widths and noises; beyond 64 inputs the coefficients are sampled as in
    `posterior`, and log_evidence1_se is their standard error.

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
    method = _prior_method(deepest, len(X), "auto", order)
    found = np.zeros((1 + order + (method == "sampled"), *(len(axes[name]) for name in _GRID_DIMS)))
    points = list(product(enumerate(axes["C_b"]), enumerate(axes["C_W"])))
    with DelayedProgress("evidence", None) as progress:
        for done, ((i, C_b), (j, C_W)) in enumerate(points, start=1):
            net = deepest.replace(C_b=C_b, C_W=C_W)
            over = _over_depths if method == "full" else _sampled_over_depths
            found[:, i, j] = over(net, X, y, axes["depth"], axes["noise"], order)
            progress(done, len(points))
    names = ("log_evidence0", "log_evidence1", "log_evidence1_se")
    variables: dict[str, Any] = {name: (_GRID_DIMS, values) for name, values in zip(names, found, strict=False)}
    powers = np.asarray(axes["width"], dtype=float) ** -np.arange(1 + order)[:, None]
    variables["log_evidence"] = ((*_GRID_DIMS, "width"), np.einsum("p...,pn->...n", found[: 1 + order], powers))
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


def _sampled_over_depths(net: MLP, X: np.ndarray, y: np.ndarray, depths: list[int], noises: list[float], order: int):
    """The same, and the standard error of the coefficient of 1/n, on (power or error, noise, depth)."""
    found = np.zeros((2 + order, len(noises), len(depths)))
    K = kernel_flow(net, X, with_theta=False).K
    for (i, noise), (j, depth) in product(enumerate(noises), enumerate(depths)):
        found[0, i, j] = GaussianProcess.condition(K[depth - 1], noise, X).log_evidence(y)
        shallow = net.replace(widths=[*net.widths[:depth], net.widths[-1]])
        first = _first_order(shallow, X, y, noise, "sampled", NEURONS, 0)
        assert first.errors is not None
        found[1:, i, j] = first.values.log_evidence, first.errors.log_evidence
    return found


def _grid_axis(
    name: str, values: Any, check: Callable[[Any], Any], expected: str = "one number, or a list of them"
) -> list[Any]:
    try:
        array = np.atleast_1d(np.asarray(values))
    except ValueError:
        raise InvalidInput(name, "rows of unequal length", expected) from None
    except Exception:  # a Dataset is no array, and an object of the caller's may raise what it likes
        raise InvalidInput(name, type(values).__name__, expected) from None
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(name, f"an array of shape {array.shape}", expected)
    return [check(value) for value in array.tolist()]


def condition_prior(net: Network, X: np.ndarray, X_test: np.ndarray, noise: float):
    """The prior conditioned on training inputs, with K_xA and K_xx."""
    blocks = ((X, None), (X_test, X), (X_test, None))
    K_AA, K_xA, K_xx = (kernel_flow(net, a, b, with_theta=False, last_only=True).K[0] for a, b in blocks)
    return GaussianProcess.condition(K_AA, noise, X), K_xA, K_xx
