"""The tab that trains real networks and lays them over the prediction (theory §8)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import panel as pn

from widthwise.explorer.charts import Chart
from widthwise.explorer.downloads import netcdf, table
from widthwise.explorer.ensembles import Predicted, Trained, prediction, task_of, train
from widthwise.explorer.layout import allow, download, grid
from widthwise.explorer.runs import RunTab
from widthwise.explorer.settings import Settings

#: Dots of the three kinds stand beside each other.
_APART = 0.12
_WORDS = (
    "Networks with the variances, rates, depth and width of the sliders are trained to convergence on ½Σ(z − y)² over "
    "the training inputs of a data set; each then has an output at every test input. Inputs a and b play no part here."
)


class TrainingTab(RunTab):
    """Mean and spread of trained outputs at the test inputs."""

    total, verb = "trained", "trained"

    def __init__(self, *given):
        super().__init__(*given)
        self.predicted: Predicted | None = None
        self.latest: Trained | None = None
        self.mean = Chart("trained_mean", "Mean of the trained outputs", "test input (number)", "mean output",
                          whole=True)  # fmt: skip
        self.spread = Chart("trained_spread", "Spread of the trained outputs", "test input (number)",
                            "standard deviation over networks", whole=True)  # fmt: skip
        for chart in (self.mean, self.spread):
            chart.points("infinite", "predicted, infinite width", 0)
            chart.points("finite", "predicted, to order 1/n", 1)
            chart.points("measured", "trained ± 1 s.e.", 2)
        self.files = (
            download("Predicted (NetCDF)", "predicted.nc", lambda: netcdf(self._done(self.predicted).dataset)),
            download("Trained (CSV)", "trained.csv", lambda: table(self._done(self.latest).dataset())),
            download("Trained (NetCDF)", "trained.nc", lambda: netcdf(self._done(self.latest).dataset())),
        )
        files = pn.FlexBox(*self.files, sizing_mode="stretch_width")
        words = pn.pane.HTML(_WORDS, sizing_mode="stretch_width", margin=(0, 10))
        self.view = pn.Column(
            words, self.head, grid(self.mean.figure, self.spread.figure), files, sizing_mode="stretch_width"
        )

    def items(self, settings: Settings) -> Iterator[Predicted | Trained]:
        task = task_of(settings)
        for chart in (self.mean, self.spread):
            chart.clear("infinite", "finite", "measured")
        self.predicted = self.latest = None

        def run():
            yield prediction(task)
            yield from train(task, settings.trained, settings.seed)

        return run()

    def draw(self, item: Predicted | Trained) -> str:
        if isinstance(item, Predicted):
            return self._draw_prediction(item)
        self.latest = item
        allow(self.files[1:])
        at = np.arange(1, len(item.mean.value) + 1) + _APART
        self.mean.set("measured", at, *item.mean)
        self.spread.set("measured", at, *item.spread)
        late = f" {item.unconverged} did not converge." if item.unconverged else ""
        return self._remark() + late

    def _draw_prediction(self, item: Predicted) -> str:
        self.predicted = item
        allow(self.files[:1])
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
        size = f"The 1/n term changes a variance by up to {100 * found.strength:.2g} %."
        return size + (" That is not small: widen the network, or make it shallower." if found.strength > 0.5 else "")

    def _done(self, found):
        assert found is not None, "the buttons are off until then"
        return found
