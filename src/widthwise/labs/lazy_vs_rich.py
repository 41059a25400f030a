"""NTK scaling leaves kernel and features where they are; mean-field scaling does not

In NTK scaling training changes the kernel by change1/n on average, at every depth (theory §8), and with one hidden
layer all features together by Σ(Δσ)² = C_W Θ_1²⟨σ'⁴⟩(y²+K)/Θ², so each by 1/√n. In mean-field (μP) scaling both changes
have a limit at infinite width, that of descent on the distribution of (a, h), and it is of order one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import conditional_kernel, forward, sample_parameters
from widthwise.experiments.tangent import added, gradient, kernel, scaled, tangent
from widthwise.gaussian import expectation
from widthwise.inference.predict import trained_kernel
from widthwise.labs.base import Outcome, Outcomes, only_ticks, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import extrapolated, without
from widthwise.network import MLP, GradientDescent
from widthwise.plots.style import marks, style
from widthwise.results.theory import theory

SIZES = (64, 96, 128)
SIZE = "width"
X, Y = np.array([[1.0, -0.6]]), np.array([[1.5]])
#: NTK scaling: rate, that of two hidden layers, and steps until nothing is left; mean-field scaling: rate and steps.
RATE, DEEPER_RATE, STEPS = 0.3, 0.15, 30
RICH_RATE, RICH_STEPS = 0.08, 60
#: Widths over the size; networks of every width, with one and two hidden layers; nodes of the quadrature.
WIDTHS, NETWORKS, DEEPER_NETWORKS, NODES = (1, 2, 4), 300, 180, 64


def lazy_network(width: int, hidden: int = 1) -> MLP:
    return MLP([2, *[width] * hidden, 1], "tanh", C_b=0.1, C_W=2.0, lambda_b=0.2)


def rich_network(width: int) -> MLP:
    """Mean-field scaling: the output is a mean over neurons, not a sum over √n."""
    return MLP.mup([2, width, 1], "tanh", C_W=2.0, learning_rate=RICH_RATE)


class Moved(NamedTuple):
    """Ĥ before and after training, the mean square change of an activation, z² − Ĝ at the start: (networks,)."""

    before: Any
    after: Any
    features: Any
    luck: Any = 0.0


def _mirrored(net: MLP, layers: list[Weights]) -> list[Weights]:
    """The network whose last weights are reflected so that its output on the input has the opposite sign."""
    features, last = forward(net, layers, jnp.asarray(X))[0][-1][0], layers[-1]
    along = last.W @ features / (features @ features)
    return [*layers[:-1], Weights(last.W - 2.0 * along[:, None] * features, -last.b)]


@over_networks
def _moved(net: MLP, key, rate, steps) -> Moved:
    """Mean over a network and its mirror image, trained on the label and on its negative.

    All four have the same law, as last weights are Gaussian. What is odd in the label or in the output at the start, of
    order 1/√n beside means of order 1/n, drops out network by network. What moves is proportional to (z − y)² at the
    start: its scatter is that of z², whose mean over the last weights, Ĝ, is known.
    """
    inputs = jnp.asarray(X)

    def trained(start, y):
        def step(_, layers):
            return added(layers, scaled(net, gradient(net, layers, inputs, y)[0]), -rate)

        end = jax.lax.fori_loop(0, steps, step, start)
        before, after = (kernel(tangent(net, layers, inputs))[0, 0, 0, 0] for layers in (start, end))
        (first, z), (last, _) = (forward(net, layers, inputs) for layers in (start, end))
        moved = jnp.mean((last[-1] - first[-1]) ** 2)
        return Moved(before, after, moved, z[-1][0, 0] ** 2 - conditional_kernel(net, first)[0, 0])

    drawn = sample_parameters(net, key)
    starts = jax.tree.map(lambda *pair: jnp.stack(pair), drawn, _mirrored(net, drawn))
    labels = jnp.stack([jnp.asarray(Y), -jnp.asarray(Y)])
    return jax.tree.map(jnp.mean, jax.vmap(jax.vmap(trained, (None, 0)), (0, None))(starts, labels))


def feature_motion() -> float:
    """Σ_j (Δσ_j)² in NTK scaling at infinite width: C_W Θ_1² ⟨σ'⁴⟩ (y² + K)/Θ², Θ_1 and ⟨⟩ at the hidden layer.

    A preactivation moves by −Θ_1 W_j σ'_j ε/Θ, and W_j² is C_W/n on average.

    >>> round(feature_motion(), 4)
    0.7838
    """
    net = lazy_network(1)
    th = theory(net, X, order=0)
    (K_1, K), (Theta_1, Theta) = (th[name].values.reshape(2) for name in ("K", "Theta"))
    slope = net.activation.derivative(1)
    fourth = float(expectation(lambda z: slope(z) ** 2, K_1).value)
    return float(net.C_W[1] * Theta_1**2 * fourth * (Y.item() ** 2 + K) / Theta**2)


def mean_field() -> Moved:
    """Infinite width in mean-field scaling: descent on the distribution of (a, h), by Gauss–Hermite quadrature.

    z = b + ⟨a σ(h)⟩, and a step is a → a − ηεσ, h → h − η(1 + x·x)εaσ', b → b − ηε.

    >>> limit = mean_field()
    >>> round(limit.after / limit.before, 4), round(limit.features, 4)
    (0.6214, 0.3493)
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = np.outer(weights, weights) / (2.0 * np.pi)
    net = rich_network(2)
    square = float(X[0] @ X[0])
    a = np.sqrt(net.C_W[0]) * nodes[:, None] + np.zeros((1, NODES))
    h = np.sqrt(net.C_W[0] * square / X.shape[1]) * nodes + np.zeros((NODES, 1))
    sigma, slope = net.activation.derivative(0), net.activation.derivative(1)
    start, b = np.asarray(sigma(h)), 0.0

    def kernel_of(a, h):
        return RICH_RATE * (1.0 + np.sum(weights * (sigma(h) ** 2 + (1.0 + square) * (a * slope(h)) ** 2)))

    before = kernel_of(a, h)
    for _ in range(RICH_STEPS):
        move = RICH_RATE * (b + np.sum(weights * a * sigma(h)) - Y.item())
        a, h, b = a - move * sigma(h), h - move * (1.0 + square) * a * slope(h), b - move
    moved = np.sum(weights * (sigma(h) - start) ** 2)
    return Moved(float(before), float(kernel_of(a, h)), float(moved))


def experiment(size: int, seed: int) -> Outcome:
    widths = size * np.array(WIDTHS)
    lazy = [_moved(lazy_network(n), seed, NETWORKS, RATE, STEPS) for n in widths]
    rich = [_moved(rich_network(n), seed, NETWORKS, 1.0, RICH_STEPS) for n in widths]
    change = trained_kernel(lazy_network(size), X, Y, X, GradientDescent(RATE))["change1"].values.item()
    motion, limit = feature_motion(), mean_field()
    ratio = limit.after / limit.before
    changes = extrapolated(*(without(n * (m.after - m.before), m.luck) for n, m in zip(widths, lazy, strict=True)))
    motions = extrapolated(*(without(n * m.features, m.luck) for n, m in zip(widths, lazy, strict=True)))
    ratios, features = (
        extrapolated(*(without(values, m.luck) for values, m in zip(some, rich, strict=True)))
        for some in ([m.after / limit.before for m in rich], [m.features for m in rich])
    )
    claims = (
        Claim("NTK scaling: n × mean change of the kernel", change, *changes).rejects(
            {"none at any width": 0.0, "of order one": change * size, "twice": 2.0 * change}
        ),
        _deeper(size, seed, change),
        Claim("NTK scaling: squared change of all features", motion, *motions).rejects(
            {"each changes at any width": motion * size, "twice": 2.0 * motion}
        ),
        Claim("mean-field: kernel after / before", ratio, *ratios).rejects({"lazy": 1.0}),
        Claim("mean-field: mean squared change of a feature", limit.features, *features).rejects(
            {"lazy, like 1/n": limit.features / size}
        ),
    )
    curves = {
        name: np.array([[abs(np.mean(m.after - m.before)) / np.mean(m.before), np.mean(m.features)] for m in found])
        for name, found in (("NTK scaling", lazy), ("mean-field scaling", rich))
    }
    theta = float(np.mean(lazy[-1].before))
    return Outcome(claims, curves | {"limits": [[abs(change) / theta, motion], [abs(ratio - 1.0), limit.features]]})


def _deeper(size: int, seed: int, shallow: float) -> Claim:
    """The mean change of the kernel with two hidden layers."""
    predicted = trained_kernel(lazy_network(size, 2), X, Y, X, GradientDescent(DEEPER_RATE))["change1"].values.item()
    widths = size * np.array(WIDTHS)
    found = [_moved(lazy_network(n, 2), seed, DEEPER_NETWORKS, DEEPER_RATE, STEPS) for n in widths]
    changes = extrapolated(*(without(n * (m.after - m.before), m.luck) for n, m in zip(widths, found, strict=True)))
    return Claim("two hidden layers: n × mean change of the kernel", predicted, *changes).rejects(
        {"none at any width": 0.0, "as with one hidden layer": shallow, "twice": 2.0 * predicted}
    )


def draw(figure: Any, outcomes: Outcomes) -> None:
    panels = figure.subplots(1, 2)
    sizes = np.array(list(outcomes))
    widths = np.array([sizes.min(), WIDTHS[-1] * sizes.max()])
    labels = ("relative change of the kernel", "mean squared change of a feature")
    for column, (panel, ylabel) in enumerate(zip(panels, labels, strict=True)):
        for number, name in enumerate(("NTK scaling", "mean-field scaling")):
            limit = outcomes[sizes[-1]][0].curves["limits"][number][column]
            panel.plot(widths, limit / widths if number == 0 else [limit, limit], **style(number))
            for size, found in outcomes.items():
                mean = np.mean([outcome.curves[name][:, column] for outcome in found], axis=0)
                at, label = size * np.array(WIDTHS), name if size == sizes[0] else None
                panel.plot(at, mean, **marks(number), label=label)
        panel.set(xscale="log", yscale="log", xlabel="width n", ylabel=ylabel)
        only_ticks(panel, sorted({size * factor for size in sizes for factor in WIDTHS}))
    panels[0].set_title("the kernel")
    panels[1].set_title("features; lines: infinite width")
    panels[0].legend()
