"""The entry of the program: it listens for Ctrl-C before anything else is imported."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from widthwise.cli.streams import mend_streams
from widthwise.interrupts import INTERRUPTED, leave, listen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what is wrong with the input takes one line on standard error.

    >>> main(["critical", "tanh", "--format", "csv"])
    activation,C_b,C_W,K_star,universality,stable_side
    tanh,0.0,1.0,0.0,K*=0,above
    0
    """
    from widthwise.cli.program import answer

    return answer(sys.argv[1:] if arguments is None else list(arguments))


def run() -> None:
    """What the installed program calls."""
    listen()
    mend_streams()
    os.environ["MPLBACKEND"] = "agg"  # files are drawn, never windows; an unknown name ends matplotlib's import
    # a home that cannot be written, a scheduler that is gone: what matters of it the program says itself, in one line
    for package in ("matplotlib", "distributed"):
        logging.getLogger(package).setLevel(logging.CRITICAL)
    code = main()
    if code == INTERRUPTED:
        leave()
    sys.exit(code)
