"""Trained residual and normalised networks: the coefficients of 1/n in mean and covariance, theory against ensembles.

Ensembles are trained by gradient flow to zero loss at several widths; n(mean − mean0) and n(cov − cov0) are carried on
to 1/n → 0 by a straight line in 1/n (a parabola from four widths on), and compared with mean1 and cov1 in standard
errors. Controls that should be rejected: no correction at all, a correction a fifth too large, and that of the same
network without its skips or norms.

    python benchmarks/trained_skips_and_norms.py --widths 64 128 256 --networks 40000 20000 10000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import widthwise as ww

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8]])
X_TEST = np.array([[0.7, 0.6, 0.2]])
NUMBERS: dict[str, Any] = {"C_b": 0.1, "C_W": 1.2, "lambda_b": 0.2, "lambda_W": 1.0}
Make = Callable[[int], ww.Network]

#: For each: the network of a width, its control, and the targets.
CASES: dict[str, tuple[Make, Make, Sequence[float]]] = {
    "residual tanh, skips 1 and 0.7": (
        lambda n: ww.ResMLP([3, n, n, n, 1], "tanh", [1.0, 0.7], **NUMBERS),
        lambda n: ww.MLP([3, n, n, n, 1], "tanh", **NUMBERS),
        (1.5, 0.5),
    ),
    "residual gelu, skip 1, LayerNorm before": (
        lambda n: ww.ResMLP([3, n, n, n, 1], "gelu", 1.0, norm=[("ln", 0.05)] * 3, **NUMBERS),
        lambda n: ww.NormMLP([3, n, n, n, 1], "gelu", [("ln", "pre", 0.05)] * 3, **NUMBERS),
        (1.5, 0.5),
    ),
    "residual swish, skips 0.8, RMSNorm before": (
        lambda n: ww.ResMLP([3, n, n, n, 1], "swish", 0.8, norm=[("rms", 0.05)] * 3, **NUMBERS),
        lambda n: ww.NormMLP([3, n, n, n, 1], "swish", [("rms", "pre", 0.05)] * 3, **NUMBERS),
        (2.0, -1.0),
    ),
    "sin, RMSNorm after, LayerNorm before": (
        lambda n: ww.NormMLP([3, n, n, 1], "sin", [("rms", "post", 0.1), ("ln", "pre", 0.05)], **NUMBERS),
        lambda n: ww.MLP([3, n, n, 1], "sin", **NUMBERS),
        (1.5, 0.5),
    ),
}


def coefficients(make: Make, targets: Sequence[float]) -> dict[str, float]:
    found = ww.predict(make(64), X, targets, X_TEST, order=1)
    return {name: float(found[name].item()) for name in ("mean0", "cov0", "mean1", "cov1")}


def carried_on(widths: Sequence[int], values: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """The value at 1/n = 0 of a weighted fit, and its standard error."""
    powers = np.vander(1.0 / np.asarray(widths), min(max(len(widths) - 1, 2), 3), increasing=True)
    weighted = powers / errors[:, None]
    covariance = np.linalg.inv(weighted.T @ weighted)
    return float((covariance @ weighted.T @ (values / errors))[0]), float(np.sqrt(covariance[0, 0]))


def differences(
    make: Make, targets: Sequence[float], theory: dict[str, float], n: int, networks: int, seed: int
) -> tuple[dict[str, tuple[float, float]], int]:
    """n × (mean − mean0) and n × (cov − cov0) of an ensemble with standard errors, and networks left out."""
    found = ww.train(make(n), X, targets, X_TEST, networks=networks, seed=seed, progress=False)
    rows = {}
    for name in ("mean", "cov"):
        value, error = (float(found[part].item()) for part in (name, f"{name}_se"))
        rows[name] = n * (value - theory[f"{name}0"]), n * error
    return rows, networks - int(found.attrs.get("networks", networks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, nargs="+", default=[4000], help="one number, or one for each width")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no case starts later")
    options = parser.parse_args()
    counts = options.networks * (len(options.widths) if len(options.networks) == 1 else 1)
    begun, worst = time.perf_counter(), 0.0
    for label, (make, control, targets) in CASES.items():
        if time.perf_counter() - begun > options.seconds:
            print("time is up")
            break
        theory, other = coefficients(make, targets), coefficients(control, targets)
        seen: dict[str, list[tuple[float, float]]] = {"mean": [], "cov": []}
        for number, (n, networks) in enumerate(zip(options.widths, counts, strict=True)):
            found, lost = differences(make, targets, theory, n, networks, options.seed + 1000 * number)
            for name, rows in seen.items():
                rows.append(found[name])
            print(f"  {label}, n = {n}: " + ", ".join(
                f"{name} {rows[-1][0]:.3f} ± {rows[-1][1]:.3f}" for name, rows in seen.items()
            ) + (f", {lost} networks left out" if lost else ""), flush=True)  # fmt: skip
        for name, rows in seen.items():
            value, error = carried_on(options.widths, *np.transpose(rows))
            right, wrong = theory[f"{name}1"], other[f"{name}1"]
            pulls = [(value - claim) / error for claim in (right, 0.0, 1.2 * right, wrong)]
            worst = max(worst, abs(pulls[0]))
            controls = "none {:+.1f}, +20% {:+.1f}, without {:+.1f}".format(*pulls[1:])
            print(f"{label}: {name}1 {right:.4f}, networks {value:.4f} ± {error:.4f}, pull {pulls[0]:+.1f}", flush=True)
            print(f"    controls: {controls}", flush=True)
    print(f"worst pull {worst:.2f}; networks {counts} at widths {options.widths}, {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
