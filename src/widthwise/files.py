"""Files that are there whole or not at all, whenever the process ends and however full the disk is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from widthwise.errors import InvalidInput, NotWritten

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl


def check_path(argument: str, path: Any, expected: str) -> Path:
    """A path, in a text or as an object; anything else is refused by the name of the argument."""
    if isinstance(path, str | os.PathLike) and "\0" not in os.fspath(path):
        return Path(path)
    raise InvalidInput(argument, repr(path), expected)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, beside `path`, whose place it takes at the end of the block; after an error it is removed.

    What the system refuses is raised as `NotWritten`. Left-overs of processes that were killed are removed as well.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, replacing(folder + "/numbers.csv") as part:
    ...     part.write_text("1,2")
    3
    """
    direct = os.path.exists(path) and not os.path.isfile(path)  # /dev/null, a named pipe
    target = Path(path) if direct else Path(os.path.realpath(path))
    part = target if direct else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        remove_left_overs(target)
        yield part
        if not direct:
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, target)
    except OSError as error:
        raise NotWritten(path, error.strerror or str(error)) from error
    finally:
        if not direct:
            with suppress(OSError):  # a name that is too long cannot be removed either
                part.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Text in UTF-8, whatever the locale, with line ends as they are."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8", newline="")
    return Path(path)


def remove_left_overs(target: Path) -> None:
    """Remove what processes that no longer run have left beside a file that they were writing."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(\d+)\.part")
    for name in os.listdir(target.parent) if target.parent.is_dir() else ():
        found = pattern.fullmatch(name)
        if found and not is_running(int(found.group(1))):
            target.with_name(name).unlink(missing_ok=True)


@contextmanager
def claimed(argument: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """A block for one process at a time: the argument is refused where another has claimed the same path.

    The system gives the claim back when a process ends, however it ends. Where it knows no such claims, on Windows, or
    where nothing can be written, nobody is refused.
    """
    lock = Path(path).with_name(f".{Path(path).name}.lock")
    try:
        claim = None if fcntl is None else _claim(lock)
    except BlockingIOError as error:
        raise InvalidInput(
            argument,
            f"'{path}', at which another process is at work",
            "a file of no other run",
            "Wait until that run has ended, or name another file.",
        ) from error
    try:
        yield
    finally:
        if claim is not None:
            lock.unlink(missing_ok=True)
            os.close(claim)


def _claim(lock: Path) -> int | None:
    assert fcntl is not None
    while True:
        try:
            claim = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            return None
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the one who had it may have removed the file between the two calls
            if os.path.exists(lock) and os.path.samestat(os.fstat(claim), os.stat(lock)):
                return claim
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(claim)
            raise
        os.close(claim)


def is_running(process: int) -> bool:
    """Whether there is a process of this number; where that cannot be asked, yes."""
    if os.name != "posix":
        return True  # elsewhere asking would end it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
