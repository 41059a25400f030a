"""The demonstration behind `make demo`: theory, advice, measurement and training of a default network, as one page."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from textwrap import fill

import matplotlib

import widthwise as ww
from widthwise.cli.output import network_lines
from widthwise.report import write_report
from widthwise.study import default_study

OUT = Path("out/demo")


def main() -> None:
    matplotlib.use("Agg")
    OUT.mkdir(parents=True, exist_ok=True)
    study, start = default_study(), time.perf_counter()
    print(f"{fill(network_lines(study.net)[0], 80)}\ninputs: {len(study.data.X_train)} points on a spiral\n")
    found = write_report(study, OUT / "report.html", tell=lambda text: print(text, file=sys.stderr))
    for title, comparison in (
        ("Theory against sampled networks, extrapolated to infinite width:", found.comparison),
        ("Theory to order 1/n against trained networks:", found.training),
    ):
        if comparison is not None:
            print(f"{title}\n{comparison.table()}\n")
    written = [OUT / "report.html"]
    for name in ("theory", "measured", "predicted", "trained"):
        dataset = getattr(found, name)
        if dataset is not None:
            written.append(ww.save(dataset, OUT / f"{name}.nc"))
    if found.comparison is not None:
        written.append(found.comparison.to_csv(OUT / "comparison.csv"))
    print("In short")
    if found.advice is not None:
        print(fill(f"The network: {found.advice.text.splitlines()[0]}", 80))
    for what, comparison in (("At initialisation", found.comparison), ("After training", found.training)):
        if comparison is not None:
            print(fill(f"{what}: {comparison.summary}", 80))
    print(f"Open {OUT / 'report.html'} in a browser for the whole story.")
    print(f"{len(written)} files in {OUT}, {time.perf_counter() - start:.0f} s in all.")


if __name__ == "__main__":
    main()
