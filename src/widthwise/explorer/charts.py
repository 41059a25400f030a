"""Charts of the page: bokeh figures whose lines and points are set by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from bokeh import models
from bokeh.plotting import figure

from widthwise.criticality.depth_width import LARGE_EFFECTS
from widthwise.criticality.phase_diagram import PHASE_NAMES
from widthwise.explorer.settings import CONTROLS
from widthwise.explorer.theory import Phases
from widthwise.plots.functions import TrainedFunctions
from widthwise.plots.style import AREA_COLOURS, COLOURS

#: Nothing to draw, though the legend shows how it would look.
NOTHING = np.full(1, np.nan)
#: Curves of the output's density that every page has.
DENSITIES = {"gaussian": "infinite width (Gaussian)", "edgeworth": "to order 1/n"}
#: Horizontal axes on which only whole numbers stand.
_WHOLE = ("layer", "test input (number)")
_DASHES = ("solid", "dashed", "dashdot", "dotted")
_MARKERS = ("circle", "square", "triangle", "diamond")
#: Ordered, critical, chaotic, divergent.
_PHASE_COLOURS = (AREA_COLOURS[0], COLOURS[0], AREA_COLOURS[2], AREA_COLOURS[3])


class Chart:
    """A figure, its sources by name, and a legend below it; `lines` gives names and labels of those drawn at first."""

    def __init__(
        self, name: str, title: str, x: str, y: str, lines: Mapping[str, str] = MappingProxyType({}), *,
        log: bool = False, **more: Any,
    ):  # fmt: skip
        self.figure = figure(
            title=models.Title(text=title, text_font_size="14px"), x_axis_label=x, y_axis_label=y,
            y_axis_type="log" if log else "linear", height=330, min_width=280, sizing_mode="stretch_width",
            tools="box_zoom,reset,save", toolbar_location="above", name=name,
            background_fill_color=None, border_fill_color=None, styles={"background": "var(--page-paper)"}, **more,
        )  # fmt: skip
        for axis in self.figure.axis:
            axis.axis_label_text_font_style, axis.axis_label_text_font_size = "normal", "13px"
            axis.major_label_text_font_size = "12px"
        self.figure.toolbar.logo = None
        if x in _WHOLE:
            self.figure.xaxis.ticker = models.BasicTicker(min_interval=1, num_minor_ticks=0)
        self.legend = models.Legend(
            ncols=2, label_text_font_size="12px", border_line_color=None, location="left", margin=4, spacing=8,
            click_policy="hide", glyph_width=26,
        )  # fmt: skip
        self.figure.add_layout(self.legend, "below")
        self.sources: dict[str, models.ColumnDataSource] = {}
        self._name = name
        for style, (line, label) in enumerate(lines.items()):
            self.line(line, label, style)

    def line(self, name: str, label: str, style: int, width: float = 2.2) -> None:
        """A line; `style` picks colour and dashes together."""
        source = self._source(name, "x", "y")
        colour, dash = COLOURS[style % 4], _DASHES[style % 4]
        drawn = self.figure.line("x", "y", source=source, line_width=width, color=colour, line_dash=dash)
        self._entry(label, drawn, "@x{0.[000]}, @y{0.[000000]}")

    def points(self, name: str, label: str, style: int) -> None:
        """Points with bars of one standard error."""
        source = self._source(name, "x", "y", "lower", "upper", "error")
        colour = COLOURS[style % 4]
        self.figure.segment("x", "lower", "x", "upper", source=source, color=colour, line_width=1.6)
        drawn = self.figure.scatter(
            "x", "y", source=source, size=9, marker=_MARKERS[style % 4], color=colour, line_color="white"
        )
        self._entry(label, drawn, "@x{0.[000]}, @y{0.[000000]} ± @error{0.[000000]}")

    def shade_large(self) -> None:
        """Grey where a correction of order 1/n is large, by the threshold of `depth_width`; called after all lines."""
        # else the axis would reach as far as the grey does
        self.figure.y_range = models.DataRange1d(renderers=list(self.figure.renderers))
        for side, limit in (("bottom", LARGE_EFFECTS), ("top", -LARGE_EFFECTS)):
            area = models.BoxAnnotation(fill_color="#888888", fill_alpha=0.15, line_color=None, level="underlay")
            setattr(area, side, limit)
            self.figure.add_layout(area)
        empty = self.figure.scatter(NOTHING, NOTHING, marker="square", size=12, color="#888888", alpha=0.4)
        self._entry("grey: 1/n is not small", empty)

    def set(self, name: str, x: Any, y: Any, error: Any = None) -> None:
        """New data of a line, or of points with their errors."""
        x, y = np.asarray(x, float), np.asarray(y, float)
        data: dict[str, Any] = {"x": x, "y": y}
        if error is not None:
            error = np.asarray(error, float)
            data |= {"lower": y - error, "upper": y + error, "error": error}
        self.sources[name].data = data

    def clear(self, *names: str) -> None:
        for name in names:
            empty: dict[str, Any] = {str(column): NOTHING for column in self.sources[name].data}
            self.sources[name].data = empty

    def _source(self, name: str, *columns: str) -> models.ColumnDataSource:
        data: dict[str, Any] = dict.fromkeys(columns, NOTHING)
        self.sources[name] = models.ColumnDataSource(data, name=f"{self._name}:{name}")
        return self.sources[name]

    def _entry(self, label: str, drawn, tip: str = "") -> None:
        """A line of the legend and, with a tip, what is said where the mouse is."""
        self.legend.items.append(models.LegendItem(label=label, renderers=[drawn]))  # pyright: ignore[reportArgumentType]
        if tip:
            self.figure.add_tools(models.HoverTool(renderers=[drawn], tooltips=[(label, tip)]))


class FunctionChart(Chart):
    """Trained networks as functions along a line: mean ± standard deviation of the theory, networks, and the data."""

    def __init__(self):
        super().__init__("function", "What training makes of these networks",
                         "place on the line through the training inputs", "output")  # fmt: skip
        paths: dict[str, Any] = {"xs": [], "ys": []}
        self.sources["networks"] = models.ColumnDataSource(paths, name="function:networks")
        drawn = self.figure.multi_line("xs", "ys", source=self.sources["networks"], color="#8a8a8a", line_alpha=0.6)
        self._entry("trained networks", drawn)
        for style, (name, label) in enumerate({"infinite": "infinite width", "finite": "to order 1/n"}.items()):
            source = self._source(f"{name}_band", "x", "lower", "upper")
            self.figure.varea("x", "lower", "upper", source=source, fill_color=COLOURS[style], fill_alpha=0.2)
            self.line(name, f"{label} ± s.d.", style, 2.6)
        self.points("data", "training data", 3)

    def show(self, found: TrainedFunctions) -> None:
        """New curves; what was not computed is taken off."""
        for name, mean, spread in (
            ("infinite", found.mean0, found.spread0), ("finite", found.mean, found.spread)
        ):  # fmt: skip
            if mean is None or spread is None:
                self.clear(name, f"{name}_band")
                continue
            self.set(name, found.place, mean)
            band: dict[str, Any] = {"x": found.place, "lower": mean - spread, "upper": mean + spread}
            self.sources[f"{name}_band"].data = band
        paths: dict[str, Any] = {"xs": [found.place] * len(found.networks), "ys": list(found.networks)}
        self.sources["networks"].data = paths
        self.set("data", found.trained_at, found.targets, np.zeros(len(found.targets)))


class PhaseChart(Chart):
    """The plane of C_W and C_b: phases, the line χ_⊥ = 1, the critical point, and where the page is."""

    def __init__(self):
        across, up = CONTROLS["C_W"], CONTROLS["C_b"]
        super().__init__(
            "phase", "Phases, for an input of size 1", "weight variance C_W", "bias variance C_b",
            x_range=(across.low, across.high), y_range=(up.low - 0.05, up.high),
        )  # fmt: skip
        blank: dict[str, Any] = {"image": [np.zeros((1, 1))], "x": [0.0], "y": [0.0], "dw": [0.0], "dh": [0.0]}
        self.image = models.ColumnDataSource(blank, name="phase:image")
        mapper = models.LinearColorMapper(palette=list(_PHASE_COLOURS), low=-0.5, high=len(PHASE_NAMES) - 0.5)
        places = {name: name for name in ("image", "x", "y", "dw", "dh")}
        self.figure.image(**places, source=self.image, color_mapper=mapper, level="underlay")  # pyright: ignore
        for phase, colour in zip(PHASE_NAMES, _PHASE_COLOURS, strict=True):
            if phase != "critical":
                empty = self.figure.scatter(
                    NOTHING, NOTHING, marker="square", size=12, color=colour, line_color="#666666"
                )
                self._entry(phase, empty)
        self.line("line", "critical line χ⊥ = 1", 0, 2.5)
        for name, label, marker, colour, size in (
            ("critical", "critical point", "star", COLOURS[0], 16),
            ("here", "this network", "circle_cross", COLOURS[1], 15),
        ):
            source = self._source(name, "x", "y")
            drawn = self.figure.scatter(
                "x", "y", source=source, marker=marker, size=size, fill_color="white", line_color=colour, line_width=2.5
            )
            self._entry(label, drawn)
        self.figure.grid.visible = False

    def show(self, phases: Phases) -> None:
        """The diagram of another activation."""
        grid, (line_W, line_b), point = phases.grid, phases.line, phases.point
        # a pixel is centred on its point of the grid
        half_W, half_b = 0.5 * (grid.C_W[1] - grid.C_W[0]), 0.5 * (grid.C_b[1] - grid.C_b[0])
        left, right, low, high = (
            grid.C_W[0] - half_W,
            grid.C_W[-1] + half_W,
            grid.C_b[0] - half_b,
            grid.C_b[-1] + half_b,
        )
        data = {"image": [grid.phase.astype(float)], "x": [left], "y": [low], "dw": [right - left], "dh": [high - low]}
        self.image.data = data
        self.set("line", line_W, line_b)
        at = [] if point is None or point.C_b > grid.C_b[-1] else [point]
        self.set("critical", [p.C_W for p in at], [p.C_b for p in at])
