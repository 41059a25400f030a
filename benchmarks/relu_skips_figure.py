"""What a block of a relu network adds to V/K² on the critical line γ² + C_W/2 = 1: theory, and real networks.

Draws docs/figures/relu_skips.png from the points that benchmarks/residual_depth.py measured (part relu):

    python benchmarks/relu_skips_figure.py [--results benchmarks/results/residual_depth-h200.txt] [--to docs/figures]
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from residual_depth import relu_covariance

import widthwise as ww
from widthwise.plots.style import COLOURS, look

ROOT = Path(__file__).parent.parent
BLOCKS = 16
MEASURED = re.compile(r"^  γ = (\S+) +\S+ +\S+ +(\S+) ± (\S+) ", re.MULTILINE)


def measured(results: Path) -> np.ndarray:
    """Rows of γ, V̂/K² after all blocks, and its standard error."""
    return np.array(MEASURED.findall(results.read_text()), dtype=float)


def after_blocks(gamma: float) -> float:
    """V̂/K² a block after a finite number of them: C_W² Σ_st c(γ^|s−t|)/L (theory §11)."""
    apart = np.abs(np.subtract.outer(np.arange(BLOCKS), np.arange(BLOCKS)))
    return (2.0 * (1.0 - gamma**2)) ** 2 * relu_covariance(gamma**apart).sum() / BLOCKS


def draw(points: np.ndarray, to: Path) -> None:
    gammas = np.linspace(0.0, 0.99, 67)
    growth = [ww.critical("relu", skip=gamma).laws().coefficient["V"] for gamma in gammas]
    gamma, value, error = points.T
    with look():
        figure, axis = plt.subplots(figsize=(4.6, 3.2))
        axis.plot(gammas, growth, "-", color=COLOURS[0], label="many blocks")
        axis.plot(gammas, [after_blocks(one) for one in gammas], "--", color=COLOURS[1], label=f"{BLOCKS} blocks")
        axis.plot(
            gammas,
            (1 - gammas**2) * (5 - gammas**2),
            ":",
            color=COLOURS[3],
            label="from layer to layer, without memory",
        )
        axis.errorbar(gamma, value / BLOCKS, error / BLOCKS, fmt="o", color=COLOURS[1], capsize=2,
                      label=f"{BLOCKS} blocks, 3 million networks a point")  # fmt: skip
        axis.axhline(5.0, color="0.8", lw=0.8, zorder=0)
        axis.annotate("no skip", (0.99, 5.0), (0, 2), textcoords="offset points", ha="right", fontsize=8, color="0.4")
        axis.set(xlabel="skip γ", ylabel="growth of V/K² a block", ylim=(0, None), xlim=(-0.02, 1.0))
        axis.legend(loc="lower left")
        figure.savefig(to / "relu_skips.png", dpi=180)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "residual_depth-h200.txt")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "figures")
    given = parser.parse_args()
    draw(measured(given.results), given.to)
    print(f"written: {given.to / 'relu_skips.png'}")


if __name__ == "__main__":
    main()
