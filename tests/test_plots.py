"""Figures show what they should, in one look, and leave the user's settings alone."""

from itertools import combinations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import widthwise as ww
from widthwise import plots
from widthwise.errors import InvalidInput
from widthwise.plots.style import COLOURS, DARK, INK, LINES, MARKERS, PAPER, look, marks, narrow, style, web_svg

NET = ww.MLP([2, 16, 16, 1], "tanh", C_W=1.5)
X = [[1.0, 0.5], [-0.3, 0.8], [2.0, 0.1]]


@pytest.fixture(scope="module")
def kernels():
    return ww.theory(NET, X), ww.measure(NET, X, networks=20)


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_the_flow_figure_holds_the_kernels(kernels):
    th, ms = kernels
    before = dict(plt.rcParams)
    figure = plots.plot_flow(th, ms)
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    assert np.allclose(lines[1].get_ydata(), th["K"].values[:, 1, 1])
    assert figure.axes[1].get_xlabel() == "layer"
    assert dict(plt.rcParams) == before


def test_the_agreement_figure_subtracts_what_is_predicted_at_the_width(kernels):
    th, ms = ww.theory(NET, X, order=1, tensors=["K", "G1"]), kernels[1]
    figure = plots.plot_agreement(th, ms)
    drawn = np.sort(figure.axes[0].containers[0][0].get_ydata())
    predicted = th["K"].values[-1] + th["G1"].values[-1] / 16
    difference = (ms["K"].values[-1] - predicted)[np.triu_indices(3)]
    assert np.allclose(drawn, np.sort(difference))
    assert not np.allclose(drawn, np.sort((ms["K"].values[-1] - th["K"].values[-1])[np.triu_indices(3)]))


def test_the_spectrum_is_that_of_the_output(kernels):
    drawn = plots.plot_spectrum(kernels[0]).axes[0].lines[0].get_ydata()
    assert np.allclose(drawn, np.linalg.eigvalsh(kernels[0]["Theta"].values[-1])[::-1])


def test_laws_of_large_depth_meet_the_recursion_at_criticality_and_not_elsewhere():
    deep = [1] + [64] * 999 + [1]
    figure = plots.plot_depth(ww.single_input(ww.MLP(deep, "tanh"), [1.0], tensors=["K", "V"]))
    for axis in figure.axes:
        exact, law = (line.get_ydata() for line in axis.lines)
        assert abs(exact[-1] / law[-1] - 1.0) < 0.03
        assert abs(exact[9] / law[9] - 1.0) > 0.03  # ten layers are not many
    off = plots.plot_depth(ww.single_input(ww.MLP(deep, "tanh", C_W=1.5, C_b=0.05), [1.0], tensors=["K", "V"]))
    assert "fixed point" in off.get_suptitle()
    assert [len(axis.lines) for axis in off.axes] == [2, 1]  # V has no law there
    exact, law = (line.get_ydata() for line in off.axes[0].lines)
    assert abs(exact[-1] - law[-1]) < 1e-9


def test_ratios_are_grey_from_where_finite_width_effects_are_called_large():
    deep = ww.single_input(ww.MLP([1] + [64] * 19 + [1], "relu", C_W=2.0), [1.0], tensors=["V"])
    figure = plots.plot_depth(deep)
    ratio, shaded = figure.axes[1], [axis.patches for axis in figure.axes]
    assert [len(areas) for areas in shaded] == [0, 1]
    low = ratio.transData.inverted().transform(shaded[1][0].get_window_extent().p0)[1]
    assert low == pytest.approx(0.1 * 64)  # V/K² = 5(l − 1)
    assert "1/n is not small" in figure.get_suptitle()
    wide = plots.plot_depth(ww.single_input(ww.MLP([1] + [4096] * 19 + [1], "relu", C_W=2.0), [1.0], tensors=["V"]))
    assert not any(axis.patches for axis in wide.axes)


def test_the_phase_diagram_shows_the_critical_point_and_the_network():
    ds = ww.phase_diagram("tanh", np.linspace(0.5, 3.0, 26), np.linspace(0.0, 0.5, 11))
    axis = plots.plot_phase(ds, NET).axes[0]
    points = {line.get_label(): line.get_xydata() for line in axis.lines}
    assert points["critical point"].tolist() == [[1.0, 0.0]]
    assert points["this network"].tolist() == [[1.5, 0.0]]
    _, C_W, C_b = ww.criticality.critical_line("tanh")
    assert np.allclose(points[r"$\chi_\perp = 1$"], np.stack([C_W, C_b], axis=1))
    words = {text.get_text() for text in axis.texts}
    assert {"ordered", "chaotic"} <= words


def test_the_exact_density_meets_the_histogram_where_the_gaussian_does_not():
    narrow_net = ww.MLP([2, 4, 4, 1], "relu", C_W=2.0)
    left = plots.plot_output_density(narrow_net, [1.0, 1.0], networks=4000, seed=1).axes[0]
    bars = left.containers[0]
    z, seen = bars[0].get_data()
    error = np.array([np.ptp(segment[:, 1]) / 2 for segment in bars[2][0].get_segments()])
    curves = {line.get_label(): line for line in left.lines if line.get_label()[0] != "_"}
    away = (np.abs(z) > 0.5) & (error < 0.2 * seen)  # at zero the density is singular, far out counts are few

    def chi_square(name):
        values = np.interp(z, *curves[name].get_data())
        return float(np.mean(((seen - values) / error)[away] ** 2))

    assert chi_square("exact at this width") < 2.5
    assert chi_square("Gaussian, infinite width") > 10.0


def test_couplings_and_rates_show_their_numbers():
    left, right = plots.plot_running(NET, X[0]).axes
    made = ww.couplings(NET.up_to(3, 32), [X[0]])
    assert np.allclose(left.lines[1].get_ydata(), made.running()[1][:, 0, 0] * made.K[0, 0])
    assert right.lines[0].get_ydata()[0] == 0.0
    rates = ww.criticality.equalise(NET, X)
    left, right = plots.plot_learning_rates(rates).axes
    assert left.lines[1].get_ydata().tolist() == list(rates.lambda_W)
    assert np.allclose([bar.get_height() for bar in right.containers[1]], rates.after.layers)


def test_predictions_show_mean_and_deviation():
    p = ww.predict(NET, X[:2], [1.0, -1.0], X[2:])
    left, right = plots.plot_predictions(p).axes
    assert left.containers[0][0].get_ydata()[0] == pytest.approx(float(p["mean"][0, 0]))
    assert right.containers[0][0].get_ydata()[0] == pytest.approx(float(p["cov"][0, 0, 0, 0]) ** 0.5)


def test_a_dataset_draws_itself(kernels, tmp_path):
    th, ms = kernels
    assert len(th.ww.plot().axes) == 2
    assert len(ms.ww.plot().axes) == 2
    assert len(th.ww.plot_agreement(ms).axes) == 2
    assert th.ww.plot_spectrum(ms).axes[0].get_ylabel() == "eigenvalue"
    phases = ww.phase_diagram("relu", [1.0, 2.0, 3.0], [0.0, 0.1])
    assert phases.ww.plot(NET).axes[0].get_xlabel() == "$C_W$"
    assert ww.load(ww.save(th, tmp_path / "x.nc")).ww.kind == "theory"
    with pytest.raises(InvalidInput, match="kind 'expected_error'"):
        ww.expected_error(NET, X[:2], [1.0, -1.0], X[2:], [0.0]).ww.plot()


def test_colours_differ_in_grey_and_curves_differ_without_colour():
    grey = sorted(float(np.dot(to_rgb(c), (0.299, 0.587, 0.114))) for c in COLOURS)
    assert np.diff(grey).min() > 0.08
    assert len(set(LINES)) == len(set(MARKERS)) == 4
    assert len({tuple(style(i).values()) for i in range(16)}) == 16
    assert len({tuple(marks(i).values()) for i in range(16)}) == 16


#: Linear RGB as people without one kind of cone see it (Machado, Oliveira and Fernandes 2009), and as others do.
COLOUR_VISION = {
    "all cones": np.eye(3),
    "no long cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no middle cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no short cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lightness_and_hue(colour, seen_through):
    """CIE L*a*b* of a colour as seen with these cones."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ np.clip(np.asarray(seen_through) @ linear, 0.0, 1.0) / to_xyz.sum(axis=1)
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def least_difference(colours):
    """The smallest distance between two of the colours, in units of which 2 can just be seen, for any eyes."""
    return min(
        np.linalg.norm(lightness_and_hue(one, cones) - lightness_and_hue(other, cones))
        for cones in COLOUR_VISION.values()
        for one, other in combinations(colours, 2)
    )


def test_the_colour_blind_tell_curves_apart_on_light_and_on_dark_pages():
    assert least_difference(COLOURS) > 25.0
    assert least_difference([DARK[colour] for colour in COLOURS]) > 20.0
    assert least_difference(["#2ca02c", "#d62728"]) < 20.0  # the usual green and red


def test_a_figure_for_the_web_follows_the_reader_into_the_dark(kernels):
    drawn = web_svg(plots.plot_flow(kernels[0]))
    assert "prefers-color-scheme: dark" in drawn
    for colour in (COLOURS[0], INK, PAPER):
        assert f"var(--ww-{colour[1:]}, {colour})" in drawn
        assert f": {colour}" not in drawn  # nothing keeps a colour of the light page


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_the_regions_of_the_phase_diagram_end_at_the_critical_line(name):
    """The border between the areas lies on χ = 1, not on the nearest points of a coarse grid."""
    diagram = ww.phase_diagram(name, np.linspace(0.1, 3.0, 24), np.linspace(0.05, 0.5, 10))
    figure = plots.plot_phase(diagram)
    ordered = figure.axes[0].collections[0].get_paths()[0]
    for C_b in (0.13, 0.31):
        if name == "relu":
            C_W = 2.0
        else:
            _, line_W, line_b = ww.criticality.critical_line(name)
            C_W = float(np.interp(C_b, line_b, line_W))
        assert ordered.contains_point((C_W - 0.03, C_b))
        assert not ordered.contains_point((C_W + 0.03, C_b))  # the grid is four times as coarse


def test_figures_are_vectors_and_the_same_bytes_each_time(kernels, tmp_path):
    for suffix in ("svg", "pdf"):
        first, second = (plots.save_figure(plots.plot_flow(kernels[0]), tmp_path / f"{i}.{suffix}") for i in range(2))
        assert first.read_bytes() == second.read_bytes()
    assert "<svg" in (tmp_path / "0.svg").read_text()


def test_a_narrow_page_gets_panels_below_each_other(kernels):
    wide = plots.plot_flow(kernels[0])
    with narrow():
        slim = plots.plot_flow(kernels[0])
    assert slim.get_figwidth() < 0.6 * wide.get_figwidth()
    assert slim.get_figheight() > wide.get_figheight()
    with look():
        pass


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: plots.plot_depth(ww.theory(NET, X)), "a Dataset of widthwise.single_input"),
        (lambda: plots.plot_phase(ww.theory(NET, X)), "a Dataset of phase_diagram"),
        (lambda: plots.plot_predictions(None), "Datasets of predict, posterior or train"),
        (lambda: plots.plot_learning_curves(ww.theory(NET, X)), r"mean on \(step, output, test\)"),
    ],
    ids=["depth", "phase", "predictions", "curves"],
)
def test_a_figure_of_the_wrong_dataset_is_refused(draw, said):
    with pytest.raises(InvalidInput, match=said):
        draw()


class TestTrained:
    """Figures of what training leaves open: density, cumulants, drawn functions."""

    DATA = ([[-1.0], [1.0]], [0.5, 0.7])
    WIDE = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5)

    def test_the_density_is_divided_by_the_gaussian_on_the_right(self):
        d = ww.trained_density(self.WIDE, *self.DATA, [0.3])
        left, right = d.ww.plot().axes
        assert np.allclose(left.lines[0].get_ydata(), d["density"])
        z = right.lines[0].get_xdata()
        assert np.allclose(right.lines[0].get_ydata(), (d["density"] / d["gaussian"]).sel(z=z))
        assert np.allclose(right.lines[1].get_ydata(), 1.0)

    def test_cumulants_stand_beside_those_of_networks(self):
        p = ww.predict(self.WIDE, *self.DATA, [[0.3], [2.0]], cumulants=4)
        t = ww.train(self.WIDE, *self.DATA, [[0.3], [2.0]], networks=8, progress=False)
        figure = p.ww.plot_cumulants(t)
        for axis, name in zip(figure.axes, ("kappa3", "kappa4"), strict=True):
            assert np.allclose(axis.lines[1].get_ydata(), p[name][0])
            assert np.allclose(axis.containers[0][0].get_ydata(), t[name][0])
        with pytest.raises(InvalidInput, match=r"no kappa3 in one of them; expected Datasets of predict\(cumulants"):
            plots.plot_cumulants(ww.predict(self.WIDE, *self.DATA, [[0.3]]))

    def test_bands_hold_their_share_of_drawn_functions(self):
        x = np.array([1.0, -1.0, 0.0])
        drawn = ww.sample_prior(self.WIDE, x[:, None], draws=300, order=1)
        axis = drawn.ww.plot(x).axes[0]
        assert np.allclose(axis.lines[-1].get_ydata(), np.median(drawn.values[:, 0, [1, 2, 0]], axis=0))
        band = axis.collections[0].get_paths()[0].vertices
        at_zero = band[band[:, 0] == 0.0][:, 1]
        within = (drawn.values[:, 0, 2] >= at_zero.min()) & (drawn.values[:, 0, 2] <= at_zero.max())
        assert within.mean() == pytest.approx(0.95, abs=0.01)
        for bad, message in (({"x": [1.0]}, "x: got 1 numbers"), ({"output": 1}, "output: got 1")):
            with pytest.raises(InvalidInput, match=message):
                plots.plot_drawn_functions(drawn, **bad)
