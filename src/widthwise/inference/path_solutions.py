"""What `predict` takes from paths in function space: infinite width, and what they add at order 1/n (theory §8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.inference.corrections import AT_TESTS
from widthwise.inference.function_space import Problem, path_moments, train_draws
from widthwise.inference.infinite_width import KernelBlocks
from widthwise.inference.linear_training import LinearAlgorithm, batch_of, is_to_convergence
from widthwise.inference.trained.path_terms import path_corrections
from widthwise.inference.trained.trained_moments import OutputMoments
from widthwise.network import NewtonStep, check_integer, check_seed
from widthwise.network.losses import Loss
from widthwise.results.labels import TEST_PAIRS

AT_TRAINING, TRAIN_PAIRS = ("output", "train"), ("output", "train", "output_", "train_")


def path_solution(kernels: KernelBlocks, algorithm: Any, y: np.ndarray, loss: Loss, draws: Any, seed: Any):
    """Mean and covariance at the tests over draws of the initial outputs, and variables with standard errors."""
    draws = _check_draws(draws)
    if isinstance(algorithm, NewtonStep):
        raise InvalidInput("algorithm", f"NewtonStep() with loss={loss.name!r}", "a time, or a number of steps")
    start = train_draws(loss, algorithm, kernels.K_AA, kernels.Theta_AA, y, draws, check_seed(seed))
    tests, training = (
        path_moments(start, part.K_AA, part.K_xA, part.K_xx, part.Theta_xA) for part in (kernels, kernels.at_training)
    )
    more: dict[str, Any] = {
        "mean_se": (AT_TESTS, tests.mean_se),
        "cov_se": (TEST_PAIRS, tests.cov_se),
        "train_mean0": (AT_TRAINING, training.mean),
        "train_cov0": (TRAIN_PAIRS, training.cov),
    }
    if batch_of(algorithm, len(y)) is None:
        # batches are drawn, so that paths from zero scatter too
        more |= {"from_zero": (AT_TESTS, tests.from_zero), "train_from_zero": (AT_TRAINING, training.from_zero)}
    return (tests.mean, tests.cov), more


def check_path_order(algorithm: LinearAlgorithm, loss: Loss, method: str, highest: int) -> str:
    """Refuse what `path_terms` does not cover; the method with which it covers the rest."""
    what = f"loss={loss.name!r} with {algorithm!r}"
    if highest > 2 or not (is_to_convergence(algorithm) and loss.ends_at_targets) or isinstance(algorithm, NewtonStep):
        asked = f" and cumulants={highest}" if highest > 2 else ""
        raise InvalidInput(
            "loss", f"{what}{asked} with order=1",
            "'squared'; or another loss that ends at z = y, or momentum, to convergence, for mean and covariance",
            "`train` measures it at the width of the network; order=0 is its infinite width.",
        )  # fmt: skip
    if method == "tiles":
        raise InvalidInput("method", f"'tiles' for {what}", "'auto' or 'full'")
    return "full"


def with_path(
    newton: OutputMoments,
    tensors: Mapping[str, np.ndarray],
    kernels: KernelBlocks,
    algorithm: LinearAlgorithm,
    y: np.ndarray,
    loss: Loss,
    draws: Any,
    seed: Any,
) -> tuple[OutputMoments, OutputMoments]:
    """Order 1/n of a Newton step with what the path adds, and standard errors; `tensors` on training, then tests."""
    problem = Problem(loss, algorithm, kernels.Theta_AA, y.T)
    k = np.linalg.solve(kernels.Theta_AA, kernels.Theta_xA.T).T
    path = path_corrections(problem, tensors, k, _check_draws(draws), check_seed(seed))
    return OutputMoments(*(one + other for one, other in zip(newton, path.moments, strict=True))), path.errors


def _check_draws(draws: Any) -> int:
    return check_integer("draws", draws, 64, expected="an integer of at least 64")
