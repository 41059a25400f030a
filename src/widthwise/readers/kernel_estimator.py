"""What all scikit-learn estimators of this package share: parameters, validation, scaling of targets, the network."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from widthwise.errors import InvalidInput, UnknownName
from widthwise.network import MLP
from widthwise.network.validation import check_integer
from widthwise.readers.evidence import choose_by_evidence
from widthwise.readers.kernel_solvers import BLOCK, Kernel, make_solver

#: Hidden widths where only the limit of infinite width is used; any number would do.
ANY_WIDTH = 512


class KernelEstimator(BaseEstimator):
    """Fits (kernel + noise)⁻¹ y on validated data; which kernel is said by `_kernel`, "K" or "Theta"."""

    _kernel = "K"

    net_: MLP
    noise_: float
    X_fit_: np.ndarray
    dual_coef_: np.ndarray
    solver_: str
    n_iter_: int
    log_evidence_: float

    def __init__(
        self,
        hidden_layers: int = 2,
        activation: Any = "relu",
        C_b: float = 0.1,
        C_W: float = 2.0,
        noise: float = 0.1,
        choose: str | None = None,
        evidence_points: int = 1000,
        solver: str = "auto",
        tolerance: float = 1e-6,
        random_state: int = 0,
    ):
        self.hidden_layers = hidden_layers
        self.activation = activation
        self.C_b = C_b
        self.C_W = C_W
        self.noise = noise
        self.choose = choose
        self.evidence_points = evidence_points
        self.solver = solver
        self.tolerance = tolerance
        self.random_state = random_state

    def _network(self, features: int, outputs: int, hidden: int, width: int = ANY_WIDTH) -> MLP:
        return MLP.ntk([features, *[width] * hidden, outputs], self.activation, self.C_b, self.C_W)

    def _settle(self, X: np.ndarray, y: np.ndarray, width: int = ANY_WIDTH) -> None:
        """`net_` and `noise_`: as given, or chosen by evidence on at most `evidence_points` inputs."""
        hidden = check_integer("hidden_layers", self.hidden_layers, 0)
        if not (isinstance(self.noise, int | float) and 0.0 <= self.noise < float("inf")):
            raise InvalidInput("noise", repr(self.noise), "a finite non-negative variance")
        if self.choose is None:
            self.net_, self.noise_ = self._network(X.shape[1], y.shape[1], hidden, width), float(self.noise)
            return
        if self.choose != "evidence":
            raise UnknownName.of("choose", self.choose, ("evidence",), ", or None")
        points = check_integer("evidence_points", self.evidence_points, 2)
        some = np.random.default_rng(self.random_state).permutation(len(X))[:points]
        nets = [self._network(X.shape[1], y.shape[1], depth, width) for depth in range(min(1, hidden), hidden + 1)]
        choice = choose_by_evidence(nets, X[some], y[some], self._kernel)
        self.net_, self.noise_ = choice.net, choice.noise

    def _fit_kernel(self, X: np.ndarray, y: np.ndarray) -> None:
        """Solve for the dual coefficients of targets y (inputs, outputs)."""
        self._settle(X, y)
        solver = make_solver(
            Kernel(self.net_, self._kernel), X, self.noise_, self.solver, self.tolerance, int(self.random_state or 0)
        )
        self.X_fit_, self.dual_coef_ = X, solver.solve(y)
        self.solver_, self.n_iter_ = solver.name, max(1, solver.iterations)
        if solver.process is not None:
            self.log_evidence_ = solver.process.log_evidence(y)
        self._solver = solver

    def _inputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))

    def _mean(self, X: np.ndarray) -> np.ndarray:
        """Kernel between X and the training inputs, times the dual coefficients: (inputs, outputs)."""
        kernel = Kernel(self.net_, self._kernel)
        blocks = range(0, len(X), BLOCK)
        return np.concatenate([kernel(X[start : start + BLOCK], self.X_fit_) @ self.dual_coef_ for start in blocks])

    def _variance(self, X: np.ndarray) -> np.ndarray:
        """The variance of an output with normalised targets: (inputs,)."""
        parts = [self._block_variance(X[start : start + BLOCK]) for start in range(0, len(X), BLOCK)]
        return np.maximum(np.concatenate(parts), 0.0)

    def _block_variance(self, X: np.ndarray) -> np.ndarray:
        """K_xx − K_xA (K_AA + noise)⁻¹ K_Ax (theory §9)."""
        K = Kernel(self.net_, "K")
        cross = K(X, self.X_fit_)
        return K.diagonal(X) - np.einsum("xa,ax->x", cross, self._solver.solve(cross.T))


def ensemble_variance(estimator: KernelEstimator, X: np.ndarray) -> np.ndarray:
    """Variance over initialisations of networks trained with Θ: z_x − T z_A, T = Θ_xA (Θ_AA + ridge)⁻¹ (theory §8)."""
    K, Theta = Kernel(estimator.net_, "K"), Kernel(estimator.net_, "Theta")
    T = estimator._solver.solve(Theta(X, estimator.X_fit_).T)
    mixed = np.einsum("xa,ax->x", K(X, estimator.X_fit_), T)
    return K.diagonal(X) - 2.0 * mixed + np.einsum("ax,ax->x", T, K.times(estimator.X_fit_, T))
