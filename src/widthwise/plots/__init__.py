"""Figures of theory and measurement, in one look that stays readable in grey."""

from widthwise.plots.kernels import plot_agreement, plot_flow

__all__ = ["plot_agreement", "plot_flow"]
