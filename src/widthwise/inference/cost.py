"""What order 1/n costs beside training real networks, said before a long computation starts.

Both grow by rules that were measured on two cores (benchmarks/results/predict.txt): sums over quadruples take 1.1e-4 s
for each of them and each hidden layer at 48 thousand million multiply-adds a second in matrix products, and `train`
reaches 18% of that rate. The rate of this machine is measured in some milliseconds.
"""

from __future__ import annotations

import math
import time
import warnings
from functools import cache

import numpy as np

from widthwise.blas_threads import one_blas_thread
from widthwise.devices import usable_cores
from widthwise.errors import CostWarning
from widthwise.inference.infinite_width import Algorithm, Spectrum, duration
from widthwise.inference.tiled.quadruple_tiles import count_quadruples
from widthwise.network import GradientDescent, Network

#: Multiply-adds of a matrix product in the time that one quadruple takes at one layer.
_WORK_A_QUADRUPLE = 1.1e-4 * 48e9
#: What `train` reaches of the rate of matrix products.
_TRAINING_SHARE = 0.18
#: Seconds from which on something is said, and networks to compare with.
NOTABLE_SECONDS, COMPARED_NETWORKS = 60.0, 1000
#: An error that is left of the initial one when training has converged, and steps of flow for each unit of time · λ.
_CONVERGED, _STEPS_OF_FLOW = 1e-6, 0.5


@cache
def _matrix_rate() -> float:
    """Multiply-adds a second of numpy's matrix products on all cores of this machine."""
    matrix, best = np.ones((256, 256)), math.inf
    with one_blas_thread():  # threads that share a product wait for each other where another process uses a core
        for _ in range(8):
            start = time.perf_counter()
            np.matmul(matrix, matrix)
            best = min(best, time.perf_counter() - start)
    return usable_cores() * 256**3 / best


def order_one_seconds(net: Network, training: int, tests: int) -> float:
    """Of `predict(order=1)`, whichever way it is summed."""
    return count_quadruples(training, tests, net.depth) * _WORK_A_QUADRUPLE / _matrix_rate()


def training_steps(algorithm: Algorithm, spectrum: Spectrum) -> float:
    """Evaluations of the gradient that training takes, to convergence where no duration is given.

    >>> from widthwise.inference.infinite_width import Spectrum
    >>> training_steps(GradientDescent(0.1, steps=50), Spectrum.of(np.eye(2)))
    50.0
    """
    slowest, fastest, given = spectrum.values[0], spectrum.values[-1], duration(algorithm)
    if isinstance(algorithm, GradientDescent):
        return float(given) if given is not None else -math.log(_CONVERGED) / (algorithm.learning_rate * slowest)
    return max(20.0, _STEPS_OF_FLOW * fastest * (given if given is not None else -math.log(_CONVERGED) / slowest))


def training_seconds(net: Network, inputs: int, steps: float, networks: int = COMPARED_NETWORKS) -> float:
    """Of `train`: a pass forwards and one back, three products for each weight, input and step."""
    weights = sum(below * above for below, above in zip(net.widths, net.widths[1:], strict=False))
    return 3.0 * weights * inputs * steps * networks / (_TRAINING_SHARE * _matrix_rate())


def warn_of_cost(
    net: Network, training: int, tests: int, algorithm: Algorithm, spectrum: Spectrum, variance: float
) -> None:
    """A word before a long computation where training real networks is quicker; `variance` of a trained output."""
    seconds = order_one_seconds(net, training, tests)
    if seconds < NOTABLE_SECONDS:
        return
    trained = training_seconds(net, training + tests, training_steps(algorithm, spectrum))
    if trained < seconds:
        error = math.sqrt(max(variance, 0.0) / COMPARED_NETWORKS)
        warnings.warn(
            f"predict(order=1) on {training} training and {tests} test inputs takes about {_duration(seconds)} here; "
            f"train(net, X_train, y_train, X_test, networks={COMPARED_NETWORKS}) with the same algorithm takes about "
            f"{_duration(trained)} and measures the same variables, the mean to ±{error:.2g}. "
            "Press Ctrl-C and call it if that will do.",
            CostWarning,
            stacklevel=4,
        )


def _duration(seconds: float) -> str:
    """In words.

    >>> _duration(42.0), _duration(600.0), _duration(9000.0)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000.0 else f"{seconds / 3600:.1f} h"
