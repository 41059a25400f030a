"""The tab that follows the sliders: kernels, ratios, phases, density, advice."""

from __future__ import annotations

import numpy as np
import panel as pn

from widthwise.criticality.advice import Advice
from widthwise.criticality.phase_diagram import phase_diagram
from widthwise.explorer.charts import Chart, PhaseChart
from widthwise.explorer.downloads import netcdf, table, vector
from widthwise.explorer.layout import allow, code_blocks, download, grid, paragraphs
from widthwise.explorer.theory import Pair, Phases, Theory, phases_of, precise_pair_of
from widthwise.plots import plot_flow, plot_phase
from widthwise.tensors import SCALE_TEXT, TENSORS


class TheoryTab:
    """Charts of the theory; `show` takes what `theory_of` gives."""

    def __init__(self):
        self.found: Theory | None = None
        self._activation = ""
        self.kernel = Chart("kernel", "Kernel K by layer", "layer", "K of an input with itself", log=True, whole=True)
        self.kernel.line("aa", "input a", 0)
        self.kernel.line("bb", "input b", 1)
        self.tangent = Chart("tangent", "Neural tangent kernel Θ by layer", "layer", "Θ of an input with itself",
                             log=True, whole=True)  # fmt: skip
        self.tangent.line("aa", "input a", 0)
        self.tangent.line("bb", "input b", 1)
        self.correlation = Chart("correlation", "Do the inputs a and b stay apart?", "layer", "correlation", whole=True)
        self.correlation.line("K", "K_ab/√(K_aa K_bb)", 0)
        self.correlation.line("Theta", "Θ_ab/√(Θ_aa Θ_bb)", 1)
        self.phase = PhaseChart()
        self.density = Chart("density", "Output at input a, over networks", "output z", "probability density")
        for style, (name, label) in enumerate(
            (("gaussian", "infinite width (Gaussian)"), ("edgeworth", "to order 1/n"), ("exact", "exact at width n"))
        ):
            self.density.line(name, label, style)
        self.ratios = Chart("ratios", "Corrections of order 1/n to K", "layer", "part of the leading term", whole=True)
        self.tangent_ratios = Chart("tangent_ratios", "Corrections of order 1/n to Θ", "layer",
                                    "part of the leading term", whole=True)  # fmt: skip
        for chart, names in ((self.ratios, ("V", "G1", "D", "F")), (self.tangent_ratios, ("A", "B", "H1"))):
            for style, name in enumerate(names):
                chart.line(name, f"{name}/(n{SCALE_TEXT[TENSORS[name].scale].strip('()')})", style)
            chart.level(0.0)
        self.advice = pn.pane.HTML("", sizing_mode="stretch_width")
        cells = [
            self.kernel, self.correlation, self.phase, self.density, self.tangent, self.tangent_ratios, self.ratios
        ]  # fmt: skip
        words = pn.Column(pn.pane.HTML("<b>Advice</b>"), self.advice, sizing_mode="stretch_width")
        self.view = pn.Column(
            grid(*[chart.figure for chart in cells], words), self._downloads(), sizing_mode="stretch_width"
        )

    def show(self, found: Theory, phases: Phases) -> None:
        """New curves; `show_pair`, `show_exact` and `show_advice` follow."""
        self.found, layers = found, found.layers
        for i, name in enumerate(("aa", "bb")):
            self.kernel.set(name, layers, found.K[:, i])
            self.tangent.set(name, layers, found.Theta[:, i])
        for chart in (self.ratios, self.tangent_ratios):
            for name in chart.sources:
                chart.set(name, layers, found.ratios[name] / found.widths)
        if found.exploded is None:
            self.density.set("gaussian", found.z, found.gaussian)
            self.density.set("edgeworth", found.z, found.edgeworth)
            self.density.clear("exact")
        else:
            self.density.clear("gaussian", "edgeworth", "exact")
        settings = found.settings
        if settings.activation != self._activation:
            self._activation = settings.activation
            self.phase.show(phases)
        self.phase.set("here", [settings.C_W], [settings.C_b])
        self.advice.object = "<i>…</i>"

    def show_pair(self, pair: Pair) -> None:
        """The correlations of the two inputs."""
        for name in ("K", "Theta"):
            self.correlation.set(name, pair.theory.layers, pair.correlation(name))
        allow(self.files)

    def show_exact(self, found: Theory, density: np.ndarray) -> None:
        """The exact density of the output."""
        self.density.set("exact", found.z, density)

    def show_advice(self, advice: Advice) -> None:
        self.advice.object = paragraphs(advice.text) + code_blocks(advice.code)

    def _downloads(self) -> pn.FlexBox:
        def shown() -> Theory:
            assert self.found is not None, "the buttons are off until then"
            return self.found

        def current() -> Pair:
            return precise_pair_of(shown())

        def phases():
            net = shown().net
            grid = phases_of(self._activation).grid
            return vector(plot_phase(phase_diagram(net.activation, grid.C_W, grid.C_b), net))

        self.files = (
            download("Theory (CSV)", "theory.csv", lambda: table(current().dataset())),
            download("Theory (NetCDF)", "theory.nc", lambda: netcdf(current().dataset())),
            download("Kernels (SVG)", "kernels.svg", lambda: vector(plot_flow(current().dataset()))),
            download("Phases (SVG)", "phases.svg", phases),
        )
        return pn.FlexBox(*self.files, sizing_mode="stretch_width")
