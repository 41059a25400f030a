"""A model quadratic in its parameters, trained by gradient flow: θ^F + εθ^I, and real networks beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.decompositions import eigh
from widthwise.experiments.differentials import chain, move, move_twice
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import kernel, outputs, tangent
from widthwise.experiments.training.flows import flow
from widthwise.labs.base import Claim, Lab, Outcome
from widthwise.labs.tools.expansion import expand, free_at, integrate, perturbative
from widthwise.network import MLP
from widthwise.plots.style import marks, style

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [-0.7, 0.5, 0.9], [0.6, -0.2, 0.4]])
Y = np.array([2.0, -2.0, 1.5])
#: Strengths of the quadratic part, and the step of difference quotients.
EPSILON, STEP = np.array([0.02, 0.04, 0.08, 0.16]), 0.02
#: The end of training, and the time at which features are looked at, in units of 1/λ_min.
END, EARLY = 25.0, 1.0
NETWORKS = 112
#: Relative accuracy of difference quotients, and of fitted orders.
TOLERANCE, ORDER_TOLERANCE = 2e-3, 0.05


def network(width: int) -> MLP:
    return MLP([3, width, 1], "tanh", C_b=0.1, C_W=2.0, lambda_b=0.2)


class Flowed(NamedTuple):
    """Numbers of the model of one network: see `_model`."""

    end: Any
    free: Any
    both: Any
    on_span: Any
    shifted: Any
    output: Any
    outputs: Any
    kernel: Any
    kernels: Any


@partial(jax.jit, static_argnums=0)
def _model(net: MLP, seed) -> Flowed:
    """Remainders over ε of θ against θ^F, θ^F + εθ^I, its part on the span, and shifted labels; then slopes in ε.

    Slopes are of the output at the test input at the end, and of the kernel between it and the first training input
    early on: measured, and as predicted in several ways.
    """
    model = expand(net, sample_parameters(net, network_key(seed, 0)), jnp.asarray(X), jnp.asarray(Y))
    found, data = perturbative(model), model.training
    Theta = data.phi @ data.phi.T
    slowest = 1.0 / jnp.linalg.eigvalsh(Theta)[0]
    strengths = jnp.array([*EPSILON, STEP, -STEP, STEP, -STEP])
    times = slowest * jnp.array([*[END] * (len(EPSILON) + 2), EARLY, EARLY])
    ends = jax.vmap(partial(integrate, model))(strengths, times)
    epsilon, ladder = jnp.asarray(EPSILON)[:, None], ends[: len(EPSILON)]

    def interpolate(values):
        return jnp.linalg.solve(Theta, values) @ data.phi

    shift = 0.5 * (data.psi @ found.free) @ found.free
    labels = jax.vmap(lambda e: interpolate(data.y - data.z - e * shift))(epsilon[:, 0])
    in_span = jax.vmap(lambda theta: interpolate(data.phi @ theta))(ladder)

    def slope(function, plus, minus):
        return (function(plus, STEP) - function(minus, -STEP)) / (2.0 * STEP)

    def kernel_at(theta, e):
        features = model.features(theta, e)
        return features[-1] @ features[0]

    bend = 0.5 * (model.psi[-1] @ found.free) @ found.free
    predicted = jnp.array([model.phi[-1] @ part + bend for part in (found.interacting, found.on_span)])

    def kernel_slope(theta):
        moved = model.psi @ theta
        return moved[-1] @ model.phi[0] + model.phi[-1] @ moved[0]

    kernels = jnp.array([kernel_slope(free_at(model, EARLY * slowest)), kernel_slope(found.free)])
    size = partial(jnp.linalg.norm, axis=1)
    return Flowed(
        size(ladder - found.free),
        size(in_span - found.free),
        size(ladder - found.free - epsilon * found.interacting),
        size(ladder - found.free - epsilon * found.on_span),
        size(in_span - labels),
        slope(model.outputs, *ends[-4:-2])[-1],
        predicted,
        slope(kernel_at, *ends[-2:]),
        kernels,
    )


@partial(jax.jit, static_argnums=0)
def _real(net: MLP, seed) -> jax.Array:
    """Trained output at the test input less its prediction by θ^F, and by θ^F + θ^I: (networks, 2)."""

    def one(index):
        layers = sample_parameters(net, network_key(seed, index))
        linear, first = _by_kernels(net, layers)
        end = flow(net, layers, jnp.asarray(X[:-1]), jnp.asarray(Y)[None], None, 1e-6, 1e-5, 2000)
        return outputs(net, end.layers, X)[0, -1] - jnp.array([linear, linear + first])

    return jax.vmap(one)(jnp.arange(NETWORKS))


def _by_kernels(net: MLP, layers: list[Weights]) -> tuple[jax.Array, jax.Array]:
    """θ^F and θ^I at the test input through Ĥ and dĤ, which need no ψ (theory §8):

    z_x − Ĥ_xA Ĥ⁻¹e,  and  M[dĤ_xpq + dĤ_pxq] e_p e_q/(λ_p(λ_p+λ_q))  with M[T]_x = T_x − Ĥ_xA Ĥ⁻¹ T_A.
    """
    at, c = tangent(net, layers, jnp.asarray(X)), chain(net, layers, jnp.asarray(X), 2)
    H, z = kernel(at)[0, :, 0], at.z[0]
    dH = jnp.transpose(move_twice(c, move(c, c.signals))[1][-1][0, :, 0, :, :, 0], (2, 0, 1))
    count = len(Y)
    rate, u = eigh(H[:count, :count])
    error = u.T @ (z[:count] - jnp.asarray(Y))
    weights = error[:, None] * error / (rate[:, None] * (rate[:, None] + rate))
    T = jnp.einsum("xbc,bp,cq,pq->x", dH[:, :count, :count], u, u, weights)
    T += jnp.einsum("axc,ap,cq,pq->x", dH[:count, :, :count], u, u, weights)
    response = (u / rate) @ u.T @ H[:count, -1]
    return z[-1] - response @ (u @ error), T[-1] - response @ T[:count]


def experiment(width: int, seed: int) -> Outcome:
    flowed = Flowed(*map(np.asarray, _model(network(width), seed)))
    remainders = [np.asarray(_real(network(n), seed)) for n in (16 * width, 64 * width)]
    claims = (*_orders(flowed), *_slopes(flowed), *_exponents(*remainders))
    curves = {"real": [np.sqrt((r**2).mean(axis=0)) for r in remainders]}
    return Outcome(claims, curves | {"model": np.stack([flowed.end, flowed.on_span, flowed.both])})


def _orders(found: Flowed) -> list[Claim]:
    """Orders in ε of what is left over."""

    def order(what: str, values: np.ndarray, expected: float, wrong: dict[str, float]) -> Claim:
        slope = float(np.polyfit(np.log(EPSILON), np.log(values), 1)[0])
        return Claim(what, expected, slope, ORDER_TOLERANCE, wrong=wrong, exact=True)

    return [
        order("order in ε of θ − θ^F", found.end, 1.0, {"no interaction: ε²": 2.0}),
        order("order in ε of θ − θ^F − εθ^I", found.both, 2.0, {"θ^I without the part off the span: ε": 1.0}),
        order("order in ε, on the span, with shifted labels", found.shifted, 2.0, {"labels not shifted: ε": 1.0}),
    ]


def _slopes(found: Flowed) -> list[Claim]:
    """Slopes at ε = 0 of the output at the test input and of the evolving kernel."""
    claims = []
    for what, measured, predicted, wrong in (
        ("dz/dε at the test input", found.output, found.outputs, "on the span alone, as a Newton step"),
        ("dΘ/dε early in training", found.kernel, found.kernels, "as after training"),
    ):
        tolerance = TOLERANCE * float(np.abs(predicted).max())
        right, other = map(float, predicted)
        claims.append(Claim(what, right, float(measured), tolerance, wrong={wrong: other}, exact=True))
    return claims


def _exponents(narrow: np.ndarray, wide: np.ndarray) -> list[Claim]:
    """Powers of the width that real networks leave over, between two widths."""
    claims = []
    for number, what in enumerate(("θ^F", "θ^F + θ^I")):
        squares = [r[:, number] ** 2 for r in (narrow, wide)]
        means = [s.mean() for s in squares]
        relative = [s.std(ddof=1) / s.mean() / len(s) ** 0.5 for s in squares]
        measured = float(np.log(means[0] / means[1]) / np.log(16.0))
        error = float(np.hypot(*relative) / np.log(16.0))
        wrong = {"n^(−1/2)": 0.5, "n^(−3/2)": 1.5}
        claims.append(Claim(f"real networks beside {what}: power of 1/n", 1.0, measured, error, wrong=wrong))
    return claims


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    left, right = figure.subplots(1, 2)
    size = max(outcomes)
    names = (r"$\theta^F$", r"$\theta^F+\epsilon\theta^I$ on the span", r"$\theta^F+\epsilon\theta^I$")
    for number, (values, name) in enumerate(zip(outcomes[size][0].curves["model"], names, strict=True)):
        left.plot(EPSILON, values, **{**marks(number), **style(number)}, label=name)
    left.set(xscale="log", yscale="log", xlabel=r"strength $\epsilon$ of the quadratic part", ylabel="distance from it")
    left.set_xticks(EPSILON, [f"{e:g}" for e in EPSILON])
    left.minorticks_off()
    left.set_title(f"where flow ends, n = {size}")
    left.legend()
    for number, name in enumerate((r"less $\theta^F$", r"less $\theta^F+\theta^I$")):
        for width, found in outcomes.items():
            at = np.array([16 * width, 64 * width]) * 1.05 ** (list(outcomes).index(width))
            for one in found:
                values = [r[number] for r in one.curves["real"]]
                right.plot(at, values, **marks(number), label=name if one is outcomes[size][0] else None)
        first, last = min(outcomes), max(outcomes)
        start = np.sqrt(np.mean([o.curves["real"][0][number] ** 2 for o in outcomes[first]]))
        right.plot([16 * first, 64 * last], [start, start * first / (4 * last)], **style(number))
    right.set(
        xscale="log",
        yscale="log",
        xlabel="width n",
        ylabel="r.m.s. remainder",
        title=r"real trained networks; lines $\propto 1/n$",
    )
    widths = sorted({n * size for size in outcomes for n in (16, 64)})
    right.set_xticks(widths, [str(n) for n in widths])
    right.minorticks_off()
    right.legend()


LAB = Lab(
    name="quadratic-model",
    title="nearly linear models: gradient flow ends at θ^F + εθ^I",
    statement=(
        "z = z_0 + φ·θ + (ε/2)θ·ψθ trained by gradient flow ends at θ^F + εθ^I + O(ε²). On the span of the data θ^I is "
        "the linear solution for labels shifted by −(ε/2)θ^F·ψθ^F; off the span it is Σ ψ_pφ_q e_p e_q/(λ_p(λ_p+λ_q)), "
        "which depends on the algorithm (theory §8). Features evolve as φ + εψθ^F(t). A real network of width n "
        "leaves a remainder of order 1/n beyond θ^F, of which θ^I is a part only: the third derivatives (ddĤ) enter at "
        "the same order, so that beyond θ^F + θ^I the remainder is of order 1/n too."
    ),
    experiment=experiment,
    sizes=(8, 32),
    quick_sizes=(8, 32),
    draw=draw,
)
