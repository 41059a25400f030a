"""The page of the explorer in real Chromium: what visitors see, move, run and download."""

import os
import sys
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

import widthwise as ww

pytest.importorskip("panel")

from widthwise.explorer.settings import TABS

sys.path.insert(0, str(Path(__file__).parent / "browser"))
from accessibility import axe, violations
from explorer_session import Visitor


@pytest.fixture
def visit(browser, server):
    visitors = []

    def open_page(query: str = "", width: int = 1280, scheme: str = "light") -> Visitor:
        visitors.append(Visitor(browser, server[0], query, width, scheme))
        return visitors[-1]

    yield open_page
    for visitor in visitors:
        assert visitor.errors == []
        host = server[0].removeprefix("http://")
        outside = [
            url for url in visitor.requests if not url.startswith((f"http://{host}", f"ws://{host}", "data:", "blob:"))
        ]
        assert outside == []
        visitor.close()


SMALL = "?activation=relu&C_W=2&C_b=0&depth=4&width=32"


def test_the_page_loads_and_a_slider_moves_the_curve(visit):
    visitor = visit(SMALL)
    assert np.allclose(visitor.data("kernel:aa")["y"], 2.0)
    chart = visitor.page.locator(".bk-Figure").first
    before = chart.screenshot()
    handle = visitor.page.locator(".slider-C_W").locator(".noUi-handle")
    handle.focus()
    for _ in range(5):
        handle.press("ArrowRight")
    visitor.wait_for_data("kernel:aa", "Math.abs(data.y[1] - 2.05 * 1.025) < 1e-9")
    assert visitor.box("Weight variance C_W").input_value() == "2.05"
    visitor.page.wait_for_function("() => location.search.includes('C_W=2.05')")
    assert chart.screenshot() != before
    visitor.page.get_by_text("Critical for this activation").wait_for()


#: Types a number and resolves, in milliseconds, when the curve that follows from it has been drawn.
UNTIL_DRAWN = """text => new Promise(done => {
    const models = [...Bokeh.documents[0]._all_models.values()];
    const box = models.find(one => (one.title || one.label) === "Weight variance C_W" && "value" in one);
    const curve = models.find(one => one.name === "kernel:aa"), start = performance.now();
    const drawn = () => {
        curve.properties.data.change.disconnect(drawn);
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
    };
    curve.properties.data.change.connect(drawn);
    box.value = text;
})"""


@pytest.mark.full
def test_a_page_opens_within_3_s_and_a_slider_is_drawn_within_300_ms(visit):
    """By the clock of the browser, which counts the time of other programs too: on busy cores there is nothing to see."""
    if os.getloadavg()[0] > 0.8 * (os.cpu_count() or 1):
        pytest.skip(f"needs idle cores; the load is {os.getloadavg()[0]:.1f}")
    visit()  # compiles what the start needs
    start = time.monotonic()
    page = visit().page
    assert time.monotonic() - start < 3.0
    values = np.random.default_rng(0).uniform(0.3, 1.9, 60)
    taken = [page.evaluate(UNTIL_DRAWN, f"{value:.4f}") for value in values]
    print(f"slider to picture, ms: median {np.median(taken):.0f}, 95 % {np.percentile(taken, 95):.0f}")
    assert np.percentile(taken[10:], 95) < 300.0


def test_a_skip_moves_the_curves_and_the_critical_line(visit):
    visitor = visit("?activation=tanh&C_W=0.36&C_b=0&depth=6&width=32&skip=residual&gamma=0.8")
    before = visitor.data("kernel:aa")["y"]
    assert before[1] > 0.64 * 0.36  # a plain layer would add C_W⟨σ²⟩ < 0.36² alone
    assert np.allclose(visitor.data("phase:critical")["x"], 0.36)
    visitor.type("Skip γ", "0.6")
    visitor.wait_for_data("phase:critical", "Math.abs(data.x[0] - 0.64) < 1e-9")
    assert visitor.data("kernel:aa")["y"][1] < before[1]


def test_a_permalink_restores_the_state(visit):
    visitor = visit("?activation=linear&C_W=1.25&C_b=0.5&depth=3&angle=90&size_b=4")
    assert np.allclose(visitor.data("kernel:aa")["y"], [1.75, 2.6875, 3.859375])
    assert np.allclose(visitor.data("kernel:bb")["y"][0], 5.5)
    assert visitor.page.get_by_label("Activation σ").input_value() == "linear"
    assert "C_W=1.25" in visitor.page.get_by_text("Link to this state").get_attribute("href")


def test_an_invalid_value_is_explained_in_the_page(visit):
    hostile = "<img src=x onerror=document.title=1>"
    visitor = visit(f"?activation=linear&depth=1000&C_b={quote(hostile)}&{quote('<b>colour')}=1")
    alert = visitor.page.get_by_role("alert")
    assert alert.inner_text().startswith(
        "Part of the link is not valid. depth: got '1000'; expected a whole number from 2 to 50. "
        f"C_b: got '{hostile}'; expected a number from 0 to 2. link: got '<b>colour'; expected one of C_W"
    )
    for label in ("Weight variance C_W", "Depth L (weight layers)"):
        visitor.type(label, hostile)
        visitor.page.get_by_text(f"got '{hostile}'; expected a").wait_for()
        assert visitor.page.locator("img[src=x]").count() == 0
    assert visitor.page.title() == "widthwise explorer"
    assert "Traceback" not in visitor.page.content()
    visitor.type("Weight variance C_W", "1.5")
    alert.wait_for(state="detached")


def test_a_measurement_runs_stops_and_downloads(visit, tmp_path):
    visitor = visit(SMALL + "&networks=100000")
    with visitor.page.expect_download() as theory:
        visitor.button("Theory (CSV)").click()
    theory.value.save_as(tmp_path / "theory.csv")
    lines = (tmp_path / "theory.csv").read_text().splitlines()
    assert lines[1] == "name,index,value"
    (value,) = [line.rsplit(",", 1)[1] for line in lines if line.startswith("K,layer=4 a=0 b=0")]
    assert float(value) == pytest.approx(2.0)
    with visitor.page.expect_download() as figure:
        visitor.button("Kernels (SVG)").click()
    figure.value.save_as(tmp_path / "kernels.svg")
    assert "<svg" in (tmp_path / "kernels.svg").read_text()
    visitor.page.get_by_text("Sampled networks", exact=True).click()
    visitor.button("Run").click()
    visitor.page.get_by_text("of 100,000 networks sampled").wait_for()
    visitor.wait_for_data("sampled_kernel:measured", "data.y.length == 4")
    visitor.button("Stop").click()
    visitor.page.get_by_text("Stopped.").wait_for()
    measured = visitor.data("sampled_kernel:measured")
    assert len(measured["y"]) == 4
    assert np.all(np.abs(np.array(measured["y"])[1:] - 2.0) < 6.0 * np.array(measured["error"])[1:])
    with visitor.page.expect_download() as sampled:
        visitor.button("Sampled (NetCDF)").click()
    sampled.value.save_as(tmp_path / "sampled.nc")
    kept = ww.load(tmp_path / "sampled.nc")
    assert 2 <= kept.attrs["networks"] < 100_000
    np.testing.assert_allclose(kept["K"].values[:, 0, 0], measured["y"])


def test_two_visitors_do_not_disturb_each_other_and_leave_nothing_behind(visit, server):
    one, other = visit(SMALL + "&networks=100000"), visit("?activation=linear&depth=3&C_W=1&C_b=0")
    before = other.data("kernel:aa")["y"]
    one.page.get_by_text("Sampled networks", exact=True).click()
    one.button("Run").click()
    one.page.get_by_text("of 100,000 networks sampled").wait_for()
    assert other.data("kernel:aa")["y"] == before
    other.type("Weight variance C_W", "0.5")
    other.wait_for_data("kernel:aa", "Math.abs(data.y[2] - 0.125) < 1e-12")
    assert one.box("Weight variance C_W").input_value() == "2"
    threads = Path(f"/proc/{server[1].pid}/task")
    during = len(list(threads.iterdir()))
    time.sleep(3.0)  # longer than the life of a session without its visitor
    assert len(list(threads.iterdir())) >= during
    one.page.close()
    end = time.monotonic() + 60.0
    # the run's thread and the page's own
    while len(list(threads.iterdir())) > during - 2:
        assert time.monotonic() < end, "the run goes on although its visitor has gone"
        time.sleep(0.2)


def test_trained_networks_appear_beside_their_prediction(visit):
    visitor = visit("?activation=linear&depth=2&width=16&points=2&trained=32&C_W=1&C_b=0.1")
    visitor.page.get_by_text("Trained networks", exact=True).click()
    visitor.button("Run").click()
    visitor.page.get_by_text("Done.").wait_for()
    measured, predicted = (visitor.data(f"trained_mean:{name}") for name in ("measured", "finite"))
    assert len(measured["y"]) == len(predicted["y"]) == 2
    assert np.all(np.abs(np.subtract(measured["y"], predicted["y"])) < 6.0 * np.array(measured["error"]))


def test_the_trained_tab_shows_curves_at_the_settings_of_the_start(visit):
    visitor = visit()
    visitor.page.get_by_text("Trained networks", exact=True).click()
    visitor.wait_for_data("function:infinite", "data.y.length == 24 && data.y.every(Number.isFinite)")
    band = visitor.data("function:infinite_band")
    assert np.all(np.array(band["upper"]) >= np.array(band["lower"]))
    assert len(visitor.data("function:data")["y"]) == 3


def test_a_telephone_sees_a_chart_first_in_one_column(visit):
    visitor = visit(SMALL, 390)
    assert not visitor.page.locator("#loading").is_visible()
    chart = visitor.page.locator(".bk-Figure").first.bounding_box()
    controls = visitor.box("Weight variance C_W").bounding_box()
    assert chart["y"] + 0.5 * chart["height"] < 844  # of a telephone's first screen
    assert chart["y"] < controls["y"]
    lefts = {round(box.bounding_box()["x"]) for box in visitor.page.locator(".bk-Figure").all()}
    assert len(lefts) == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(visit, width):
    visitor = visit(SMALL, width)
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width
    assert visitor.page.locator(".bk-Figure").count() == 7


LAB = "?activation=linear&tab=labs&lab=marchenko-pastur"


def test_a_lab_runs_in_the_page_and_its_figure_stays_for_others(visit, tmp_path):
    visitor = visit(LAB)
    visitor.page.get_by_text("Spectra of sample covariances").wait_for()
    assert visitor.button("Claims (CSV)").is_disabled()
    visitor.button("Run").click()
    visitor.page.locator("svg[aria-label^='Figure of the lab marchenko-pastur']").wait_for()
    visitor.page.get_by_text("Done. 6 of 6 experiments run.").wait_for()
    visitor.page.get_by_text("verdict: holds").wait_for()
    with visitor.page.expect_download() as claims:
        visitor.button("Claims (CSV)").click()
    claims.value.save_as(tmp_path / "claims.csv")
    rows = visitor.page.locator("tr", has=visitor.page.locator("td.long"))
    assert len((tmp_path / "claims.csv").read_text().splitlines()) == 1 + rows.count()
    # the same seeds give the same numbers: nobody needs to run it again
    other = visit(LAB)
    other.page.get_by_text("verdict: holds").wait_for()
    other.page.get_by_label("Lab", exact=True).select_option("catapult")
    other.page.get_by_text("A step beyond 2/λ_0").wait_for()
    other.page.get_by_text("verdict: holds").wait_for(state="detached")
    other.page.wait_for_function("() => location.search.includes('lab=catapult')")


def colours(visitor) -> tuple[str, str, str]:
    """Of the page, of its text, and of the first line of the first chart."""
    return visitor.page.evaluate(
        """() => {
            const body = getComputedStyle(document.body), models = [...Bokeh.documents[0]._all_models.values()];
            const glyph = models.find((model) => model.type === "GlyphRenderer" && model.data_source.name === "kernel:aa");
            return [body.backgroundColor, body.color, glyph.glyph.line_color.value];
        }"""
    )


LIGHT, DARK = ["rgb(255, 255, 255)", "rgb(31, 35, 40)", "#0b4f8a"], ["rgb(27, 31, 36)", "rgb(230, 232, 235)", "#7cc0ff"]


def test_the_page_and_its_charts_are_light_or_dark_as_the_system_or_the_switch_says(visit):
    assert colours(visit(SMALL)) == LIGHT
    visitor = visit(SMALL, scheme="dark")
    assert colours(visitor) == DARK
    visitor.page.get_by_label("Colours").select_option("light")
    assert colours(visitor) == LIGHT
    visitor.page.reload()
    visitor.page.get_by_text("Theory in").wait_for()
    assert colours(visitor) == LIGHT  # a choice is kept
    visitor.page.get_by_label("Colours").select_option("system")
    assert colours(visitor) == DARK
    visitor.page.emulate_media(color_scheme="light")
    visitor.page.wait_for_function("() => document.documentElement.dataset.shown === 'light'")
    assert colours(visitor) == LIGHT


def test_charts_of_a_tab_that_is_opened_later_are_dark_too(visit):
    visitor = visit(SMALL, scheme="dark")
    visitor.page.get_by_text("Sampled networks", exact=True).click()
    visitor.page.wait_for_function(
        """() => [...Bokeh.documents[0]._all_models.values()].some((model) => model.type === "GlyphRenderer" &&
            model.data_source.name === "sampled_kernel:infinite" && model.glyph.line_color.value === "#7cc0ff")"""
    )
    visitor.wait_for_data("sampled_kernel:infinite", "data.y.length === 4")  # theory is there before a run


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", TABS)
def test_nothing_on_the_page_is_seriously_inaccessible(visit, tab, scheme):
    script = axe()
    visitor = visit(f"{SMALL}&tab={tab}", scheme=scheme)
    visitor.page.locator(".slider-C_W [role=slider][aria-label]").wait_for()
    assert violations(visitor.page, script) == []
    visitor.page.evaluate("document.body.style.setProperty('color', 'light-dark(#eeeeee, #222222)')")
    assert any("color-contrast" in one for one in violations(visitor.page, script))  # pale words would be found
