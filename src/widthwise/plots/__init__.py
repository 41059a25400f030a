"""Figures of theory and measurement, in one look that stays readable in grey.

Every `plot_…` returns a matplotlib Figure; `save_figure` writes it. `ds.ww.plot_…` on a Dataset of the library calls
the same functions. matplotlib is imported when a figure is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from widthwise.lazy import attribute
from widthwise.plots import accessor as _accessor  # noqa: F401  registers ds.ww

if TYPE_CHECKING:
    from widthwise.plots.agreement import plot_agreement
    from widthwise.plots.couplings import plot_running
    from widthwise.plots.densities import plot_output_density
    from widthwise.plots.depth import plot_depth
    from widthwise.plots.kernels import plot_flow, plot_spectrum
    from widthwise.plots.phases import plot_phase
    from widthwise.plots.rates import plot_learning_rates
    from widthwise.plots.style import save_figure, svg_text
    from widthwise.plots.training import plot_learning_curves, plot_predictions

_HOME = {
    "plot_agreement": "agreement",
    "plot_depth": "depth",
    "plot_flow": "kernels",
    "plot_learning_curves": "training",
    "plot_learning_rates": "rates",
    "plot_output_density": "densities",
    "plot_phase": "phases",
    "plot_predictions": "training",
    "plot_running": "couplings",
    "plot_spectrum": "kernels",
    "save_figure": "style",
    "svg_text": "style",
}

__all__ = [
    "plot_agreement",
    "plot_depth",
    "plot_flow",
    "plot_learning_curves",
    "plot_learning_rates",
    "plot_output_density",
    "plot_phase",
    "plot_predictions",
    "plot_running",
    "plot_spectrum",
    "save_figure",
    "svg_text",
]


def __getattr__(name: str):
    globals()[name] = value = attribute(__name__, _HOME, name)
    return value
