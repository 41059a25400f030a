"""the scale of the start chooses between sparse and spread-out solutions

Gradient flow of the squared error on z = ⟨θ₊² − θ₋², x⟩ from θ± = αθ₀ keeps β = 2α²θ₀² sinh(4Xᵀν), ν = ∫(y − Xβ)dt, and
so ends at the interpolating β that minimises Σ α²θ₀² q(β/(α²θ₀²)), q(s) = 2 − √(4+s²) + s arcsinh(s/2) (theory §10). As
α → ∞ this is the weighted L2 solution, approached like α⁻⁴; as α → 0 it is the L1 solution, and a sparse truth is
approached like α^{2(1−ρ)}, ρ < 1 the size of its dual certificate off the support.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import null_space
from scipy.optimize import linprog

from widthwise.errors import InvalidInput
from widthwise.labs.base import Outcome, Outcomes
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import slope_and_drift
from widthwise.plots.style import marks, style

SIZES = (20, 40, 60)
SIZE = "features"
#: Initial scales α at which networks are trained.
TRAINED = (3.0, 0.3, 0.03, 0.01)
#: Scales from which the two exponents are fitted.
LARGE, SMALL = 10.0 ** np.linspace(0.5, 1.5, 8), 10.0 ** np.linspace(-2, -5, 12)
#: Share of the exponent that problems with almost equal dual coordinates leave open.
NEARLY_EQUAL = 0.05
#: The flow and the convex programme agree when no coordinate differs by more than 1e-6, four of these.
TOLERANCE = 2.5e-7


@dataclass(frozen=True)
class SparseProblem:
    """Half as many equations as features, a sparse truth that solves them, and the shape θ_0 of the start."""

    X: np.ndarray
    truth: np.ndarray
    start: np.ndarray

    @property
    def y(self) -> np.ndarray:
        return self.X @ self.truth

    @staticmethod
    def draw(features: int, seed: int) -> SparseProblem:
        """The first of a seed whose truth has clearly the least L1 norm, ρ < 0.9: other truths are not approached."""
        random = np.random.default_rng([features, seed])
        equations, nonzero = features // 2, max(2, features // 20)
        while True:
            truth = np.zeros(features)
            truth[:nonzero] = random.choice([-1.0, 1.0], nonzero) * random.uniform(0.5, 1.5, nonzero)
            X = random.normal(size=(equations, features)) / np.sqrt(equations)
            problem = SparseProblem(X, truth, random.uniform(0.7, 1.4, features))
            if certificate(problem) < 0.9:
                return problem


@dataclass(frozen=True)
class DiagonalFlow:
    """β = θ₊² − θ₋² along the flow, (features, times), and ν = ∫(y − Xβ)dt, (equations, times)."""

    times: np.ndarray
    beta: np.ndarray
    nu: np.ndarray


def flow_from_scale(problem: SparseProblem, alpha: float) -> DiagonalFlow:
    """Gradient flow of ½‖Xβ − y‖², β = θ₊² − θ₋², from θ± = αθ_0, until no residual exceeds 1e-11.

    >>> problem = SparseProblem.draw(20, 0)
    >>> trained = flow_from_scale(problem, 1.0)
    >>> bool(np.abs(problem.X @ trained.beta[:, -1] - problem.y).max() < 2e-11)
    True
    """
    X, y, d = problem.X, problem.y, problem.X.shape[1]

    def residual(state):
        return X @ (state[:d] ** 2 - state[d : 2 * d] ** 2) - y

    def velocity(_, state):
        r = residual(state)
        slope = 2.0 * X.T @ r
        return np.concatenate([-state[:d] * slope, state[d : 2 * d] * slope, -r])

    def fitted(_, state):
        return np.abs(residual(state)).max() - 1e-11

    fitted.terminal = True
    begin = np.concatenate([alpha * problem.start, alpha * problem.start, np.zeros(len(y))])
    found = solve_ivp(velocity, (0.0, 1e6), begin, "LSODA", events=fitted, rtol=1e-11, atol=1e-14)
    return DiagonalFlow(found.t, found.y[:d] ** 2 - found.y[d : 2 * d] ** 2, found.y[2 * d :])


def least_q(problem: SparseProblem, alpha: float) -> np.ndarray:
    """argmin Σ c_i q(β_i/c_i), c = α²θ_0², subject to Xβ = y, by the convex programme (theory §10).

    q' = arcsinh(s/2) and q'' = 1/√(4+s²).
    """
    c = (alpha * problem.start) ** 2
    return minimise_on_affine(lambda b: np.arcsinh(b / (2 * c)), lambda b: 1 / np.hypot(2 * c, b), problem.X, problem.y)


def certificate(problem: SparseProblem) -> float:
    """ρ = min ‖X_offᵀν‖_∞ over the ν with X_onᵀν = sign(truth) on the support of the truth; below 1 the truth has the
    least L1 norm, and β_α nears it like α^{2(1−ρ)}, since β_i = 2c_i sinh(x_i·ν) with ν growing like log(1/α²)."""
    on = problem.truth != 0.0
    off, equations = problem.X[:, ~on].T, len(problem.y)
    ones = np.ones((len(off), 1))
    found = linprog(
        np.append(np.zeros(equations), 1.0),
        A_ub=np.block([[off, -ones], [-off, -ones]]),
        b_ub=np.zeros(2 * len(off)),
        A_eq=np.hstack([problem.X[:, on].T, np.zeros((int(on.sum()), 1))]),
        b_eq=np.sign(problem.truth[on]),
        bounds=[(None, None)] * equations + [(0.0, None)],
    )
    return float(found.fun)


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).max())


def experiment(features: int, seed: int) -> Outcome:
    problem = SparseProblem.draw(features, seed)
    # where α → 0 and α → ∞ lead: argmin Σ|β|, and argmin Σ β²/θ_0², subject to Xβ = y
    weighted = problem.X * problem.start**2
    L1, L2 = least_absolute_sum(problem.X, problem.y), weighted.T @ np.linalg.solve(weighted @ problem.X.T, problem.y)
    claims, path = [], {}
    for alpha in TRAINED:
        trained, best = flow_from_scale(problem, alpha), least_q(problem, alpha)
        end, c = trained.beta[:, -1], (alpha * problem.start) ** 2
        even = least_q(replace(problem, start=np.ones(features)), alpha)
        wrong = {"the flow ends at the least L1 norm": L1, "at the least weighted L2 norm": L2}
        wrong = {name: _distance(beta, best) for name, beta in (wrong | {"at the Q of an even start": even}).items()}
        dual = problem.X.T @ trained.nu
        kept = _distance(np.arcsinh(trained.beta / (2 * c[:, None])), 4 * dual)
        claims += [
            Claim.exactly(f"flow − minimiser of Q, α = {alpha:g}", 0.0, _distance(end, best), TOLERANCE).rejects(wrong),
            Claim.exactly(f"arcsinh(β/2α²θ₀²) − 4Xᵀν, α = {alpha:g}", 0.0, kept, TOLERANCE).rejects(
                {"sinh(2Xᵀν)": np.abs(2 * dual).max()}
            ),
        ]
        path[alpha] = (_distance(end, L1), _distance(end, L2))
    claims += _scale_exponents(problem, L2)
    scales = 10.0 ** np.linspace(-3.0, 1.5, 40)
    best = [least_q(problem, alpha) for alpha in scales]
    lines = np.array([(_distance(b, L1), _distance(b, L2)) for b in best]).T
    return Outcome(tuple(claims), {"scales": scales, "lines": lines, "path": path})


def _scale_exponents(problem: SparseProblem, L2: np.ndarray) -> list[Claim]:
    """The largest coordinate off the support is sinh of one x_i·ν: a power of α without others mixed in."""
    large = np.log([_distance(least_q(problem, alpha), L2) for alpha in LARGE])
    off = np.log([np.abs(least_q(problem, alpha)[problem.truth == 0.0]) for alpha in SMALL])
    towards_L2 = slope_and_drift(np.log(LARGE), large)
    power, drift = slope_and_drift(np.log(SMALL), off[:, off[-1].argmax()])
    rate = 2.0 * (1.0 - certificate(problem))
    # where two coordinates have almost the same x·ν the slope changes too slowly to be seen in three decades of α
    margin = max(drift, NEARLY_EQUAL * rate)
    return [
        Claim.exactly("exponent of α towards weighted L2", -4.0, *towards_L2).rejects({"-2": -2.0}),
        Claim.exactly("exponent of α towards the sparse truth", rate, power, margin).rejects(
            {"2, as without a dual": 2.0, "half": rate / 2}
        ),
    ]


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    for axis, column, name in ((left, 0, "least L1 norm"), (right, 1, "least weighted L2 norm")):
        for number, (size, found) in enumerate(outcomes.items()):
            curves, label = found[0].curves, f"minimiser of Q, {size} features"
            distances = [path[column] for path in curves["path"].values()]
            axis.loglog(curves["scales"], curves["lines"][column], **style(number), label=label)
            axis.loglog(list(curves["path"]), distances, **marks(number), label="gradient flow")
        axis.set(xlabel=r"scale $\alpha$ of the start", title=f"distance to the {name}")
    left.set_ylabel(r"$\max_i|\beta_i-\beta_i^{\mathrm{limit}}|$")
    left.legend(fontsize=9)


def least_absolute_sum(A: Any, y: Any) -> np.ndarray:
    """argmin Σ|β_i| subject to Aβ = y, by linear programming.

    >>> least_absolute_sum([[1.0, 2.0, 0.0]], [2.0])
    array([0., 1., 0.])
    """
    A = np.asarray(A, float)
    count = A.shape[1]
    found = linprog(np.ones(2 * count), A_eq=np.hstack([A, -A]), b_eq=np.asarray(y, float), method="highs")
    if not found.success:
        raise InvalidInput("y", "targets that no β reaches", "a vector in the range of A")
    return found.x[:count] - found.x[count:]


def minimise_on_affine(
    gradient: Callable[[np.ndarray], np.ndarray],
    curvature: Callable[[np.ndarray], np.ndarray],
    A: Any,
    y: Any,
    start: Any = 0.0,
) -> np.ndarray:
    """argmin of a smooth separable convex function subject to Aβ = y, by Newton steps within the solutions.

    β = β_0 + N v, N an orthonormal basis of the null space of A; each step is halved until it no longer
    overshoots the minimum along it by much; they end where they fall below rounding. Needs derivatives only, which do
    not cancel near the minimum.

    Parameters
    ----------
    gradient, curvature : its first derivatives (features,) and second derivatives (features,), of β (features,).
    A, y : (equations, features) and (equations,).
    start : (features,), any vector to begin near to.

    Examples
    --------
    >>> minimise_on_affine(lambda b: 2 * b, lambda b: 2 + 0 * b, [[1.0, 1.0]], [1.0]).round(9)
    array([0.5, 0.5])
    """
    A, start = np.asarray(A, float), np.zeros(np.shape(A)[1]) + start
    beta, N = start + np.linalg.lstsq(A, np.asarray(y, float) - A @ start)[0], null_space(A)
    for _ in range(500):
        slope = N.T @ gradient(beta)
        step = -N @ np.linalg.solve(N.T @ (curvature(beta)[:, None] * N), slope)
        if np.abs(step).max() <= 1e-13 * np.abs(beta).max():
            return beta + step
        length, fall = 1.0, gradient(beta) @ step
        while gradient(beta + length * step) @ step > -fall / 2:
            length /= 2
        beta = beta + length * step
    raise InvalidInput(
        "gradient", "one on which 500 Newton steps did not converge", "that of a strictly convex function"
    )
