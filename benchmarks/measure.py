"""Sampled networks: how many a second, against the plain way in the same run, and what one per cent costs.

    python benchmarks/measure.py [--width 64] [--inputs 2] [--outputs 2] [--networks 256] [--peer PYTHON]

The plain way is what one would write first: `jax.vmap` over networks of `jax.jacrev` of the outputs with respect to
all parameters, contracted with the learning rates to the tangent kernel; and for its first and second differentials
`jax.hessian` and its derivative along the directions of the gradients. The careful way forms no Hessian: it nests
`jax.jvp` of `jax.jacrev` along these directions. All are compiled, see the same networks, and are checked to give the
same numbers. The second table gives the networks and seconds until the standard error of a tensor's largest entry at
this width is 1% of it, against the seconds in which theory computes the same tensor. With `--peer`, an interpreter that
has neural-tangents, its `monte_carlo_kernel_fn` samples the tangent kernel of 10 networks of width 512 at 100 inputs.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from common import best_time, run_apart

import widthwise as ww
from widthwise.experiments.differentials import differentials
from widthwise.experiments.estimators import draw_batch
from widthwise.experiments.programme import observe_kernels
from widthwise.experiments.sampler import forward
from widthwise.network import MLP

TENSORS = ("G1", "H1", "V", "A", "B", "D", "F", "P", "Q", "R", "S", "T", "U")


def network(width: int, outputs: int) -> MLP:
    return MLP([3, width, width, outputs], "tanh", C_b=0.1, C_W=1.6, lambda_b=0.3, lambda_W=0.9)


def rates(net: MLP, layers):
    """The learning rate of every parameter, in the structure of the parameters."""
    return [
        type(layer)(jnp.full(layer.W.shape, lam_W / n), jnp.full(layer.b.shape, lam_b))
        for layer, lam_W, lam_b, n in zip(layers, net.lambda_W, net.lambda_b, net.widths[:-1], strict=True)
    ]


def flat_network(net: MLP, layers, X):
    """(outputs (i, a) as a function of one parameter vector, that vector, its learning rates)."""
    theta, unravel = jax.flatten_util.ravel_pytree(layers)
    lam, _ = jax.flatten_util.ravel_pytree(rates(net, layers))
    return lambda t: forward(net, unravel(t), X)[1][-1].T, theta, lam


def plain_kernel(net: MLP, layers, X):
    """Ĥ_ij;ab by the Jacobian."""
    outputs, theta, lam = flat_network(net, layers, X)
    J = jax.jacrev(outputs)(theta)
    return jnp.einsum("iap,p,jbp->ijab", J, lam, J)


def plain_differentials(net: MLP, careful: bool, layers, X):
    """Ĥ, dĤ, ddIĤ, ddIIĤ by the Jacobian, the Hessian (never whole if careful) and its derivatives along λ∂z."""
    outputs, theta, lam = flat_network(net, layers, X)
    J = jax.jacrev(outputs)(theta)
    shape = J.shape[:2]
    along = (lam * J).reshape(-1, len(theta))
    if careful:
        bent = jax.vmap(lambda v: jax.jvp(jax.jacrev(outputs), (theta,), (v,))[1], out_axes=2)(along)
    else:
        bent = jnp.einsum("iapq,vq->iavp", jax.hessian(outputs)(theta), along)
    dH = jnp.einsum("iavp,wp->iavw", bent, along)

    def third(v, w):
        curved = jax.jvp(lambda t: jax.jvp(jax.jacrev(outputs), (t,), (v,))[1], (theta,), (w,))[1]
        return jnp.einsum("iap,up->iau", curved, along)

    ddI = jax.vmap(lambda v: jax.vmap(lambda w: third(v, w))(along))(along)
    ddII = jnp.einsum("iavp,p,jbwp->iavjbw", bent, lam, bent)
    return (
        jnp.einsum("iap,p,jbp->ijab", J, lam, J),
        dH.reshape(*shape, *shape, *shape).transpose(0, 2, 4, 1, 3, 5),
        ddI.reshape(*shape * 4).transpose(4, 6, 0, 2, 5, 7, 1, 3),
        ddII.reshape(*shape * 4).transpose(0, 4, 2, 6, 1, 5, 3, 7),
    )


def per_second(call, count: int, repeats: int = 3) -> float:
    """Networks per second after compilation."""
    jax.block_until_ready(call())
    return count / best_time(lambda: jax.block_until_ready(call()), repeats)


def compare_ways(net: MLP, X, networks: int) -> None:
    layers, _ = draw_batch(net, 1, 0, np.arange(networks))
    few = jax.tree.map(lambda value: value[: max(2, networks // 32)], layers)
    size = min(networks, 64)
    batch = jax.tree.map(lambda value: value[:size], layers)

    def over_networks(function, *options):
        return jax.jit(jax.vmap(partial(function, net, *options), (0, None)))

    plain_H, plain, careful, ours = (
        over_networks(plain_kernel),
        over_networks(plain_differentials, False),
        over_networks(plain_differentials, True),
        over_networks(differentials),
    )
    kernel = partial(observe_kernels, net, ("Theta",))
    traced = jnp.einsum("...iiab->...ab", plain_H(few, X)) / net.widths[-1]
    every = "Ĥ, dĤ, ddIĤ, ddIIĤ"
    rows = [
        ("Ĥ, plain", kernel, plain_H, batch, _difference([kernel(few, X)["Theta"]], [traced])),
        (f"{every}, plain", ours, plain, few, _difference(ours(few, X), plain(few, X))),
        (f"{every}, careful", ours, careful, few, _difference(ours(few, X), careful(few, X))),
    ]
    print(f"{'networks a second':>28}  {'widthwise':>10}  {'other':>10}  {'ratio':>7}  {'difference':>10}")
    for name, quick, other, sample, difference in rows:
        mine = per_second(partial(quick, batch, X), size)
        theirs = per_second(partial(other, sample, X), len(sample[0].W))
        print(f"{name:>28}  {mine:>10.0f}  {theirs:>10.1f}  {mine / theirs:>7.1f}  {difference:>10.1e}")


def _difference(ours, theirs) -> float:
    """The largest, relative to the largest entry."""
    return max(float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in zip(ours, theirs, strict=True))


def one_per_cent(net: MLP, X, networks: int) -> None:
    print(f"\n{'tensor':>8}  {'networks for 1%':>15}  {'seconds':>9}  {'theory, s':>9}  {'ratio':>9}")
    for name in TENSORS:
        call = partial(ww.measure, net, X, networks, statistics=[name])
        call()
        start = time.perf_counter()
        ms = call(seed=1)
        each = (time.perf_counter() - start) / networks
        size = np.abs(ms[name].values)
        worst = np.unravel_index(np.argmax(size), size.shape)
        needed = max(2.0, networks * (ms[name + "_se"].values[worst] / size[worst] / 0.01) ** 2)
        theory = best_time(lambda name=name: ww.theory(net, X, order=1, tensors=[name], layers="last"), 2)
        print(f"{name:>8}  {needed:>15.0f}  {needed * each:>9.3f}  {theory:>9.3f}  {needed * each / theory:>9.2f}")


def against_peer(peer: str, width: int = 512, inputs: int = 100, networks: int = 10) -> None:
    net = MLP([10, width, width, 1], "relu", C_W=2.0, lambda_b=0.0, lambda_W=2.0)
    X = np.random.default_rng(0).normal(size=(inputs, 10))
    call = partial(ww.measure, net, X, networks, statistics=["Theta"])
    first = best_time(call, 1)
    seconds = best_time(partial(call, seed=1), 3)
    trace = float(np.trace(call()["Theta"].values[0]) / inputs)
    print(f"\nTangent kernel of {networks} networks of width {width}, {inputs} inputs, in seconds (and the first call)")
    print(f"  widthwise        {seconds:8.3f} ({first:.2f}), mean diagonal {trace:.3f}")
    found = run_apart(peer, Path(__file__).with_name("peer_monte_carlo.py"), width, inputs, networks)
    if found is not None:
        print(f"  neural-tangents  {found['seconds']:8.3f} ({found['first']:.2f}), mean diagonal {found['trace']:.3f}")
        print(f"  ratio            {found['seconds'] / seconds:8.1f} ({found['first'] / first:.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 64), ("inputs", 2), ("outputs", 2), ("networks", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--peer")
    options = parser.parse_args()
    net = network(options.width, options.outputs)
    X = jnp.asarray(np.random.default_rng(0).normal(size=(options.inputs, 3)))
    print(f"{net}, {options.inputs} inputs, {jax.devices()[0].device_kind}")
    compare_ways(net, X, options.networks)
    one_per_cent(network(options.width, 1), np.asarray(X), 4 * options.networks)
    if options.peer:
        against_peer(options.peer)


if __name__ == "__main__":
    main()
