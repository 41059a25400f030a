"""Functions drawn from prior and posterior: `sample_prior` and `sample_posterior` (theory §9)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr
from scipy import linalg

from widthwise.errors import ExpansionWarning, SingularKernel
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.inference import corrections
from widthwise.inference.posterior import condition_prior
from widthwise.inference.random_kernel import RandomKernel, effective_number, resampled
from widthwise.memory import require_memory
from widthwise.network import Network, check_integer, check_network, check_seed

#: Kernels that are drawn for each function of the posterior, from which those that fit the data are chosen.
CANDIDATES, LEAST_CANDIDATES = 8, 1000
#: Kernels that vary by more than this share of their size are past an expansion in 1/n.
WIDE_SPREAD = 0.5


def sample_prior(
    net: Network, X: Any, draws: int = 1, seed: int = 0, *, order: int = 0, samples: int | None = None
) -> xr.DataArray:
    """Functions drawn from the prior, on (sample, output, test) (theory §9).

    order=0 is the Gaussian process N(0, K) of infinite width. order=1 first draws a kernel for each function, with mean
    K + G1/n and covariance V/n and positive definite always (`inference.random_kernel`), which all outputs share:
    moments up to the fourth are those of networks of this width to order 1/n. `samples` is the former name of `draws`.

    >>> import widthwise as ww
    >>> ww.sample_prior(ww.MLP([1, 8, 2], "relu", C_W=2.0), [[1.0], [2.0]], draws=3).shape
    (3, 2, 2)
    >>> ww.sample_prior(ww.MLP([1, 8, 2], "tanh"), [[1.0], [2.0]], draws=3, order=1).shape
    (3, 2, 2)
    """
    draws = _renamed(draws, samples)
    net = corrections.network_for(order, check_network(net))
    X = net.check_inputs(X)
    rng = _random_numbers(draws, seed, net.widths[-1] * len(X))
    if order == 0:
        K = kernel_flow(net, X, with_theta=False, last_only=True).K[0]
        mean = np.zeros((len(X), net.widths[-1]))
        return _labelled(_gaussian_functions(mean, K, draws, rng), net, "prior", order=0)
    factors = _random_kernel(net, X).draw_factors(draws, _room(rng, draws, len(X)))
    normal = rng.standard_normal((draws, net.widths[-1], factors.shape[2]))
    return _labelled(normal @ factors.swapaxes(1, 2), net, "prior", order=1)


def sample_posterior(
    net: Network,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    draws: int = 1,
    seed: int = 0,
    *,
    noise: float = 0.0,
    order: int = 0,
    samples: int | None = None,
) -> xr.DataArray:
    """Functions drawn from the posterior, on (sample, output, test) (theory §9).

    order=1 draws kernels as `sample_prior` does, keeps them in proportion to the evidence p(y | kernel) of the data,
    and draws one function from the posterior of each. The attribute `effective` says how many of the `candidates` the
    data left in play. `samples` is the former name of `draws`.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 8, 1], "relu", C_b=0.1, C_W=2.0)
    >>> s = ww.sample_posterior(net, [[1.0]], [0.3], [[1.0], [2.0]], draws=4)
    >>> bool(abs(s.isel(test=0) - 0.3).max() < 1e-6)
    True
    """
    draws = _renamed(draws, samples)
    net = corrections.network_for(order, check_network(net))
    X, y, X_test = corrections.check_data(net, X_train, y_train, X_test)
    noise, rng = corrections.check_noise(noise), _random_numbers(draws, seed, y.shape[1] * len(X_test))
    process, K_xA, K_xx = condition_prior(net, X, X_test, noise)
    if order == 0:
        values = _gaussian_functions(process.mean(K_xA, y), process.covariance(K_xx, K_xA), draws, rng)
        return _labelled(values, net, "posterior", order=0)
    train, candidates = len(X), max(CANDIDATES * draws, LEAST_CANDIDATES)
    law = _random_kernel(net, np.concatenate([X, X_test]))
    kernels = law.draw(candidates, _room(rng, candidates, train + len(X_test)))
    noisy = kernels[:, :train, :train] + noise * np.eye(train)
    try:
        solved = np.linalg.solve(noisy, np.broadcast_to(y, (candidates, *y.shape)))
    except np.linalg.LinAlgError:
        remedy = "Set noise > 0, or take more neurons than training inputs."
        raise SingularKernel(
            "X_train", "a drawn kernel that cannot be inverted", "kernels of full rank", remedy
        ) from None
    evidence = -0.5 * np.einsum("kai,ai->k", solved, y) - 0.5 * y.shape[1] * np.linalg.slogdet(noisy)[1]
    kept = resampled(evidence, draws, rng)
    kernels, noisy, solved = kernels[kept], noisy[kept], solved[kept]
    across = kernels[:, train:, :train]
    covariance = kernels[:, train:, train:] - across @ np.linalg.solve(noisy, across.swapaxes(1, 2))
    variances, vectors = np.linalg.eigh(covariance)
    roots = vectors * np.sqrt(np.maximum(variances, 0.0))[:, None, :]
    normal = rng.standard_normal((draws, y.shape[1], len(X_test)))
    values = (across @ solved).swapaxes(1, 2) + normal @ roots.swapaxes(1, 2)
    details = {"candidates": candidates, "effective": effective_number(evidence)}
    return _labelled(values, net, "posterior", order=1, **details)


def _renamed(draws: Any, samples: Any) -> Any:
    if samples is None:
        return draws
    warnings.warn("samples= is now called draws= and will be removed in version 2", DeprecationWarning, stacklevel=3)
    return samples


def _random_numbers(draws: Any, seed: Any, points: int) -> np.random.Generator:
    draws = check_integer("draws", draws, 1, expected="a positive integer")
    each = 16 * points
    what = f"{draws} functions at {points} points"
    require_memory(each * draws, what, lambda limit: f"What would fit: {limit // each} draws.")
    return np.random.default_rng(check_seed(seed))


def _room(rng: np.random.Generator, kernels: int, inputs: int) -> np.random.Generator:
    """Refuse more kernels than fit into memory."""
    each = 8 * 6 * inputs**2
    require_memory(
        kernels * each, f"{kernels} kernels on {inputs} inputs", lambda limit: f"What fits: {limit // each}."
    )
    return rng


def _random_kernel(net: Network, X: np.ndarray) -> RandomKernel:
    corrections.require_tensors(net, len(X), corrections.PRIOR_TENSORS)
    law = RandomKernel.of(
        **corrections.at_output(corrections.joint_tensors(net, X, corrections.PRIOR_TENSORS)), n=net.n
    )
    if law.spread > WIDE_SPREAD:
        warnings.warn(
            f"order=1: at n = {net.n} kernels vary by {law.spread:.0%} of their size: 1/n is not small here; widen the "
            "network, or make it shallower",
            ExpansionWarning,
            stacklevel=3,
        )
    return law


def _gaussian_functions(mean: np.ndarray, covariance: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Gaussian functions (draws, outputs, inputs), independent outputs with means (inputs, outputs)."""
    variances, vectors = linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(variances, 0.0))
    return mean.T + rng.standard_normal((draws, mean.shape[1], len(covariance))) @ root.T


def _labelled(values: np.ndarray, net: Network, name: str, **details: Any) -> xr.DataArray:
    attrs = {"network": net.to_json(), "n": net.n} | details
    return xr.DataArray(values, dims=("sample", "output", "test"), name=name, attrs=attrs)
