"""The demonstration behind `make demo`: theory, advice, measurement and training of a default network, as one page."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib

import widthwise as ww
from widthwise.report import write_report
from widthwise.study import default_study

OUT = Path("out/demo")


def main() -> None:
    matplotlib.use("Agg")
    OUT.mkdir(parents=True, exist_ok=True)
    study, start = default_study(), time.perf_counter()
    print(f"network  {study.net}\ninputs   {len(study.data.X_train)} points on a spiral\n")
    found = write_report(study, OUT / "report.html", tell=lambda text: print(text, file=sys.stderr))
    if found.advice is not None:
        print(found.advice.text.splitlines()[0], "\n")
    print("Theory against sampled networks, extrapolated to infinite width:")
    print(found.comparison, "\n")
    print("Theory to order 1/n against trained networks:")
    print(found.training, "\n")
    print(f"{time.perf_counter() - start:.0f} s in all")
    written = [OUT / "report.html"]
    for name in ("theory", "measured", "predicted", "trained"):
        dataset = getattr(found, name)
        if dataset is not None:
            written.append(ww.save(dataset, OUT / f"{name}.nc"))
    if found.comparison is not None:
        written.append(found.comparison.to_csv(OUT / "comparison.csv"))
    print("written: " + ", ".join(map(str, written)))


if __name__ == "__main__":
    main()
