"""a bulk and C − 1 outliers; the parts of the Gauss–Newton matrix

The Hessian of a loss of outputs is H = G + E, with G = Jᵀ(∂²ℓ)J. For cross-entropy G is the Fisher information, has the
nonzero spectrum of the NTK weighted by diag p − p pᵀ, and divides exactly into class, cross-class, within-class and c'
= c parts (theory §10). On clusters of C classes H has C − 1 outliers; the within-class part grows like the square of
the clusters' spread. The gradient lies in the span of the C class vectors, but descent with a small rate takes it out
of the top eigenvectors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from widthwise.experiments.sampler import forward
from widthwise.experiments.tangent import kernel, tangent
from widthwise.labs.base import Claim, Outcome, Outcomes, ensemble, in_units, mean_and_error, outputs_in_units
from widthwise.labs.tools.classifier import class_parts, cluster_classes, cross_entropy, train_network
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, marks, style
from widthwise.special import lanczos
from widthwise.special.lanczos import gauss_newton_product, hessian_product, top_eigenpairs

SIZES, QUICK_SIZES = (3, 4, 5), (3, 5)
FEATURES, PER_CLASS, NETWORKS = 10, 12, 3
#: Standard deviation within a cluster, of centres of length one per feature; the claims are about SPREADS[MAIN].
SPREADS, MAIN = np.array([0.02, 0.04, 0.08, 0.3, 1.0]), 3
RATE, STEPS, LANCZOS = 0.2, 100, 50


def network(classes: int) -> MLP:
    return MLP([FEATURES, 16, 16, classes], "tanh")


def _loss_of(net: MLP, layers, X, labels):
    """u = θ/√λ, the outputs and the loss as functions of it."""
    u, outputs = outputs_in_units(net, layers, X)
    return u, outputs, lambda u: cross_entropy(outputs(u), labels)


def _logit_gradients(J, p):
    """J_iᵀ(e_c' − p_i), (inputs, classes, …), from J (classes, inputs, …) and p (classes, inputs)."""
    return jnp.moveaxis(J, 0, 1) - jnp.einsum("ci,ci...->i...", p, J)[:, None]


@jax.jit
def _trained_on_clusters(net: MLP, networks, X, labels):
    """Networks trained on each of the data sets X (sets, inputs, features); what is found, (sets, networks, …).

    End points u, largest eigenvalues of H, traces of the parts of G, the top C − 1 eigenvectors of H, the class vectors
    of G, and the gradient.
    """
    classes = net.widths[-1]

    def one(x, layers):
        u, outputs, loss = _loss_of(net, layers, x, labels)
        end, _ = train_network(loss, u, optax.sgd(RATE), blocks=1, every=STEPS)
        probe = jax.random.normal(jax.random.key(0), u.shape)
        values, vectors = top_eigenpairs(hessian_product(loss, end), probe, LANCZOS, 3 * classes)
        p = jax.nn.softmax(outputs(end), axis=0)
        parts = class_parts(_logit_gradients(jax.jacobian(outputs)(end), p), p.T / len(x), labels)
        return end, values, parts.traces, vectors[: classes - 1], parts.between, jax.grad(loss)(end)

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(X, networks)


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


@jax.jit
def _identities(net: MLP, layers, X, labels):
    """|Hv − Gv − Ev| and |Ev| over |Hv|; the largest eigenvalue of G; probabilities (i, a) and the NTK over inputs."""
    u, outputs, loss = _loss_of(net, layers, X, labels)
    v = jax.random.normal(jax.random.key(1), u.shape)
    of_outputs = partial(cross_entropy, labels=labels)
    product = gauss_newton_product(outputs, of_outputs, u)
    slopes = jax.grad(of_outputs)(outputs(u))
    Hv, Gv = hessian_product(loss, u)(v), product(v)
    Ev = hessian_product(lambda u: jnp.sum(slopes * outputs(u)), u)(v)
    p = jax.nn.softmax(outputs(u), axis=0)
    top = top_eigenpairs(product, v, LANCZOS, 1)[0][0]
    length = jnp.linalg.norm(Hv)
    left, E = jnp.linalg.norm(Hv - Gv - Ev) / length, jnp.linalg.norm(Ev) / length
    return left, E, top, p, kernel(tangent(net, layers, X)) / len(X)


def _share(vectors: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Share of |slope|² in the span of some vectors, (…, vectors, size) and (…, size)."""
    basis = np.linalg.qr(np.swapaxes(vectors, -1, -2))[0]
    return (np.einsum("...pk,...p->...k", basis, slopes) ** 2).sum(axis=-1) / (slopes**2).sum(axis=-1)


def _identity_claims(net: MLP, trained, X, labels, traces: np.ndarray) -> tuple[Claim, ...]:
    """H = G + E, G against the weighted kernel, and the four parts of G, whose traces are given."""
    left, E, top_G, p, H = map(np.asarray, _identities(net, trained, X, labels))
    # the kernel H (i, a, j, b) between the roots of diag p − p pᵀ, the Fisher information of the outputs p (i, a)
    values, vectors = np.linalg.eigh(np.einsum("ia,ij->aij", p, np.eye(len(p))) - np.einsum("ia,ja->aij", p, p))
    root = np.einsum("aik,ak,ajk->aij", vectors, np.sqrt(np.maximum(values, 0.0)), vectors)
    weighted = np.einsum("aij,jakb,bkl->ialb", root, H, root).reshape(p.size, p.size)
    top_kernel, trace = np.linalg.eigvalsh(weighted)[-1], np.trace(weighted)
    top_plain = np.linalg.eigvalsh(H.reshape(p.size, p.size))[-1]
    return (
        Claim.exactly("H − G − E, relative", 0.0, left, 1e-10).rejects({"H is G alone": E}),
        Claim.exactly("largest eigenvalue of the Fisher information", top_kernel, top_G, 1e-8 * top_kernel).rejects(
            {"of the NTK without softmax": top_plain}
        ),
        Claim.exactly("trace of class + cross + within + own", trace, traces.sum(), 1e-10 * trace).rejects(
            {"without c' = c": trace - traces[3]}
        ),
    )


def experiment(classes: int, seed: int) -> Outcome:
    net = network(classes)
    data = [cluster_classes(classes, PER_CLASS, FEATURES, spread, seed) for spread in SPREADS]
    X, labels = np.stack([d.X for d in data]), data[0].labels
    networks = ensemble(net, seed, NETWORKS)
    ends, tops, traces, *spans, gradients = map(np.asarray, _trained_on_clusters(net, networks, X, labels))
    in_top, spanned = (_share(vectors, gradients)[MAIN].mean() for vectors in spans)
    trained = in_units(net, jax.tree.map(lambda part: part[0], networks))[1](ends[MAIN, 0])
    outliers = (tops[MAIN, :, :-1] / tops[MAIN, :, 1:]).argmax(axis=1) + 1
    within = traces[..., 2] / traces.sum(axis=-1)
    slopes = np.diff(np.log(within[:3]), axis=0) / np.diff(np.log(SPREADS[:3]))[:, None]
    slope, scatter = mean_and_error(slopes[0])
    error = np.hypot(scatter, slopes[1].mean() - slope)
    claims = (
        *_identity_claims(net, trained, X[MAIN], labels, traces[MAIN, 0]),
        Claim.exactly("outliers of H: where eigenvalues fall most", classes - 1, outliers.mean(), 0.15).rejects(
            {"one a class": classes, "one a pair of classes": classes * (classes - 1)}
        ),
        Claim("power of the spread in the within-class share of G", 2.0, slope, error).rejects(
            {"like the spread": 1.0, "no dependence": 0.0}
        ),
        Claim.exactly("share of the gradient in the span of the class vectors", 1.0, spanned, 0.02).rejects(
            {"C random directions": classes / ends.shape[-1]}
        ),
        Claim.exactly("share of the gradient in the top C − 1 eigenvectors of H", 0.0, in_top, 0.02).rejects(
            {"descent stays in the top eigenspace": 1.0}
        ),
    )
    curves = {"tops": tops, "traces": traces, "layers": _layer_parts(net, trained, X[MAIN], labels)}
    return Outcome(claims, curves | {"trained": trained, "X": X[MAIN], "labels": labels})


def draw(figure: Any, outcomes: Outcomes) -> None:
    figure.set_size_inches(10.0, 3.4)
    density, spread, layers = figure.subplots(1, 3)
    classes = list(outcomes)[-1]
    one = outcomes[classes][0].curves
    _draw_density(density, classes, one)
    tops = one["tops"].mean(axis=1)
    for number in range(classes + 2):
        outlier = number < classes - 1
        label = {0: f"the first {classes - 1}", classes - 1: "the next"}.get(number)
        spread.plot(SPREADS, tops[:, number], marker="o", markersize=3, color=COLOURS[0 if outlier else 1], label=label)
    spread.set(xscale="log", xlabel="spread of the clusters", ylim=(0.0, None))
    spread.set_title(f"largest eigenvalues, {classes} classes")
    spread.legend(loc="lower left", ncols=2)
    inside, shares = map(np.asarray, one["layers"])
    at, floor = np.arange(1, len(shares) + 1), np.zeros(len(shares))
    for number, name in enumerate(("class", "cross", "within", "c' = c")):
        layers.bar(at, shares[:, number], bottom=floor, width=0.6, color=COLOURS[number], alpha=0.8, label=name)
        floor = floor + shares[:, number]
    layers.plot(at, inside, **(marks(0) | {"color": "black"}), label="activations: within")
    layers.set(xlabel="layer", xticks=at, ylim=(0.0, 1.5), yticks=[0, 0.5, 1])
    layers.set_title("parts of back-propagated gradients")
    layers.legend(ncols=2, loc="upper center", fontsize=7)


def _draw_density(axis: Any, classes: int, one: Any) -> None:
    """Density of the eigenvalues of H by stochastic Lanczos, and of G; outliers marked."""
    u, outputs, loss = _loss_of(network(classes), one["trained"], one["X"], one["labels"])
    of_outputs = partial(cross_entropy, labels=one["labels"])
    products = {"$H$": hessian_product(loss, u), "$G$": gauss_newton_product(outputs, of_outputs, u)}
    at = np.linspace(-0.15, 1.15 * one["tops"][MAIN, 0, 0], 500)
    for number, (name, product) in enumerate(products.items()):
        rule = lanczos.lanczos_density(product, len(u), steps=LANCZOS, probes=4, key=jax.random.key(0))
        axis.plot(at, np.maximum(lanczos.smooth_density(rule, at, 0.005), 1e-4), label=name, **style(number))
    axis.plot(one["tops"][MAIN, 0, : classes - 1], np.full(classes - 1, 3e-3), "v", color="black", label="outliers")
    axis.set(yscale="log", ylim=(1e-3, None), xlabel="eigenvalue", title=f"density, {classes} classes")
    axis.legend()
