"""Third and fourth cumulants of trained outputs, and their density, against large ensembles (theory §8).

    PYTHONPATH=src python benchmarks/trained_cumulants.py [--networks 1000000] [--width 128] [--batch 4096] [--quick]

Needs jax, numpy and scipy alone, so that it runs on a bare accelerator machine. Every row is one architecture. Networks
are trained to convergence, half of them at width n/2; n κ is carried on to 1/n → 0 by a straight line, and what is left
is of relative order 1/n². Controls that should be rejected: no cumulant at all (a Gaussian), and one that is a tenth
too large. The distribution is looked at in the same way: n times the share of networks below a point, less that at
infinite width, against the coefficient of 1/n; numbers of mean zero take most of the noise off the shares.

Targets and test inputs were chosen for power: of five inputs those at which the error of both cumulants is small beside
the prediction, in pilots of 4,000 networks of widths 32 and 64 and of other seeds, without a look at the values.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

from widthwise.experiments.sampler import drawn_alike, on_device
from widthwise.experiments.tally import Chunk, Chunks, Estimate, merged
from widthwise.experiments.tangent import kernel, tangent
from widthwise.experiments.training import control
from widthwise.experiments.training.ensemble import Ensemble, _draw_with_keys
from widthwise.experiments.training.output_cumulants import estimates
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import Basis, cumulants_at_tests, moments_at_tests
from widthwise.network import MLP, GradientDescent, GradientFlow
from widthwise.tensors import CORRECTIONS

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8]])
NUMBERS = {"C_b": 0.1, "C_W": 2.0, "lambda_b": 0.2, "lambda_W": 1.0}


class Case(NamedTuple):
    """Activation, depth, targets (train, outputs), test input and algorithm."""

    activation: str
    depth: int
    targets: list[list[float]]
    test: list[float]
    algorithm: GradientFlow | GradientDescent

    @property
    def X_test(self) -> np.ndarray:
        return np.array([self.test])

    def network(self, n: int) -> MLP:
        return MLP([3, *[n] * (self.depth - 1), len(self.targets[0])], self.activation, **NUMBERS)


CASES = (
    Case("swish", 2, [[2.0], [2.0]], [1.2, -0.4, 0.8], GradientFlow()),
    Case("gelu", 3, [[2.0], [2.0]], [1.2, -0.4, 0.8], GradientFlow()),
    Case("tanh", 3, [[1.5, -1.0], [1.5, 1.5]], [-0.3, 0.5, 0.9], GradientDescent(0.1)),
)
#: Where the distribution is looked at, in standard deviations of infinite width from its mean.
POINTS = np.linspace(-3.0, 3.0, 25)


def predicted(case: Case) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """kappa3, kappa4 and the corrections of mean and variance, all (outputs, tests); and both at infinite width."""
    flow = finite_flow(case.network(64), np.concatenate([X, case.X_test]), CORRECTIONS, last_only=True)
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
    """n κ with standard errors; whether each network ends below each point (networks, outputs, tests, points), and the
    numbers of mean zero beside that; and the width."""

    found: dict[str, Estimate]
    below: np.ndarray
    known: np.ndarray
    n: int


def measured(case: Case, n: int, networks: int, batch: int, seed: int) -> Ensembles:
    """Networks of which all have to converge."""
    how = {"seed": seed, "tolerance": 1e-6, "accuracy": 1e-5, "max_steps": 20_000, "batch": batch}
    ensemble = Ensemble.of(case.network(n), case.algorithm, X, np.array(case.targets).T, case.X_test, **how)
    zeroth = predicted(case)[1]
    points = zeroth["mean"][..., None] + POINTS * np.sqrt(zeroth["cov"])[..., None]
    sums, below, known = None, [], []
    for chunk in Chunks.of(ensemble, networks):
        seen = ensemble.observed(chunk)
        sums = merged(sums, ensemble.sums(chunk, *seen))
        below.append((seen[0].plain["first"] + ensemble.centre)[..., None] < points)
        known.append(known_shares(ensemble, chunk, points).astype(np.float32))
    if sums is None or sums["unconverged"] + sums["nonfinite"] > 0:
        raise RuntimeError(f"networks of {case} did not converge")
    return Ensembles(estimates(sums, n), np.concatenate(below), np.concatenate(known), n)


def known_shares(ensemble: Ensemble, chunk: Chunk, points: np.ndarray) -> np.ndarray:
    """Numbers of mean exactly zero, near 1[z* < point] less its mean: (networks, outputs, tests, points).

    Of w + k̃ y, z* of a network that stays linear with a k̃ that does not depend on the last layer (`control`): given the
    layers below it is Gaussian, so that the share below a point is known.
    """
    numbers, net = jnp.arange(chunk.start, chunk.stop), on_device(ensemble.net)
    layers, _ = _draw_with_keys(drawn_alike(ensemble.net), None, ensemble.seed, numbers)
    how = ensemble.algorithm, layers, ensemble.X, ensemble.y, ensemble.known
    return np.asarray(_known_shares(net, *how, points))


@jax.jit
def _known_shares(net: MLP, algorithm, layers, X, y, known, points):
    train = y.shape[1]

    def one(start):
        at = tangent(net, start, X)
        found = control._averages(net, algorithm, start, at, kernel(at), X, train, known)
        m = control._fitting(found.k_given)
        centre, deviation = y @ found.k_given.T, jnp.sqrt(jnp.einsum("xa,ab,xb->x", m, found.G_given, m))
        away = points - centre[:, :, None]
        return ((at.z @ m.T)[:, :, None] < away) - jax.scipy.special.ndtr(away / deviation[:, None])

    return jax.vmap(one)(layers)


class Shares(NamedTuple):
    """n times the share of networks below each point less that at infinite width, and the covariance over points."""

    value: np.ndarray
    covariance: np.ndarray
    reduction: float

    @classmethod
    def of(cls, below: np.ndarray, zero: np.ndarray, n: int) -> Shares:
        """From indicators and numbers of mean zero, (networks, points) each, at one output and test."""
        centred = below - below.mean(axis=0)
        weights = np.linalg.lstsq(zero - zero.mean(axis=0), centred, rcond=None)[0]
        quiet = below - zero @ weights
        spread = np.cov(quiet.T) / len(quiet)
        value = n * (quiet.mean(axis=0) - ndtr(POINTS))
        return cls(value, n * n * spread, float(np.median(centred.var(axis=0) / quiet.var(axis=0))))


def distribution_rows(case: Case, narrow: Ensembles, wide: Ensembles) -> list[str]:
    """n (share of networks below z − Φ(ξ)) at all points, carried on to 1/n → 0, against the coefficient of 1/n.

    With ξ = (z − mean0)/s, s² the variance at infinite width, that is −φ(ξ) [mean1/s + var1/(2s²) He₁(ξ) +
    κ₃/(6s³) He₂(ξ) + κ₄/(24s⁴) He₃(ξ)]. The last two, `shape`, are absent for a Gaussian. How much of them there is, a
    number by least squares over the points, is the sharpest test of a factor.
    """
    first, zeroth = predicted(case)
    rows = []
    for at in np.ndindex(*zeroth["mean"].shape):
        s = np.sqrt(zeroth["cov"][at])
        found = [Shares.of(m.below[:, *at], m.known[:, *at], m.n) for m in (narrow, wide)]
        value = 2.0 * found[1].value - found[0].value
        covariance = 4.0 * found[1].covariance + found[0].covariance
        height = np.exp(-0.5 * POINTS**2) / np.sqrt(2.0 * np.pi)
        by_moments = -height * (first["mean"][at] / s + first["cov"][at] / (2.0 * s**2) * POINTS)
        third, fourth = (first[f"kappa{degree}"][at] / s**degree for degree in (3, 4))
        shape = -height * (third / 6.0 * (POINTS**2 - 1.0) + fourth / 24.0 * (POINTS**3 - 3.0 * POINTS))
        error = np.sqrt(np.diag(covariance))
        worst = [np.abs((value - by_moments - factor * shape) / error).max() for factor in (1.0, 0.0)]
        weighted = np.linalg.solve(covariance, shape)
        amount, scatter = weighted @ (value - by_moments) / (weighted @ shape), 1.0 / np.sqrt(weighted @ shape)
        rows.append(
            f"output {at[0]}: distribution at {len(POINTS)} points: up to {worst[0]:.2f}, Gaussian {worst[1]:.2f}; "
            f"its shape {amount:.4f} ± {scatter:.4f} of the predicted one, pull {(amount - 1.0) / scatter:+.2f}; "
            f"Gaussian {amount / scatter:+.1f}, +10% {(amount - 1.1) / scatter:+.1f}; "
            f"controls save {found[1].reduction:.1f} times"
        )
    return rows


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
    for row in distribution_rows(case, *ensembles):
        print(f"{label} {row}", flush=True)
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
