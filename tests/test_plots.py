"""Figures show what they should and leave the user's settings alone."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import widthwise as ww
from widthwise.plots import plot_agreement, plot_flow

NET = ww.MLP([2, 16, 16, 1], "tanh", C_W=1.5)
X = [[1.0, 0.5], [-0.3, 0.8], [2.0, 0.1]]


def test_the_flow_figure_holds_the_kernels():
    th, ms = ww.theory(NET, X), ww.measure(NET, X, networks=20)
    before = dict(plt.rcParams)
    figure = plot_flow(th, ms)
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    assert np.allclose(lines[1].get_ydata(), th["K"].values[:, 1, 1])
    assert figure.axes[1].get_xlabel() == "layer"
    assert dict(plt.rcParams) == before
    plt.close(figure)


def test_the_agreement_figure_divides_measured_by_predicted():
    th, ms = ww.theory(NET, X), ww.measure(NET, X, networks=20)
    figure = plot_agreement(th, ms)
    drawn = np.sort(figure.axes[0].containers[0][0].get_ydata())
    ratio = (ms["K"].values / th["K"].values[-1:])[0][np.triu_indices(3)]
    assert np.allclose(drawn, np.sort(ratio))
    plt.close(figure)


def test_figures_are_saved_as_vectors(tmp_path):
    figure = plot_flow(ww.theory(NET, X))
    figure.savefig(tmp_path / "flow.svg")
    assert "<svg" in (tmp_path / "flow.svg").read_text()
    plt.close(figure)
