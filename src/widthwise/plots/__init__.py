"""Figures of theory and measurement, in one look that stays readable in grey.

Every `plot_…` returns a matplotlib Figure; `save_figure` writes it. `ds.ww.plot_…` on a Dataset of the library calls
the same functions. matplotlib is imported when a figure is first asked for.
"""

from widthwise import lazy
from widthwise.plots import accessor as _accessor  # noqa: F401  registers ds.ww

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
