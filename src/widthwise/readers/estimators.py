"""scikit-learn estimators of infinite width: `NNGPRegressor`, `NTKRegressor`, `NTKClassifier`.

They use memory as `kernel_solvers` says, and predictions are made in blocks of rows.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import special

from widthwise.readers.packages import need

need("sklearn", "interop", "this estimator")

from sklearn.base import ClassifierMixin, RegressorMixin  # noqa: E402
from sklearn.preprocessing import LabelBinarizer  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import validate_data  # noqa: E402

from widthwise.readers.kernel_estimator import KernelEstimator, ensemble_variance  # noqa: E402

_NODES, _WEIGHTS = special.roots_hermitenorm(48)


class _Regressor(RegressorMixin, KernelEstimator):
    """Targets brought to mean zero and variance one, and back."""

    def _targets(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64)
        self._flat = y.ndim == 1
        y = np.asarray(y, float).reshape(len(X), -1)
        self.y_mean_, spread = y.mean(axis=0), y.std(axis=0)
        self.y_scale_ = np.where(spread > 0, spread, 1.0)
        return X, (y - self.y_mean_) / self.y_scale_

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (inputs, features) and y (inputs,) or (inputs, outputs)."""
        self._fit_kernel(*self._targets(X, y))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean at X, (inputs,) or (inputs, outputs); with `return_std` also the standard deviation."""
        X = self._inputs(X)
        mean = self._shaped(self._mean(X) * self.y_scale_ + self.y_mean_)
        if not return_std:
            return mean
        return mean, self._shaped(np.sqrt(self._variance(X))[:, None] * self.y_scale_)

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._flat else values

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class NNGPRegressor(_Regressor):
    """Bayesian regression with a network of infinite width: the Gaussian process with kernel K (theory §2, §9).

    Targets are standardised. Standardise the features as well, for example in a pipeline: the kernel sees x·x/n_0.

    Parameters
    ----------
    hidden_layers : how many; with choose="evidence", the most that are tried.
    activation : a name, or a function written in jax.numpy.
    C_b, C_W : variances of biases and of weights times fan-in, in every layer.
    noise : variance of the observation noise, in units of the targets' variance.
    choose : None; or "evidence", for the depth, C_b, C_W, output scale and noise under which the targets are most
        probable, found from at most `evidence_points` training inputs.
    solver : "cholesky", exact, 16 N² bytes; "cg", conjugate gradients to `tolerance` without keeping the kernel,
        about 11 KB for each training input; "auto", the first while it fits into half the free memory.
    random_state : seed of the choice of inputs for evidence and of the preconditioner.

    Attributes
    ----------
    net_, noise_ : the network and noise that were used.
    log_evidence_ : log probability of the standardised targets, with solver "cholesky".
    solver_, n_iter_ : which solver, and its iterations.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> model = NNGPRegressor(activation="erf", noise=1e-4).fit(X, X[:, 0] ** 3)
    >>> mean, std = model.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - 0.125) < 0.02), bool(std[0] < 0.05)
    (True, True)
    """


class NTKRegressor(_Regressor):
    """The mean of an ensemble of infinitely wide networks trained by gradient descent: regression with Θ (theory §8).

    Parameters and attributes as in `NNGPRegressor`, with learning rates of the NTK parameterisation (λ = C) and
    `noise` the ridge added to Θ, which acts as early stopping. The standard deviation is that over initialisations.
    choose="evidence" uses the evidence of the Gaussian process with kernel Θ, which has the same mean.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> model = NTKRegressor(activation="erf", noise=1e-4).fit(X, X[:, 0] ** 3)
    >>> bool(abs(model.predict([[0.5]])[0] - 0.125) < 0.02)
    True
    """

    _kernel = "Theta"

    def _block_variance(self, X: np.ndarray) -> np.ndarray:
        return ensemble_variance(self, X)


class NTKClassifier(ClassifierMixin, KernelEstimator):
    """Classification by regression with Θ on targets ±1, one output for each class (one in all for two classes).

    Parameters as in `NTKRegressor`. `predict_proba` is the share of an ensemble of infinitely wide networks, trained
    from different initialisations, whose largest output is that of the class: outputs are independent Gaussians of one
    variance (theory §8). It is spread over initialisations, not calibrated noise of the labels.

    Examples
    --------
    >>> X = np.array([[0.0, 1.0], [0.2, 1.1], [1.0, 0.0], [1.1, 0.1]])
    >>> model = NTKClassifier().fit(X, ["up", "up", "right", "right"])
    >>> model.predict([[0.1, 1.2]]).tolist(), bool(model.predict_proba([[0.1, 1.2]])[0, 1] > 0.5)
    (['up'], True)
    """

    _kernel = "Theta"

    classes_: np.ndarray
    intercept_: np.ndarray

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (inputs, features) and labels y (inputs,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self._labels = LabelBinarizer(neg_label=-1, pos_label=1).fit(y)
        self.classes_ = self._labels.classes_
        if len(self.classes_) < 2:
            raise ValueError(f"y holds one class, {self.classes_[0]!r}; expected at least two")
        targets = np.asarray(self._labels.transform(y), float)
        self.intercept_ = targets.mean(axis=0)
        self._fit_kernel(X, targets - self.intercept_)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Mean outputs over their spread: (inputs, classes), or (inputs,) for two classes, positive for the second."""
        X = self._inputs(X)
        found = self._outputs(X) / np.sqrt(np.maximum(self._variance(X), 1e-12))[:, None]
        return found[:, 0] if len(self.classes_) == 2 else found

    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest mean output."""
        found = self._outputs(self._inputs(X))
        return self.classes_[(found[:, 0] > 0).astype(int) if found.shape[1] == 1 else found.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The share of trained networks that vote for each class, (inputs, classes)."""
        score = self.decision_function(X)
        if score.ndim == 1:
            return np.stack([special.ndtr(-score), special.ndtr(score)], axis=1)
        wins = np.zeros(score.shape)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            logs = special.log_ndtr(node + score[:, :, None] - score[:, None, :])
            wins += weight * np.exp(logs.sum(axis=2) - np.einsum("xkk->xk", logs))
        return wins / wins.sum(axis=1, keepdims=True)

    def _outputs(self, X: np.ndarray) -> np.ndarray:
        return self._mean(X) + self.intercept_

    def _block_variance(self, X: np.ndarray) -> np.ndarray:
        return ensemble_variance(self, X)
