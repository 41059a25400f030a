"""Theory of order 1/n against large ensembles, every tensor and every trained moment, in standard errors.

    PYTHONPATH=src python benchmarks/agreement.py tensors trained [--networks 20000] [--widths 64 128 256] [--quick]

Needs jax, numpy and scipy alone, so that it runs on a bare accelerator machine. Every row is one network architecture:
the worst pull over all entries of all tensors (or of mean, covariance and change of the kernel) after extrapolation
to infinite width, and the relative wrong factor that would be seen at four standard errors.
"""

from __future__ import annotations

import argparse
import itertools
import time

import jax
import numpy as np

from widthwise.experiments.estimators import check_statistics, draw_batch, observe_drawn
from widthwise.experiments.reference import reference
from widthwise.experiments.tables import extrapolate
from widthwise.experiments.tally import Chunks, Tally, merged
from widthwise.experiments.training.ensemble import Ensemble
from widthwise.experiments.training.output_cumulants import estimates
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.inference.corrections import TRAINING_TENSORS, at_output
from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import Basis, mean_kernel_change, moments_at_tests
from widthwise.network import MLP, GradientDescent, GradientFlow
from widthwise.tensors import CORRECTIONS

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4], [-0.7, 0.5, 0.3], [0.3, 0.9, -0.2]])
Y = np.array([[1.5, 0.3], [0.5, -0.4], [-0.6, 0.8], [0.2, 1.1]])
#: What is set to zero in the theory: nothing, and what training must be able to tell.
LEFT_OUT = {"": (), "without B": ("B",), "without ddNTK": ("R", "S", "T", "U")}
#: Below this share of a tensor's largest entry a scatter is rounding.
ROUNDING = 1e-9


def network(activation: str, depth: int, n: int, outputs: int) -> MLP:
    """Hyperparameters that differ from layer to layer, and hidden widths that do at depth 3."""
    hidden = {2: [n], 3: [3 * n // 4, n], 4: [n, n, n]}[depth]
    values = ([0.1, 0.2, 0.05, 0.1], [1.6, 1.4, 1.8, 1.5], [0.3, 0.2, 0.5, 0.4], [0.9, 1.1, 0.7, 1.0])
    return MLP([3, *hidden, outputs], activation, *(value[:depth] for value in values))


def pulls(value, error, target) -> tuple[float, float]:
    """The worst pull, and the relative error of the best-known entry times four."""
    scale = np.abs(target).max()
    error = np.maximum(error, ROUNDING * scale + 1e-12)
    return float(np.abs((value - target) / error).max()), float(4 * error.min() / scale) if scale else np.inf


def tensor_case(activation: str, depth: int, inputs: int, widths, networks: int, batch: int) -> list[str]:
    found = []
    for n in widths:
        net = network(activation, depth, n, 2)
        tally, ref = Tally(net.n), reference(net, X[:inputs])
        names = check_statistics(net.activation, CORRECTIONS)
        for start in range(0, networks, batch):
            indices = np.arange(start, start + batch)
            tally.add(indices, *observe_drawn(net, names, *draw_batch(net, 1, n, indices), X[:inputs], ref))
        found.append(tally.replicates())
    theory = finite_flow(network(activation, depth, widths[-1], 2), X[:inputs]).tensors
    rows = {}
    for name in CORRECTIONS:
        result = extrapolate(widths, [values[name] for values in found]).value
        rows[name] = pulls(result.value, result.error, theory[name][-1])
    worst = max(rows, key=lambda name: rows[name][0])
    seen = max((factor, name) for name, (_, factor) in rows.items() if np.abs(theory[name][-1]).max() > 0)
    return [f"{rows[worst][0]:.2f} ({worst})", f"{seen[0]:.1%} ({seen[1]})"]


def predicted_case(net: MLP, y: np.ndarray, data, test, algorithm, left_out=()) -> tuple[dict, dict]:
    """Moments at infinite width, and the coefficients of 1/n, with some tensors set to zero."""
    inputs = len(data)
    flow = finite_flow(net, np.concatenate([data, test]), TRAINING_TENSORS, last_only=True)
    assert flow.Theta is not None
    tensors = {name: 0.0 * value if name in left_out else value for name, value in at_output(flow).items()}
    basis = Basis.of(Spectrum.of(flow.Theta[-1][:inputs, :inputs]), flow.Theta[-1], tensors, y.T)
    zeroth, first = moments_at_tests(basis, Clock.of(algorithm))
    change = mean_kernel_change(basis, Clock.of(algorithm))[:, inputs:, :, inputs:]
    leading = {"mean": zeroth.mean, "cov": zeroth.covariance, "change": 0.0}
    return leading, {"mean": first.mean, "cov": first.covariance, "change": change}


def trained_case(activation, depth, outputs, inputs, algorithm, widths, networks, batch, verbose=False) -> list[str]:
    data, test, y = X[:inputs], X[4:], Y[:inputs, :outputs].T
    how = {"seed": 5, "tolerance": 1e-6, "accuracy": 1e-5, "max_steps": 20_000, "batch": batch}
    coefficients = []
    for n in widths:
        net = network(activation, depth, n, outputs)
        ensemble, sums = Ensemble.of(net, algorithm, data, y, test, **how), None
        for chunk in Chunks.of(ensemble, networks):
            sums = merged(sums, ensemble(chunk))
        if sums is None or sums["unconverged"] + sums["nonfinite"] > 0:
            raise RuntimeError(f"networks of {net} did not converge")
        leading = predicted_case(net, y, data, test, algorithm)[0]
        # means are kept about the centre
        leading["mean"] = leading["mean"] - ensemble.centre
        got = estimates(sums, n)
        coefficients.append({k: (n * (got[k].value - leading[k]), n * got[k].error) for k in leading})
    weights = {2: (-1.0, 2.0), 3: (1 / 3, -2.0, 8 / 3)}[len(widths)]
    found = {}
    for name in ("mean", "cov", "change"):
        value = sum(w * c[name][0] for w, c in zip(weights, coefficients, strict=True))
        error = np.sqrt(sum((w * c[name][1]) ** 2 for w, c in zip(weights, coefficients, strict=True)))
        found[name] = value, error
    net, row = network(activation, depth, widths[-1], outputs), []
    for left_out in LEFT_OUT.values():
        target = predicted_case(net, y, data, test, algorithm, left_out)[1]
        seen = {name: pulls(found[name][0], found[name][1], target[name]) for name in found}
        if left_out:
            row.append(f"{max(seen['mean'][0], seen['cov'][0]):.0f}")
            continue
        row += [f"{pull:.2f} ({factor:.1%})" for pull, factor in seen.values()]
        for name, n in itertools.product(found, widths if verbose else ()):
            value, error = coefficients[widths.index(n)][name]
            print(f"    {name} n={n}: measured {value.ravel()[0]:.5g} ± {error.ravel()[0]:.2g}, "
                  f"predicted {target[name].ravel()[0]:.5g}", flush=True)  # fmt: skip
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["tensors", "trained"])
    parser.add_argument("--networks", type=int, default=20_000)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--activations", nargs="+", default=["tanh", "gelu", "sin", "softplus", "swish"])
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--outputs", type=int, nargs="+", default=[1, 2], help="of trained networks")
    parser.add_argument(
        "--inputs", type=int, choices=[1, 2, 3, 4], help="of trained networks; as many as layers if not given"
    )
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no new case is begun")
    parser.add_argument("--verbose", action="store_true", help="the coefficients at each width")
    parser.add_argument("--quick", action="store_true", help="few small networks, to see that it runs")
    given = parser.parse_args()
    widths, networks, batch = given.widths, given.networks, given.batch
    if given.quick:
        widths, networks, batch = [16, 32], 200, 100
    start = time.perf_counter()
    print(f"{jax.devices()[0].device_kind}, {networks} networks at each of the widths {widths}", flush=True)
    if "tensors" in given.what:
        print("activation depth inputs   worst pull   wrong factor seen at four standard errors", flush=True)
        for case in itertools.product(given.activations, given.depths, (2, 3)):
            if (given.quick and case[1:] != (3, 2)) or time.perf_counter() - start > given.limit:
                continue
            print(*case, " ", *tensor_case(*case, widths, networks, batch), flush=True)
    if "trained" in given.what:
        print(
            "activation depth outputs inputs algorithm   worst pull (wrong factor seen) of mean, cov, change; "
            "of mean and cov without B, without ddNTK",
            flush=True,
        )
        for activation, depth, outputs in itertools.product(given.activations, given.depths, given.outputs):
            if (given.quick and (depth, outputs) != (3, 1)) or time.perf_counter() - start > given.limit:
                continue
            inputs = given.inputs or depth
            algorithm = GradientFlow() if (depth + outputs) % 2 else GradientDescent(0.1)
            case = (activation, depth, outputs, inputs, algorithm)
            print(*case, " ", *trained_case(*case, widths, networks, batch, given.verbose), flush=True)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
