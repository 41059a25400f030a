"""`ds.ww.plot_…`: the figures of a Dataset from the Dataset itself."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import xarray as xr

from widthwise.errors import InvalidInput

#: Which figure `ds.ww.plot()` draws, by what made the Dataset.
_BY_KIND = {
    "theory": "plot_flow",
    "measure": "plot_flow",
    "single input": "plot_depth",
    "predict": "plot_predictions",
    "posterior": "plot_predictions",
    "train": "plot_predictions",
    "phase diagram": "plot_phase",
    "learning curves": "plot_learning_curves",
    "trained_density": "plot_trained_density",
}


@xr.register_dataset_accessor("ww")
class Figures:
    """Figures of a Dataset made by widthwise: `ds.ww.plot()` draws the one that suits it, `ds.ww.plot_…` a chosen one.

    >>> import widthwise as ww
    >>> ds = ww.theory(ww.MLP([2, 8, 8, 1], "tanh", C_W=1.5), [[0.5, 1.0]])
    >>> ds.ww.kind, [name for name in dir(ds.ww) if "spectrum" in name]
    ('theory', ['plot_spectrum'])
    """

    def __init__(self, dataset: xr.Dataset):
        self._dataset = dataset

    @property
    def kind(self) -> str:
        """What made the Dataset: theory, measure, single input, predict, posterior, train, phase diagram."""
        if "kind" in self._dataset.attrs:
            return str(self._dataset.attrs["kind"])
        return "phase diagram" if "chi_perp" in self._dataset else ""

    def plot(self, *arguments: Any, **options: Any) -> Any:
        """The figure that suits the Dataset; arguments as in the function that draws it."""
        if self.kind not in _BY_KIND:
            raise InvalidInput("dataset", f"one of kind {self.kind!r}", "a Dataset of " + ", ".join(_BY_KIND))
        first = (None, self._dataset) if self.kind == "train" else (self._dataset,)
        return self._draw(_BY_KIND[self.kind], *first, *arguments, **options)

    def plot_flow(self, measurement: xr.Dataset | None = None) -> Any:
        return self._draw("plot_flow", self._dataset, measurement)

    def plot_spectrum(self, measurement: xr.Dataset | None = None) -> Any:
        return self._draw("plot_spectrum", self._dataset, measurement)

    def plot_agreement(self, measurement: xr.Dataset) -> Any:
        return self._draw("plot_agreement", self._dataset, measurement)

    def plot_depth(self) -> Any:
        return self._draw("plot_depth", self._dataset)

    def plot_phase(self, net: Any = None) -> Any:
        return self._draw("plot_phase", self._dataset, net)

    def plot_predictions(self, measurement: xr.Dataset | None = None) -> Any:
        return self._draw("plot_predictions", self._dataset, measurement)

    def plot_learning_curves(self, measurement: xr.Dataset | None = None) -> Any:
        return self._draw("plot_learning_curves", self._dataset, measurement)

    def plot_cumulants(self, measurement: xr.Dataset | None = None) -> Any:
        return self._draw("plot_cumulants", self._dataset, measurement)

    def plot_trained_density(self) -> Any:
        return self._draw("plot_trained_density", self._dataset)

    def _draw(self, name: str, *arguments: Any, **options: Any) -> Any:
        return getattr(import_module("widthwise.plots"), name)(*arguments, **options)


@xr.register_dataarray_accessor("ww")
class FunctionFigures:
    """`drawn.ww.plot(x)`: the figure of functions that `sample_prior` or `sample_posterior` drew.

    >>> import widthwise as ww
    >>> drawn = ww.sample_prior(ww.MLP([1, 8, 1], "relu", C_W=2.0), [[1.0], [2.0]], draws=50)
    >>> drawn.ww.plot([1.0, 2.0]).axes[0].get_title(loc="left")
    'prior, infinite width'
    """

    def __init__(self, drawn: xr.DataArray):
        self._drawn = drawn

    def plot(self, x: Any = None, output: int = 0) -> Any:
        return getattr(import_module("widthwise.plots"), "plot_drawn_functions")(self._drawn, x, output)  # noqa: B009
