"""`proxy_width`: how wide a small network must be for its best learning rate to be that of a large one (theory §8).

Two rates drift with width like d/n in their logarithm. One is the largest stable step 2/λ_max(Ĥ): with u the leading
eigenvector of Θ, λ its eigenvalue, v_k, λ_k the others and C_(ab)(cd) = A_(ab)(cd) + B_acbd + B_adbc the covariance of
one output's Ĥ,
    d = −[u·H1·u + Σ_k C_(u v_k)(u v_k)/(λ − λ_k)]/λ + C_(uu)(uu)/2λ²,
mean kernel, mixing with other modes, and the curvature of the logarithm. The other is the step η* that has
the least expected error E_0(η) + E_1(η)/n after a number of steps, in which the dNTK and ddNTK take part,
    d = −E_1'(η*)/E_0''(η*),     c = E_1''(η*)/E_0''(η*),     derivatives by log η.
The minimum of E_0 + E_1/n itself is at d/(n + c), which differs from d/n by what order 1/n does not know: it is known
well where c ≪ n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.inference import corrections
from widthwise.inference.infinite_width import Algorithm
from widthwise.inference.predict import joint_problem
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import Basis, mean_kernel_change, moments_at_tests, moments_at_training
from widthwise.network import GradientDescent, Network, check_integer, check_network, check_targets
from widthwise.network.validation import check_real
from widthwise.text import NumbersTable

#: Tensors of order 1/n on which the largest eigenvalue of Ĥ depends.
_STEP_TENSORS = ("H1", "A", "B")
#: Fractions of the largest stable step among which the best rate is looked for, and the step of its derivatives.
_FRACTIONS, _LOG_STEP = np.geomspace(0.03, 0.98, 48), 0.01
#: Gaps of the spectrum below this, relatively, count as degenerate.
_LEAST_GAP = 1e-9


@dataclass(frozen=True)
class ProxyWidth(NumbersTable):
    """How rates drift with width: log η(n) = log η(∞) + drift/n, and the width from which a proxy is near its target.

    `largest_step` is 2/λ_max of infinite width for ½Σ(z−y)², `step_drift` how it drifts, and `step_spread` √n times the
    standard deviation of its logarithm from network to network. With targets `best_rate` has the least expected error
    after `steps` steps, `rate_drift` is its drift, `rate_stiffness` the c of d/(n + c): for widths well above it the
    drift is known well. `kernel_growth` is n times the relative growth of λ_max by training at that rate, on average.
    All are NaN without targets, or where no rate below the largest step is best.

    `width` is the least width whose rate is within `factor` of that of `target` (infinite if None) on average, and
    `width_of_one` that from which the largest step of a single network also scatters by less than the factor.
    """

    net: Network
    factor: float
    target: int | None
    largest_step: float
    step_drift: float
    step_spread: float
    steps: int | None = None
    best_rate: float = math.nan
    rate_drift: float = math.nan
    rate_stiffness: float = math.nan
    kernel_growth: float = math.nan

    @property
    def drift(self) -> float:
        """Of the best rate where there is one, else of the largest step."""
        return self.rate_drift if math.isfinite(self.rate_drift) else self.step_drift

    @property
    def direction(self) -> str:
        kind = "best learning rate" if math.isfinite(self.rate_drift) else "largest stable step"
        if self.drift == 0.0:
            return f"the {kind} does not change with width at order 1/n"
        return f"the {kind} of a narrower network is {'larger' if self.drift > 0.0 else 'smaller'}"

    @property
    def width(self) -> int:
        per_width = 0.0 if self.target is None else abs(self.drift) / self.target
        found = max(1, math.ceil(abs(self.drift) / (math.log(self.factor) + per_width) - 1e-9))
        return found if self.target is None else min(found, self.target)

    def log_rate(self, width: int) -> tuple[float, float]:
        """log of the rate of a width over that of infinite width: d/n, and d/(n + c), equal to order 1/n."""
        n = check_integer("width", width, 1)
        c = max(self.rate_stiffness, 0.0) if math.isfinite(self.rate_drift) else 0.0
        return self.drift / n, self.drift / (n + c)

    @property
    def width_of_one(self) -> int:
        return max(self.width, math.ceil((self.step_spread / math.log(self.factor)) ** 2 - 1e-9))

    def __str__(self) -> str:
        target = "infinite width" if self.target is None else f"width {self.target:,}"
        lines = [
            f"From width {self.width:,} on a proxy's rate is within a factor {self.factor:g} of that of {target}:",
            f"{self.direction} (log rate {self.drift:+.3g}/n).",
            f"Largest stable step for ½Σ(z−y)²: {self.largest_step:.4g} at infinite width,",
            f"log {self.step_drift:+.3g}/n, spread from network to network {self.step_spread:.3g}/√n.",
        ]
        if math.isfinite(self.best_rate):
            known, growth = max(self.rate_stiffness, 0.0), 100.0 * self.kernel_growth
            lines += [
                f"Best rate after {self.steps} steps: {self.best_rate:.4g} at infinite width,",
                f"log {self.rate_drift:+.3g}/n, well known for n ≫ {known:.3g};",
                f"training changes the largest eigenvalue by {growth:+.3g}%/n.",
            ]
        return "\n".join(lines)


def proxy_width(
    net: Network,
    X_train: Any,
    y_train: Any = None,
    X_test: Any = None,
    y_test: Any = None,
    *,
    steps: int = 10,
    factor: float = 1.1,
    target: int | None = None,
) -> ProxyWidth:
    """How wide a proxy must be for its learning rate to be within a factor of its target's, from order 1/n (theory §8).

    For full-batch gradient descent in the network's own parametrisation, whose rates converge at infinite width: the
    one of theory §1, or what `from_torch` reads with λ in place of rates. Under μP features move at order one, and no
    expansion in 1/n knows them: there the drift is measured (`benchmarks/transfer.py`).

    Parameters
    ----------
    net : the network; its widths say the shape only. Smooth activations, as for `predict(order=1)`.
    X_train, y_train : (inputs, features), and (inputs, outputs) or (inputs,). Without targets only the largest stable
        step is looked at, that of one output: with several the largest eigenvalue also splits by order 1/√n.
    X_test, y_test : where the error of the best rate is taken; the training inputs if not given.
    steps : of gradient descent; factor : above 1; target : width of the large network, or None for infinite width.

    Examples
    --------
    >>> from widthwise.network import MLP
    >>> net = MLP([1, 100, 1], "linear", lambda_b=0.0)         # Ĥ = (|w|² + |v|²)/n at x = 1: 2, variance 4/n
    >>> found = proxy_width(net, [[1.0]], factor=1.01)
    >>> round(found.largest_step, 9), round(found.step_drift, 9), round(found.step_spread, 9), found.width
    (1.0, 0.5, 1.0, 51)
    """
    net = check_network(net)
    factor = check_real("factor", factor, "a finite number above 1", least=math.nextafter(1.0, 2.0))
    target = None if target is None else check_integer("target", target, 1)
    steps = check_integer("steps", steps, 1)
    if y_train is None:
        if X_test is not None or y_test is not None:
            raise InvalidInput("y_train", "None, with test inputs or targets", "training targets, or no test data")
        X = net.check_inputs(X_train, "X_train")
        corrections.check_smooth(net, _STEP_TENSORS)
        corrections.require_tensors(net, len(X), _STEP_TENSORS)
        flow = corrections.joint_tensors(net, X, _STEP_TENSORS)
        return ProxyWidth(net, factor, target, *_step_drift(flow.Theta[-1], corrections.at_output(flow)))
    if (X_test is None) != (y_test is None):
        raise InvalidInput(
            "y_test", "None with X_test, or the other way round", "both test inputs and targets, or none"
        )
    return _with_targets(net, (X_train, y_train, X_test, y_test), steps, factor, target)


def _step_drift(Theta: np.ndarray, tensors: Any) -> tuple[float, float, float]:
    """2/λ_max of Θ, its drift, and √n times the spread of its logarithm; arrays over the training inputs."""
    values, U = np.linalg.eigh(Theta)
    u, largest = U[:, -1], float(values[-1])
    if largest <= 0.0:
        raise InvalidInput(
            "net", "a neural tangent kernel of zero", "a network that learns", "Set lambda_W above zero."
        )
    mixed = np.einsum("abcd,a,bk,c,dl->kl", tensors["A"], u, U, u, U, optimize=True)
    # B is stored as B_acbd: for C_(ab)(cd) the pairs are (a, c)(b, d) and (a, d)(b, c)
    mixed += np.einsum("acbd,a,bk,c,dl->kl", tensors["B"], u, U, u, U, optimize=True)
    mixed += np.einsum("adbc,a,bk,c,dl->kl", tensors["B"], u, U, u, U, optimize=True)
    own, gaps = float(mixed[-1, -1]), largest - values[:-1]
    if np.any(gaps < _LEAST_GAP * largest):
        raise InvalidInput("X_train", "inputs whose Θ has a largest eigenvalue twice", "one largest eigenvalue",
                           "Take inputs without that symmetry.")  # fmt: skip
    shift = float(u @ tensors["H1"] @ u) + float(np.sum(np.diag(mixed)[:-1] / gaps))
    return 2.0 / largest, -shift / largest + 0.5 * own / largest**2, math.sqrt(max(own, 0.0)) / largest


def _with_targets(net: Network, data: tuple[Any, ...], steps: int, factor: float, target: int | None) -> ProxyWidth:
    X_train, y_train, X_test, y_test = data
    at_tests = X_test is not None
    slow: list[Algorithm] = [GradientDescent(1e-300, steps=steps)]
    X, y, _, spectrum, flow = joint_problem(net, X_train, y_train, X_test if at_tests else X_train[:1], slow)
    wanted = check_targets(y_test, len(flow.Theta[-1]) - len(X), net.widths[-1], "y_test") if at_tests else y
    tensors, n = corrections.at_output(flow), len(X)
    basis = Basis.of(spectrum, flow.Theta[-1], tensors, y)
    on_training = {name: tensors[name][(slice(n),) * tensors[name].ndim] for name in _STEP_TENSORS}
    found = _step_drift(flow.Theta[-1][:n, :n], on_training)

    def errors(rate: float) -> np.ndarray:
        """E_0 and E_1, averaged over inputs and outputs."""
        clock = Clock.of(GradientDescent(float(rate), steps=steps))
        zero, one = (moments_at_tests if at_tests else moments_at_training)(basis, clock)
        off = zero.mean - wanted.T
        spread = [np.einsum("ixix->ix", part.covariance) for part in (zero, one)]
        return np.array([np.mean(off**2 + spread[0]), np.mean(2.0 * off * one.mean + spread[1])])

    rate, drift, stiffness = _best_rate(errors, found[0])
    if not math.isfinite(rate):
        return ProxyWidth(net, factor, target, *found, steps)
    change = mean_kernel_change(basis, Clock.of(GradientDescent(rate, steps=steps)))[0, :n, 0, :n]
    u = spectrum.vectors[:, -1]
    return ProxyWidth(net, factor, target, *found, steps, rate, drift, stiffness,
                      float(u @ change @ u) / float(spectrum.values[-1]))  # fmt: skip


def _best_rate(errors: Any, largest: float) -> tuple[float, float, float]:
    """η* of infinite width, its drift and stiffness; NaN where the least error lies at an end of what is stable."""
    rates = largest * _FRACTIONS
    best = int(np.argmin([errors(rate)[0] for rate in rates]))
    if not 0 < best < len(rates) - 1:
        return math.nan, math.nan, math.nan
    at, h = math.log(rates[best]), _LOG_STEP
    for _ in range(8):
        below, here, above = (errors(math.exp(at + k * h)) for k in (-1, 0, 1))
        slope, curvature = (above - below) / (2.0 * h), (above - 2.0 * here + below) / h**2
        if curvature[0] <= 0.0:
            return math.nan, math.nan, math.nan
        moved = float(np.clip(-slope[0] / curvature[0], -0.1, 0.1))
        at = min(at + moved, math.log(largest) - 2.0 * h)
        if abs(moved) < 1e-6:
            break
    return math.exp(at), float(-slope[1] / curvature[0]), float(curvature[1] / curvature[0])
