"""Run labs over sizes and seeds, combine their claims, say the verdict, save table and figure."""

from __future__ import annotations

import ast
import csv
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from widthwise.errors import InvalidInput, UnknownName
from widthwise.extras import needing
from widthwise.files import replacing
from widthwise.labs.base import Claim, Lab, Outcome
from widthwise.memory import forget_programs
from widthwise.network import check_seed
from widthwise.progress import DelayedProgress
from widthwise.text import text_table

#: Every lab: the files beside this one, but for what they share.
LABS = tuple(
    sorted(
        path.stem.replace("_", "-")
        for path in Path(__file__).parent.glob("*.py")
        if path.stem not in ("__init__", "base", "runner")
    )
)
#: A claim holds within this many standard errors; a wrong prediction is rejected beyond that many.
HOLDS, REJECTED = 4.0, 5.0
COLUMNS = ("claim", "size", "seeds", "predicted", "measured", "± s.e.", "pull", "worst", "wrong prediction", "its pull")


@dataclass(frozen=True)
class ClaimRow:
    """One claim at one size over the seeds: means, the combined and the worst pull, and pulls of wrong predictions."""

    claim: str
    size: int
    seeds: int
    predicted: float
    measured: float
    standard_error: float
    pull: float
    worst_pull: float
    wrong_pulls: Mapping[str, float]

    @property
    def agrees(self) -> bool:
        return max(abs(self.pull), abs(self.worst_pull)) <= HOLDS

    @property
    def cells(self) -> tuple[Any, ...]:
        """What a table shows; of the wrong predictions the one that is hardest to reject."""
        hardest = min(self.wrong_pulls, key=lambda name: abs(self.wrong_pulls[name]), default="")
        numbers = (self.predicted, self.measured, self.standard_error, self.pull, self.worst_pull)
        return (self.claim, self.size, self.seeds, *numbers, hardest, self.wrong_pulls.get(hardest, ""))


@dataclass(frozen=True)
class LabResult:
    """The claims of a lab, the verdict, and what its figure needs."""

    lab: Lab
    rows: tuple[ClaimRow, ...]
    outcomes: dict[int, list[Outcome]]
    seconds: float

    def __iter__(self) -> Iterator[ClaimRow]:
        return iter(self.rows)

    @property
    def agrees(self) -> bool:
        """Every claim holds at every size."""
        return all(row.agrees for row in self.rows)

    @property
    def discriminates(self) -> bool:
        """There are wrong predictions, and each is rejected at some size."""
        best: dict[tuple[str, str], float] = {}
        for row in self.rows:
            for name, pull in row.wrong_pulls.items():
                best[row.claim, name] = max(best.get((row.claim, name), 0.0), abs(pull))
        return bool(best) and min(best.values()) > REJECTED

    @property
    def verdict(self) -> str:
        """'holds', 'holds, but a wrong prediction would too', or 'refuted'."""
        if not self.agrees:
            return "refuted"
        return "holds" if self.discriminates else "holds, but a wrong prediction would too"

    def figure(self) -> Any:
        """The lab's matplotlib figure."""
        with needing("labs", "the figure of a lab"):
            from matplotlib.figure import Figure

            from widthwise.plots.style import look

        with look():
            figure = Figure(figsize=(8.0, 3.6))
            self.lab.draw(figure, self.outcomes)
        return figure

    def __str__(self) -> str:
        table = text_table(COLUMNS, [row.cells for row in self.rows], left=True)
        return f"{self.lab.name}: {self.lab.title}\n{table}\nverdict: {self.verdict}"

    def save(self, folder: str | Path) -> list[Path]:
        """Write NAME.csv, NAME.png and NAME.svg into a folder; the paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.lab.name}.{suffix}" for suffix in ("csv", "png", "svg")]
        with replacing(paths[0]) as part, open(part, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(row.cells for row in self.rows)
        figure = self.figure()
        for path in paths[1:]:
            with replacing(path) as part:
                figure.savefig(part, format=path.suffix[1:], dpi=130)
        return paths


def names() -> list[str]:
    """Names of the labs.

    >>> "nngp-limit" in names()
    True
    """
    return list(LABS)


def get_lab(name: str) -> Lab:
    """The lab of that name, from its file.

    >>> get_lab("marchenko-pastur").title
    'spectra of sample covariances and their finite-size corrections'
    """
    if name not in LABS:
        raise UnknownName.of("lab", name, LABS)
    with needing("labs", f"the lab {name}"):
        file = import_module(f"widthwise.labs.{name.replace('-', '_')}")
    title, _, statement = (file.__doc__ or "").partition("\n\n")
    quick = getattr(file, "QUICK_SIZES", file.SIZES[:2])
    return Lab(name, title, " ".join(statement.split()), file.experiment, file.SIZES, quick, file.draw)


def title_of(name: str) -> str:
    """The title of a lab, read from its file: what the lab needs is not imported.

    >>> title_of("marchenko-pastur") == get_lab("marchenko-pastur").title
    True
    """
    source = Path(__file__).with_name(f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]


def run_lab(
    name: str, *, quick: bool = False, seeds: Sequence[int] = (0, 1, 2), progress: bool | None = None
) -> LabResult:
    """Run one lab over its sizes and the seeds, and combine its claims.

    Parameters
    ----------
    name : one of `names()`.
    quick : smaller sizes, below a minute on two cores.
    seeds : non-negative integers; claims are combined over them.

    Returns
    -------
    A LabResult: print it for the table and the verdict; `.figure()`, `.save(folder)`.
    """
    lab = get_lab(name)
    seeds = [check_seed(seed, "seeds") for seed in seeds]
    if not seeds:
        raise InvalidInput("seeds", "an empty list", "at least one non-negative integer")
    sizes = lab.quick_sizes if quick else lab.sizes
    start, outcomes = time.perf_counter(), {size: [] for size in sizes}
    with DelayedProgress(lab.name, progress) as bar:
        for done, (size, seed) in enumerate(product(sizes, seeds), 1):
            outcomes[size].append(lab.experiment(size, seed))
            forget_programs()
            bar(done, len(sizes) * len(seeds))
    rows = tuple(_claim_row(claim.what, size, outcomes[size]) for size in sizes for claim in outcomes[size][0].claims)
    return LabResult(lab, rows, outcomes, time.perf_counter() - start)


def _claim_row(what: str, size: int, outcomes: list[Outcome]) -> ClaimRow:
    same = [claim for outcome in outcomes for claim in outcome.claims if claim.what == what]
    count, pulls = len(same), [claim.pull for claim in same]
    predicted, measured = (sum(getattr(c, name) for c in same) / count for name in ("predicted", "measured"))
    error = math.hypot(*(claim.standard_error for claim in same)) / count
    wrong = {name: _combined_pull(same, [claim.pull_of(name) for claim in same]) for name in same[0].wrong}
    pull, worst = _combined_pull(same, pulls), max(pulls, key=abs)
    return ClaimRow(what, size, count, predicted, measured, error, pull, worst, wrong)


def _combined_pull(claims: list[Claim], pulls: list[float]) -> float:
    """Σ pulls/√k over seeds that scatter independently; of exact claims, which do not, the worst."""
    return max(pulls, key=abs) if claims[0].exact else sum(pulls) / math.sqrt(len(pulls))
