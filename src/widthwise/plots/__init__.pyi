"""The figures: every name once, with the module it lives in."""

from widthwise.plots.agreement import plot_agreement as plot_agreement
from widthwise.plots.couplings import plot_running as plot_running
from widthwise.plots.densities import plot_output_density as plot_output_density
from widthwise.plots.depth import plot_depth as plot_depth
from widthwise.plots.kernels import plot_flow as plot_flow
from widthwise.plots.kernels import plot_spectrum as plot_spectrum
from widthwise.plots.phases import plot_phase as plot_phase
from widthwise.plots.rates import plot_learning_rates as plot_learning_rates
from widthwise.plots.style import save_figure as save_figure
from widthwise.plots.style import svg_text as svg_text
from widthwise.plots.training import plot_learning_curves as plot_learning_curves
from widthwise.plots.training import plot_predictions as plot_predictions
