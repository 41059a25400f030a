"""The tab of the labs: what one claims, a quick run of it in the background, its figure, claims and verdict."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import panel as pn

from widthwise.explorer import widgets
from widthwise.explorer.jobs import LAB_TURNS
from widthwise.explorer.settings import Settings
from widthwise.explorer.tabs import RunTab
from widthwise.explorer.widgets import stacked, text_pane
from widthwise.labs import LabResult, get_lab, statement_of, title_of
from widthwise.labs.runner import run_once
from widthwise.labs.verdict import COLUMNS
from widthwise.plots import web_svg
from widthwise.report.html import html_table

#: Seeds of a run, those of `widthwise lab`.
LAB_SEEDS = (0, 1, 2)
_BEFORE = (
    "Run repeats the experiment for the seeds 0, 1 and 2 at the sizes of a quick run, as <code>widthwise lab {} "
    "--quick</code> does. That takes from some seconds to some minutes: one lab runs at a time on this server. Figure "
    "and claims appear after the first seed, the verdict after the last. The network of the sliders plays no part here."
)
_LAB_STYLE = """
svg { width: 100%; height: auto; min-width: 560px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 8px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--page-line); }
th { background: var(--page-band); }
.word, .long { text-align: left; }
td.long { white-space: normal; min-width: 180px; }
"""


@dataclass(frozen=True)
class LabStep:
    """How far a run is: experiments done and in all; after a whole seed what was found, and its figure as SVG."""

    done: int
    wanted: int
    result: LabResult | None = None
    svg: str = ""

    @property
    def seeds(self) -> int:
        """Seeds that are behind the result."""
        return 0 if self.result is None else len(self.result.rows[0].each)


def lab_steps(name: str, seeds: tuple[int, ...] = LAB_SEEDS) -> Iterator[LabStep]:
    """The experiments of a quick run, seed by seed, so that there is a figure after the first.

    >>> *_, last = lab_steps("marchenko-pastur", seeds=(0,))
    >>> last.done, last.wanted, last.seeds, last.svg[:5]
    (2, 2, 1, '<?xml')
    """
    lab, found = get_lab(name), {}
    wanted = len(seeds) * len(lab.quick_sizes)
    yield LabStep(0, wanted)
    for done, (seed, size) in enumerate(product(seeds, lab.quick_sizes), 1):
        found[size] = [*found.get(size, ()), run_once(lab, size, seed)]
        if size != lab.quick_sizes[-1]:
            yield LabStep(done, wanted)
            continue
        result = LabResult(lab, dict(found), seconds=0.0)
        yield LabStep(done, wanted, result, web_svg(result.figure()) if lab.draw else "")


class LabsTab(RunTab):
    """One lab, chosen by the visitor. Runs that ended are kept for everybody: the same seeds give the same numbers."""

    verb = "experiments run"
    box_width = 260
    turns = LAB_TURNS
    kept: ClassVar[dict[str, LabStep]] = {}

    def __init__(self, *given):
        super().__init__(*given)
        self.shown: LabStep | None = None
        self._name = ""
        self.statement, self.verdict = text_pane(), text_pane()
        self.figure = pn.pane.HTML("", sizing_mode="stretch_width", stylesheets=[_LAB_STYLE])
        self.claims = pn.pane.HTML("", sizing_mode="stretch_width", stylesheets=[_LAB_STYLE])
        self.files = [
            widgets.download("Claims (CSV)", "claims.csv", lambda: io.StringIO(self._found().csv())),
            widgets.download("Figure (SVG)", "figure.svg", lambda: io.StringIO(widgets.handed_out(self.shown).svg)),
        ]
        self.view = stacked(
            self.head, self.statement, self.verdict, self.figure, self.claims, widgets.wrapping(*self.files)
        )
        self.choose(self.settings().lab)

    def choose(self, name: str) -> None:
        """Show another lab, with what is known of it; a run of the last one is stopped."""
        if name == self._name:
            return
        self.close()
        self._name, self.shown = name, None
        title = title_of(name)
        self.statement.object = (
            f"<h2 style='font-size:16px;margin:6px 0'>{html.escape(title[0].upper() + title[1:])}</h2>"
            f"<p style='margin:0 0 6px;max-width:80ch'>{html.escape(statement_of(name))}</p>"
            f"<p style='margin:0;max-width:80ch'>{_BEFORE.format(name)}</p>"
        )
        self.verdict.object = self.figure.object = self.claims.object = ""
        for button in self.files:
            button.disabled = True
        if name in self.kept:
            self._show_result(self.kept[name])

    def items(self, settings: Settings) -> Iterator[LabStep]:
        return lab_steps(settings.lab)

    def count(self, item: LabStep) -> tuple[int, int]:
        return item.done, item.wanted

    def draw(self, item: LabStep) -> str:
        assert self.started is not None
        if item.done == item.wanted:
            self.kept[self.started.lab] = item
        if self.started.lab == self._name and item.result is not None:
            self._show_result(item)
        return ""

    def _show_result(self, item: LabStep) -> None:
        self.shown, found = item, item.result
        assert found is not None
        notes = found.notes if item.done == item.wanted else (f"After {item.seeds} of {len(LAB_SEEDS)} seeds.",)
        self.verdict.object = "<br>".join(
            f"<b>{html.escape(note)}</b>" if note.startswith("verdict") else html.escape(note) for note in notes
        )
        words = f"Figure of the lab {found.lab.name}: {html.escape(found.lab.title, quote=True)}"
        svg = item.svg[item.svg.find("<svg") :].replace("<svg", f'<svg role="img" aria-label="{words}"', 1)
        place = "<div class='scroll' tabindex='0' role='region' aria-label='figure'>"
        self.figure.object = f"{place}{svg}</div>" if item.svg else ""
        self.claims.object = html_table(COLUMNS, [row.cells for row in found.rows], "Claims")
        self.files[0].disabled, self.files[1].disabled = False, not item.svg

    def _found(self) -> LabResult:
        return widgets.handed_out(widgets.handed_out(self.shown).result)
