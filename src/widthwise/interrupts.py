"""Ctrl-C, answered at safe points.

Python raises KeyboardInterrupt wherever the main thread happens to be, and then takes jax apart on its way out, though
threads of it may still compile: 6 of 22 programs ended so in a segmentation fault, and one hung. Here work that can
keep what it has done is interrupted between two of its steps only, and a program that listens leaves as it stands.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

#: The exit code of an interrupted program.
INTERRUPTED = 130
#: Seconds in which work must come to a safe point; a program that listens then leaves without its result.
PATIENCE = 3.0

_asked = threading.Event()
#: Held where it is decided whether the work at hand is waited for.
_deciding = threading.Lock()
_last_acts: list[Callable[[], object]] = []
_safe_points_ahead = False


def listen() -> None:
    """Answer Ctrl-C for a whole program from now on.

    At the first one a program leaves with exit code 130; work that has passed a safe point, and so has something to
    keep, may first come to the next. At the second it leaves at once. The main thread may be busy in compiled code, so
    another one listens.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # a shell has it ignored by programs in the background
    heard, written = os.pipe()
    if os.name == "posix":
        os.set_blocking(written, False)
    threading.Thread(target=_answer, args=(heard,), daemon=True).start()
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)


@contextmanager
def before_leaving(act: Callable[[], object]) -> Iterator[None]:
    """Have `act` called, in another thread, if the program leaves within this block."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


@contextmanager
def deferred() -> Iterator[None]:
    """Work that calls `safe_point` between its steps is interrupted there, and not within a step.

    Outside a program that listens, a second Ctrl-C raises KeyboardInterrupt wherever the main thread is.
    """
    global _safe_points_ahead
    if not _in_main_thread():
        yield
        return
    plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if plain:
        signal.signal(signal.SIGINT, _ask)
    try:
        yield
        safe_point()
    finally:
        with _deciding:
            _safe_points_ahead = False
        _asked.clear()
        if plain:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def safe_point() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed."""
    global _safe_points_ahead
    if not _in_main_thread():
        return
    with _deciding:
        _safe_points_ahead = True
    if _asked.is_set():
        _asked.clear()
        raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def leave(code: int = INTERRUPTED) -> NoReturn:
    """End this process and those it has started, as they stand."""
    processes = sys.modules.get("multiprocessing")
    for child in processes.active_children() if processes is not None else ():
        child.kill()
    os._exit(code)


def _ask(number, frame) -> None:
    if _asked.is_set():
        signal.default_int_handler(number, frame)
    _asked.set()


def _answer(heard: int) -> None:
    presses = 0
    while True:
        # what is read are the numbers of signals, also of others that have a handler
        more = os.read(heard, 64).count(signal.SIGINT)
        presses += more
        if presses > 1:
            _say_so()
            leave()
        if more:
            with _deciding:
                waited_for = _safe_points_ahead
                if waited_for:
                    _asked.set()
            threading.Timer(PATIENCE if waited_for else 0.0, _leave_in_order, [waited_for]).start()


def _leave_in_order(waited_for: bool) -> None:
    if waited_for and not _asked.is_set():
        return  # the main thread has come to a safe point, and ends the program itself
    try:
        for act in reversed(_last_acts):
            act()
        if _last_acts:
            sys.stdout.flush()
    finally:
        _say_so()
        leave()


def _say_so() -> None:
    """Past the streams of Python, which the main thread may hold, on a new line if a bar has hidden the cursor."""
    with suppress(OSError):
        os.write(2, (b"\r\x1b[?25h" if os.isatty(2) else b"") + b"interrupted\n")
