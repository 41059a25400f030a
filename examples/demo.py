"""The demonstration behind `make demo`: predict two kernels, measure them on real networks, compare."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import widthwise as ww
from widthwise.plots import plot_agreement, plot_flow

OUT = Path("out/demo")


def default_network() -> ww.MLP:
    return ww.MLP(widths=[2, 256, 256, 256, 1], activation="tanh", C_b=0.05, C_W=1.5, lambda_b=0.1, lambda_W=1.0)


def default_inputs() -> np.ndarray:
    """Four points on a spiral."""
    angle = np.linspace(0.0, np.pi, 4)
    return np.linspace(0.7, 2.2, 4)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    net, X = default_network(), default_inputs()
    print(f"network  {net}\ninputs   {len(X)} points on a spiral\n")
    start = time.perf_counter()
    th = ww.theory(net, X)
    print(f"theory       {time.perf_counter() - start:6.2f} s   ({th.attrs['route']})")
    start = time.perf_counter()
    ms = ww.measure(net, X, networks=1500, seed=0)
    print(f"measurement  {time.perf_counter() - start:6.2f} s   ({ms.attrs['networks']} sampled networks)\n")
    for name in ("K", "Theta"):
        print(f"{name} at the output, predicted at infinite width | measured at width {net.n} ± standard error")
        for a in range(len(X)):
            predicted = " ".join(f"{v:8.4f}" for v in th[name].values[-1, a])
            rows = zip(ms[name].values[-1, a], ms[name + "_se"].values[-1, a], strict=True)
            print("  ", predicted, " | ", " ".join(f"{v:8.4f} ± {e:.4f}" for v, e in rows))
        print()
    comparison = ww.compare(th, ms)
    print(comparison)
    print(f"\nThe rest of the difference is the finite width: of order 1/n = {1 / net.n:.4f}.")
    written = [
        ww.save(th, OUT / "theory.nc"),
        ww.save(ms, OUT / "measured.nc"),
        comparison.to_csv(OUT / "comparison.csv"),
    ]
    for name, figure in (("flow.png", plot_flow(th, ms)), ("agreement.png", plot_agreement(th, ms))):
        figure.savefig(OUT / name, dpi=160)
        written.append(OUT / name)
    print("written: " + ", ".join(map(str, written)))


if __name__ == "__main__":
    main()
