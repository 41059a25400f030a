"""Run labs over sizes and seeds, combine their claims, say the verdict, save table and figure."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widthwise.devices import on_all_cores
from widthwise.errors import InvalidInput
from widthwise.extras import needing
from widthwise.files import replacing
from widthwise.labs.base import Lab, Outcome
from widthwise.labs.catalogue import get_lab
from widthwise.labs.verdict import COLUMNS, ClaimRow, Verdict
from widthwise.memory import forget_programs
from widthwise.network import check_seed
from widthwise.progress import DelayedProgress
from widthwise.text import text_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LabResult:
    """The claims of a lab, the verdict, and what its figure needs."""

    lab: Lab
    outcomes: dict[int, list[Outcome]]
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def rows(self) -> tuple[ClaimRow, ...]:
        """One row a claim and size."""
        return tuple(
            ClaimRow(size, tuple(c for outcome in found for c in outcome.claims if c.what == claim.what))
            for size, found in self.outcomes.items()
            for claim in found[0].claims
        )

    def __iter__(self) -> Iterator[ClaimRow]:
        return iter(self.rows)

    @cached_property
    def judged(self) -> Verdict:
        """All claims, sizes and seeds together."""
        return Verdict(self.rows)

    @property
    def agrees(self) -> bool:
        """No claim is refuted."""
        return self.judged.agrees

    @property
    def verdict(self) -> str:
        """'holds', 'holds, but a wrong prediction would too', or 'refuted'."""
        return self.judged.text

    @property
    def notes(self) -> tuple[str, ...]:
        """What stands below the table: knobs that were set, the numbers behind the verdict, the verdict."""
        set_to = ", ".join(f"{name} = {value}" for name, value in self.settings.items())
        return (*([f"settings: {set_to}"] if set_to else ()), self.judged.basis, f"verdict: {self.verdict}")

    def figure(self) -> Any:
        """The lab's matplotlib figure, with the seeds that it shows."""
        if self.lab.draw is None:
            raise InvalidInput("lab", f"{self.lab.name!r}, which draws no figure", "a lab with a function `draw`")
        with needing("labs", "the figure of a lab"):
            from matplotlib.figure import Figure

            from widthwise.plots.style import look

        with look():
            figure = Figure(figsize=(10.5, 4.4))
            self.lab.draw(figure, self.outcomes)
            figure.supxlabel(self._seeds_shown, x=0.99, ha="right", fontsize=8)
        return figure

    @property
    def _seeds_shown(self) -> str:
        """Panels show means over all seeds, or the run of the first."""
        seeds = [outcome.seed for outcome in next(iter(self.outcomes.values()))]
        text = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        return f"{text}; single runs: {seeds[0]}" if len(seeds) > 1 else text

    def __str__(self) -> str:
        table = text_table(COLUMNS, [row.cells for row in self.rows], left=True, limit=None)
        return "\n".join([f"{self.lab.name}: {self.lab.title}", table, *self.notes])

    def _repr_html_(self) -> str:
        """Title, claims and verdict, for a notebook."""
        lines = [
            f"<p><b>{escape(self.lab.name)}</b>: {escape(self.lab.title)}</p>",
            self.to_dataframe().to_html(index=False),
        ]
        return "".join([*lines, *(f"<p>{escape(note)}</p>" for note in self.notes)])

    def to_dataframe(self) -> pd.DataFrame:
        """The table of claims for pandas.

        >>> run_lab("marchenko-pastur", quick=True, seeds=[0]).to_dataframe()["seeds"].unique().tolist()
        [1]
        """
        import pandas

        return pandas.DataFrame([row.cells for row in self.rows], columns=list(COLUMNS))

    def csv(self) -> str:
        """The table of claims, comma-separated."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        writer.writerows(row.cells for row in self.rows)
        return text.getvalue()

    def save(self, folder: str | Path) -> list[Path]:
        """Write NAME.csv and, if the lab draws one, its figure as NAME.png and NAME.svg into a folder; the paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        suffixes = ("csv", "png", "svg") if self.lab.draw else ("csv",)
        paths = [folder / f"{self.lab.name}.{suffix}" for suffix in suffixes]
        with replacing(paths[0]) as part, open(part, "w", newline="", encoding="utf-8") as file:
            file.write(self.csv())
        if self.lab.draw:
            figure = self.figure()
            for path in paths[1:]:
                with replacing(path) as part:
                    figure.savefig(part, format=path.suffix[1:], dpi=130)
        return paths


def run_lab(
    lab: str | Path | Lab,
    *,
    quick: bool = False,
    seeds: Sequence[int] = (0, 1, 2),
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> LabResult:
    """Run one lab over its sizes and the seeds, and combine its claims.

    Parameters
    ----------
    lab : one of `names()`, written with - or _; the path of a lab file; or a Lab.
    quick : smaller sizes, below a minute on two cores.
    seeds : distinct non-negative integers; claims are combined over them.
    settings : values of its knobs by name, such as {"networks": 500} or {"width": (64, 128)}.

    Returns
    -------
    A LabResult: print it for the table and the verdict; `.figure()`, `.save(folder)`.

    Examples
    --------
    >>> import numpy as np
    >>> from widthwise.labs import Claim, Lab, Outcome
    >>> def coins(size, seed):
    ...     heads = np.random.default_rng(seed).random((200, size)) < 0.5
    ...     return Outcome((Claim.mean("share of heads", 0.5, heads.mean(axis=1)).rejects({"two thirds": 2 / 3}),))
    >>> run_lab(Lab("coins", "fair coins", "p = 1/2", coins, sizes=(10, 100))).verdict
    'holds'
    """
    chosen = get_lab(lab, settings)
    seeds = [check_seed(seed, "seeds") for seed in seeds]
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidInput("seeds", str(seeds), "at least one, and none twice: claims count them as independent")
    sizes = chosen.quick_sizes if quick else chosen.sizes
    start, outcomes = time.perf_counter(), {size: [] for size in sizes}
    # neighbours differ in size, so that two that run side by side compile programs of their own
    runs = [(size, seed) for seed in seeds for size in sizes]
    with DelayedProgress(chosen.name, progress) as bar:
        for done, ((size, _), outcome) in enumerate(
            zip(runs, on_all_cores(lambda run: run_once(chosen, *run), runs), strict=True), 1
        ):
            outcomes[size].append(outcome)
            bar(done, len(runs))
    forget_programs()
    return LabResult(chosen, outcomes, time.perf_counter() - start, dict(settings or {}))


def run_once(lab: Lab, size: int, seed: int) -> Outcome:
    """The experiment of one size and seed."""
    outcome = lab.experiment(size, seed)
    if not isinstance(outcome, Outcome) or not outcome.claims:
        raise InvalidInput("experiment", f"{outcome!r:.60} from {lab.name!r}", "an Outcome with at least one claim")
    return replace(outcome, seed=seed)
