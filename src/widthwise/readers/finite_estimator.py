"""`FiniteWidthRegressor`: the mean and spread of an ensemble of trained networks of finite width, to order 1/n."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import linalg

from widthwise.errors import InvalidInput
from widthwise.inference.predict import predict
from widthwise.inference.training_kernel import SINGULAR, Spectrum
from widthwise.memory import require_memory
from widthwise.network import GradientFlow
from widthwise.network.validation import check_integer
from widthwise.readers.estimators import _Regressor
from widthwise.readers.kernel_solvers import BLOCK, Kernel

(_pivoted_cholesky,) = linalg.get_lapack_funcs(("pstrf",), (np.zeros((1, 1)),))

#: Inputs at which corrections are computed at once.
TOGETHER = 4
#: Pivots below this share of the largest are no new input.
NEW = 1e-8


class FiniteWidthRegressor(_Regressor):
    """An ensemble of networks of width n trained by gradient flow: mean and deviation to order 1/n (theory §8).

    The leading order uses all training inputs. The corrections hold tensors with four indices over training inputs, so
    with more than `max_points` of them they are computed on that many, those that tell most about Θ (pivoted Cholesky),
    with the leading-order fit as targets: an approximation of the corrections, none of the leading order; `exact_` says
    whether it was made. Cost and memory of the corrections grow like (max_points + 4)⁴ for every four predictions.

    Parameters
    ----------
    hidden_layers, width : of the networks; n = width.
    activation : smooth, such as gelu, swish, tanh or erf: the corrections need three derivatives.
    C_b, C_W : variances of biases and of weights times fan-in; λ_b = C_b, λ_W = C_W (NTK parameterisation).
    time : of gradient flow on ½Σ(z−y)² over standardised targets; None for convergence.
    order : 1; or 0, infinite width.
    max_points : training inputs for the corrections.
    choose : None; or "evidence", as in `NTKRegressor`; the noise variance found becomes the training time 1/noise.

    Attributes
    ----------
    net_, time_ : the network and the training time that were used.
    points_, exact_ : rows of the training inputs behind the corrections, and whether these are all.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 4)[:, None]
    >>> model = FiniteWidthRegressor(width=64, order=0).fit(X, X[:, 0])
    >>> mean, std = model.predict(X, return_std=True)
    >>> bool(np.allclose(mean, X[:, 0])), bool((std < 1e-4).all())
    (True, True)
    """

    _kernel = "Theta"

    def __init__(
        self,
        hidden_layers: int = 1,
        width: int = 128,
        activation: Any = "gelu",
        C_b: float = 0.1,
        C_W: float = 2.0,
        time: float | None = None,
        order: int = 1,
        max_points: int = 6,
        choose: str | None = None,
        evidence_points: int = 1000,
        random_state: int = 0,
    ):
        self.hidden_layers = hidden_layers
        self.width = width
        self.activation = activation
        self.C_b = C_b
        self.C_W = C_W
        self.time = time
        self.order = order
        self.max_points = max_points
        self.choose = choose
        self.evidence_points = evidence_points
        self.random_state = random_state

    #: Not a parameter here: training without noise. `_settle` reads it.
    noise: float = 0.0

    time_: float | None
    points_: np.ndarray
    exact_: bool

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (inputs, features) and y (inputs,) or (inputs, outputs)."""
        X, y = self._targets(X, y)
        if isinstance(self.order, bool) or self.order not in (0, 1):
            raise InvalidInput("order", repr(self.order), "0 or 1")
        require_memory(40 * len(X) ** 2, f"K, Θ and eigenvectors on {len(X)} inputs", "Use NTKRegressor with 'cg'.")
        self._settle(X, y, check_integer("width", self.width, 1))
        self.time_ = self.time if self.choose is None else 1.0 / max(self.noise_, 1e-12)
        kernels = [Kernel(self.net_, name)(X) for name in ("K", "Theta")]
        spectrum = _without_rounding(Spectrum.of(kernels[1]))
        self.X_fit_, self._K, self._y = X, kernels[0], y
        self._response = spectrum.response(GradientFlow(self.time_))
        self.points_ = _most_telling(kernels[1], check_integer("max_points", self.max_points, 1))
        self.exact_ = len(self.points_) == len(X)
        self._fitted = kernels[1] @ self._response @ y if not self.exact_ else y
        self.n_iter_ = 1
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean at X, (inputs,) or (inputs, outputs); with `return_std` also the spread over initialisations."""
        X = self._inputs(X)
        parts = [self._leading(X[start : start + BLOCK]) for start in range(0, len(X), BLOCK)]
        mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
        variance = np.repeat(variance[:, None], mean.shape[1], axis=1)
        if self.order == 1:
            changes = [self._corrections(X[start : start + TOGETHER]) for start in range(0, len(X), TOGETHER)]
            mean1, variance1 = (np.concatenate(part) for part in zip(*changes, strict=True))
            mean, variance = mean + mean1 / self.net_.n, variance + variance1 / self.net_.n
        mean = self._shaped(mean * self.y_scale_ + self.y_mean_)
        if not return_std:
            return mean
        return mean, self._shaped(np.sqrt(np.maximum(variance, 0.0)) * self.y_scale_)

    def _leading(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (inputs, outputs) and variance (inputs,) at infinite width, on all training inputs."""
        K, Theta = Kernel(self.net_, "K"), Kernel(self.net_, "Theta")
        transfer = Theta(X, self.X_fit_) @ self._response
        mixed = np.einsum("xa,xa->x", transfer, K(X, self.X_fit_))
        spread = np.einsum("xa,ab,xb->x", transfer, self._K, transfer, optimize=True)
        return transfer @ self._y, K.diagonal(X) - 2.0 * mixed + spread

    def _corrections(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients of 1/n in mean and variance, each (inputs, outputs)."""
        chosen = self.X_fit_[self.points_], self._fitted[self.points_]
        p = predict(self.net_, *chosen, X, GradientFlow(self.time_), order=1)
        return p["mean1"].values.T, np.einsum("ixix->xi", p["cov1"].values)


def _without_rounding(spectrum: Spectrum) -> Spectrum:
    """Directions that Θ does not see never learn; eigenvalues at rounding are taken for zero."""
    seen = spectrum.values > SINGULAR * spectrum.values[-1]
    return Spectrum(spectrum.values[seen], spectrum.vectors[:, seen])


def _most_telling(Theta: np.ndarray, most: int) -> np.ndarray:
    """Rows that a pivoted Cholesky decomposition of Θ takes first; repeated inputs are taken once."""
    _, pivots, rank, _ = _pivoted_cholesky(Theta, tol=NEW * float(np.max(np.diag(Theta))))
    return np.sort(pivots[: min(rank, most)] - 1)
