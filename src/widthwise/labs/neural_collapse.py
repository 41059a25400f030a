"""features of a class shrink to a point, and the points to a simplex

Through the terminal phase of training, with weight decay, (NC1) features of the last hidden layer go on concentrating
at their class means after the training error is zero; (NC2) the means, seen from their centre, and the rows of the
classifier become equally long with cosine −1/(C−1); (NC3) rows and means align, with W_c = (1 − 1/C)/(m² + (C−1) decay)
M_c for squared loss, m = |M_c|; (NC4) the network decides as the nearest class mean does (theory §10). Measured on the
digits of scikit-learn; the size is the number of classes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from widthwise.experiments.sampler import forward, sample_parameters
from widthwise.labs.base import Claim, Outcome, Outcomes, over_networks
from widthwise.labs.tools.classifier import Collapse, collapse, digit_classes, train_network
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, style

SIZES = (3, 5, 10)
PER_CLASS, NETWORKS = 24, 3
DECAY, RATE = 5e-3, 0.1
BLOCKS, EVERY = 60, 25


def network(classes: int) -> MLP:
    """ReLU, the last weights small at the start."""
    return MLP([64, 32, 32, 32, classes], "relu", C_W=[2.0, 2.0, 2.0, 0.01])


@over_networks
def _collapses(net: MLP, key, X, labels, X_test, labels_test) -> tuple[Collapse, Collapse, Collapse]:
    """Collapse every so many steps on the training inputs, and at the end on training and test inputs."""
    targets = jax.nn.one_hot(labels, net.widths[-1])
    optimiser = optax.sgd(optax.cosine_decay_schedule(RATE, BLOCKS * EVERY, 0.05), momentum=0.9)

    def loss(layers):
        error = forward(net, layers, X)[1][-1] - targets
        return 0.5 * jnp.sum(error**2) / len(X) + 0.5 * DECAY * sum(jnp.sum(layer.W**2) for layer in layers)

    def look(layers, X=X, labels=labels):
        incoming, preactivations = forward(net, layers, X)
        return collapse(incoming[-1], labels, layers[-1].W, preactivations[-1].T)

    start = sample_parameters(net, key)
    end, path = train_network(loss, start, optimiser, blocks=BLOCKS, every=EVERY, observe=look)
    return path, look(end), look(end, X_test, labels_test)


def predicted_duality(mean_squares: np.ndarray, decay: float) -> np.ndarray:
    """W_c·M_c/|M_c|² at the end, if class means are a simplex and nothing is left within a class.

    Then W minimises ½⟨|W h + b − e|²⟩ + ½ decay |W|² at W_c = (1 − 1/C) s M_c/m², where m² = |M_c|² and
    s = 1/(1 + decay (C − 1)/m²). mean_squares (…, classes) gives m² by its mean.

    >>> predicted_duality(np.array([2.0, 2.0]), 0.0)
    np.float64(0.25)
    """
    classes, square = mean_squares.shape[-1], mean_squares.mean(axis=-1)
    return (1.0 - 1.0 / classes) / (square + decay * (classes - 1))


def experiment(classes: int, seed: int) -> Outcome:
    train, test = digit_classes(classes, PER_CLASS, seed)
    path, end, tested = _collapses(network(classes), seed, NETWORKS, *train, *test)
    first = np.argmax(path.accuracy == 1.0, axis=1)  # where the training error is first zero
    then = path.within[np.arange(NETWORKS), first]
    simplex = -1.0 / (classes - 1)
    angles = {"orthogonal": 0.0, "−1/C": -1.0 / classes}
    duality = predicted_duality(end.mean_squares, DECAY).mean()
    claims = (
        Claim.mean(
            "NC1: within-class variability, end over zero training error", 1.0, end.within / then, "at most"
        ).rejects({"nothing left": 0.0}),
        Claim.mean("NC2: cosine between class means", simplex, end.mean_cosines.ravel()).rejects(angles),
        Claim.mean("NC2: cosine between rows of W", simplex, end.row_cosines.ravel()).rejects(angles),
        Claim.mean("NC3: W_c·M_c/|M_c|²", duality, end.duality.ravel()).rejects(
            {"means as an orthogonal frame": duality / (1.0 - 1.0 / classes), "not aligned": 0.0}
        ),
        Claim.exactly(
            "NC4: share of training inputs classified as by the nearest mean", 1.0, end.nearest.mean(), 5e-3
        ).rejects({"as before training": path.nearest[:, 0].mean()}),
    )
    return Outcome(claims, {"path": path, "first": first, "end": end, "test": tested})


def draw(figure: Any, outcomes: Outcomes) -> None:
    figure.set_size_inches(10.0, 3.4)
    axes = figure.subplots(1, 4)
    steps = EVERY * np.arange(BLOCKS)
    for number, (classes, results) in enumerate(outcomes.items()):
        path = results[0].curves["path"]
        line = style(number) | {"label": f"{classes} classes"}
        axes[0].plot(steps, path.within.mean(axis=0), **line)
        axes[0].axvline(steps[results[0].curves["first"]].mean(), color=COLOURS[number % 4], linewidth=0.5)
        low, middle, high = np.quantile(path.row_cosines, [0.1, 0.5, 0.9], axis=(0, 2))
        axes[1].fill_between(steps, low, high, color=COLOURS[number % 4], alpha=0.15, linewidth=0.0)
        axes[1].plot(steps, middle, **line)
        axes[1].axhline(-1.0 / (classes - 1), color=COLOURS[number % 4], linewidth=0.6)
        axes[2].plot(steps, 1.0 - path.alignment.mean(axis=0), **line)
        axes[3].plot(steps, path.nearest.mean(axis=0), **line)
    axes[0].set(yscale="log", title=r"NC1: tr $\Sigma_W\Sigma_B^+/C$")
    axes[1].set(title=r"NC2: cosines of $W$; $-1/(C-1)$", ylim=(-0.75, 0.4))
    axes[2].set(yscale="log", title=r"NC3: $1-\cos(W, M)$")
    axes[3].set(title="NC4: nearest mean agrees")
    for axis in axes:
        axis.set_xscale("symlog", linthresh=100)
        axis.set(xlabel="steps", xlim=(0.0, None))
        axis.set_xticks([0, 100, 1000], ["0", "100", "1000"])
    axes[3].legend(loc="lower right")
