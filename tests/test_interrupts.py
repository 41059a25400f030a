"""Ctrl-C at any moment: exit code 130 within seconds, no traceback, nothing that was there is lost."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from widthwise import interrupts

#: Commands that take much longer than the moments at which they are interrupted, and seconds within which these lie:
#: imports, compilation and the work itself, or the warm-up of the page.
COMMANDS = {
    "measure": (
        "measure --widths 2,32,1 --statistics all --networks 1000000 --out result.csv --checkpoint sums.npz",
        12,
    ),
    "train": ("train --widths 2,64,1 --networks 1000000 --out result.csv --checkpoint sums.npz", 12),
    "report": ("report --widths 2,64,1 --networks 1000000 --out result.csv.html", 15),
    "lab": ("lab all --quick --save labs", 15),
    "explore": ("explore --no-show --port 0", 12),
}
#: A program of its own, whose parent may ignore interrupts: a test run in the background of a shell does.
PROGRAM = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
PROGRAM += "from widthwise.cli.main import run; run()"


def interrupted_after(seconds, words, folder, presses=1):
    """Exit code, standard error and the seconds from Ctrl-C to the end; it comes so long after the program listens."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words.split()],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True,
    )  # fmt: skip
    # a thread listens; until there is one, for a twentieth of a second, the interpreter answers by itself
    while process.poll() is None and len(os.listdir(f"/proc/{process.pid}/task")) < 2:
        time.sleep(0.01)
    time.sleep(seconds)
    pressed = time.monotonic()
    for _ in range(presses):
        os.killpg(process.pid, signal.SIGINT)  # a terminal interrupts workers too
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    return process.returncode, err, time.monotonic() - pressed


@pytest.mark.parametrize(
    ("command", "moments"),
    [("measure", [3.0]), ("explore", [4.0]), ("lab", [0.4])]
    + [pytest.param(command, 20, marks=pytest.mark.full, id=f"{command}-20") for command in COMMANDS],
    ids=str,
)
def test_ctrl_c_ends_every_command_with_130(command, moments, tmp_path):
    words, longest = COMMANDS[command]
    old = tmp_path / "result.csv"
    old.write_text("an earlier result")
    if isinstance(moments, int):
        draw = random.Random(f"{command} {moments}")
        moments = [draw.uniform(0.05, longest) for _ in range(moments)]
    for moment in moments:
        code, err, seconds = interrupted_after(moment, words, tmp_path)
        assert (code, seconds < 5.0) == (130, True), (moment, seconds, err)
        assert err.endswith("interrupted\n"), (moment, err)
        assert "Traceback" not in err
        # a measurement that has results writes them, whole
        assert old.read_text() == "an earlier result" or old.read_text().startswith("variable,")


@pytest.mark.full
def test_workers_are_interrupted_with_the_program_and_leave_nothing_behind(tmp_path):
    draw = random.Random(5)
    for _ in range(10):
        moment = draw.uniform(0.5, 12.0)
        code, err, seconds = interrupted_after(moment, COMMANDS["measure"][0] + " --engine 2", tmp_path)
        assert (code, seconds < 5.0, "Traceback" in err) == (130, True, False), (moment, seconds, err)
        time.sleep(0.5)
        assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).stdout == b""


def test_a_second_ctrl_c_leaves_at_once(tmp_path):
    code, err, seconds = interrupted_after(0.4, "theory --widths 2,64,64,1 --order 1 --points 8", tmp_path, presses=2)
    assert (code, seconds < 2.0) == (130, True)
    assert set(err.splitlines()) == {"interrupted"}


@pytest.fixture
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("default_handler")
def test_deferred_work_is_interrupted_at_a_safe_point_and_not_before():
    steps = []

    def work():
        for step in range(3):
            if step == 1:
                press()
            steps.append(step)
            interrupts.safe_point()

    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        work()
    assert steps == [0, 1]
    # negative control: without it the step is cut
    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [0, 1, 0]


@pytest.mark.usefixtures("default_handler")
def test_the_second_ctrl_c_cuts_deferred_work_and_one_at_its_end_is_not_forgotten():
    steps = []

    def work():
        for step in range(3):
            press()
            steps.append(step)

    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        work()
    assert steps == [0]
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        press()
    with interrupts.deferred():
        interrupts.safe_point()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
