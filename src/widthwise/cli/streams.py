"""Standard streams on which anything can be printed: closed ones, and those that know few letters."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import unicodedata
from typing import Any

from widthwise.errors import InvalidInput

#: Signs whose names in Unicode would not do.
_PLAIN = {
    "λ": "lambda",
    "Λ": "Lambda",
    "─": "-",
    "−": "-",
    "–": "-",
    "±": "+-",
    "×": "x",
    "·": ".",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "√": "sqrt",
}


def mend_streams() -> None:
    """Give closed streams a place, and letters that an encoding lacks a spelling in those that it has.

    What is printed where standard output is closed is refused, as it would be lost; remarks and questions are dropped.
    """
    for number, (name, mode, access) in enumerate(
        (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    ):
        if getattr(sys, name) is None:
            # the lowest free number is that of the stream, which no other file may get
            opened = os.open(os.devnull, access)
            setattr(sys, name, open(opened, mode, encoding="utf-8", closefd=opened != number))  # noqa: SIM115
    codecs.register_error("widthwise.plain", _spelt)
    if isinstance(sys.stderr, io.TextIOWrapper):
        remarks = Remarks(sys.stderr)
        lines = {"line_buffering": True, "write_through": True}
        sys.stderr = io.TextIOWrapper(remarks, sys.stderr.encoding, **lines)  # pyright: ignore[reportArgumentType]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="widthwise.plain")


class Remarks(io.RawIOBase):
    """Standard error, on which what finds no room is dropped: a result is no worse without it."""

    def __init__(self, stream: io.TextIOWrapper):
        self.stream = stream

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.stream.fileno()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            self.stream.buffer.write(data)
            self.stream.buffer.flush()
        return len(data)


def _spelt(error: UnicodeError) -> tuple[str, int]:
    """
    >>> codecs.register_error("widthwise.plain", _spelt)
    >>> "χ² ≤ 1 ± 0.1 … Σ".encode("ascii", "widthwise.plain").decode()
    'chi2 <= 1 +- 0.1 ... Sigma'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_spelt_letter, error.object[error.start : error.end])), error.end


def _spelt_letter(letter: str) -> str:
    if letter in _PLAIN:
        return _PLAIN[letter]
    alike = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    if alike:
        return alike
    name = unicodedata.name(letter, "").split()
    if name[:1] == ["GREEK"]:
        return name[-1].lower() if "SMALL" in name else name[-1].capitalize()
    return "?"


def put(text: str) -> None:
    """Print a result; where standard output cannot take it, say so."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidInput(
            "standard output",
            f"'{error.strerror}' from the system",
            "a stream that takes the result",
            "Add --out FILE.",
        ) from error


def drop_output() -> None:
    """Drop what was printed and cannot be written, so that the interpreter does not try it again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
