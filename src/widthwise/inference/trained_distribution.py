"""The distribution of trained outputs beyond mean and covariance: `trained_density`, `trained_skewness` (theory §8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput
from widthwise.inference import corrections
from widthwise.inference.infinite_width import Algorithm
from widthwise.inference.predict import joint_problem, predict
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.edgeworth import Edgeworth
from widthwise.inference.trained.trained_moments import Basis, joint_third_cumulant
from widthwise.network import Network, check_integer, check_network, check_one_input, real_array
from widthwise.results.labels import TEST_TRIPLES, label

#: Points at which a density is given unless others are asked for, and how far they reach in standard deviations.
DENSITY_POINTS, DENSITY_REACH = 201, 5.0
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def trained_density(
    net: Network,
    X_train: Any,
    y_train: Any,
    x_test: Any,
    algorithm: Algorithm | None = None,
    *,
    output: int = 0,
    z: Any = None,
    probabilities: Any = QUANTILES,
) -> xr.Dataset:
    """The density of one output of a trained network at one input, over initialisations, to order 1/n (theory §8).

    Mean and variance with their corrections, third and fourth cumulant make a Gaussian with an Edgeworth expansion
    (`inference.trained.edgeworth`).

    Parameters
    ----------
    X_train, y_train, algorithm : as in `predict` with order=1.
    x_test : one input, (features,) or (1, features).
    output : which output, from 0.
    z : outputs at which the density is wanted; 201 points within five standard deviations otherwise.
    probabilities : of the quantiles.

    Returns
    -------
    Dataset with density, density_error, gaussian (of the same mean and variance) and below (the probability of less
    than z) on z; quantile and quantile_error on probability; and the numbers mean, variance, skewness and kurtosis (the
    excess over a Gaussian's). Errors are the part of the next order in 1/n that these cumulants determine.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5)
    >>> d = ww.trained_density(net, [[-1.0], [1.0]], [0.5, 0.7], [0.3])
    >>> round(float(d["density"].integrate("z")), 5)
    1.0
    """
    x = check_one_input(x_test, check_network(net).widths[0], "x_test")
    output = check_integer("output", output, 0, net.widths[-1] - 1, f"an integer from 0 to {net.widths[-1] - 1}")
    chances = np.atleast_1d(real_array(probabilities, "probabilities"))
    if chances.ndim != 1 or not np.all((chances > 0.0) & (chances < 1.0)):
        raise InvalidInput("probabilities", repr(probabilities), "numbers between 0 and 1")
    p = predict(net, X_train, y_train, x[None], algorithm, order=1, cumulants=4)
    mean, variance = float(p["mean"][output, 0]), float(p["cov"][output, 0, output, 0])
    if not variance > 1e-12 * (1.0 + mean * mean):
        got = f"an input at which the variance is {variance:.3g}"
        raise InvalidInput(
            "x_test", got, "one at which trained outputs scatter", "Take another input, or a wider network."
        )
    law = Edgeworth(mean, variance, *(float(p[name][output, 0]) / net.n for name in ("kappa3", "kappa4")))
    reach = DENSITY_REACH * np.sqrt(variance)
    at = np.linspace(mean - reach, mean + reach, DENSITY_POINTS) if z is None else np.atleast_1d(real_array(z, "z"))
    if at.ndim != 1 or at.size == 0:
        raise InvalidInput("z", f"an array of shape {at.shape}", "one number, or a list of them")
    variables: dict[str, Any] = {
        "density": ("z", law.density(at)),
        "density_error": ("z", law.density_error(at)),
        "gaussian": ("z", law._replace(third=0.0, fourth=0.0).density(at)),
        "below": ("z", law.below(at)),
        "quantile": ("probability", law.quantile(chances)),
        "quantile_error": ("probability", law.quantile_error(chances)),
        "mean": ((), mean),
        "variance": ((), variance),
        "skewness": ((), float(law.skewness)),
        "kurtosis": ((), float(law.kurtosis)),
    }
    details = {"kind": "trained_density", "order": 1, "algorithm": p.attrs["algorithm"], "output": output}
    return label(variables, net, {"z": at, "probability": chances}, **details)


def trained_skewness(
    net: Network, X_train: Any, y_train: Any, X_test: Any, algorithm: Algorithm | None = None
) -> xr.Dataset:
    """Third cumulants of one trained output at three inputs, to order 1/n (theory §8).

    Arguments as in `predict` with order=1.

    Returns
    -------
    Dataset with kappa3_joint on (output, test, test_, test__), the coefficient of 1/n, which `train` measures at up to
    four tests; and skewness, kappa3_joint/n over the standard deviations at infinite width, zero where one vanishes.

    >>> import widthwise as ww
    >>> net, data = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5), ([[-1.0], [1.0]], [0.5, 0.7], [[0.3], [2.0]])
    >>> s, p = ww.trained_skewness(net, *data), ww.predict(net, *data, cumulants=3)
    >>> bool(np.allclose(np.einsum("iaaa->ia", s["kappa3_joint"]), p["kappa3"]))
    True
    """
    solved: Algorithm = corrections.check_algorithm(algorithm)
    net = corrections.network_for(1, net)
    problem = joint_problem(net, X_train, y_train, X_test, [solved])
    basis = Basis.of(problem.spectrum, problem.flow.Theta[-1], corrections.at_output(problem.flow), problem.y)
    third = joint_third_cumulant(basis, Clock.of(solved))
    deviations = np.sqrt(np.einsum("ixix->ix", predict(net, X_train, y_train, X_test, solved)["cov0"].values).clip(0.0))
    scale = np.einsum("ix,iy,iw->ixyw", deviations, deviations, deviations)
    there = scale > 1e-9 * max(float(scale.max()), 1e-300)
    skewness = np.divide(third / net.n, scale, out=np.zeros_like(third), where=there)
    details = {"kind": "trained_skewness", "order": 1, "algorithm": repr(solved), "route": problem.flow.route}
    variables = {"kappa3_joint": (TEST_TRIPLES, third), "skewness": (TEST_TRIPLES, skewness)}
    return label(variables, net, **details)
