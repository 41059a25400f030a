"""Kernels of 5 hidden layers on 100-dimensional inputs, against neural-tangents in the same run.

    python benchmarks/kernels.py --peer .venv-peer/bin/python [--sizes 20 100 500 1000 2000] [--activations tanh relu …]

Every case runs in a process of its own, so that peak memory is its own; it is counted above the interpreter with the
library imported and jax started. Times are the best of some calls after the first one, which compiles. Errors are
measured against the trapezoidal rule in the plane on a few pairs, or, for relu, against the other library. The peer's
function is compiled with jax.jit; "plain" is a call of it without that, as its documentation shows, up to 100 inputs.
Ours checks its inputs and gives a labelled Dataset in either case.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from common import best_time, describe_machine, peak_mb, run_apart, scaling_exponent

HERE = Path(__file__).resolve()
SIZES = (20, 100, 500, 1000, 2000)
ACTIVATIONS = ("tanh", "relu", "erf", "gelu")


def network(activation: str):
    import widthwise as ww

    return ww.MLP.ntk([100, *[512] * 5, 1], activation, C_b=0.01, C_W=2.25)


def run_ours(activation: str, inputs: int, repeats: int) -> None:
    """One case, in this process; prints a JSON object."""
    import jax

    import widthwise as ww
    from widthwise.results import theory as _  # noqa: F401  (imported before memory is counted)

    net = network(activation)
    X = np.random.default_rng(0).normal(size=(inputs, 100))
    jax.block_until_ready(jax.numpy.ones(2) + 1.0)  # both libraries start jax before memory is counted
    before = peak_mb()
    first = best_time(lambda: ww.theory(net, X, layers="last"), 1)
    peak = peak_mb() - before
    seconds = best_time(lambda: ww.theory(net, X, layers="last"), repeats)
    ds = ww.theory(net, X, layers="last")
    result = {
        "seconds": seconds,
        "first": first,
        "peak_mb": max(peak, peak_mb() - before),
        "error_estimate": ds.attrs["numerical_error"],
        "nngp": ds["K"].values[0, :8, :8].tolist(),
        "ntk": ds["Theta"].values[0, :8, :8].tolist(),
    }
    print(json.dumps(result))


def by_tensor_quadrature(activation: str, step: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """K and Θ of the first eight inputs by the trapezoidal rule in the plane, independent of the library.

    For functions analytic in a strip it converges like e^{−2πd/step}, far faster than Gauss–Hermite.
    """
    net = network(activation)
    X = np.random.default_rng(0).normal(size=(100, 100))[:8]
    # the generator fills row by row, so the first eight rows are the same for every size
    u = np.arange(-10.0, 10.0 + step / 2, step)
    w = step * np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)
    sigma, slope = (net.activation.derivative(order) for order in (0, 1))
    gram = X @ X.T / 100
    K, Theta = 0.01 + 2.25 * gram, 0.01 + 2.25 * gram
    for _ in range(5):
        values, slopes = np.empty_like(K), np.empty_like(K)
        for a, b in np.ndindex(*K.shape):
            rho = np.clip(K[a, b] / np.sqrt(K[a, a] * K[b, b]), -1, 1)
            z_a = np.sqrt(K[a, a]) * u[:, None]
            z_b = np.sqrt(K[b, b]) * (rho * u[:, None] + np.sqrt(max(0.0, 1 - rho**2)) * u[None, :])
            weight = w[:, None] * w[None, :]
            values[a, b] = np.sum(weight * np.asarray(sigma(z_a)) * np.asarray(sigma(z_b)))
            slopes[a, b] = np.sum(weight * np.asarray(slope(z_a)) * np.asarray(slope(z_b)))
        K, Theta = 0.01 + 2.25 * values, 0.01 + 2.25 * values + 2.25 * Theta * slopes
    return K, Theta


def relative_error(result: dict, K: np.ndarray, Theta: np.ndarray) -> float:
    return max(
        float(np.max(np.abs(np.array(result[name]) - exact)) / np.max(np.abs(exact)))
        for name, exact in (("nngp", K), ("ntk", Theta))
    )


def report(activation: str, sizes: list[int], peer: str | None, limits: dict[str, float]) -> None:
    print(f"\n{activation}, 5 hidden layers, 100 features, float64")
    head = (
        "N",
        "ours s",
        "first s",
        "peak MB",
        "error",
        "peer s",
        "peer MB",
        "peer error",
        "times faster",
        "than plain",
    )
    print("  ".join(h.rjust(12) for h in head))
    exact = by_tensor_quadrature(activation) if activation != "relu" else None
    mine = []
    for inputs in sizes:
        ours = run_apart(sys.executable, HERE, "--one", activation, inputs, 5 if inputs > 500 else 50)
        assert ours is not None
        mine.append(ours["seconds"])
        theirs = (
            run_apart(peer, HERE.with_name("peer_kernels.py"), activation, inputs, _repeats(activation, inputs))
            if peer
            else None
        )
        error = f"{relative_error(ours, *exact):.1e}" if exact is not None else f"{ours['error_estimate']:.1e}*"
        row = [str(inputs), f"{ours['seconds']:.5f}", f"{ours['first']:.2f}", f"{ours['peak_mb']:.0f}", error]
        if theirs:
            difference = (
                relative_error(theirs, *exact)
                if exact is not None
                else relative_error(theirs, np.array(ours["nngp"]), np.array(ours["ntk"]))
            )
            row += [f"{theirs['seconds']:.5f}", f"{theirs['peak_mb']:.0f}", f"{difference:.1e}"]
            row += [f"{theirs['seconds'] / ours['seconds']:.1f}"]
            row += [f"{theirs['plain'] / ours['seconds']:.0f}"] if theirs["plain"] else []
        print("  ".join(cell.rjust(12) for cell in row))
    if len(sizes) > 1:
        print(f"  our time grows like N^{scaling_exponent(sizes, mine):.2f} between the two largest sizes")
    written = 2 * sizes[-1] ** 2 * 8 / mine[-1]
    print(f"  results written at {written / 1e9:.2f} GB/s, {written / limits['bandwidth']:.1%} of the copy bandwidth")
    if activation == "tanh":
        _series_rate(sizes[-1], limits)


def _repeats(activation: str, inputs: int) -> int:
    if activation == "tanh":
        return 2 if inputs < 500 else (1 if inputs < 1000 else 0)
    return 5 if inputs > 500 else 50


def _series_rate(inputs: int, limits: dict[str, float]) -> None:
    """The inner loop alone: multiply-adds per second of the Hermite sum on one large tile."""
    import jax

    from widthwise.gaussian.hermite import series

    terms, side = 64, 1024
    rng = np.random.default_rng(0)
    f = jax.device_put(rng.normal(size=(terms, side, 1)))
    g = jax.device_put(rng.normal(size=(terms, 1, side)))
    rho = jax.device_put(rng.uniform(-1, 1, size=(side, side)))
    series(f, g, rho).block_until_ready()
    seconds = best_time(lambda: series(f, g, rho).block_until_ready(), 5)
    rate = 2 * terms * side**2 / seconds  # one product f g and one multiply-add with ρ for each term
    print(
        f"  Hermite sum: {rate / 1e9:.1f} G multiply-adds/s, {rate / limits['multiply_adds']:.0%} of a matrix product's"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of the environment with neural-tangents 0.6.5 and jax 0.5.3")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--activations", nargs="+", default=list(ACTIVATIONS), choices=ACTIVATIONS)
    parser.add_argument("--one", nargs=3, metavar=("ACTIVATION", "INPUTS", "REPEATS"), help="run one case here")
    arguments = parser.parse_args()
    if arguments.one:
        run_ours(arguments.one[0], int(arguments.one[1]), int(arguments.one[2]))
        return
    limits = describe_machine()
    for activation in arguments.activations:
        report(activation, arguments.sizes, arguments.peer, limits)
    print("\n* estimate of the library itself; the peer's error is then its difference from ours")


if __name__ == "__main__":
    main()
