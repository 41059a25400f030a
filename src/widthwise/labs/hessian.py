"""a bulk and C − 1 outliers; the parts of the Gauss–Newton matrix

The Hessian of a loss of outputs is H = G + E, with G = Jᵀ(∂²ℓ)J. For cross-entropy G is the Fisher information, has the
nonzero spectrum of the NTK weighted by diag p − p pᵀ, so that its rank on B inputs is B(C − 1) at most, and divides
exactly into class, cross-class, within-class and c' = c parts (theory §10). On clusters of C classes most networks, not
all, have C − 1 outliers of H; above what the scatter within clusters adds G has C(C − 1) eigenvalues; the within-class
part grows like the square of the spread. The top eigenvectors settle early. The gradient lies in the span of the C
class vectors, but descent with a small rate takes it out of the top eigenvectors; noise of batches puts it there again.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from widthwise.experiments.sampler import forward
from widthwise.experiments.tangent import kernel, tangent
from widthwise.labs.base import Outcome, Outcomes, ensemble, in_units, outputs_in_units
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import mean_and_error
from widthwise.labs.tools.classifier import class_parts, cluster_classes, cross_entropy, train_network
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, marks, style
from widthwise.special import lanczos
from widthwise.special.lanczos import gauss_newton_product, hessian_product, top_eigenpairs

SIZES, QUICK_SIZES = (3, 4, 5), (3, 5)
SIZE = "classes"
FEATURES, PER_CLASS = 10, 12
#: Networks of a run, each with clusters of its own; few of them are also trained at three small spreads.
NETWORKS, FEW = 40, 8
#: Standard deviation within a cluster, of centres of length one per feature; and small ones, for powers.
SPREAD, SMALL = 0.3, (0.02, 0.04, 0.08)
RATE, STEPS, LANCZOS = 0.2, 100, 50
#: Looks at the eigenvectors during training; inputs of a batch, and batches drawn.
EIGENVECTOR_LOOKS, BATCH, BATCHES = 5, 6, 200


def network(classes: int) -> MLP:
    return MLP([FEATURES, 16, 16, classes], "tanh")


def _loss_of(net: MLP, layers, X, labels):
    """u = θ/√λ, the outputs and the loss as functions of it."""
    u, outputs = outputs_in_units(net, layers, X)
    return u, outputs, lambda u: cross_entropy(outputs(u), labels)


def _logit_gradients(J, p):
    """J_iᵀ(e_c' − p_i), (inputs, classes, …), from J (classes, inputs, …) and p (classes, inputs)."""
    return jnp.moveaxis(J, 0, 1) - jnp.einsum("ci,ci...->i...", p, J)[:, None]


class TrainedOnClusters(NamedTuple):
    """Of every network, first axis: parameters before and after training, largest eigenvalues of H at the end, its top
    C − 1 eigenvectors at every look and at the end, and |Hv − Gv − Ev| and |Ev| over |Hv| at the end."""

    start: Any
    end: Any
    tops: Any
    vectors: Any
    left: Any
    E: Any


@jax.jit
def _trained(net: MLP, networks, X, labels) -> TrainedOnClusters:
    """Networks trained on data of their own, X (networks, inputs, features)."""
    classes = net.widths[-1]

    def one(layers, x):
        u, outputs, loss = _loss_of(net, layers, x, labels)
        end, path = train_network(
            loss, u, optax.sgd(RATE), blocks=EIGENVECTOR_LOOKS, every=STEPS // EIGENVECTOR_LOOKS, observe=lambda u: u
        )
        probe = jax.random.normal(jax.random.key(0), u.shape)

        def top(at):
            values, vectors = top_eigenpairs(hessian_product(loss, at), probe, LANCZOS, 3 * classes)
            return values, vectors[: classes - 1]

        values, vectors = jax.lax.map(top, jnp.concatenate([path, end[None]]))
        of_outputs = partial(cross_entropy, labels=labels)
        slopes = jax.grad(of_outputs)(outputs(end))
        Hv, Gv = hessian_product(loss, end)(probe), gauss_newton_product(outputs, of_outputs, end)(probe)
        Ev = hessian_product(lambda u: jnp.sum(slopes * outputs(u)), end)(probe)
        left, E = (jnp.linalg.norm(part) / jnp.linalg.norm(Hv) for part in (Hv - Gv - Ev, Ev))
        return TrainedOnClusters(u, end, values[-1], vectors, left, E)

    return jax.vmap(one)(networks, X)


class DividedGaussNewton(NamedTuple):
    """Of every network, first axis: traces of the four parts of G, class vectors, vectors whose outer products add up
    to G (parameters last), and gradients of the loss of single inputs."""

    traces: Any
    between: Any
    vectors: Any
    gradients: Any


@jax.jit
def _divided(net: MLP, networks, u, X, labels) -> DividedGaussNewton:
    """G = Σ p_ic' v_ic' v_ic'ᵀ/N at parameters u (networks, parameters), with v_ic' = J_iᵀ(e_c' − p_i)."""

    def one(layers, u, x):
        _, outputs, _ = _loss_of(net, layers, x, labels)
        J, p = jax.jacobian(outputs)(u), jax.nn.softmax(outputs(u), axis=0)
        v, weights = _logit_gradients(J, p), p.T / len(x)
        parts = class_parts(v, weights, labels)
        gradients = jnp.einsum("ci,cip->ip", p - jax.nn.one_hot(labels, len(p)).T, J)
        return DividedGaussNewton(parts.traces, parts.between, jnp.sqrt(weights)[..., None] * v, gradients)

    return jax.vmap(one)(networks, u, X)


def _spectrum(vectors: np.ndarray) -> np.ndarray:
    """Nonzero eigenvalues of Σ vvᵀ, v the vectors (…, vectors, size), largest first: those of their Gram matrix."""
    return np.linalg.eigvalsh(vectors @ np.swapaxes(vectors, -1, -2))[..., ::-1]


def _gap(values: np.ndarray) -> np.ndarray:
    """After how many eigenvalues (…, eigenvalues), largest first, the ratio of two neighbours is largest."""
    return np.argmax(values[..., :-1] / np.maximum(values[..., 1:], 1e-300), axis=-1) + 1


def _share(vectors: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Share of |slope|² in the span of some vectors, (…, vectors, size) and (…, size)."""
    basis = np.linalg.qr(np.swapaxes(vectors, -1, -2))[0]
    return (np.einsum("...pk,...p->...k", basis, slopes) ** 2).sum(axis=-1) / (slopes**2).sum(axis=-1)


def _draw_data(classes: int, spread: float, seed: int, networks: int) -> tuple[np.ndarray, np.ndarray]:
    """Clusters for every network, (networks, inputs, features), and the labels that all share."""
    data = [cluster_classes(classes, PER_CLASS, FEATURES, spread, [seed, classes, k]) for k in range(networks)]
    return np.stack([d.X for d in data]), data[0].labels


def _fisher_claims(net: MLP, found: TrainedOnClusters, divided: DividedGaussNewton, networks, X) -> list[Claim]:
    """H = G + E; G against the NTK weighted by the curvature of the loss, one network, and its parts."""
    layers = in_units(net, jax.tree.map(lambda part: part[0], networks))[1](found.end[0])
    at = tangent(net, layers, X[0])
    p = np.asarray(jax.nn.softmax(at.z, axis=0))
    # the kernel (i, a, j, b) between the roots of diag p − p pᵀ, the Fisher information of the outputs p (i, a)
    H = np.asarray(kernel(at)) / len(X[0])
    values, vectors = np.linalg.eigh(np.einsum("ia,ij->aij", p, np.eye(len(p))) - np.einsum("ia,ja->aij", p, p))
    root = np.einsum("aik,ak,ajk->aij", vectors, np.sqrt(np.maximum(values, 0.0)), vectors)
    weighted = np.einsum("aij,jakb,bkl->ialb", root, H, root).reshape(p.size, p.size)
    top, trace = np.linalg.eigvalsh(weighted)[-1], np.trace(weighted)
    own = _spectrum(divided.vectors[0].reshape(p.size, -1))[0]
    traces, classes = divided.traces[0], len(p)
    few = divided.vectors[0, :: PER_CLASS // 2]
    return [
        Claim.exactly("H − G − E, relative", 0.0, found.left.max(), 1e-10).rejects({"H is G alone": found.E.max()}),
        Claim.exactly("largest eigenvalue of the Fisher information", top, own, 1e-8 * top).rejects(
            {"of the NTK without softmax": np.linalg.eigvalsh(H.reshape(p.size, p.size))[-1]}
        ),
        Claim.exactly("trace of class + cross + within + own", trace, traces.sum(), 1e-10 * trace).rejects(
            {"without c' = c": trace - traces[3]}
        ),
        Claim.exactly(
            f"rank of G on {len(few)} inputs",
            len(few) * (classes - 1),
            np.linalg.matrix_rank(few.reshape(-1, few.shape[-1]), rtol=1e-9),
            0.1,
        ).rejects({"inputs × C": len(few) * classes}),
    ]


def _outlier_claims(classes: int, found: TrainedOnClusters) -> list[Claim]:
    """Where eigenvalues of H fall most, network by network; and how far its top eigenvectors have settled."""
    outliers = _gap(found.tops)
    turns = np.einsum("nlap,nlbp->nlab", found.vectors[:, :-1], found.vectors[:, 1:]) ** 2
    kept = turns.sum(axis=(2, 3)) / (classes - 1)  # (networks, looks)
    random = (classes - 1) / found.end.shape[-1]
    return [
        Claim.mean("share of networks with C − 1 outliers of H", 0.5, outliers == classes - 1, "at least").rejects(
            {"all of them": 1.0}
        ),
        Claim.mean("share with C − 1 outliers less that with C", 0.0, _one_more(outliers, classes), "at least").rejects(
            {"C never occurs, C − 1 always": 1.0}
        ),
        Claim.mean("top eigenspaces: gain of overlap, last look", 0.0, kept[:, -1] - kept[:, 0], "at least").rejects(
            {"unrelated at the first look": 1.0 - random}
        ),
    ]


def _one_more(outliers: np.ndarray, classes: int) -> np.ndarray:
    return (outliers == classes - 1).astype(float) - (outliers == classes)


def _gradient_claims(seed: int, found: TrainedOnClusters, divided: DividedGaussNewton) -> list[Claim]:
    """The gradient, of all inputs and of batches, in the class vectors and in the top eigenvectors of H.

    Of a batch of B inputs drawn with replacement E|P g_B|² = |P g|² + (⟨|P g_i|²⟩ − |P g|²)/B, for a projection P.
    """
    whole, tops = divided.gradients.mean(axis=1), found.vectors[:, -1]
    single = divided.gradients
    along = np.einsum("nkp,nip->nik", tops, single)

    def of_batches(parts: np.ndarray) -> np.ndarray:
        square = (parts.mean(axis=1) ** 2).sum(axis=-1)
        return square + ((parts**2).sum(axis=-1).mean(axis=1) - square) / BATCH

    expected = of_batches(single)
    predicted = of_batches(along) / expected
    chosen = np.random.default_rng([seed, 7]).integers(0, single.shape[1], (len(single), BATCHES, BATCH))
    batches = np.stack([one[rows].mean(axis=1) for one, rows in zip(single, chosen, strict=True)])
    inside = (np.einsum("nkp,nbp->nbk", tops, batches) ** 2).sum(axis=2).mean(axis=1)
    # linear in what batches give, so that its mean is zero exactly
    excess = (inside - predicted * (batches**2).sum(axis=2).mean(axis=1)) / expected
    spanned, in_top = _share(divided.between, whole), _share(tops, whole)
    classes, size = divided.between.shape[1:]
    return [
        Claim.mean("share of the gradient in the span of the class vectors", 0.95, spanned, "at least").rejects(
            {"all of it": 1.0}
        ),
        Claim.mean("share of the gradient in the top C − 1 eigenvectors of H", 0.05, in_top, "at most").rejects(
            {"none, to rounding": 1e-9}
        ),
        Claim.mean("share of a batch's gradient there, less prediction", 0.0, excess).rejects(
            {
                "as without noise": (in_top - predicted).mean(),
                "random directions": ((classes - 1) / size - predicted).mean(),
            }
        ),
    ]


def _level_claims(classes: int, seed: int) -> list[Claim]:
    """Clusters of small spreads s: C(C − 1) eigenvalues of G above those of order s², and the within-class share."""
    net = network(classes)
    networks = ensemble(net, seed, FEW)
    found = []
    for spread in SMALL:
        X, labels = _draw_data(classes, spread, seed, FEW)
        trained = _trained(net, networks, X, labels)
        found.append(jax.tree.map(np.asarray, _divided(net, networks, trained.end, X, labels)))
    least = found[0].vectors
    levels = _gap(_spectrum(least.reshape(FEW, -1, least.shape[-1]))[:, : 3 * classes * (classes - 1)])
    within = np.log([d.traces[:, 2] / d.traces.sum(axis=1) for d in found])
    low, high = np.diff(within, axis=0) / np.diff(np.log(SMALL))[:, None]
    # what is left of the next order in s is less than what changes from the first two spreads to the others
    slope, drift = mean_and_error(low), abs(np.mean(high - low))
    return [
        Claim.exactly(
            "eigenvalues of G above the within-class level", classes * (classes - 1), levels.mean(), 0.1
        ).rejects({"one a class": classes, "C²": classes**2}),
        Claim("power of the spread in the within-class share of G", 2.0, *slope, margin=drift).rejects(
            {"like the spread": 1.0, "no dependence": 0.0}
        ),
    ]


def _batch_and_layer_claims(net: MLP, seed: int, divided: DividedGaussNewton) -> tuple[list[Claim], dict[str, Any]]:
    """λ_max of G on batches, over that on all inputs: at least one on average, as λ_max is convex. And by layers."""
    vectors = divided.vectors  # (networks, inputs, classes, parameters)
    count, inputs = vectors.shape[:2]
    flat = vectors.reshape(count, -1, vectors.shape[-1])
    largest = _spectrum(flat)[:, 0]
    random, ratios = np.random.default_rng([seed, 8]), {}
    for batch in (BATCH, 2 * BATCH):
        chosen = random.integers(0, inputs, (count, 20, batch))
        some = np.stack([v[rows] for v, rows in zip(vectors, chosen, strict=True)]) * np.sqrt(inputs / batch)
        tops = _spectrum(some.reshape(count, 20, -1, vectors.shape[-1]))[..., 0]
        ratios[batch] = tops.mean(axis=1) / largest
    edges = np.cumsum([dense.outputs * (dense.inputs + 1) for dense in net.dense])
    layers = np.array([_spectrum(part)[:, 0] for part in np.split(flat, edges[:-1], axis=2)])
    claims = [
        Claim.mean(f"λ_max of G on {BATCH} inputs over that on all", 1.0, ratios[BATCH], "at least").rejects(
            {"three times, as single inputs": 3.0}
        ),
        Claim.mean(
            "the same, half the batch less the whole", 0.0, ratios[BATCH] - ratios[2 * BATCH], "at least"
        ).rejects({"like 1/B": ratios[2 * BATCH].mean()}),
        Claim.mean("λ_max of G over the largest of one layer", 1.0, largest / layers.max(axis=0), "at least").rejects(
            {"layers add up": len(layers)}
        ),
    ]
    return claims, {"layer tops": layers.mean(axis=1), "batches": {b: r.mean() for b, r in ratios.items()}}


def _start_claim(net: MLP, networks, found: TrainedOnClusters, X, labels) -> Claim:
    """At the start G does not know the labels: shuffled ones leave its largest eigenvalue where it is, unlike H's."""
    layers, x = jax.tree.map(lambda part: part[0], networks), X[0]
    tops = []
    for given in (labels, np.roll(labels, 1)):
        _, outputs, loss = _loss_of(net, layers, x, given)
        probe = jax.random.normal(jax.random.key(0), found.start[0].shape)
        products = gauss_newton_product(outputs, partial(cross_entropy, labels=given), found.start[0])
        tops.append(
            [top_eigenpairs(p, probe, LANCZOS, 1)[0][0] for p in (products, hessian_product(loss, found.start[0]))]
        )
    (G, H), (other_G, other_H) = np.array(tops)
    return Claim.exactly("λ_max of G at the start, other labels over given ones", 1.0, other_G / G, 1e-8).rejects(
        {"as that of H": other_H / H}
    )


def experiment(classes: int, seed: int) -> Outcome:
    net = network(classes)
    X, labels = _draw_data(classes, SPREAD, seed, NETWORKS)
    networks = ensemble(net, seed, NETWORKS)
    found = jax.tree.map(np.asarray, _trained(net, networks, X, labels))
    divided = jax.tree.map(np.asarray, _divided(net, networks, found.end, X, labels))
    more, curves = _batch_and_layer_claims(net, seed, divided)
    claims = [*_fisher_claims(net, found, divided, networks, X), *_outlier_claims(classes, found)]
    claims += [*_gradient_claims(seed, found, divided), *_level_claims(classes, seed), *more]
    claims.append(_start_claim(net, networks, found, X, labels))
    layers = in_units(net, jax.tree.map(lambda part: part[0], networks))[1](found.end[0])
    curves |= {"outliers": _gap(found.tops), "tops": found.tops[0], "layers": _layer_parts(net, layers, X[0], labels)}
    return Outcome(tuple(claims), curves | {"trained": layers, "X": X[0], "labels": labels})


@jax.jit
def _layer_parts(net: MLP, layers, X, labels):
    """Layer by layer: share of activations within classes (layers,), and shares of the parts of gradients (layers, 4).

    Gradients are those of −log p_c' with respect to a layer's preactivations, weighted by p_c'.
    """
    at, incoming = tangent(net, layers, X), forward(net, layers, X)[0]
    p = jax.nn.softmax(at.z, axis=0)
    traces = [class_parts(_logit_gradients(signal, p), p.T / len(X), labels).traces for signal in at.signals]
    # an activation has no c': one vector an input, in the place of a class that is not its own
    place = jax.nn.one_hot((labels + 1) % len(p), len(p))
    inside = [class_parts(place[..., None] * (s - s.mean(axis=0))[:, None], place, labels).traces for s in incoming]
    return jnp.array([t[2] / t.sum() for t in inside]), jnp.array([t / t.sum() for t in traces])


def draw(figure: Any, outcomes: Outcomes) -> None:
    figure.set_size_inches(10.0, 3.4)
    density, counts, layers = figure.subplots(1, 3)
    classes = list(outcomes)[-1]
    one = outcomes[classes][0].curves
    _draw_density(density, classes, one)
    for number, (size, found) in enumerate(outcomes.items()):
        all_counts = np.concatenate([o.curves["outliers"] for o in found]) - (size - 1)
        values, shares = np.unique(all_counts, return_counts=True)
        offset = 0.25 * (number - 0.5 * (len(outcomes) - 1))
        label = f"{size} classes"
        counts.bar(values + offset, shares / shares.sum(), width=0.22, color=COLOURS[number % 4], label=label)
    counts.set(xlabel="outliers of $H$, less $C-1$", title=f"{len(all_counts)} networks each", ylabel="share")
    counts.legend()
    inside, shares = map(np.asarray, one["layers"])
    at, floor = np.arange(1, len(shares) + 1), np.zeros(len(shares))
    for number, name in enumerate(("class", "cross", "within", "c' = c")):
        layers.bar(at, shares[:, number], bottom=floor, width=0.6, color=COLOURS[number], alpha=0.8, label=name)
        floor = floor + shares[:, number]
    layers.plot(at, inside, **(marks(0) | {"color": "black"}), label="activations: within")
    layers.set(xlabel="layer", xticks=at, ylim=(0.0, 1.5), yticks=[0, 0.5, 1])
    layers.set_title("parts of back-propagated gradients")
    layers.legend(ncols=2, loc="upper center", fontsize=9)


def _draw_density(axis: Any, classes: int, one: Any) -> None:
    """Density of the eigenvalues of H by stochastic Lanczos, and of G; outliers marked."""
    u, outputs, loss = _loss_of(network(classes), one["trained"], one["X"], one["labels"])
    of_outputs = partial(cross_entropy, labels=one["labels"])
    products = {"$H$": hessian_product(loss, u), "$G$": gauss_newton_product(outputs, of_outputs, u)}
    at = np.linspace(-0.15, 1.15 * one["tops"][0], 500)
    for number, (name, product) in enumerate(products.items()):
        rule = lanczos.lanczos_density(product, len(u), steps=LANCZOS, probes=4, key=jax.random.key(0))
        axis.plot(at, np.maximum(lanczos.smooth_density(rule, at, 0.005), 1e-4), label=name, **style(number))
    axis.plot(one["tops"][: classes - 1], np.full(classes - 1, 3e-3), "v", color="black", label="outliers")
    axis.set(yscale="log", ylim=(1e-3, None), xlabel="eigenvalue", title=f"density, {classes} classes")
    axis.legend()
