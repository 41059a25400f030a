"""Work beside the page: one thread a job, stopped between two batches, never more of them than the machine can take."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from widthwise.errors import InvalidInput, WidthwiseError
from widthwise.memory import forget_programs

#: Jobs of all visitors together.
MOST_JOBS = 4
_PLACES = threading.BoundedSemaphore(MOST_JOBS)


def explain(error: Exception) -> str:
    """What a visitor reads about an error: the library's own words, or that it is ours to mend.

    >>> explain(InvalidInput("C_W", "-1", "a number from 0 to 4"))
    'C_W: got -1; expected a number from 0 to 4.'
    """
    if isinstance(error, WidthwiseError):
        return str(error)
    logging.getLogger("widthwise.explorer").exception("unexpected error", exc_info=error)
    return f"This should not have happened ({type(error).__name__}); the server's log has the details."


class Job:
    """An iterator drained in a thread of its own. `tell(item)`, `fail(message)` and `end(stopped)` are called there.

    >>> seen = []
    >>> job = Job(iter(range(3)), seen.append, seen.append, lambda stopped: seen.append(stopped))
    >>> job.wait(), seen
    (True, [0, 1, 2, False])
    """

    def __init__(
        self, items: Iterator, tell: Callable[[Any], None], fail: Callable[[str], None], end: Callable[[bool], None]
    ):
        if not _PLACES.acquire(blocking=False):
            raise InvalidInput("run", f"{MOST_JOBS} runs of this server at work", "a free place", "Try again later.")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._drain, args=(items, tell, fail, end), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the job to end after the batch at hand."""
        self._stopped.set()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float = 60.0) -> bool:
        """Wait until it has ended; whether it has."""
        self._thread.join(seconds)
        return not self.alive

    def _drain(self, items, tell, fail, end) -> None:
        try:
            for item in items:
                if self._stopped.is_set():
                    break
                tell(item)
        except Exception as error:
            fail(explain(error))
        finally:
            _PLACES.release()
            end(self._stopped.is_set())
            forget_programs()


class Latest:
    """Slow answers to fast questions: one thread, which drops every answer whose question a newer one has overtaken.

    A question is a function that yields its answers one after the other.

    >>> seen = []
    >>> latest = Latest()
    >>> latest.ask(lambda: iter([1, 2]), seen.append)
    >>> latest.close(), seen
    (None, [1, 2])
    """

    def __init__(self):
        self._question: tuple[Callable[[], Iterator[Any]], Callable[[Any], None]] | None = None
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def ask(self, work: Callable[[], Iterator[Any]], tell: Callable[[Any], None]) -> None:
        """Have `tell` called with what `work` yields, until another question comes."""
        with self._changed:
            self._question = (work, tell)
            self._changed.notify()

    def close(self) -> None:
        """Answer what is asked and end."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join(60.0)

    def leave(self) -> None:
        """End without waiting; what was not begun is dropped."""
        with self._changed:
            self._open, self._question = False, None
            self._changed.notify()

    def _answer(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._question is not None or not self._open)
                if self._question is None:
                    return
                work, tell = self._question
                self._question = None
            for answer in work():
                with self._changed:
                    if self._question is not None:
                        break
                tell(answer)
            forget_programs()
