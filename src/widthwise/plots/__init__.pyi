"""The figures: every name once, with the module it lives in."""

from widthwise.plots.comparisons import plot_agreement as plot_agreement
from widthwise.plots.comparisons import plot_flow as plot_flow
from widthwise.plots.comparisons import plot_learning_curves as plot_learning_curves
from widthwise.plots.comparisons import plot_predictions as plot_predictions
from widthwise.plots.comparisons import plot_spectrum as plot_spectrum
from widthwise.plots.criticality import plot_depth as plot_depth
from widthwise.plots.criticality import plot_learning_rates as plot_learning_rates
from widthwise.plots.criticality import plot_phase as plot_phase
from widthwise.plots.densities import plot_output_density as plot_output_density
from widthwise.plots.densities import plot_running as plot_running
from widthwise.plots.functions import TrainedFunctions as TrainedFunctions
from widthwise.plots.functions import plot_functions as plot_functions
from widthwise.plots.functions import trained_functions as trained_functions
from widthwise.plots.style import save_figure as save_figure
from widthwise.plots.style import svg_text as svg_text
from widthwise.plots.style import web_svg as web_svg
from widthwise.plots.trained import plot_cumulants as plot_cumulants
from widthwise.plots.trained import plot_drawn_functions as plot_drawn_functions
from widthwise.plots.trained import plot_trained_density as plot_trained_density
