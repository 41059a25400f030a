"""The tabs: theory that follows the sliders, and runs of sampled and of trained networks laid over it."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import panel as pn
import xarray as xr
from bokeh.models import Span
from matplotlib.figure import Figure

from widthwise.criticality.advice import Advice
from widthwise.criticality.depth_width import regime_of
from widthwise.criticality.phase_diagram import phase_diagram
from widthwise.errors import InvalidInput, WidthwiseError
from widthwise.explorer import widgets
from widthwise.explorer.charts import DENSITIES, Chart, FunctionChart, PhaseChart
from widthwise.explorer.ensembles import (
    Predicted,
    check_size,
    functions_along,
    prediction,
    sample,
    task_of,
    train_batches,
)
from widthwise.explorer.jobs import RUN_TURNS, Job, Share
from widthwise.explorer.settings import Settings
from widthwise.explorer.theory import InputPair, Phases, Theory, pair_of, phases_of, precise_pair_of, theory_of
from widthwise.explorer.widgets import Fields, complaint, grid, stacked, text_pane, wrapping
from widthwise.plots import plot_flow, plot_phase, svg_text
from widthwise.plots.functions import TrainedFunctions
from widthwise.tensors import SCALE_TEXT, TENSORS

#: Seconds between two drawings of a run.
_INTERVAL = 0.3
#: Dots of the three kinds stand beside each other.
_APART = 0.12
_WORDS = (
    "Networks with the variances, rates, depth and width of the sliders are trained to convergence on ½Σ(z − y)² over "
    "the training inputs of a data set; each then has an output at every test input. Inputs a and b play no part here."
)
Post = Callable[[Callable[[], None]], None]


class TheoryTab:
    """Charts of the theory; `show` takes what `theory_of` gives."""

    def __init__(self):
        self.found: Theory | None = None
        self._drawn: tuple[Any, ...] = ()
        inputs = {"aa": "input a", "bb": "input b"}
        self.kernel = Chart("kernel", "Kernel K by layer", "layer", "K of an input with itself", inputs, log=True)
        self.tangent = Chart("tangent", "Neural tangent kernel Θ by layer", "layer", "Θ of an input with itself",
                             inputs, log=True)  # fmt: skip
        self.correlation = Chart("correlation", "Do the inputs a and b stay apart?", "layer", "correlation",
                                 {"K": "K_ab/√(K_aa K_bb)", "Theta": "Θ_ab/√(Θ_aa Θ_bb)"})  # fmt: skip
        self.phase = PhaseChart()
        self.density = Chart("density", "Output at input a, over networks", "output z", "probability density",
                             DENSITIES | {"exact": "exact at width n"})  # fmt: skip
        self.ratios = self._ratio_chart("ratios", "K", ("V", "G1", "D", "F"))
        self.tangent_ratios = self._ratio_chart("tangent_ratios", "Θ", ("A", "B", "H1"))
        self.advice = pn.pane.HTML("", sizing_mode="stretch_width")
        cells = [
            self.kernel, self.correlation, self.phase, self.density, self.tangent, self.tangent_ratios, self.ratios
        ]  # fmt: skip
        words = pn.Column(pn.pane.HTML("<b>Advice</b>"), self.advice, sizing_mode="stretch_width")
        self.view = stacked(grid(*[chart.figure for chart in cells], words), self._downloads())

    def _ratio_chart(self, name: str, kernel: str, tensors: tuple[str, ...]) -> Chart:
        labels = {one: f"{one}/(n{SCALE_TEXT[TENSORS[one].scale].strip('()')})" for one in tensors}
        chart = Chart(name, f"Corrections of order 1/n to {kernel}", "layer", "fraction of the leading term", labels)
        chart.figure.add_layout(Span(location=0.0, dimension="width", line_color="#999999", line_width=1))
        chart.shade_large()
        return chart

    def show(self, found: Theory, phases: Phases) -> None:
        """New curves; `show_pair`, the exact density and `show_advice` follow."""
        self.found, layers = found, found.layers
        for i, name in enumerate(("aa", "bb")):
            self.kernel.set(name, layers, found.K[:, i])
            self.tangent.set(name, layers, found.Theta[:, i])
        for chart in (self.ratios, self.tangent_ratios):
            for name in chart.sources:
                chart.set(name, layers, found.ratios[name] / found.widths)
        self.density.clear("exact")
        for name in DENSITIES:
            if found.exploded is None:
                self.density.set(name, found.z, getattr(found, name))
            else:
                self.density.clear(name)
        settings = found.settings
        if (settings.activation, *settings.block) != self._drawn:
            self._drawn = settings.activation, *settings.block
            self.phase.show(phases)
        self.phase.set("here", [settings.C_W], [settings.C_b])
        self.advice.object = "<i>…</i>"

    def show_pair(self, pair: InputPair) -> None:
        """The correlations of the two inputs."""
        for name in ("K", "Theta"):
            self.correlation.set(name, pair.theory.layers, pair.correlation(name))
        widgets.allow(self.files)

    def show_advice(self, advice: Advice) -> None:
        self.advice.object = widgets.advice_html(advice.text, advice.code)

    def _downloads(self) -> pn.Row:
        def numbers() -> xr.Dataset:
            return precise_pair_of(widgets.handed_out(self.found)).dataset()

        def phases() -> Figure:
            settings, grid = widgets.handed_out(self.found).settings, phases_of(*self._drawn).grid
            skip, norm = settings.block
            return plot_phase(
                phase_diagram(settings.activation, grid.C_W, grid.C_b, skip=skip, norm=norm), settings.plain()
            )

        self.files = (
            widgets.data_file("Theory", "CSV", numbers),
            widgets.data_file("Theory", "NetCDF", numbers),
            widgets.download("Kernels (SVG)", "kernels.svg", lambda: io.StringIO(svg_text(plot_flow(numbers())))),
            widgets.download("Phases (SVG)", "phases.svg", lambda: io.StringIO(svg_text(phases()))),
        )
        return wrapping(*self.files)


class RunTab:
    """What runs have in common; `total` names the setting with the number of networks.

    Subclasses say what a run yields (`items`), show it (`draw`), and say how far it is then (`count`). `post` has a
    function called by the page's own thread; `share` is that of the visitor.
    """

    total = ""
    verb = ""
    turns = RUN_TURNS
    box_width = 165

    def __init__(self, fields: Fields, settings: Callable[[], Settings], post: Post, share: Share):
        self.fields, self.settings, self.post, self.share = fields, settings, post, share
        self.job: Job | None = None
        self.started: Settings | None = None
        self.latest: xr.Dataset | None = None
        self._lock, self._unseen, self._asked, self._next = threading.Lock(), [], False, 0.0
        self._summary, self._counted = "", (0, 1)
        self.start = pn.widgets.Button(label="Run", color="primary", width=100, margin=(26, 6, 4, 10))
        self.stop = pn.widgets.Button(label="Stop", disabled=True, width=100, margin=(26, 6, 4, 6))
        self.bar = pn.indicators.Progress(value=0, max=100, sizing_mode="stretch_width", margin=(8, 10))
        self.status = text_pane("Not started.")
        self.problem = text_pane()
        # panel calls these without the lock that changes of charts need
        self.start.on_click(lambda _: self.post(self.begin))
        self.stop.on_click(lambda _: self.post(self.halt))
        boxes = [pn.Column(row, width=self.box_width, margin=0) for row in fields.rows]
        self.head = stacked(wrapping(*boxes, self.start, self.stop), self.bar, self.status, self.problem)

    def data_files(self, title: str) -> list[pn.widgets.FileDownload]:
        """Buttons for the newest numbers."""
        return [widgets.data_file(title, kind, lambda: widgets.handed_out(self.latest)) for kind in ("CSV", "NetCDF")]

    def arrange(self, charts: tuple[Chart, ...], files: list[pn.widgets.FileDownload], *before: Any) -> pn.Column:
        """The tab: what stands before it, its head, charts, and buttons of files."""
        self.charts, self.files = charts, files
        buttons = wrapping(*files)
        cells = grid(*(chart.figure for chart in charts))
        return stacked(*before, self.head, cells, buttons)

    def items(self, settings: Settings) -> Iterator[Any]:
        raise NotImplementedError

    def draw(self, item: Any) -> str:
        """Show an item; a remark about it."""
        raise NotImplementedError

    def count(self, item: Any) -> tuple[int, int] | None:
        """How much is done and wanted; None for an item that says nothing about it."""
        return (item.attrs["networks"], getattr(self.started, self.total)) if isinstance(item, xr.Dataset) else None

    def begin(self) -> None:
        """Start a run with the page's state."""
        if self.job is not None and self.job.alive:  # a browser can press a button that is off
            return
        settings = self.settings()
        self.problem.object = ""
        try:
            items = self.items(settings)
            self.started, self._summary = settings, ""
            self._counted = 0, getattr(settings, self.total, 1)
            ended = lambda stopped: self.post(lambda: self._ended(stopped))  # noqa: E731
            self.job = Job(items, self.share, self._tell, self._fail, ended, self.turns)
        except WidthwiseError as error:
            self.problem.object = complaint(str(error))
            return
        self.start.disabled, self.stop.disabled = True, False
        self.bar.value, self.status.object = 0, "Compiling …"

    def halt(self) -> None:
        if self.job is not None:
            self.job.stop()
            self.status.object = "Stopping …"

    def close(self) -> None:
        """The visitor has gone."""
        if self.job is not None:
            self.job.stop()

    def _tell(self, item: Any) -> None:
        """From the job: keep the item, and have it shown unless the page is still busy with the one before."""
        with self._lock:
            self._unseen.append(item)
            due = not self._asked and time.monotonic() > self._next
            self._asked = self._asked or due
        if due:
            self.post(self._catch_up)

    def _catch_up(self) -> None:
        """Show what came since the last time: the newest item of each kind."""
        with self._lock:
            newest = {type(item): item for item in self._unseen}
            self._unseen.clear()
        for item in newest.values():
            self._show(item)
        with self._lock:
            self._asked, self._next = False, time.monotonic() + _INTERVAL

    def _show(self, item: Any) -> None:
        remark = self.draw(item)
        done, wanted = self._counted = self.count(item) or self._counted
        self.bar.value = min(100, round(100 * done / wanted))
        self._summary = f"{done:,} of {wanted:,} {self.verb}. {remark}"
        self.status.object = self._summary

    def _fail(self, text: str) -> None:
        self.post(lambda: setattr(self.problem, "object", complaint(text)))

    def _ended(self, stopped: bool) -> None:
        self._catch_up()
        self.start.disabled, self.stop.disabled = False, True
        self.status.object = f"{'Stopped.' if stopped else 'Done.'} {self._summary}"


class SamplingTab(RunTab):
    """K, correlation, fluctuations, Θ and the histogram of outputs, measured and predicted."""

    total, verb = "networks", "networks sampled"

    def __init__(self, *given):
        super().__init__(*given)
        self.theory: Theory | None = None
        kernels = {"infinite": "infinite width, K", "finite": "to order 1/n, K + G1/n"}
        self.kernel = Chart("sampled_kernel", "Mean kernel of input a", "layer", "K of input a", kernels, log=True)
        self.correlation = Chart("sampled_correlation", "Correlation of inputs a and b", "layer", "correlation in K",
                                 {"infinite": "infinite width"})  # fmt: skip
        self.fluctuation = Chart("sampled_fluctuation", "From network to network", "layer",
                                 "variance of the kernel / its mean²", {"infinite": "theory, V/(nK²)"})  # fmt: skip
        self.density = Chart("sampled_density", "Output at input a", "output z", "probability density", DENSITIES)
        charts = (self.kernel, self.correlation, self.fluctuation, self.density)
        for chart in charts:
            chart.points("measured", "sampled ± 1 s.e.", 2)
        self.fluctuation.shade_large()
        self.view = self.arrange(charts, self.data_files("Sampled"))

    def items(self, settings: Settings) -> Iterator[InputPair | xr.Dataset]:
        check_size(settings)
        for chart in self.charts:
            chart.clear("measured")
        self.theory = self.latest = None

        def run():
            theory = theory_of(settings)
            if theory.exploded is not None:
                raise InvalidInput("C_W", f"{settings.C_W:g}, at which the kernel explodes at layer {theory.exploded}",
                                   "a kernel that can be sampled", "Take a smaller C_W or depth.")  # fmt: skip
            yield pair_of(theory)
            yield from sample(settings, float(theory.K[-1, 0]))

        return run()

    def draw(self, item: InputPair | xr.Dataset) -> str:
        if isinstance(item, InputPair):
            return self.show_theory(item)
        assert self.theory is not None
        self.latest, layers = item, self.theory.layers
        widgets.allow(self.files)
        self.kernel.set("measured", layers, item["K"][:, 0, 0], item["K_se"][:, 0, 0])
        self.correlation.set("measured", layers, item["correlation"], item["correlation_se"])
        self.fluctuation.set("measured", layers, item["K_fluctuation"], item["K_fluctuation_se"])
        self.density.set("measured", item["z"], item["output_density"], item["output_density_se"])
        Theta, error = float(item["Theta"][0, 0]), float(item["Theta_se"][0, 0])
        predicted = self.theory.Theta[-1, 0]
        shift = predicted * self.theory.ratios["H1"][-1] / self.theory.net.n
        broken = item.attrs["nonfinite"]
        lost = f" {broken} networks were not finite and are left out." if broken else ""
        return (
            f"Neural tangent kernel at the output, Θ_aa: {Theta:.5g} ± {error:.2g}; theory {predicted:.5g} at infinite "
            f"width, {predicted + shift:.5g} to order 1/n.{lost}"
        )

    def preview(self, pair: InputPair) -> None:
        """The theory at the page's state, until a run lays networks over that of its own."""
        found = pair.theory
        if self.job is None and found.exploded is None and found.settings.skip == "none":
            self.show_theory(pair)

    def show_theory(self, pair: InputPair) -> str:
        self.theory = theory = pair.theory
        layers = theory.layers
        self.kernel.set("infinite", layers, theory.K[:, 0])
        self.kernel.set("finite", layers, theory.finite_K)
        self.correlation.set("infinite", layers, pair.correlation("K"))
        self.fluctuation.set("infinite", layers, theory.ratios["V"] / theory.widths)
        for name in DENSITIES:
            self.density.set(name, theory.z, getattr(theory, name))
        return ""


class TrainingTab(RunTab):
    """Mean and spread of trained outputs at the test inputs."""

    total, verb = "trained", "networks trained"

    def __init__(self, *given):
        super().__init__(*given)
        self.predicted: Predicted | None = None
        self.function = FunctionChart()
        self.mean = Chart("trained_mean", "Mean of the trained outputs", "test input (number)", "mean output")
        self.spread = Chart("trained_spread", "Spread of the trained outputs", "test input (number)",
                            "standard deviation over networks")  # fmt: skip
        for chart in (self.mean, self.spread):
            chart.figure.visible = False  # until a run has something for it
            chart.points("infinite", "predicted, infinite width", 0)
            chart.points("finite", "predicted, to order 1/n", 1)
            chart.points("measured", "trained ± 1 s.e.", 2)
        predicted = widgets.data_file("Predicted", "NetCDF", lambda: widgets.handed_out(self.predicted).dataset)
        files = [predicted, *self.data_files("Trained")]
        self.view = self.arrange((self.mean, self.spread), files, text_pane(_WORDS), self.function.figure)

    def show_functions(self, found: TrainedFunctions) -> None:
        """Infinite width at the page's state, unless a run is on its way to more."""
        if self.job is None or not self.job.alive:
            self.function.show(found)

    def items(self, settings: Settings) -> Iterator[Predicted | TrainedFunctions | xr.Dataset]:
        task = task_of(settings)
        for chart in self.charts:
            chart.clear("infinite", "finite", "measured")
            chart.figure.visible = True
        self.predicted = self.latest = None

        def run():
            yield prediction(task)
            yield from train_batches(task, settings.trained, settings.seed)
            yield functions_along(settings, everything=True)

        return run()

    def draw(self, item: Predicted | TrainedFunctions | xr.Dataset) -> str:
        if isinstance(item, Predicted):
            return self._draw_prediction(item)
        if isinstance(item, TrainedFunctions):
            self.function.show(item)
            return self._remark()
        self.latest = item
        widgets.allow(self.files[1:])
        at, late = np.arange(1, item.sizes["test"] + 1) + _APART, item.attrs["unconverged"]
        self.mean.set("measured", at, item["mean"], item["mean_se"])
        self.spread.set("measured", at, item["spread"], item["spread_se"])
        return self._remark() + (f" {late} did not converge." if late else "")

    def _draw_prediction(self, item: Predicted) -> str:
        self.predicted = item
        widgets.allow(self.files[:1])
        at, none = np.arange(1, len(item.mean0) + 1), np.zeros(len(item.mean0))
        self.mean.set("infinite", at - _APART, item.mean0, none)
        self.spread.set("infinite", at - _APART, item.spread0, none)
        if item.mean is not None:
            self.mean.set("finite", at, item.mean, none)
            self.spread.set("finite", at, item.spread, none)
        return self._remark()

    def _remark(self) -> str:
        found = self.predicted
        if found is None:
            return ""
        if found.why:
            return f"Infinite width only: {found.why}"
        return f"The 1/n term changes a variance by up to {100 * found.strength:.2g} %: {regime_of(found.strength)}."
