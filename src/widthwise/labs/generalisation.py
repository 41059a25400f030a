"""test error to order 1/n over depth and initialisation, and how too much depth drowns learning

The squared test error of networks trained by gradient descent is error0 + error1/n + O(1/n²), with coefficients of
theory §8 at every depth; the sign of error1 depends on initialisation, depth and time of training. In a ReLU network of
width n the logarithm of the kernel of one input is a sum of independent terms, one a hidden layer, with negative mean:
for L ≫ n a typical network is far from the average one, and a learning rate that suits the average trains few of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import digamma, polygamma
from scipy.stats import binom

from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.reference import pairs, reference
from widthwise.experiments.tally import contract, regression
from widthwise.experiments.training.descent import descend
from widthwise.inference.predict import expected_error
from widthwise.labs.base import Outcome, Outcomes
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import LabEstimate, combined, log_variance, mean_and_error
from widthwise.network import MLP, GradientDescent
from widthwise.plots.style import COLOURS, marks, style

SIZES = (32, 64, 128)
SIZE = "width"
#: C_W of the students, at C_b = 0; C_W = 1 is critical for tanh.
PHASES = {"ordered": 0.5, "critical": 1.0, "chaotic": 2.0}
#: Learning rate, steps of one round of training, and rounds of long training.
RATE, ROUND, LONG = 0.3, 16, 6
NETWORKS, BATCH = 2000, 100
#: Width of the overly deep networks, how many, and time of their training in units of one over the mean kernel.
NARROW, DEEP_NETWORKS, TIME, STEPS = 8, 1200, 5.0, 40


@dataclass(frozen=True)
class Student:
    """Networks of one depth, initialisation and time of training.

    Where the order after 1/n shows at the widths of this lab, `extrapolated`, the coefficient of 1/n is claimed, from
    two widths; else the test error. Claims begin at the width `least`.
    """

    phase: str
    depth: int
    rounds: int = 1
    extrapolated: bool = False
    least: int = 32
    wrong: tuple[str, ...] = ("infinite width", "the opposite sign")

    @property
    def name(self) -> str:
        return f"{self.phase}, depth {self.depth}" + ", long" * (self.rounds > 1)

    def network(self, width: int) -> MLP:
        """A tanh network without biases at the start, whose layers share the learning rate."""
        widths, rate = [3, *[width] * (self.depth - 1), 1], 1 / self.depth
        return MLP(widths, "tanh", C_b=0.0, C_W=PHASES[self.phase], lambda_b=rate, lambda_W=rate)


STUDENTS = (
    Student("ordered", 2),
    Student("ordered", 3),
    # at depth 2 the coefficient is too small to be told from zero; it can be told from that of depth 4
    Student("critical", 2, wrong=("the correction of depth 4",)),
    Student("critical", 3),
    Student("critical", 4),
    Student("chaotic", 2),
    Student("chaotic", 3, extrapolated=True),
    Student("critical", 2, LONG),
    # widths 16 and 32 show the third order
    Student("critical", 3, LONG, extrapolated=True, least=64, wrong=("the opposite sign",)),
)


@cache
def teacher_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Four training and three test inputs with targets of one teacher, tanh(x₁ − x₂ + x₃/2) + 0.3 x₂."""
    random = np.random.default_rng(0)
    X, X_test = random.normal(size=(4, 3)), random.normal(size=(3, 3))
    y, y_test = (np.tanh(x @ [1.0, -1.0, 0.5]) + 0.3 * x[:, 1] for x in (X, X_test))
    return X, y, X_test, y_test


@cache
def coefficients(student: Student) -> tuple[float, float]:
    """Test error at infinite width and its coefficient of 1/n, averaged over the test inputs (theory §8)."""
    algorithm = GradientDescent(RATE, ROUND * student.rounds)
    found = expected_error(student.network(64), *teacher_data(), algorithm, order=1)
    return float(found["error0"].mean()), float(found["error1"].mean())


def draw_networks(net: MLP, seed: int, batch: int) -> list[Weights]:
    """A batch of networks of a seed at their initialisation, one a row, in single precision."""
    random, layers = np.random.default_rng([seed, net.depth, net.n, batch]), []
    for dense in net.dense:
        unit = random.standard_normal((BATCH, dense.outputs, dense.inputs), np.float32)
        W = np.float32(math.sqrt(dense.C_W / dense.inputs)) * unit
        layers.append(Weights(jnp.asarray(W), jnp.zeros((BATCH, dense.outputs), np.float32)))
    return layers


def preactivations(layers: list[Weights], X: np.ndarray) -> list[np.ndarray]:
    """Of every layer of a batch of networks: (networks, inputs, neurons)."""
    found, incoming = [], X.astype(np.float32)
    for W, b in layers:
        found.append(incoming @ np.swapaxes(np.asarray(W), 1, 2) + np.asarray(b)[:, None])
        incoming = np.tanh(found[-1])
    return found


@jax.jit
def _one_round(net: MLP, layers: list[Weights], X, y) -> list[Weights]:
    """One round of training of every network of a batch."""
    how = GradientDescent(RATE, ROUND)
    return jax.vmap(lambda start: descend(net, start, X, y[None], how, None, 1e-6, 1).layers)(layers)


@cache
def first_kernel(student: Student) -> np.ndarray:
    """Mean of (C_W/n) Σσσ over the first hidden layer at pairs of inputs, the same at every width."""
    X, _, X_test, _ = teacher_data()
    return reference(student.network(64), np.vstack([X, X_test])).K[1]


def controls(student: Student, start: list[np.ndarray]) -> np.ndarray:
    """Numbers of mean zero at every width, one row a network, from preactivations at initialisation (theory §1).

    The outputs z; z z less its mean given the layers below, (C_W/n) Σσσ; and that of the first hidden layer less its
    mean over networks.
    """
    a, b = pairs(start[-1].shape[1])
    scale, z = PHASES[student.phase] / start[0].shape[-1], start[-1][:, :, 0]
    first, last = (scale * np.einsum("nak,nbk->nab", s, s)[:, a, b] for s in (np.tanh(start[0]), np.tanh(start[-2])))
    return np.hstack([z, z[:, a] * z[:, b] - last, first - first_kernel(student)])


def controlled_mean(samples: np.ndarray, zero: np.ndarray) -> LabEstimate:
    """Mean of samples and its standard error after regression on numbers whose mean is zero.

    >>> luck = np.random.default_rng(0).normal(size=(100, 1))
    >>> mean, error, *_ = controlled_mean(3.0 + 2.0 * luck[:, 0], luck)
    >>> round(mean, 9), error < 1e-9
    (3.0, True)
    """
    inverse, inflation = regression(len(samples), zero.sum(axis=0), contract(zero, zero))
    slopes = inverse @ contract(zero, (samples - samples.mean())[:, None])
    found = mean_and_error(samples - zero @ slopes[:, 0])
    return found._replace(error=inflation * found.error)


@cache
def measured_error(student: Student, width: int, seed: int) -> LabEstimate:
    """Mean squared test error of trained networks, and its standard error."""
    X, y, X_test, y_test = teacher_data()
    net, both, errors, zero = student.network(width), np.vstack([X, X_test]), [], []
    for batch in range(NETWORKS // BATCH):
        layers = draw_networks(net, seed, batch)
        zero.append(controls(student, preactivations(layers, both)))
        for _ in range(student.rounds):
            layers = _one_round(net, layers, X.astype(np.float32), y.astype(np.float32))
        z = preactivations(layers, X_test)[-1][:, :, 0]
        errors.append(np.mean((z - y_test) ** 2, axis=1))
    return controlled_mean(np.concatenate(errors), np.concatenate(zero))


def scaled_shift(student: Student, width: int, seed: int) -> LabEstimate:
    """c(n) = n (test error − error0), which tends to the coefficient of 1/n, and its standard error."""
    found = measured_error(student, width, seed)
    return found._replace(value=width * (found.value - coefficients(student)[0]), error=width * found.error)


#: Wrong coefficients of 1/n that a claim must be able to reject.
WRONG = {
    "infinite width": lambda student: 0.0,
    "the opposite sign": lambda student: -coefficients(student)[1],
    "the correction of depth 4": lambda student: coefficients(Student(student.phase, 4, student.rounds))[1],
}


def _student_claim(student: Student, width: int, seed: int) -> Claim:
    zeroth, first = coefficients(student)
    wrong = {name: WRONG[name](student) for name in student.wrong}
    if not student.extrapolated:
        wrong = {name: zeroth + value / width for name, value in wrong.items()}
        found = measured_error(student, width, seed)
        return Claim(f"test error, {student.name}", zeroth + first / width, *found).rejects(wrong)
    # 2c(n) − c(n/2) is free of the next order
    found = combined([scaled_shift(student, n, seed) for n in (width, width // 2)], (2.0, -1.0))
    return Claim(f"coefficient of 1/n, {student.name}", first, *found).rejects(wrong)


def layer_logarithm(width: int) -> tuple[float, float]:
    """Mean and variance of log((2/n) Σ relu(z)²) over n standard normal z of which one at least is positive.

    With k positive ones the sum is χ²_k, and k is binomial.

    >>> mean, variance = layer_logarithm(1000)
    >>> round(1000 * mean, 1), round(1000 * variance, 1)      # −5/(2n) and 5/n to leading order
    (-2.5, 5.0)
    """
    k = np.arange(1, width + 1)
    weight = binom.pmf(k, width, 0.5) / (1 - 0.5**width)
    mean = np.log(4.0 / width) + digamma(k / 2)
    average = weight @ mean
    return float(average), float(weight @ (polygamma(1, k / 2) + (mean - average) ** 2))


def deep_outputs(weights, X):
    """Output of a narrow ReLU network at one input, and Σσ² of its last hidden layer; weights (first, middle, last).

    The middle layers are scanned over, so that hundreds of them compile as one.
    """
    first, middle, last = weights
    hidden, _ = jax.lax.scan(lambda h, W: (jax.nn.relu(W @ h), None), jax.nn.relu(first @ X), middle)
    return last @ hidden, hidden @ hidden


@jax.jit
def _deep_descent(networks, rate):
    """Ĝ of each network at x = (1, 1), and its squared error, target 1, after gradient descent over that before."""

    def loss(weights):
        return 0.5 * (deep_outputs(weights, jnp.ones(2))[0] - 1.0) ** 2

    def step(weights, _):
        moves = zip(weights, jax.grad(loss)(weights), strict=True)
        return [W - rate / W.shape[-1] * g for W, g in moves], None

    def one(start):
        end = jax.lax.scan(step, start, None, length=STEPS)[0]
        return 2.0 / NARROW * deep_outputs(start, jnp.ones(2))[1], loss(end) / loss(start)

    return jax.vmap(one)(networks)


@cache
def _learned(depth: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """log Ĝ/K of the living networks, whether each network is alive, and the share that halves its error.

    At C_W = 2, C_b = 0 and x = (1, 1) every layer has K = 2 and adds 1 to the mean tangent kernel, λ_W = 1 and λ_b = 0:
    Θ = L (theory §2).
    """
    random = np.random.default_rng([seed, depth])
    shapes = ((NARROW, 2), (depth - 2, NARROW, NARROW), (NARROW,))
    start = [math.sqrt(2.0 / shape[-1]) * random.normal(size=(DEEP_NETWORKS, *shape)) for shape in shapes]
    kernels, left = map(np.asarray, _deep_descent(start, TIME / STEPS / depth))
    alive = kernels > 0.0
    return np.log(kernels[alive] / 2.0), alive, float(np.mean(left < 0.5))


def _deep_claims(depth: int, seed: int) -> tuple[list[Claim], dict[str, Any]]:
    """Networks of width 8, as deep as the size says."""
    logs, alive, learned = _learned(depth, seed)
    _, _, shallow = _learned(2, seed)
    mean, variance = layer_logarithm(NARROW)
    hidden, dead = depth - 1, 1 - (1 - 0.5**NARROW) ** (depth - 1)
    binomial, error = np.sqrt(np.array([dead * (1 - dead), 0.5]) / DEEP_NETWORKS)
    claims = [
        Claim.mean("deep: mean of log Ĝ/K", hidden * mean, logs).rejects({"a typical network is average": 0.0}),
        Claim("deep: log variance of log Ĝ/K", math.log(hidden * variance), *log_variance(logs, hidden * mean)).rejects(
            {"5L/n": math.log(5 * hidden / NARROW), "half": math.log(hidden * variance / 2)}
        ),
        Claim("deep: share of dead networks", dead, 1 - alive.mean(), binomial).rejects({"none": 0.0}),
        Claim("deep: share that learns at depth 2 but not here", 0.5, shallow - learned, error, kind="at least"),
    ]
    return claims, {"logs": logs, "learned": (shallow, learned)}


def experiment(width: int, seed: int) -> Outcome:
    """Students of one width, and of half of it where that is needed; and networks of width 8 with as many layers."""
    students = [_student_claim(student, width, seed) for student in STUDENTS if width >= student.least]
    deep, curves = _deep_claims(width, seed)
    shifts = {student: scaled_shift(student, width, seed) for student in STUDENTS}
    return Outcome((*students, *deep), curves | {"shifts": shifts})


def _over_seeds(outcomes: list[Outcome], student: Student) -> tuple[float, float]:
    """c(n) and its standard error."""
    values, errors, *_ = zip(*(outcome.curves["shifts"][student] for outcome in outcomes), strict=True)
    return float(np.mean(values)), math.hypot(*errors) / len(errors)


def _draw_depths(axes: Any, width: int, outcomes: list[Outcome]) -> None:
    for number, phase in enumerate(PHASES):
        some = [student for student in STUDENTS if student.phase == phase and student.rounds == 1]
        depths, shifts = [s.depth for s in some], np.array([_over_seeds(outcomes, s)[0] for s in some])
        zeroth, first = np.transpose([coefficients(s) for s in some])
        axes.plot(depths, zeroth + shifts / width, **marks(number), label=phase)
        axes.plot(depths, zeroth + first / width, color=COLOURS[number])
        axes.plot(depths, zeroth, color=COLOURS[number], linewidth=0.9, linestyle=":")
    axes.set(xlabel="depth L", ylabel="test error", xticks=[2, 3, 4], ylim=(0.0, None))
    axes.set_title(f"width {width}; dotted: infinite")
    axes.legend(fontsize=9, loc="lower right")


def _draw_shifts(axes: Any, outcomes: Outcomes) -> None:
    shown = [student for student in STUDENTS if student.depth == 3]
    for number, student in enumerate(shown):
        values, errors = np.transpose([_over_seeds(outcomes[size], student) for size in outcomes])
        axes.errorbar([1 / n for n in outcomes], values, errors, capsize=2, label=student.name, **marks(number))
        axes.plot(0.0, coefficients(student)[1], color=COLOURS[number], marker="*", markersize=9)
    axes.axhline(0.0, color="black", linewidth=0.7)
    axes.set(xlabel="1/n", ylabel=r"$n$ (test error $-$ error0)", title="stars: theory")
    axes.legend(fontsize=9)


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, middle, right = figure.subplots(1, 3)
    _draw_depths(left, min(outcomes), outcomes[min(outcomes)])
    _draw_shifts(middle, outcomes)
    for number, (depth, found) in enumerate(outcomes.items()):
        share = np.mean([outcome.curves["learned"][1] for outcome in found])
        steps = style(number) | {"histtype": "step", "density": True, "label": f"{depth} layers: {share:.1%} learn"}
        right.hist(found[0].curves["logs"], bins=40, **steps)
    right.axvline(0.0, color="black", linewidth=0.7)
    right.set(xlabel=r"$\log \hat G/K$ of one network", ylabel="density", title="width 8, many layers")
    right.legend(fontsize=9)
