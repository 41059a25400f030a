"""The explorer: its numbers are the library's, its links restore, its jobs stop; and the page in real Chromium."""

import asyncio
import os
import sys
import threading
import time
from dataclasses import replace
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import InvalidInput, TooLarge, UnknownName

pytest.importorskip("panel")

from bokeh.document import Document
from bokeh.events import DocumentReady
from bokeh.server.server import Server as BokehServer
from bokeh.util.token import generate_jwt_token
from compilations import counting
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.ioloop import IOLoop

from widthwise.criticality.phase_diagram import critical_line
from widthwise.explorer import jobs
from widthwise.explorer.door import LARGEST_MESSAGE, MOST_FRAGMENTS, guard
from widthwise.explorer.ensembles import check_size, prediction, sample, task_of, train_batches
from widthwise.explorer.jobs import MOST_JOBS, Housekeeper, Job, Latest, Share, Turns
from widthwise.explorer.server import Page, warm
from widthwise.explorer.settings import CONTROLS, PAGE_ACTIVATIONS, PRESETS, Settings
from widthwise.explorer.theory import (
    DRAWN_TENSORS,
    advice_of,
    exact_density,
    pair_of,
    phases_of,
    precise_pair_of,
    theory_of,
)

sys.path.insert(0, str(Path(__file__).parent / "browser"))
from explorer_load import TOKEN, connected, heard, left, load, send
from explorer_session import PATIENCE


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "tanh", "depth": 4},
        {"activation": "relu", "C_W": 2.0, "depth": 7, "width": 100},
    ],
    ids=lambda c: c["activation"],
)
def test_the_curves_are_those_of_the_library(changes):
    settings = replace(Settings(), **changes)
    found = theory_of(settings)
    kernels = ww.theory(settings.network(), settings.inputs)
    pair = precise_pair_of(found).dataset()
    for name, own in (("K", found.K), ("Theta", found.Theta)):
        np.testing.assert_allclose(pair[name].values, kernels[name].values, rtol=1e-12)
        np.testing.assert_allclose(own, np.diagonal(kernels[name].values, axis1=1, axis2=2), rtol=1e-11)
    single = ww.single_input(settings.network(), settings.inputs[0], tensors=list(DRAWN_TENSORS))
    for name in DRAWN_TENSORS:
        np.testing.assert_allclose(found.ratios[name], single[f"{name}_ratio"].values, rtol=1e-9, atol=1e-12)
    density = ww.output_density(settings.network(), settings.inputs[:1])
    np.testing.assert_allclose(found.edgeworth, density.density(found.z), rtol=1e-7)


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "tanh", "C_W": 4.0, "size_a": 10.0, "angle": 3.0, "depth": 20},
        {"activation": "softplus", "C_W": 3.0, "C_b": 1.0, "depth": 7, "angle": 180.0},
    ],
    ids=lambda c: c["activation"],
)
def test_the_drawn_correlation_is_that_of_the_library_to_the_width_of_a_line(changes):
    found = theory_of(replace(Settings(), **changes))
    drawn, precise = pair_of(found), precise_pair_of(found)
    for name in ("K", "Theta"):
        np.testing.assert_allclose(drawn.correlation(name), precise.correlation(name), atol=1e-5)
        np.testing.assert_allclose(getattr(drawn, name), getattr(precise, name), rtol=1e-4)
    other = precise_pair_of(theory_of(replace(found.settings, C_W=1.01 * found.settings.C_W)))
    assert np.max(np.abs(drawn.correlation("K") - other.correlation("K"))) > 1e-4


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "tanh", "depth": 6, "width": 3},
        {"activation": "swish", "C_W": 2.0, "depth": 4, "width": 50},
        {"activation": "leaky_relu", "C_W": 2.0, "C_b": 0.5, "depth": 20, "width": 7},
    ],
    ids=lambda c: c["activation"],
)
def test_the_drawn_density_is_the_exact_one_to_the_width_of_a_line(changes):
    # with C_b = 0 the density of such deep networks is infinite at zero
    found = theory_of(replace(Settings(C_W=1.5, C_b=0.05), **changes))
    precise = ww.exact_law(found.net, found.settings.inputs[0]).density(found.z)
    height = precise.max()
    assert np.max(np.abs(exact_density(found) - precise)) < 1e-4 * height
    assert np.max(np.abs(found.edgeworth - precise)) > 1e-3 * height


@pytest.mark.parametrize(
    "changes",
    [{"activation": "tanh", "skip": "residual", "gamma": 0.8, "C_W": 0.6}, {"activation": "gelu", "skip": "pre-norm", "gamma": 1.0},
     {"activation": "relu", "skip": "residual", "gamma": 1.0}],
    ids=["tanh", "gelu", "relu"],
)  # fmt: skip
def test_curves_with_a_skip_are_those_of_the_library(changes):
    settings = replace(Settings(), depth=6, **changes)
    found = theory_of(settings)
    pair, kernels = pair_of(found), ww.theory(settings.network(), settings.inputs)
    for name in ("K", "Theta"):
        assert np.allclose(getattr(pair, name), kernels[name].values, rtol=1e-6)
        assert np.allclose(getattr(found, name)[:, 0], kernels[name].values[:, 0, 0], rtol=1e-6)
    # γ is seen
    other = pair_of(theory_of(replace(settings, gamma=0.5)))
    assert np.abs(other.K[2] / pair.K[2] - 1.0).max() > 0.05
    phases = phases_of(settings.activation, *settings.block)
    if settings.gamma < 1.0:
        assert pytest.approx(0.36) == phases.point.C_W
        assert np.abs(phases.line[0] / critical_line("tanh")[1][: len(phases.line[0])] - 0.36).max() < 1e-12
    else:
        assert (phases.grid.names == "divergent").all()
    with pytest.raises(
        InvalidInput, match="skip: got '(residual|pre-norm)'.*this page samples and trains plain networks"
    ):
        list(sample(settings, 1.0))


def test_the_advice_is_that_of_the_library():
    settings = Settings(activation="tanh", depth=6, width=32, C_W=3.0)
    quick, full = advice_of(settings), ww.advise(settings.network(), settings.inputs)
    assert quick.learning_rate == pytest.approx(full.learning_rate, rel=1e-6)
    assert quick.text == full.text


def test_a_slider_compiles_nothing_where_the_structure_stays():
    """Numbers of a network are traced. Theory is compiled for an activation, samples for depth and width as well."""

    def show(settings):
        found = theory_of(settings)
        pair_of(found)
        exact_density(found)
        advice_of(settings)

    start = Settings(activation="tanh", depth=3, width=64, networks=128)
    show(start)
    list(sample(start, 1.0))
    rates = {"lambda_b": 0.2, "lambda_W": 0.4}
    for change in ({"C_W": 1.1}, {"C_b": 0.3}, {"size_a": 0.7}, {"size_b": 3.0}, {"angle": 20.0}, {"seed": 5}, rates):
        with counting() as programs:
            show(replace(start, **change))
            list(sample(replace(start, **change), 1.0))
        assert programs == [0], change
    with counting() as programs:
        show(replace(start, depth=17, width=100))
    assert programs == [0]
    with counting() as programs:
        list(sample(replace(start, width=8), 1.0))
    assert programs[0] > 0  # another width is another program: the count would be seen


@pytest.mark.full
def test_a_slider_is_answered_within_200_ms():
    """By processor time, which other programs on the machine do not lengthen; the median of random positions."""
    rng = np.random.default_rng(0)
    names = ("tanh", "relu", "gelu")
    warm(names)
    taken = []
    for _ in range(12):
        values = {"C_W": rng.uniform(0.1, 4.0), "C_b": rng.uniform(0.0, 2.0), "angle": rng.uniform(0.0, 180.0)}
        sizes = {"depth": int(rng.integers(2, 51)), "width": int(rng.integers(2, 1025))}
        settings = replace(Settings(), activation=str(rng.choice(names)), **values, **sizes)
        start = time.process_time()
        found = theory_of(settings)
        pair_of(found)
        if found.exploded is None:
            exact_density(found)
        advice_of(settings)
        taken.append(time.process_time() - start)
    assert np.median(taken) < 0.2


def test_the_densities_integrate_to_one_and_the_exact_one_differs_at_small_width():
    found = theory_of(Settings(activation="relu", C_W=2.0, C_b=0.1, depth=3, width=8))
    exact, step = exact_density(found), np.diff(found.z)[0]
    for density in (found.gaussian, found.edgeworth, exact):
        assert abs(step * density.sum() - 1.0) < 0.02
    assert abs(exact[len(exact) // 2] / found.gaussian[len(exact) // 2] - 1.0) > 0.05


def test_a_kernel_that_explodes_is_followed_up_to_there():
    found = theory_of(Settings(activation="softplus", C_W=4.0, C_b=2.0, depth=50))
    assert found.exploded is not None
    assert len(found.K) == found.exploded - 1 < 50
    assert np.all(found.K <= 1e4)


def test_links_restore_every_setting_and_refuse_what_is_wrong():
    settings = Settings(activation="gelu", C_W=1.98305826, depth=33, angle=12.5, data="spiral", trained=64, seed=7)
    query = dict(part.split("=") for part in settings.query.removeprefix("?").split("&"))
    assert Settings.restored(query) == (settings, [])
    assert set(CONTROLS) == set(vars(Settings()))
    for name, value, error in (
        ("C_W", "9", InvalidInput),
        ("C_W", "__import__('os')", InvalidInput),
        ("C_W", "nan", InvalidInput),
        ("C_W", "1.5" + "0" * 50 + "x", InvalidInput),
        ("seed", 10**400, InvalidInput),
        ("depth", "3.5", InvalidInput),
        ("activation", "lambda z: z", UnknownName),
        ("colour", "red", UnknownName),
    ):
        with pytest.raises(error, match=name):
            Settings().changed(name, value)
        kept, (problem,) = Settings.restored({name: value, "width": "17"})
        assert kept == Settings(width=17)
        assert len(problem) < 400
    with pytest.raises(InvalidInput, match="λ_b or λ_W above zero"):
        Settings(lambda_b=0.0).changed("lambda_W", 0)


def test_every_activation_of_the_page_has_a_phase_diagram():
    for activation in PAGE_ACTIVATIONS:
        phases = phases_of(activation)
        assert phases.grid.phase.shape == (101, 159)
        assert (phases.point is None) == (activation in ("sigmoid", "softplus"))


def pulls(value, error, expected):
    return np.abs(value - expected) / error


def test_sampled_networks_agree_with_the_theory_and_not_with_half_of_it():
    settings = Settings(activation="tanh", depth=3, width=64, networks=2000, seed=11)
    *_, last = sample(settings, 1.0)
    found = theory_of(settings)
    assert last.attrs["networks"] == 2000
    assert last.attrs["nonfinite"] == 0
    mean, error = last["K"].values[1:, 0, 0], last["K_se"].values[1:, 0, 0]
    assert np.max(pulls(mean, error, found.finite_K[1:])) < 4.0
    fluctuation = found.ratios["V"] / found.widths
    mean, error = last["K_fluctuation"].values[1:], last["K_fluctuation_se"].values[1:]
    assert np.max(pulls(mean, error, fluctuation[1:])) < 4.0
    assert np.min(pulls(mean, error, 0.5 * fluctuation[1:])) > 4.0
    measured = ww.measure(settings.network(), settings.inputs, networks=2000, seed=11)
    np.testing.assert_allclose(last["K"].values[-1], measured["K"].values[-1], rtol=1e-12)
    np.testing.assert_allclose(last["Theta"].values, measured["Theta"].values[-1], rtol=1e-12)


@pytest.mark.full
def test_trained_networks_are_those_of_train():
    settings = Settings(activation="tanh", depth=2, width=32, points=2)
    task = task_of(settings)
    *_, last = train_batches(task, 48, seed=3)
    whole = ww.train(task.net, *task.data.for_training(), networks=48, seed=3, tolerance=1e-6, batch=16)
    np.testing.assert_allclose(last["mean"].values, whole["mean"].values[0], rtol=1e-8)
    found = prediction(task)
    assert np.max(pulls(last["mean"].values, last["mean_se"].values, found.mean)) < 4.0


def test_a_spread_of_zero_has_an_error_that_can_be_drawn():
    """A tanh network without biases is odd: at the reflections of its training inputs, the tests here, it is certain."""
    task = task_of(Settings(activation="tanh", depth=2, width=8, points=3, C_b=0.0, lambda_b=0.0))
    *_, last = train_batches(task, 32, seed=0)
    assert np.all(last["spread_se"] <= 1.0)
    assert np.all(last["spread"] < 1e-5)


def test_kinked_activations_are_predicted_at_infinite_width_with_the_reason():
    found = prediction(task_of(Settings(activation="relu", depth=3, points=2)))
    assert found.mean is None
    assert "relu" in found.why


def test_runs_that_are_too_large_are_refused():
    with pytest.raises(TooLarge, match="parameters a network"):
        check_size(Settings(depth=50, width=1024))
    with pytest.raises(TooLarge, match="networks"):
        check_size(Settings(depth=10, width=256, networks=100_000))
    with pytest.raises(TooLarge, match="for training"):
        task_of(Settings(depth=20))


def forever():
    while True:
        time.sleep(0.01)
        yield 1


def test_a_job_stops_between_two_items_and_frees_its_place():
    ended, failed = [], []
    jobs = [Job(forever(), Share(), lambda item: None, failed.append, ended.append) for _ in range(MOST_JOBS)]
    for job in jobs:
        job.stop()
        assert job.wait(10.0)
    assert ended == [True] * MOST_JOBS
    assert failed == []
    assert Job(iter([]), Share(), lambda item: None, failed.append, ended.append).wait(10.0)


def test_a_visitor_with_a_short_run_is_not_held_up_by_those_with_long_ones():
    """More long runs than there are places, most of them of one visitor."""
    greedy, seen = Share(), []
    long_runs = [Job(forever(), greedy, lambda item: None, seen.append, seen.append) for _ in range(2 * MOST_JOBS)]
    try:
        assert Job(iter(range(5)), Share(), seen.append, seen.append, seen.append).wait(10.0)
    finally:
        for job in long_runs:
            job.stop()
            assert job.wait(10.0)
    assert seen == [0, 1, 2, 3, 4, False] + [True] * len(long_runs)


def test_nobody_has_two_places_while_others_wait():
    turns, order, begun = Turns(1), [], threading.Event()
    greedy, modest = Share(), Share()

    def items(name):
        for _ in range(3):
            begun.wait(10.0)
            order.append(name)
            yield name

    threads = [
        threading.Thread(target=lambda name=name, share=share: list(turns.each(items(name), share)))
        for name, share in (("greedy", greedy), ("greedy", greedy), ("modest", modest))
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    begun.set()
    for thread in threads:
        thread.join(10.0)
    assert order[:6] == ["greedy", "modest"] * 3


def test_what_yields_waits_for_every_visitor():
    turns, seen, held = Turns(1), [], threading.Event()

    def items(name, wait=False):
        for k in range(2):
            if wait and k == 0:
                held.wait(10)
            seen.append(name)
            yield k

    def drain(name, share, wait=False):
        return threading.Thread(target=lambda: list(turns.each(items(name, wait), share)))

    first = drain("first", Share(), wait=True)
    first.start()
    waiting = [drain("warm-up", Share(yields=True)), drain("visitor", Share())]
    for thread in waiting:
        thread.start()
        while len(turns._waiting) < waiting.index(thread) + 1:
            time.sleep(0.001)
    held.set()
    for thread in (first, *waiting):
        thread.join(10)
    assert seen[-2:] == ["warm-up", "warm-up"]
    assert sorted(seen[:-2]) == ["first", "first", "visitor", "visitor"]


def test_a_server_that_grows_gives_memory_back_and_then_forgets_programs(monkeypatch):
    done, size, clock = [], [500], [1000.0]
    monkeypatch.setattr(jobs, "resident_bytes", lambda: size[0])
    monkeypatch.setattr(jobs, "give_back_memory", lambda: done.append("given back"))
    monkeypatch.setattr(jobs, "forget_programs", lambda anyway=False: done.append("forgot") if anyway else False)
    monkeypatch.setattr(jobs.time, "monotonic", lambda: clock[0])
    keeper = Housekeeper(800, 60.0)
    keeper.tidy()
    assert done == []
    size[0] = 900
    keeper.tidy()
    assert done == ["given back", "forgot", "given back"]
    keeper.tidy()  # a moment ago
    clock[0] += 10.0
    keeper.tidy()
    assert done[3:] == ["given back"]  # programs are forgotten once a minute at most
    clock[0] += 60.0
    keeper.tidy()
    assert done[4:] == ["given back", "forgot", "given back"]


def test_answers_that_were_overtaken_are_dropped():
    latest, seen, gate = Latest(), [], threading.Event()

    def slow():
        gate.wait(10.0)
        yield "old"

    latest.ask(slow, seen.append)
    time.sleep(0.05)
    latest.ask(lambda: iter(["new"]), seen.append)
    gate.set()
    latest.close()
    assert seen == ["new"]


def test_a_page_that_is_closed_stops_its_run_and_leaves_others_alone():
    pages = [
        Page({"activation": "linear", "networks": "100000", "width": "16", "depth": "2"}, Document()) for _ in "ab"
    ]
    for page in pages:
        page.sampling.begin()
    first, second = (page.sampling.job for page in pages)
    pages[0].close()
    assert first.wait(60.0)
    assert second.alive
    pages[1].change("C_W", 0.5)
    assert pages[0].settings.C_W == 1.0
    pages[1].close()
    assert second.wait(60.0)


def test_what_is_said_before_the_browser_has_the_page_waits_for_it():
    """The browser drops changes that it hears of before the document."""
    document = Document()
    page = Page({"activation": "linear", "depth": "2"}, document)
    try:
        page.post(print)
        assert document.session_callbacks == []
        document.callbacks.trigger_event(DocumentReady())
        before = len(document.session_callbacks)
        assert before > 0
        page.post(len)
        assert len(document.session_callbacks) > before
    finally:
        page.close()


# matplotlib warns where the machine is so busy that placing a legend takes a second
@pytest.mark.filterwarnings("ignore:Creating legend")
def test_a_lab_is_shown_after_every_seed_and_those_that_ended_are_kept():
    page = Page({"tab": "labs", "lab": "marchenko-pastur"}, Document())
    try:
        tab = page.labs
        tab.begin()
        assert tab.job.wait(600.0)
        tab._ended(False)
        assert tab.status.object.startswith("Done. 6 of 6 experiments run.")
        assert "verdict: holds" in tab.verdict.object
        assert tab.kept["marchenko-pastur"].seeds == 3
        whole = ww.labs.run_lab("marchenko-pastur", quick=True)
        assert [row.cells for row in tab.shown.result.rows] == [row.cells for row in whole.rows]
        page.change("lab", "catapult")
        assert (tab.shown, tab.verdict.object, tab.files[0].disabled) == (None, "", True)
        page.change("lab", "marchenko-pastur")
        assert "verdict: holds" in tab.verdict.object
    finally:
        page.close()


def asked(server, path: str = "/", **headers: str) -> tuple[int, str, Message]:
    """Status, text and headers of the answer."""
    host = server[0].removeprefix("http://").strip("/")
    connection = HTTPConnection(host, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={"Host": host, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace"), answer.headers
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("seed=" + "9" * 5000, "seed: got a value of 5,000 bytes; expected at most 40."),
        ("x" * 5000 + "=1", "link: got a name of 5,000 characters; expected at most 40."),
        ("&".join(f"x{i}=1" for i in range(99)), "link: got 99 names; expected at most 20."),
        ("C_W=1&C_W=2", "C_W: got 2 values; expected one."),
        ("C_W=%ff", "C_W: got bytes that are not UTF-8; expected text."),
        ("bokeh-token=abc", "link: got &#x27;bokeh-token&#x27;; expected one of activation, skip, gamma, C_W"),
        ("theme=%ff", "link: got &#x27;theme&#x27;; expected one of activation, skip, gamma, C_W"),
        ("%3Cb%3E=1&%3Cb%3E=2", "&lt;b&gt;: got 2 values; expected one."),
    ],
    ids=lambda text: text[:12],
)
def test_a_link_that_cannot_be_read_is_refused_in_words(server, query, words):
    status, text, _ = asked(server, f"/?{query}")
    assert (status, words in text) == (400, True), text
    assert len(text) < 1000


def test_only_names_of_the_server_are_answered(server):
    port = server[0].strip("/").rsplit(":", 1)[1]
    assert asked(server, "/favicon.ico", Host=f"localhost:{port}")[0] == 200
    for path in ("/", "/ws", "/static/js/bokeh.min.js", "/favicon.ico", "/nowhere"):
        for host in (f"evil.example:{port}", "evil.example", f"127.0.0.1.evil.example:{port}", f"localhost:{port};x"):
            status, text, _ = asked(server, path, Host=host)
            assert (status, "does not answer under that name" in text, "evil" in text) == (403, True, False)
    assert asked(server, "/autoload.js?bokeh-autoload-element=x")[0] == 403  # would be drawn in others' pages


@pytest.mark.parametrize("spoken", [{}, {"Sec-WebSocket-Protocol": "chat, x"}], ids=["nothing", "another"])
def test_a_websocket_that_does_not_speak_as_pages_do_is_refused(server, spoken):
    status, text, _ = asked(server, "/ws", Upgrade="websocket", Connection="Upgrade", **spoken)
    assert (status, "This is no connection of a page of this server." in text) == (400, True)


def test_every_answer_says_what_a_browser_may_load(server):
    for path in ("/", "/static/js/bokeh.min.js", "/nowhere", "/?C_W=1&C_W=2"):
        headers = asked(server, path)[2]
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert "unsafe" not in policy["script-src"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


def test_a_visitor_too_many_reads_one_sentence_and_finds_room_later():
    """On bokeh's server of an empty page."""

    async def come_and_go() -> None:
        lives = {"unused_session_lifetime_milliseconds": 300, "check_unused_sessions_milliseconds": 50}
        app = BokehServer({"/": lambda document: None}, port=0, io_loop=IOLoop.current(), **lives)
        guard(app._tornado, visitors=2)
        app.start()
        address, client = f"http://localhost:{app.port}/", AsyncHTTPClient()
        tokens = [TOKEN.search((await client.fetch(address)).body.decode()).group(1) for _ in range(2)]
        sockets = [await connected(address, token) for token in tokens]
        with pytest.raises(HTTPClientError, match="503") as refused:
            await client.fetch(address)
        assert "All 2 places of this server are taken. Try again" in refused.value.response.body.decode()
        protocol = {"Sec-WebSocket-Protocol": "bokeh, " + generate_jwt_token("made-up")}
        assert (await client.fetch(address + "ws", headers=protocol, raise_error=False)).code == 503
        await left(sockets.pop())
        end = time.monotonic() + 30.0
        while (await client.fetch(address, raise_error=False)).code != 200:
            assert time.monotonic() < end, "places are not given back"
            await asyncio.sleep(0.05)
        await left(sockets.pop())
        app.stop()

    asyncio.run(come_and_go())


def test_messages_of_one_browser_are_read_at_a_limited_rate_and_size(server):
    messages = 300

    async def talk() -> float:
        token = TOKEN.search(asked(server, "/?activation=linear")[1]).group(1)
        socket, second = [await connected(server[0], token) for _ in range(2)]
        assert asked(server, "/ws", **{"Sec-WebSocket-Protocol": f"bokeh, {token}"})[0] == 503
        begun = time.monotonic()
        for _ in range(messages):
            await send(socket, "SERVER-INFO-REQ", {})
        replies = 0
        while replies < messages:
            replies += "SERVER-INFO-REPLY" in await heard(socket)
        took = time.monotonic() - begun
        await send(socket, "SERVER-INFO-REQ", {"padding": LARGEST_MESSAGE * "x"})
        while (reply := await heard(socket)) is not None:
            assert "SERVER-INFO-REPLY" not in reply  # closed instead
        socket.close()
        await left(second)
        return took

    assert asyncio.run(talk()) > 3 * messages / MOST_FRAGMENTS - 1.05


def test_the_page_has_words_before_anything_is_computed(server):
    _, text, _ = asked(server)
    assert "every curve follows" in text
    assert "Loading the page" in text
    assert 'name="viewport" content="width=device-width' in text


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_are_links_that_can_be_read(name):
    query = dict(parse_qsl(PRESETS[name].removeprefix("?")))
    settings, problems = Settings.restored(query)
    assert problems == []
    assert settings != Settings()


@pytest.mark.full
def test_twenty_visitors_need_less_than_two_gigabytes_for_half_an_hour():
    """`tests/browser/explorer_load.py MINUTES` is the same for any time."""
    sizes, answers = load(minutes=float(os.environ.get("LOAD_MINUTES", 30)))
    assert max(sizes) < 2.0
    assert min(answers) > 50  # nobody waits in vain
