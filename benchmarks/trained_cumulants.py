"""Third and fourth cumulants of trained outputs, and their density, against large ensembles (theory §8).

    PYTHONPATH=src python benchmarks/trained_cumulants.py [--networks 1000000] [--width 128] [--batch 4096] [--quick]

Needs jax, numpy and scipy alone, so that it runs on a bare accelerator machine. Every row is one architecture. Networks
are trained by gradient flow, half of them at width n/2; n κ is carried on to 1/n → 0 by a straight line, whose
remainder of relative order 1/n² is given as the difference from the wide networks alone. Controls that should be
rejected: no cumulant at all (a Gaussian), and one that is a tenth too large.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np

from widthwise.experiments.tally import Chunks, Estimate, merged
from widthwise.experiments.training.ensemble import Ensemble
from widthwise.experiments.training.output_cumulants import estimates
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.edgeworth import Edgeworth
from widthwise.inference.trained.trained_moments import Basis, cumulants_at_tests, moments_at_tests
from widthwise.network import MLP, GradientDescent, GradientFlow
from widthwise.tensors import CORRECTIONS

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8]])
X_TEST = np.array([[0.6, -0.2, 0.4]])
NUMBERS = {"C_b": 0.1, "C_W": 2.0, "lambda_b": 0.2, "lambda_W": 1.0}


class Case(NamedTuple):
    """Activation, depth, targets (train, outputs) and algorithm."""

    activation: str
    depth: int
    targets: list[list[float]]
    algorithm: GradientFlow | GradientDescent

    def network(self, n: int) -> MLP:
        return MLP([3, *[n] * (self.depth - 1), len(self.targets[0])], self.activation, **NUMBERS)


CASES = (
    Case("swish", 2, [[2.0], [2.0]], GradientFlow()),
    Case("gelu", 3, [[1.0], [2.0]], GradientFlow()),
    Case("tanh", 3, [[0.4, -0.2], [-1.5, 1.0]], GradientDescent(0.1)),
)
#: Where the distribution is looked at, in standard deviations.
POINTS = np.linspace(-2.0, 2.0, 9)


def predicted(case: Case) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """kappa3, kappa4 and the corrections of mean and variance, all (outputs, tests); and both at infinite width."""
    flow = finite_flow(case.network(64), np.concatenate([X, X_TEST]), CORRECTIONS, last_only=True)
    assert flow.Theta is not None
    tensors = {"K": flow.K[-1]} | {name: tensor[-1] for name, tensor in flow.tensors.items()}
    spectrum = Spectrum.of(flow.Theta[-1][: len(X), : len(X)])
    basis, clock = Basis.of(spectrum, flow.Theta[-1], tensors, np.array(case.targets)), Clock.of(case.algorithm)
    orders = [
        {"mean": part.mean, "cov": np.einsum("ixix->ix", part.covariance)} for part in moments_at_tests(basis, clock)
    ]
    first = {f"kappa{degree}": value for degree, value in cumulants_at_tests(basis, clock, 4).items()}
    return first | orders[1], orders[0]


class Ensembles(NamedTuple):
    """n κ with standard errors, the outputs of all networks (networks, outputs, tests), and their width."""

    found: dict[str, Estimate]
    outputs: np.ndarray
    n: int


def measured(case: Case, n: int, networks: int, batch: int, seed: int) -> Ensembles:
    """Networks of which all have to converge."""
    how = {"seed": seed, "tolerance": 1e-6, "accuracy": 1e-5, "max_steps": 20_000, "batch": batch}
    ensemble = Ensemble.of(case.network(n), case.algorithm, X, np.array(case.targets).T, X_TEST, **how)
    sums, outputs = None, []
    for chunk in Chunks.of(ensemble, networks):
        seen = ensemble.observed(chunk)
        sums = merged(sums, ensemble.sums(chunk, *seen))
        outputs.append(seen[0].plain["first"] + ensemble.centre)
    if sums is None or sums["unconverged"] + sums["nonfinite"] > 0:
        raise RuntimeError(f"networks of {case} did not converge")
    return Ensembles(estimates(sums, n), np.concatenate(outputs), n)


def distribution_pulls(case: Case, networks: Ensembles) -> str:
    """Shares of networks below nine points against the predicted distribution, and against a Gaussian's."""
    first, zeroth = predicted(case)
    mean, variance = (zeroth[name] + first[name] / networks.n for name in ("mean", "cov"))
    law = Edgeworth(mean, variance, first["kappa3"] / networks.n, first["kappa4"] / networks.n)
    outputs, parts = networks.outputs, []
    fitted = Edgeworth(outputs.mean(axis=0), outputs.var(axis=0), 0.0 * mean, 0.0 * mean)
    for claim in (law, fitted):
        pulls = []
        for point in POINTS:
            at = mean + point * np.sqrt(variance)
            share, expected = (outputs < at).mean(axis=0), claim.below(at)
            pulls.append((share - expected) / np.sqrt(expected * (1.0 - expected) / len(outputs)))
        parts.append(float(np.abs(pulls).max()))
    claims = ("of the distribution", "of a Gaussian with the networks' mean and variance")
    return "worst pull " + ", ".join(f"{claim} {part:.2f}" for claim, part in zip(claims, parts, strict=True))


def report(case: Case, n: int, networks: int, batch: int, seed: int) -> float:
    """Print the rows of a case; the worst pull of the extrapolated values."""
    theory, worst = predicted(case)[0], 0.0
    ensembles = [measured(case, m, networks // 2, batch, seed + m) for m in (n // 2, n)]
    narrow, wide = (ensemble.found for ensemble in ensembles)
    label = f"{case.activation} depth {case.depth}"
    for name in ("kappa3", "kappa4"):
        claim, value = theory[name], 2.0 * wide[name].value - narrow[name].value
        error = np.hypot(2.0 * wide[name].error, narrow[name].error)
        for entry in np.ndindex(*claim.shape):
            pull, none, tenth = ((value[entry] - factor * claim[entry]) / error[entry] for factor in (1.0, 0.0, 1.1))
            worst = max(worst, float(abs(pull)))
            print(
                f"{label} output {entry[0]}: {name} {claim[entry]:.4f}, networks {value[entry]:.4f} "
                f"± {error[entry]:.4f}, pull {pull:+.2f}; Gaussian {none:+.1f}, +10% {tenth:+.1f}; at n = {n // 2}: "
                f"{narrow[name].value[entry]:.4f} ± {narrow[name].error[entry]:.4f}, at n = {n}: "
                f"{wide[name].value[entry]:.4f} ± {wide[name].error[entry]:.4f}, without controls "
                f"± {wide['plain_' + name].error[entry]:.4f}",
                flush=True,
            )
    for ensemble in ensembles:
        print(f"{label}, n = {ensemble.n}: {distribution_pulls(case, ensemble)}", flush=True)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=1_000_000, help="for each case, half of them at half the width")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no case starts later")
    parser.add_argument("--quick", action="store_true", help="4,000 networks of width 64, for a processor")
    options = parser.parse_args()
    if options.quick:
        options.networks, options.width, options.batch = 4000, 64, 128
    begun, worst = time.perf_counter(), 0.0
    for case in CASES:
        if time.perf_counter() - begun > options.seconds:
            print("time is up")
            break
        worst = max(worst, report(case, options.width, options.networks, options.batch, options.seed))
        print(f"  {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"worst pull {worst:.2f}; {options.networks} networks a case at widths {options.width // 2}, {options.width}")


if __name__ == "__main__":
    main()
