"""scikit-learn estimators: of infinite width, `NNGPRegressor`, `NTKRegressor`, `NTKClassifier`, and of finite width.

They use memory as `kernel_solvers` says, and predictions are made in blocks of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy import linalg, special

from widthwise.errors import InvalidInput, UnknownName
from widthwise.extras import need
from widthwise.flow.tensors.pair_flow import check_kernel
from widthwise.inference.corrections import check_noise, check_order
from widthwise.inference.infinite_width import SINGULAR, Spectrum
from widthwise.inference.predict import predict
from widthwise.memory import require_layers, require_memory
from widthwise.network import MLP, GradientFlow, Network, check_integer, check_network, check_seed, real_array
from widthwise.network.validation import check_size_of_targets, is_one_of, plain_values
from widthwise.readers.kernel_solvers import Kernel, choose_by_evidence, in_blocks, make_solver

need("sklearn", "readers", "this estimator")

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # noqa: E402
from sklearn.preprocessing import LabelBinarizer  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

#: Hidden widths where only the limit of infinite width is used; any number would do.
ANY_WIDTH = 512
(_pivoted_cholesky,) = linalg.get_lapack_funcs(("pstrf",), (np.zeros((1, 1)),))
#: Inputs at which corrections are computed at once.
TOGETHER = 4
#: Pivots below this share of the largest are no new input.
NEW = 1e-8
_VOTE_NODES, _VOTE_WEIGHTS = special.roots_hermitenorm(48)


def check_random_state(estimator: Any) -> int:
    """The seed of an estimator; None, which scikit-learn allows, is 0."""
    return 0 if estimator.random_state is None else check_seed(estimator.random_state, "random_state")


def choose_network(estimator: Any, X: np.ndarray, y: np.ndarray, width: int = ANY_WIDTH) -> tuple[Network, float]:
    """Network and noise of an estimator: as given, or chosen by evidence on at most `evidence_points` inputs."""
    hidden, noise = check_integer("hidden_layers", estimator.hidden_layers, 0), check_noise(estimator.noise)
    if estimator.choose is not None and not is_one_of(estimator.choose, ("evidence",)):
        raise UnknownName.of("choose", estimator.choose, ("evidence",), ", or None")
    if getattr(estimator, "net", None) is not None:
        if estimator.choose is not None:
            raise InvalidInput("choose", repr(estimator.choose), "None with a net of your own", "Or leave net out.")
        return check_network(estimator.net), noise
    require_layers(hidden)
    fewest = hidden if estimator.choose is None else min(1, hidden)
    nets = [
        MLP.ntk([X.shape[1], *[width] * depth, y.shape[1]], estimator.activation, estimator.C_b, estimator.C_W)
        for depth in range(fewest, hidden + 1)
    ]
    if estimator.choose is None:
        return nets[0], noise
    points = check_integer("evidence_points", estimator.evidence_points, 2)
    some = np.random.default_rng(check_random_state(estimator)).permutation(len(X))[:points]
    choice = choose_by_evidence(nets, X[some], y[some], estimator._kernel)
    return choice.net, choice.noise


def validated(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """Data as scikit-learn checks them; inputs of a `net` of the user's own may have positions."""
    net = getattr(estimator, "net", None)
    positions = net is not None and check_network(net).positions != 0
    given = [plain_values(values, name) for values, name in zip((X, *y), "Xy", strict=False)]
    checked = validate_data(estimator, *given, dtype=np.float64, allow_nd=positions, **options)
    if net is not None:
        net.check_inputs(checked[0] if y else checked)
    return checked


def inputs_of(estimator: Any, X: Any) -> np.ndarray:
    """Inputs for a prediction, checked against those that the estimator was fitted to."""
    check_is_fitted(estimator)
    return np.asarray(validated(estimator, X, reset=False))


@dataclass(eq=False, repr=False)
class InfiniteWidthEstimator(BaseEstimator):
    """Fits (kernel + noise)⁻¹ y on validated data; which kernel is said by `_kernel`, K or Theta."""

    _kernel: ClassVar[str] = "K"

    hidden_layers: int = 2
    activation: Any = "relu"
    C_b: float = 0.1
    C_W: float = 2.0
    noise: float = 0.1
    choose: str | None = None
    evidence_points: int = 1000
    solver: str = "auto"
    tolerance: float = 1e-6
    random_state: int = 0
    net: Network | None = None

    def _fit_kernel(self, X: np.ndarray, y: np.ndarray) -> None:
        """Solve for the dual coefficients of targets y (inputs, outputs)."""
        self.net_, self.noise_ = choose_network(self, X, y)
        kernel, seed = Kernel(self.net_, self._kernel), check_random_state(self)
        self._solver = make_solver(kernel, X, self.noise_, self.solver, self.tolerance, seed)
        self.X_fit_, self.dual_coef_ = X, self._solver.solve(y)
        self.solver_, self.n_iter_ = self._solver.name, max(1, self._solver.iterations)
        if self._solver.process is not None:
            self.log_evidence_ = self._solver.process.log_evidence(y)

    def _mean(self, X: np.ndarray) -> np.ndarray:
        """Kernel between X and the training inputs, times the dual coefficients: (inputs, outputs)."""
        kernel = Kernel(self.net_, self._kernel)
        return in_blocks(lambda some: kernel(some, self.X_fit_) @ self.dual_coef_, X)

    def _variance(self, X: np.ndarray) -> np.ndarray:
        """The variance of an output with normalised targets: (inputs,).

        With K that of the posterior, K_xx − K_xA (K_AA + noise)⁻¹ K_Ax (theory §9). With Θ that over initialisations
        of networks trained with it: z_x − T z_A, T = Θ_xA (Θ_AA + ridge)⁻¹ (theory §8).
        """
        K, kernel = Kernel(self.net_, "K"), Kernel(self.net_, self._kernel)

        def variance(some: np.ndarray) -> np.ndarray:
            T = self._solver.solve(kernel(some, self.X_fit_).T)
            mixed = np.einsum("xa,ax->x", K(some, self.X_fit_), T)
            if self._kernel == "K":
                return K.diagonal(some) - mixed
            return K.diagonal(some) - 2.0 * mixed + np.einsum("ax,ax->x", T, K.times(self.X_fit_, T))

        return np.maximum(in_blocks(variance, X), 0.0)


class StandardisedRegressor(RegressorMixin, BaseEstimator):
    """Targets brought to mean zero and variance one, and back."""

    def _targets(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = validated(self, X, y, multi_output=True, y_numeric=True)
        self._flat = y.ndim == 1
        y = check_size_of_targets(real_array(y, "y"), "y").reshape(len(X), -1)
        self.y_mean_, spread = y.mean(axis=0), y.std(axis=0)
        self.y_scale_ = np.where(spread > 0, spread, 1.0)
        return X, (y - self.y_mean_) / self.y_scale_

    def _rescaled(self, mean: np.ndarray, variance: np.ndarray | None) -> Any:
        """The mean, and the standard deviation where there is a variance, in the units and the shape of the targets."""
        flat = 0 if self._flat else slice(None)
        mean = (mean * self.y_scale_ + self.y_mean_)[:, flat]
        return mean if variance is None else (mean, (np.sqrt(variance) * self.y_scale_)[:, flat])

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class InfiniteWidthRegressor(StandardisedRegressor, InfiniteWidthEstimator):
    """Regression with a kernel on standardised targets."""

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (inputs, features), or images, and y (inputs,) or (inputs, outputs)."""
        self._fit_kernel(*self._targets(X, y))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean at X, (inputs,) or (inputs, outputs); with `return_std` also the standard deviation."""
        X = inputs_of(self, X)
        return self._rescaled(self._mean(X), self._variance(X)[:, None] if return_std else None)


class NNGPRegressor(InfiniteWidthRegressor):
    """Bayesian regression with a network of infinite width: the Gaussian process with kernel K (theory §2, §9).

    Targets are standardised. Standardise the features as well, for example in a pipeline: the kernel sees x·x/n_0.

    Parameters
    ----------
    hidden_layers : how many; with choose="evidence", the most that are tried.
    activation : a name, or a function written in jax.numpy; without `choose` also a list of them, one per hidden layer.
    C_b, C_W : variances of biases and of weights times fan-in, in every layer.
    noise : variance of the observation noise, in units of the targets' variance.
    choose : None; or "evidence", for the depth, C_b, C_W, output scale and noise under which the targets are most
        probable, found from at most `evidence_points` training inputs.
    solver : "cholesky", exact, 16 N² bytes; "cg", conjugate gradients to `tolerance`, about 11 KB for each training
        input and as much of the kernel as half the free memory keeps; "auto", the first while it fits into that half.
    random_state : seed of the choice of inputs for evidence and of the preconditioner.
    net : None; or a network with one output in place of `hidden_layers`, `activation`, `C_b` and `C_W`. X then has the
        shape of its inputs: (inputs, height, width, channels) for images.

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


class NTKRegressor(InfiniteWidthRegressor):
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


class NTKClassifier(ClassifierMixin, InfiniteWidthEstimator):
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

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (inputs, features) and labels y (inputs,)."""
        X, y = validated(self, X, y)
        check_classification_targets(y)
        self._labels = LabelBinarizer(neg_label=-1, pos_label=1).fit(y)
        self.classes_ = self._labels.classes_
        if len(self.classes_) < 2:
            raise InvalidInput("y", f"one class, {self.classes_[0]!r}", "at least two classes")
        targets = np.asarray(self._labels.transform(y), float)
        self.intercept_ = targets.mean(axis=0)
        self._fit_kernel(X, targets - self.intercept_)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Mean outputs over their spread: (inputs, classes), or (inputs,) for two classes, positive for the second."""
        X = inputs_of(self, X)
        found = self._outputs(X) / np.sqrt(np.maximum(self._variance(X), 1e-12))[:, None]
        return found[:, 0] if len(self.classes_) == 2 else found

    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest mean output."""
        found = self._outputs(inputs_of(self, X))
        return self.classes_[(found[:, 0] > 0).astype(int) if found.shape[1] == 1 else found.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The share of trained networks that vote for each class, (inputs, classes)."""
        score = self.decision_function(X)
        if score.ndim == 1:
            return np.stack([special.ndtr(-score), special.ndtr(score)], axis=1)
        wins = np.zeros(score.shape)
        for node, weight in zip(_VOTE_NODES, _VOTE_WEIGHTS, strict=True):
            logs = special.log_ndtr(node + score[:, :, None] - score[:, None, :])
            wins += weight * np.exp(logs.sum(axis=2) - np.einsum("xkk->xk", logs))
        return wins / wins.sum(axis=1, keepdims=True)

    def _outputs(self, X: np.ndarray) -> np.ndarray:
        return self._mean(X) + self.intercept_


@dataclass(eq=False, repr=False)
class FiniteWidthRegressor(StandardisedRegressor):
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
    order : 1; or 0, leading order alone.
    kernel : "infinite"; or with order=0 "mean": the mean kernels K + G1/n and Θ + H1/n of networks of this width in
        place of K and Θ, on all training inputs.
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

    hidden_layers: int = 1
    width: int = 128
    activation: Any = "gelu"
    C_b: float = 0.1
    C_W: float = 2.0
    time: float | None = None
    order: int = 1
    kernel: str = "infinite"
    max_points: int = 6
    choose: str | None = None
    evidence_points: int = 1000
    random_state: int = 0

    #: Not a parameter here: training without noise. `choose_network` reads it.
    noise: ClassVar[float] = 0.0

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (inputs, features) and y (inputs,) or (inputs, outputs)."""
        X, y = self._targets(X, y)
        check_order(self.order)
        require_memory(40 * len(X) ** 2, f"K, Θ and eigenvectors on {len(X)} inputs", "Use NTKRegressor with 'cg'.")
        self.net_, self.noise_ = choose_network(self, X, y, check_integer("width", self.width, 1))
        self.time_ = self.time if self.choose is None else 1.0 / max(self.noise_, 1e-12)
        kernels = [Kernel(self.net_, name, check_kernel(self.kernel, self.order))(X) for name in ("K", "Theta")]
        spectrum = Spectrum.of(kernels[1])
        # directions that Θ does not see never learn; eigenvalues at rounding are taken for zero
        seen = spectrum.values > SINGULAR * spectrum.values[-1]
        spectrum = Spectrum(spectrum.values[seen], spectrum.vectors[:, seen])
        self.X_fit_, self._K, self._y = X, kernels[0], y
        self._response = spectrum.response(GradientFlow(self.time_))
        # rows that a pivoted Cholesky decomposition of Θ takes first; repeated inputs are taken once
        _, pivots, rank, _ = _pivoted_cholesky(kernels[1], tol=NEW * float(np.max(np.diag(kernels[1]))))
        self.points_ = np.sort(pivots[: min(rank, check_integer("max_points", self.max_points, 1))] - 1)
        self.exact_ = len(self.points_) == len(X)
        self._fitted = kernels[1] @ self._response @ y if not self.exact_ else y
        self.n_iter_ = 1
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean at X, (inputs,) or (inputs, outputs); with `return_std` also the spread over initialisations."""
        X = inputs_of(self, X)
        moments = in_blocks(self._leading, X)
        if self.order == 1:
            moments = moments + in_blocks(self._corrections, X, TOGETHER) / self.net_.n
        mean, variance = np.moveaxis(moments, 1, 0)
        return self._rescaled(mean, np.maximum(variance, 0.0) if return_std else None)

    def _leading(self, X: np.ndarray) -> np.ndarray:
        """Mean and variance at infinite width, on all training inputs: (inputs, 2, outputs)."""
        K, Theta = (Kernel(self.net_, name, self.kernel) for name in ("K", "Theta"))
        transfer = Theta(X, self.X_fit_) @ self._response
        mixed = np.einsum("xa,xa->x", transfer, K(X, self.X_fit_))
        spread = np.einsum("xa,ab,xb->x", transfer, self._K, transfer, optimize=True)
        mean, variance = transfer @ self._y, K.diagonal(X) - 2.0 * mixed + spread
        return np.stack([mean, np.broadcast_to(variance[:, None], mean.shape)], axis=1)

    def _corrections(self, X: np.ndarray) -> np.ndarray:
        """Coefficients of 1/n in the same."""
        chosen = self.X_fit_[self.points_], self._fitted[self.points_]
        p = predict(self.net_, *chosen, X, GradientFlow(self.time_), order=1)
        return np.stack([p["mean1"].values.T, np.einsum("ixix->xi", p["cov1"].values)], axis=1)
