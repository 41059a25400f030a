"""features of a class shrink to a point, and the points to a simplex

Through the terminal phase of training, with weight decay, (NC1) features of the last hidden layer go on concentrating
at their class means after the training error is zero; (NC2) the means, seen from their centre, and the rows of the
classifier take the angles of a regular simplex, cosine −1/(C−1); (NC3) rows and means align, with W_c = (1 − 1/C)/(m² +
(C−1) decay) M_c for squared loss, m = |M_c|; (NC4) the network decides as the nearest class mean does (theory §10).
Simple data, clusters, collapse to within 2.5 degrees. Without decay, before training or after a twelfth of it they do
not, and the digits of scikit-learn do not either; on inputs that were not trained on features scatter more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from widthwise.experiments.sampler import forward, network_key, sample_parameters
from widthwise.labs.base import Outcome, Outcomes
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import mean_and_error
from widthwise.labs.tools.classifier import Collapse, cluster_classes, collapse, digit_classes, train_network
from widthwise.network import MLP
from widthwise.plots.style import style

SIZES, QUICK_SIZES = (3, 5, 8), (3, 5)
SIZE = "classes"
#: Networks of a run, each with data of its own; inputs a class, to train and to test on.
NETWORKS, PER_CLASS = 12, 24
FEATURES, WIDTH, SPREAD = 64, 32, 0.5
DECAY, RATE = 1e-2, 0.05
#: Looks during training, steps between them, and the look at a twelfth of the steps.
BLOCKS, EVERY, TWELFTH = 60, 25, 5
#: Root mean square deviation, in degrees, of the angles of a collapsed network from those of a simplex.
DEGREES = 2.5


def network(classes: int) -> MLP:
    """ReLU, the last weights small at the start."""
    return MLP([FEATURES, WIDTH, WIDTH, WIDTH, classes], "relu", C_W=[2.0, 2.0, 2.0, 0.01])


@jax.jit
def _collapses(net: MLP, decay, seed, X, labels, X_test) -> tuple[Collapse, Collapse, Collapse]:
    """Collapse every so many steps on the training inputs, and at the end on training and test inputs.

    X, X_test (networks, inputs, features) are every network's own; labels (inputs,) are shared by all.
    """
    targets = jax.nn.one_hot(labels, net.widths[-1])
    optimiser = optax.sgd(optax.cosine_decay_schedule(RATE, BLOCKS * EVERY, 0.05), momentum=0.9)

    def one(number, x, x_test):
        def loss(layers):
            error = forward(net, layers, x)[1][-1] - targets
            return 0.5 * jnp.sum(error**2) / len(x) + 0.5 * decay * sum(jnp.sum(layer.W**2) for layer in layers)

        def look(layers, x=x):
            incoming, preactivations = forward(net, layers, x)
            return collapse(incoming[-1], labels, layers[-1].W, preactivations[-1].T)

        start = sample_parameters(net, network_key(seed, number))
        end, path = train_network(loss, start, optimiser, blocks=BLOCKS, every=EVERY, observe=look)
        return path, look(end), look(end, x_test)

    return jax.vmap(one)(jnp.arange(len(X)), X, X_test)


def _clusters(classes: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gaussian clusters for every network: inputs to train on and to test on, (networks, inputs, features); labels."""
    drawn = [
        cluster_classes(classes, 2 * PER_CLASS, FEATURES, SPREAD, [seed, classes, number]) for number in range(NETWORKS)
    ]
    X = np.stack([data.X for data in drawn])
    return X[:, ::2], X[:, 1::2], drawn[0].labels[::2]


def _digits(classes: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for pictures of digits, drawn anew for every network."""
    drawn = [digit_classes(classes, PER_CLASS, [seed, classes, number]) for number in range(NETWORKS)]
    return np.stack([a.X for a, _ in drawn]), np.stack([b.X for _, b in drawn]), drawn[0][0].labels


def off_simplex(cosines: np.ndarray, classes: int) -> np.ndarray:
    """Root mean square deviation of angles from those of a simplex, in degrees; the pairs are on the last axis.

    >>> off_simplex(np.array([-0.5, -0.5, -0.5]), 3).round(9)
    np.float64(0.0)
    """
    angles = np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0)))
    return np.sqrt(np.mean((angles - np.degrees(np.arccos(-1.0 / (classes - 1)))) ** 2, axis=-1))


def predicted_duality(mean_squares: np.ndarray, decay: float) -> np.ndarray:
    """W_c·M_c/|M_c|² at the end, if class means are a simplex and nothing is left within a class.

    Then W minimises ½⟨|W h + b − e|²⟩ + ½ decay |W|² at W_c = (1 − 1/C) s M_c/m², where m² = |M_c|² and
    s = 1/(1 + decay (C − 1)/m²). mean_squares (…, classes) gives m² by its mean.

    >>> predicted_duality(np.array([2.0, 2.0]), 0.0)
    np.float64(0.25)
    """
    classes, square = mean_squares.shape[-1], mean_squares.mean(axis=-1)
    return (1.0 - 1.0 / classes) / (square + decay * (classes - 1))


def _at_look(path: Collapse, look: int) -> Collapse:
    return Collapse(*(part[:, look] for part in path))


#: Networks that must not pass for collapsed ones.
NOT_COLLAPSED: tuple[str, ...] = ("untrained", "no decay", "a twelfth of the steps")


def _angles(cosines: str, classes: int) -> Callable[[Collapse], np.ndarray]:
    return lambda found: off_simplex(getattr(found, cosines), classes)


def _claims(classes: int, end: Collapse, path: Collapse, plain: Collapse, plain_path: Collapse) -> list[Claim]:
    """NC1 to NC4 of clusters; `plain` was trained without decay."""
    start, early = _at_look(path, 0), _at_look(path, TWELFTH)

    def small(what: str, bound: float, of: Callable[[Collapse], np.ndarray], *controls: str) -> Claim:
        cases: dict[str, Collapse] = dict(zip(NOT_COLLAPSED, (start, plain, early), strict=True))
        found = {name: mean_and_error(of(cases[name])) for name in controls}
        return Claim.mean(what, bound, of(end), "at most").fails_for(found)

    ratio = end.duality.mean(axis=1) / predicted_duality(end.mean_squares, DECAY)
    # what the formula leaves out: lengths that differ, to second order, and scatter within classes, to first
    lengths = np.var(end.mean_squares, axis=1) / np.mean(end.mean_squares, axis=1) ** 2
    margin = float(np.mean(lengths + classes * end.within))
    orthogonal, without = 1.0 / (1.0 - 1.0 / classes), 1.0 + DECAY * (classes - 1) / end.mean_squares.mean()
    return [
        small("NC1: within-class variability", 3e-3, lambda c: c.within, "untrained", "no decay"),
        Claim.mean("NC1: the same, end over a twelfth", 0.5, end.within / early.within, "at most").fails_for(
            {"no decay": mean_and_error(plain.within / plain_path.within[:, TWELFTH])}
        ),
        small("NC2: class means, degrees off the simplex", DEGREES, _angles("mean_cosines", classes), *NOT_COLLAPSED),
        small("NC2: rows of W, degrees off the simplex", DEGREES, _angles("row_cosines", classes), *NOT_COLLAPSED),
        Claim("NC3: W_c·M_c/|M_c|² over prediction", 1.0, *mean_and_error(ratio), margin=margin).rejects(
            {"means as an orthogonal frame": orthogonal, "as without decay": without}
        ),
        small("NC3: 1 − cosine of W and M", 0.02, lambda c: 1.0 - c.alignment, "untrained", "no decay"),
        Claim.exactly("NC4: share decided as by the nearest mean", 1.0, end.nearest.mean(), 1e-3).fails_for(
            {"untrained": mean_and_error(start.nearest)}
        ),
    ]


def _other_data_claims(classes: int, end: Collapse, tested: Collapse, digits: Collapse) -> list[Claim]:
    """What inputs that were not trained on show, and complex data."""
    angles = off_simplex(digits.mean_cosines, classes)
    return [
        Claim.mean(
            "test inputs: variability over that of training", 1.0, tested.within / end.within, "at least"
        ).rejects({"a thousand times": 1000.0}),
        Claim.mean("digits: class means, degrees off the simplex", DEGREES, angles, "at least").rejects(
            {"as untrained, 20": 20.0}
        ),
    ]


def experiment(classes: int, seed: int) -> Outcome:
    net, (X, X_test, labels) = network(classes), _clusters(classes, seed)
    path, end, tested = jax.tree.map(np.asarray, _collapses(net, DECAY, seed, X, labels, X_test))
    plain_path, plain, _ = jax.tree.map(np.asarray, _collapses(net, 0.0, seed, X, labels, X_test))
    pictures, other_pictures, names = _digits(classes, seed)
    _, digits, _ = jax.tree.map(np.asarray, _collapses(net, DECAY, seed, pictures, names, other_pictures))
    claims = [*_claims(classes, end, path, plain, plain_path), *_other_data_claims(classes, end, tested, digits)]
    return Outcome(tuple(claims), {"path": path, "plain": plain_path, "test": tested, "digits": digits})


def draw(figure: Any, outcomes: Outcomes) -> None:
    figure.set_size_inches(10.0, 3.4)
    axes = figure.subplots(1, 4)
    steps = EVERY * np.arange(BLOCKS)
    for number, (classes, results) in enumerate(outcomes.items()):
        for name, width in (("path", 1.4), ("plain", 0.6)):
            path = results[0].curves[name]
            label = f"{classes} classes" if name == "path" else f"{classes}, no decay"
            line = style(number) | {"label": label, "linewidth": width}
            axes[0].plot(steps, path.within.mean(axis=0), **line)
            axes[1].plot(steps, off_simplex(path.mean_cosines, classes).mean(axis=0), **line)
            axes[2].plot(steps, 1.0 - path.alignment.mean(axis=0), **line)
            axes[3].plot(steps, path.nearest.mean(axis=0), **line)
    axes[1].axhline(DEGREES, color="black", linewidth=0.6)
    axes[0].set(yscale="log", title=r"NC1: tr $\Sigma_W\Sigma_B^+/C$")
    axes[1].set(yscale="log", title="NC2: degrees off the simplex")
    axes[2].set(yscale="log", title=r"NC3: $1-\cos(W, M)$")
    axes[3].set(title="NC4: nearest mean agrees")
    for axis in axes:
        axis.set_xscale("symlog", linthresh=100)
        axis.set(xlabel="steps", xlim=(0.0, None))
        axis.set_xticks([0, 100, 1000], ["0", "100", "1000"])
    axes[3].legend(loc="lower right", fontsize=9)
