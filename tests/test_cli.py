"""The command line: what it prints and writes, what it refuses, and the exit codes."""

import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.main import get_command

import widthwise as ww
from widthwise.activations import ACTIVATION_NAMES
from widthwise.cli import options
from widthwise.cli.main import main
from widthwise.cli.output import Records, emit
from widthwise.cli.program import app
from widthwise.network.algorithms import DECAY_TO
from widthwise.network.schedules import WARM_SHAPES
from widthwise.study.data import BUILT_IN
from widthwise.study.spec import ALGORITHM_CLASSES

PROGRAM = str(Path(sys.executable).with_name("widthwise"))
SMALL = ("--widths", "2,8,1", "--points", "2")
#: Every subcommand on a network as small as it makes sense, in an order in which later ones may read earlier files.
QUICK = {
    "theory": ["theory", *SMALL],
    "measure": ["measure", *SMALL, "--networks", "4"],
    "compare": ["compare", *SMALL, "--networks", "64"],
    "critical": ["critical", "relu"],
    "phase": ["phase", "relu", "--C_W", "1:3:3", "--C_b", "0"],
    "advise": ["advise", "--widths", "2,8,1", "--activation", "relu"],
    "predict": ["predict", *SMALL],
    "train": ["train", *SMALL, "--networks", "4", "--learning-rate", "0.1", "--steps", "2"],
    "lab": ["lab", "--list"],
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys, *words: str) -> tuple[int, str, str]:
    code = main(words)
    return code, *capsys.readouterr()


@pytest.mark.parametrize("command", QUICK)
def test_a_quiet_command_prints_its_result_and_nothing_else(command, here, capsys):
    code, out, err = call(capsys, *QUICK[command], "--quiet")
    assert (code, err) == (0, "")
    assert out.strip()


@pytest.mark.parametrize("command", [name for name in QUICK if name not in ("advise",)])
def test_results_are_json_too(command, here, capsys):
    code, out, _ = call(capsys, *QUICK[command], "--format", "json")
    assert code == 0
    assert json.loads(out)


def test_files_hold_what_the_library_computes(here, capsys):
    net, X = ww.MLP([2, 8, 1], "gelu", C_b=0.1, C_W=1.9), ww.dataset("circle", 3).X_train
    wanted = ww.theory(net, X, order=1, tensors=["K", "V"])
    flags = ["--widths", "2,8,1", "--activation", "gelu", "--C_b", "0.1", "--C_W", "1.9", "--lambda_b", "1"]
    flags += ["--lambda_W", "1", "--data", "circle", "--points", "3", "--order", "1", "--tensors", "K,V"]
    for name in ("x.nc", "x.json", "x.csv"):
        code, out, err = call(capsys, "theory", *flags, "--out", name)
        assert (code, out, err) == (0, "", f"written: {name}\n")
    xr.testing.assert_identical(ww.load(here / "x.nc"), wanted)
    found = json.loads((here / "x.json").read_text())["variables"]
    assert np.array_equal(found["V"]["values"], wanted["V"].values)
    lines = (here / "x.csv").read_text().splitlines()
    assert lines[0] == "variable,layer,a,b,c,d,value"
    assert len(lines) == 1 + wanted["K"].size + wanted["V"].size
    assert lines[1].split(",")[-1] == repr(float(wanted["K"].values[0, 0, 0]))


def test_a_spec_file_and_flags_say_the_same(here, capsys):
    np.savez(here / "d.npz", X_train=[[1.0, 0.5], [0.0, 1.0]], y_train=[1.0, -1.0], X_test=[[0.3, 0.3]])
    (here / "net.toml").write_text(
        '[network]\nwidths = [2, 8, 1]\nactivation = "erf"\nC_W = [1.0, 1.5]\n[data]\nsource = "d.npz"\n'
        '[training]\nalgorithm = "gradient_descent"\nlearning_rate = 0.1\nsteps = 5\n'
    )
    _, from_file, _ = call(capsys, "predict", "--spec", "net.toml", "--format", "csv")
    flags = ["--widths", "2,8,1", "--activation", "erf", "--C_b", "0", "--C_W", "1,1.5", "--lambda_b", "1"]
    flags += ["--lambda_W", "1", "--data", "d.npz", "--learning-rate", "0.1", "--steps", "5", "--format", "csv"]
    code, from_flags, _ = call(capsys, "predict", *flags)
    assert code == 0
    assert from_flags == from_file
    _, overridden, _ = call(capsys, "predict", "--spec", "net.toml", "--format", "csv", "--steps", "6",
                            "--learning-rate", "0.1")  # fmt: skip
    assert overridden != from_file


SCHEDULES = {
    "--schedule cosine --learning-rate 0.1 --steps 6 --warm-up 2": ww.GradientDescent(ww.schedule(0.1, 6, warm_up=2)),
    "--schedule linear --learning-rate 0.1 --steps 6 --end 0.5 --algorithm momentum --momentum 0.5": ww.Momentum(
        ww.schedule(0.1, 6, decay="linear", end=0.5), 0.5
    ),
    "--schedule constant --learning-rate 0.1 --steps 6 --warm-up 4": ww.GradientDescent(
        ww.schedule(0.1, 6, warm_up=4, decay="constant")
    ),
    "--schedule 0.1,0.05,0.02": ww.GradientDescent([0.1, 0.05, 0.02]),
}


@pytest.mark.parametrize("words", SCHEDULES)
def test_schedules_are_those_of_python(words, here, capsys):
    algorithm, study = SCHEDULES[words], ww.dataset("xor")
    data = ww.MLP([2, 8, 1], "tanh"), *study.for_training()
    flags = ["--widths", "2,8,1", "--data", "xor", *words.split()]
    assert call(capsys, "predict", *flags, "--out", "predicted.nc")[0] == 0
    assert call(capsys, "train", *flags, "--networks", "8", "--out", "trained.nc")[0] == 0
    predicted, trained = ww.predict(*data, algorithm), ww.train(*data, 8, algorithm, progress=False)
    assert np.allclose(ww.load("predicted.nc")["mean"], predicted["mean"], atol=1e-12)
    assert np.allclose(ww.load("trained.nc")["mean"], trained["mean"], atol=1e-12)
    constant = ww.predict(*data, ww.GradientDescent(0.1, algorithm.steps))
    assert not np.allclose(predicted["mean"], constant["mean"], atol=1e-3)
    code, out, _ = call(capsys, "compare", "predicted.nc", "trained.nc")
    assert code in (0, 1)
    assert "mean" in out


def test_decay_to_zero_and_how_an_end_was_found(here, capsys):
    flags = ["predict", "--widths", "2,8,1", "--data", "xor"]
    words = ["--time", "2", "--weight-decay", "0.3", "--decay-to", "zero", "--out", "decayed.nc"]
    assert call(capsys, *flags, *words)[0] == 0
    data = ww.MLP([2, 8, 1], "tanh"), *ww.dataset("xor").for_training()
    p = ww.predict(*data, ww.GradientFlow(2.0, weight_decay=0.3, decay_to="zero"))
    assert np.allclose(ww.load("decayed.nc")["cov"], p["cov"], atol=1e-12)
    _, _, err = call(capsys, *flags, "--loss", "huber")
    assert "solution: closed form: the only stationary point is z = y" in " ".join(err.split())


def test_evidence_says_where_its_correction_is_no_correction(capsys):
    words = ["evidence", "--activation", "erf", "--data", "xor", "--depths", "2", "--C_W-grid", "1", "--hidden"]
    _, _, err = call(capsys, *words, "64,1024")
    assert err.startswith("warning: order=1: for 1 of 2 networks the correction is of the size of the leading term")
    assert call(capsys, *words, "1024")[2] == ""


def test_a_spec_file_has_schedules_too():
    training = {"algorithm": "momentum", "learning_rate": 0.1, "steps": 6, "schedule": "cosine", "warm_up": 2}
    study = ww.Study.from_dict({"training": training})
    assert study.algorithm == ww.Momentum(ww.schedule(0.1, 6, warm_up=2))
    assert ww.Study.from_dict(study.to_dict()).algorithm == study.algorithm


def test_a_spec_file_may_name_another_activation_for_every_layer(here, capsys):
    (here / "mixed.toml").write_text('[network]\nwidths = [2, 8, 8, 1]\nactivation = ["tanh", "gelu"]\n')
    code, out, _ = call(capsys, "theory", "--spec", "mixed.toml", "--format", "json")
    assert code == 0
    study = ww.Study.from_toml("mixed.toml")
    assert [sigma.name for sigma in study.net.activations] == ["tanh", "gelu"]
    assert ww.Study.from_dict(json.loads(study.to_json())).net == study.net
    K = ww.theory(ww.MLP([2, 8, 8, 1], ["tanh", "gelu"]), study.data.X_train)["K"].values
    assert np.array_equal(json.loads(out)["variables"]["K"]["values"], K)
    assert not np.allclose(K, ww.theory(ww.MLP([2, 8, 8, 1], ["gelu", "tanh"]), study.data.X_train)["K"].values)


def test_points_are_those_of_the_data_set(here, capsys):
    for words in (("--points", "2"), ("--data", "spiral", "--points", "2")):
        _, out, _ = call(capsys, "theory", "--widths", "2,8,1", *words, "--format", "json")
        assert np.shape(json.loads(out)["variables"]["K"]["values"]) == (2, 2, 2)


def test_without_a_command_the_help_is_printed_alone(capsys):
    code, out, err = call(capsys)
    assert (code, err) == (2, "")
    assert "explore" in out


def test_a_csv_file_with_empty_targets_holds_the_tests(here):
    (here / "d.csv").write_text("x1,x2,y\n1,2,0.5\n3,4,\n5,6,-0.5\n")
    data = ww.study.load_data("d.csv")
    assert data.X_train.tolist() == [[1, 2], [5, 6]]
    assert data.y_train.ravel().tolist() == [0.5, -0.5]
    assert data.X_test.tolist() == [[3, 4]]


BAD_FILES = {
    "good.toml": '[network]\nwidths = [2, 8, 1]\nactivation = "tanh"\n',
    "bad.toml": "[network]\nwidths = [2, 8\n",
    "table.toml": '[netwrok]\nwidths = [2, 8, 1]\nactivation = "tanh"\n',
    "value.toml": '[network]\nwidths = [2, 8, 1]\nactivation = "tanhh"\n',
    "bad.csv": "x1,x2\n1,2\n3,abc\n",
    "short.csv": "x1,x2\n1,2\n3\n",
    "empty.csv": "\n",
    "bad.npy": "this is no array",
    "bad.nc": "this is no netcdf",
    "page.html": "<html>nothing inside</html>",
    "deep.toml": f"[network]\nwidths = {3000 * '['}{3000 * ']'}\n",
    "long.toml": f"[network]\nwidths = [2, {5000 * '1'}, 1]\n",
    "leaves.py": "raise SystemExit(5)\n",
    "divides.py": "1 / 0\n",
}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("theroy", "No such command 'theroy'"),
        ("theory --widht 2,8,1", "--widht"),
        ("theory --order one", "'--order'"),
        ("theory --order 2", "order: got 2; expected 0 or 1"),
        ("theory --widths 2,eight,1", "--widths: got '2,eight,1'"),
        ("theory --widths 3,8,1", "--data: got none; expected inputs with 3 features"),
        ("theory --widths 2,9999999x8,1", "from 1 to 100,000 layers"),
        ("theory --points 0", "points: got 0"),
        ("theory --data bad.csv --points 3", "--points: got 3 with the data of 'bad.csv'"),
        ("theory --spec good.toml --points 3", "--points: got 3 with the data of 'good.toml'"),
        ("theory --format csv --out folder.csv", "'folder.csv', which is a folder"),
        ("theory --C_W one", "--C_W: got 'one'"),
        ("theory --C_W 1,2", "C_W: got 2 values; expected a finite non-negative number, or 4 of them"),
        ("theory --activation tanhh", "Did you mean 'tanh'?"),
        ("theory --data nothere.csv", "'nothere.csv', which is not there"),
        ("theory --data spirral", "Did you mean 'spiral'?"),
        ("theory --data bad.csv", "'bad.csv', line 3, column 'x2': 'abc'"),
        ("theory --data short.csv", "'short.csv', line 3: 1 cells"),
        ("theory --data empty.csv", "'empty.csv', which is empty"),
        ("theory --data bad.npy", "'bad.npy', which cannot be read"),
        ("theory --spec nothere.toml", "'nothere.toml', which is not there"),
        ("theory --spec bad.toml", "'bad.toml', malformed: "),
        ("theory --spec table.toml", "Did you mean 'network'?"),
        ("theory --spec value.toml", "spec 'value.toml', activation: got 'tanhh'"),
        ("theory --out x.xlsx", "--out: got 'x.xlsx'"),
        ("theory --out no/where.nc", "an existing folder 'no'"),
        ("theory --format yaml", "--format: got 'yaml'"),
        ("theory --format netcdf", "Add --out FILE.nc"),
        ("theory --figure x.gif", "--figure: got 'x.gif'"),
        ("theory --tensors K,W --order 1", "tensors: got 'W'"),
        ("measure --networks 1", "networks: got 1"),
        ("measure --statistics Z", "statistics: got 'Z'"),
        ("compare one.nc", "two files, or none"),
        ("compare bad.nc bad.nc", "PREDICTED: got 'bad.nc', which cannot be read"),
        ("critical sigmoid", "sigmoid"),
        ("critical", "Missing argument 'activation'"),
        ("phase tanh --C_W 1:2", "--C_W: got '1:2'"),
        ("predict --data bad.csv", "line 3"),
        ("predict --algorithm adamm", "Did you mean 'adam'?"),
        ("predict --algorithm adam", "learning_rate: got none"),
        ("predict --steps 5", "steps: got 5 with gradient_flow; expected a setting of gradient_flow: time"),
        ("predict --learning-rate 0.1 --steps 5 --schedule cosin", "Did you mean 'cosine'?"),
        ("predict --learning-rate 0.1 --schedule cosine", "steps: got none with schedule='cosine'"),
        ("predict --schedule cosine --steps 5", "learning_rate: got none"),
        ("predict --learning-rate -1 --schedule cosine --steps 5", "learning_rate: got -1.0"),
        ("predict --learning-rate 0.1 --steps 5 --warm-up 2", "warm_up: got 2 without a schedule"),
        ("predict --learning-rate 0.1 --steps 5 --schedule linear --warm-up 6", "warm_up: got 6; expected"),
        ("predict --learning-rate 0.1 --steps 5 --schedule linear --end 2", "end: got 2.0; expected a share"),
        ("predict --learning-rate 0.1 --schedule 0.1,0.05", "--learning-rate: got 0.1 with --schedule 0.1,0.05"),
        ("predict --schedule 0.1,x", "--schedule: got '0.1,x'"),
        ("predict --schedule 0.1,-0.2", "learning_rate[1]: got -0.2"),
        ("predict --schedule 0.1,0.05 --steps 3", "2 learning rates for 3 steps"),
        ("predict --schedule 0.1,900 --widths 2,8,1", "at step 1; expected less than 2/λ_max"),
        ("predict --algorithm gradient_flow --schedule cosine", "schedule: got 'cosine' with gradient_flow"),
        ("train --networks 1", "networks: got 1"),
        ("report --out x.pdf", "--out: got 'x.pdf'"),
        ("report --networks 1", "--networks: got 1"),
        ("report --trained 1", "--trained: got 1"),
        ("report --from page.html", "'page.html' without a study inside"),
        ("report --from nothere.html", "which is not there"),
        ("lab no-such-lab", "lab: got 'no-such-lab'"),
        ("lab nngp-limit --seed -1", "'--seed'"),
        ("lab all --format netcdf", "--format: got 'netcdf'; expected table, json or csv"),
        ("theory --spec deep.toml", "'deep.toml', malformed: "),
        ("theory --spec long.toml", "'long.toml', malformed: Exceeds the limit"),
        (f"measure --networks 8 --engine {5000 * '1'}", "engine: got "),
        ("audit leaves:model", "'leaves:model', which raises SystemExit: 5"),
        ("lab divides.py", "'divides.py', which raises ZeroDivisionError: division by zero; expected a file"),
        ("lab leaves.py", "'leaves.py', which raises SystemExit: 5"),
        (f"lab catapult --set width={3000 * '['}", "--set: got 'width=[[["),
        ("lab catapult --save good.toml/results", "--save: got 'good.toml/results'; expected a folder; 'good.toml' is a file"),
        ("explore --port 99999 --no-show", "port: got 99999"),
        ("explore --address 203.0.113.1 --no-show", "203.0.113.1:5006, where the server cannot listen"),
        ("explore --address ::1 --no-show", "address: got '::1'; expected the name of this machine or an IPv4 address"),
        ("explore --visitors 0 --no-show", "visitors: got 0"),
    ],
)  # fmt: skip
def test_bad_input_takes_one_line_and_exit_code_two(words, said, here, capsys):
    for name, text in BAD_FILES.items():
        (here / name).write_text(text)
    (here / "folder.csv").mkdir()
    code, out, err = call(capsys, *words.split())
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


HUGE = 10**12
SAMPLING = ("measure", "compare", "train")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((f"{name} --points {HUGE}", "What would fit: ") for name in ("theory", "predict", *SAMPLING, "report", "advise")),
        *((f"{name} --networks {HUGE}", f"networks: got {HUGE}; expected") for name in SAMPLING),
        *((f"{name} --seed {10**30}", f"seed: got {10**30}; expected") for name in SAMPLING),
        *((f"{name} --widths 2,{HUGE},1", "What would fit: narrower networks") for name in SAMPLING),
        *((f"{name} --widths 2,{HUGE}x8,1", "from 1 to 100,000 layers") for name in ("theory", "predict", *SAMPLING)),
        *((f"{name} --widths 2,60000x8,60000x8,1", "from 1 to 100,000 layers") for name in ("theory", "advise")),
        *((f"{name} --widths 2,10001x8,1", "at most 10000 layers") for name in SAMPLING),
        *((f"{name} --widths 2,8,{HUGE}", "") for name in ("predict", *SAMPLING)),
        *((f"{name} --extrapolate 8,{HUGE}", "What would fit: ") for name in ("measure", "compare")),
        (f"advise --widths {HUGE},8,1", f"memory: got an input of {HUGE} features, which needs 7.3 TiB"),
        (f"train --max-steps {HUGE}", f"max_steps: got {HUGE}, of which"),
        (f"train --algorithm gradient_descent --learning-rate 0.1 --steps {HUGE}", f"steps: got {HUGE}, of which"),
        (f"train --algorithm sgd --learning-rate 0.1 --batch-size {HUGE}", f"batch_size={HUGE}; expected at most 4"),
        (f"phase tanh --C_W 0:1:{HUGE}", f"memory: got {HUGE} values of --C_W"),
        (f"theory --order {HUGE}", f"order: got {HUGE}"),
        (f"explore --port {HUGE}", f"port: got {HUGE}"),
        (f"explore --visitors {HUGE}", f"visitors: got {HUGE}"),
        (f"report --networks {HUGE} --trained 0", f"--networks: got {HUGE}"),
        (f"report --trained {HUGE} --networks 0", f"--trained: got {HUGE}"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_take_one_line(words, said, here, capsys):
    code, out, err = call(capsys, *words.split())
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_tables_show_brackets_and_colons_as_they_are(here, capsys):
    text = "pip install 'widthwise[plots]' :x:"
    emit(Records(("what to do",), [(text,)]), options.OutputOptions())
    assert text in capsys.readouterr().out


def test_comparing_files_ends_with_one_where_they_disagree(here, capsys):
    net, X = ww.MLP([2, 16, 1], "tanh"), [[1.0, 0.5]]
    th, ms = ww.theory(net, X), ww.measure(net, X, networks=200, seed=1)
    ww.save(th, "th.nc")
    ww.save(ms, "ms.nc")
    wrong = th.assign(K=th["K"] + 20.0 * float(ms["K_se"].max()))
    ww.save(wrong, "wrong.nc")
    assert call(capsys, "compare", "th.nc", "ms.nc", "--figure", "x.svg")[0] == 0
    assert (here / "x.svg").stat().st_size > 1000
    code, out, _ = call(capsys, "compare", "wrong.nc", "ms.nc")
    assert code == 1
    assert "K (layer 2): needs a second width" in out


def test_an_interrupted_command_ends_with_130(monkeypatch, capsys):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("widthwise.results.theory.theory", interrupt)
    assert call(capsys, "theory") == (130, "", "interrupted\n")


def test_warnings_take_one_line_and_none_when_quiet(capsys):
    words = ("theory", "--widths", "2,1,1", "--order", "1", "--tensors", "V")
    _, _, err = call(capsys, *words)
    warning, network = err.splitlines()
    assert warning.startswith("warning: theory: width 1 at hidden layer 1")
    assert network == "network: widths 2,2x1, tanh, C_b 0, C_W 1, lambda_b 1, lambda_W 1"
    assert call(capsys, *words, "--quiet")[2] == ""


def test_completion_knows_every_name():
    assert set(options.COMPLETED_ACTIVATIONS) == set(ACTIVATION_NAMES)
    assert set(options.DATA_SETS) == set(BUILT_IN)
    assert set(options.ALGORITHM_NAMES) == set(ALGORITHM_CLASSES)
    assert options.SCHEDULES == WARM_SHAPES
    assert options.DECAY_CENTRES == DECAY_TO


def run(*words: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, **more)


def test_the_shell_completes_values():
    words = "widthwise theory --activation ta"
    done = run(env={**os.environ, "_WIDTHWISE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"})
    assert done.stdout.split() == ["tanh", "tanhshrink"]


def test_help_is_quick_and_loads_nothing_heavy():
    code = "import sys; from widthwise.cli.main import main; main(['theory', '--help']); "
    code += "print([m for m in ('jax', 'numpy', 'xarray', 'matplotlib') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "widthwise theory --widths" in done.stdout
    assert done.stderr.strip() == "[]"


def test_the_program_works_in_a_pipe_whose_reader_leaves(here):
    done = subprocess.run(f"{PROGRAM} phase relu --format csv | head -n 1", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "variable,C_b,C_W,value\n", "")


def test_the_program_refuses_with_exit_code_two_and_no_traceback():
    done = run("theory", "--spec", "nothere.toml", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.fixture
def three_labs(monkeypatch):
    """A lab that holds, one that is refuted and one that breaks, in place of the real ones."""
    from widthwise import labs
    from widthwise.labs import Claim, Lab, Outcome, runner

    def made(name: str, measured: float) -> Lab:
        def experiment(size, seed):
            if name == "broken":
                raise ZeroDivisionError("no such\nnumber")
            return Outcome((Claim("slope", 2.0, measured, 0.1, wrong={"half of it": 1.0}),))

        return Lab(name, f"Title of {name}", "s = 2", experiment, (2, 4), (1, 2), lambda figure, outcomes: None)

    known = {name: made(name, value) for name, value in (("good", 2.05), ("broken", 0.0), ("bad", 9.0))}
    for place in (labs, runner):
        monkeypatch.setattr(place, "names", lambda: list(known), raising=False)
        monkeypatch.setattr(place, "get_lab", lambda name, settings=None: known[name], raising=False)
        monkeypatch.setattr(place, "title_of", lambda name: known[name].title, raising=False)
    return known


def test_all_labs_run_though_one_fails_and_end_with_one_table(three_labs, here, capsys):
    code, out, err = call(capsys, "lab", "all", "--quick", "--seed", "0", "--save", "found", "--format", "csv")
    assert code == 1
    rows = [line.split(",")[:3] for line in out.splitlines()]
    assert rows == [
        ["lab", "verdict", "claims"],
        ["good", "holds", "2"],
        ["broken", "failed", "0"],
        ["bad", "refuted", "2"],
    ]
    assert "widthwise: lab broken: ZeroDivisionError: no such number\n" in err
    assert {path.name for path in (here / "found").iterdir()} == {
        f"{name}.{suffix}" for name in ("good", "bad") for suffix in ("csv", "png", "svg")
    }


@pytest.mark.parametrize(("name", "code"), [("good", 0), ("bad", 1)])
def test_the_exit_code_of_a_lab_is_its_verdict(name, code, three_labs, here, capsys):
    done, out, err = call(capsys, "lab", name, "--quick", "--quiet")
    assert (done, err) == (code, "")
    assert (here / "lab-results" / f"{name}.png").exists()  # figures by default
    assert out.endswith(f"verdict: {'holds' if code == 0 else 'refuted'}\n")


def test_labs_are_listed_with_their_titles(three_labs, capsys):
    code, out, _ = call(capsys, "lab", "--list", "--format", "csv")
    assert (code, out) == (0, "lab,title\n" + "".join(f"{name},Title of {name}\n" for name in three_labs))


def test_labs_that_are_interrupted_show_the_verdicts_so_far(three_labs, here, monkeypatch, capsys):
    from widthwise import labs

    run = labs.run_lab

    def interrupted(name, **how):
        if name == "broken":
            raise KeyboardInterrupt
        return run(name, **how)

    monkeypatch.setattr(labs, "run_lab", interrupted)
    code, out, err = call(capsys, "lab", "all", "--quick", "--quiet", "--format", "csv")
    assert (code, err) == (130, "interrupted\n")
    assert [line.split(",")[0] for line in out.splitlines()] == ["lab", "good"]


TINY = "--widths 2,8,1"
#: Every command that prints a table, with its largest one.
PRINTED = [
    "lab --list", "critical gelu", "critical tanh", "phase tanh", "doctor", "theory --layers last",
    f"theory {TINY} --order 1", f"theory {TINY} --data circle --points 9", f"measure {TINY} --networks 20 --data circle --points 9",
    f"measure {TINY} --networks 20 --statistics K,Theta,V", "compare --widths 2,8,1 --networks 20",
    "advise --widths 2,10x64,1 --activation tanh", "predict --widths 2,8,1 --data xor",
    "predict --widths 2,8,1 --data xor --order 1 --cumulants 4", f"train {TINY} --data xor --networks 4",
    f"posterior {TINY} --data xor --noise 0.01 --order 1", "evidence --data xor --depths 2,3 --hidden 16,64,256,1024",
    f"couplings {TINY} --C_b 0.1 --data circle --points 2", f"trained_kernel {TINY} --data xor --by-layer",
    "equalise --widths 2,4x64,1", "audit torch.nn:Transformer",
]  # fmt: skip


@pytest.mark.parametrize("words", PRINTED)
def test_what_is_printed_fits_eighty_columns(words, here, capsys):
    code, out, err = call(capsys, *words.split())
    assert code in (0, 1), err
    # code to paste stays on its line, and so do findings about tensors with long names
    kept = [
        line for line in out.split("PyTorch code")[0].splitlines(True) if not re.match(r"    |error|warning|note", line)
    ]
    text = "".join(kept) + "".join(line for line in err.splitlines(True) if "warning: " not in line)
    assert max(map(len, text.splitlines())) <= 80
    if words == "lab --list":
        assert "implicit-bias-diagonal" in out


def test_every_command_that_prints_a_table_is_looked_at():
    names = {command.name for command in app.registered_commands}
    assert names - {words.split()[0] for words in PRINTED} == {"report", "explore"}  # which write a page and serve one


@pytest.mark.parametrize("command", sorted({command.name for command in app.registered_commands} | {""}))
def test_help_fits_eighty_columns(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    code, out, _ = call(capsys, *command.split(), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    # paragraphs are wrapped for the terminal, not broken where the source is
    words = next((one.callback.__doc__ for one in app.registered_commands if one.name == command), "")
    for paragraph in words.split("\n\n"):
        for line in textwrap.wrap(paragraph, 78):
            assert f" {line}" in out


def test_predict_takes_every_algorithm_that_its_help_offers(here, capsys):
    for name in options.PREDICTED_ALGORITHMS:
        more = {"sgd": ["--batch-size", "2"], "gradient_flow": ["--time", "1"], "newton_step": []}.get(name, [])
        rate = ["--learning-rate", "0.1", "--steps", "2"] if name not in ("gradient_flow", "newton_step") else []
        assert call(capsys, "predict", *SMALL, "--algorithm", name, *rate, *more)[0] == 0, name
    for command in ("predict", "trained_kernel"):
        _, out, _ = call(capsys, command, "--help")
        assert "adam" not in out
    _, out, _ = call(capsys, "train", "--help")
    assert "adam" in out


@pytest.mark.parametrize("command", ["posterior --noise 0.1", "couplings --C_b 0.1", "equalise", "trained_kernel"])
def test_commands_name_the_network_that_they_are_about(command, here, capsys):
    code, _, err = call(capsys, *command.split(), *SMALL)
    assert code == 0
    assert "network: widths 2,8,1, tanh, C_b 0" in err


def test_a_file_of_weights_is_advised_on_alone_and_with_its_model(here, capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    (here / "weighty.py").write_text(
        "from torch import nn\n\n\ndef small():\n"
        "    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 1, bias=False))\n"
    )
    monkeypatch.syspath_prepend(here)
    model = __import__("weighty").small()
    with torch.no_grad():
        model[2].weight.mul_(30.0)  # what nobody would draw
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, here / "w.pt")
    np.savez(here / "w.npz", **{name: one.detach().numpy() for name, one in model.named_parameters()})
    said = []
    for words in (["weighty:small", "--weights", "w.pt"], ["--weights", "w.pt", "--activation", "gelu"],
                  ["--weights", "w.npz", "--activation", "gelu"]):  # fmt: skip
        code, out, _ = call(capsys, "advise", *words)
        assert code == 0
        said.append(out)
    assert said[0] == said[1] == said[2]
    assert "2.weight" in said[0]
    assert call(capsys, "advise", "weighty:small")[1] != said[0]
    assert f"{model[2].weight.std(correction=0):.4g}" in call(capsys, "audit", "weighty:small", "--weights", "w.pt")[1]
    (here / "text.pt").write_text("no tensors")
    torch.save(nn := {"conv": torch.zeros(2, 3, 5, 5)}, here / "conv.pt")
    torch.save([*nn.values()], here / "list.pt")
    for words, problem in (
        (["--weights", "w.pt", "--activation", "sin"], "activation: got 'sin'; expected an activation of torch.nn."),
        (["--weights", "none.pt"], "expected an existing file of weights ending in .pt, .pth, .npz"),
        (["--weights", "text.pt"], "which cannot be read"),
        (["--weights", "list.pt"], "expected tensors by name"),
        (["--weights", "conv.pt"], "conv of shape (2, 3, 5, 5)"),
        (["weighty:small", "--weights", "conv.pt"], "which does not fit the model"),
    ):
        code, out, err = call(capsys, "advise", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert problem in err


#: Options whose default in Python is "all of the network's own" or "none", which the command line reads from a study.
FROM_THE_STUDY = {"X", "X_train", "y_train", "X_test", "net", "algorithm", "activation"}


@pytest.mark.parametrize(
    "command", ["theory", "measure", "predict", "train", "posterior", "equalise", "trained_kernel"]
)
def test_options_have_the_defaults_of_the_function_behind_them(command):
    """Options and arguments of the same name; those that a study holds have their defaults there."""
    function = ww.criticality.equalise if command == "equalise" else getattr(ww, command)
    arguments = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    options = {p.name: p.default for p in get_command(app).commands[command].params}
    shared = {
        n for n in arguments.keys() & options.keys() if arguments[n] is not inspect.Parameter.empty
    } - FROM_THE_STUDY
    assert shared
    differing = {
        name: (arguments[name], options[name])
        for name in shared
        if arguments[name] != options[name] and options[name] is not None
    }
    assert differing == {}


def test_the_command_line_has_the_defaults_of_python(capsys):
    """He's initialisation of relu is critical: no bias variance comes from elsewhere."""
    _, out, _ = call(capsys, "advise", "--widths", "784,3x512,10", "--activation", "relu", "--C_W", "2")
    assert "relu: critical." in out
    assert "C_b 0, C_W 2, lambda_b 1, lambda_W 1" in " ".join(out.split())
    assert "torch" in out
