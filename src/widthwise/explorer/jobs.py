"""Work beside the page: one thread a job, whose batches take turns with those of other visitors."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from widthwise.errors import WidthwiseError
from widthwise.memory import forget_programs, give_back_memory, resident_bytes

#: Batches at work at a time, answers of the theory, and experiments of labs, of all visitors together.
MOST_JOBS, MOST_ANSWERS, MOST_LABS = 4, 2, 1
_END = object()


def explain(error: Exception) -> str:
    """What a visitor reads about an error: the library's own words, or that it is ours to mend.

    >>> from widthwise.errors import InvalidInput
    >>> explain(InvalidInput("C_W", "-1", "a number from 0 to 4"))
    'C_W: got -1; expected a number from 0 to 4.'
    """
    if isinstance(error, WidthwiseError):
        return str(error)
    logging.getLogger("widthwise.explorer").exception("unexpected error", exc_info=error)
    return f"This should not have happened ({type(error).__name__}); the server's log has the details."


class Share:
    """What a visitor has of the places: how many now, and when the last was given; one that yields comes last."""

    def __init__(self, yields: bool = False):
        self.at_work, self.last = 10**6 if yields else 0, 0


class Housekeeper:
    """Keeps a server small: gives memory back, and forgets compiled programs, which are read from the disk again."""

    def __init__(self, most_bytes: float, apart: float):
        self.most_bytes, self.apart = most_bytes, apart
        self._lock, self._given_back, self._forgot = threading.Lock(), -math.inf, -math.inf

    def tidy(self) -> None:
        """After an answer: what there is to do, unless it was done a moment ago."""
        forget_programs()
        with self._lock:
            now = time.monotonic()
            if now < self._given_back + _PAUSE or resident_bytes() < self.most_bytes:
                return
            self._given_back = now
            give_back_memory()
            if now > self._forgot + self.apart and resident_bytes() > self.most_bytes:
                self._forgot = now
                forget_programs(anyway=True)
                give_back_memory()


#: Resident bytes of a server that is kept below 1 GB; seconds between two times that it forgets its programs, and that
#: it looks for what can be given back.
_MOST_RESIDENT, _BETWEEN, _PAUSE = 800e6, 20.0, 4.0
HOUSEKEEPER = Housekeeper(_MOST_RESIDENT, _BETWEEN)


class Turns:
    """A few places, given for one item at a time to the visitor who has fewest, then to the one who had none longest.

    A long run of one visitor therefore holds up another by one batch at most, and nobody has two while others wait.

    >>> list(Turns(1).each(iter("abc"), Share()))
    ['a', 'b', 'c']
    """

    def __init__(self, places: int):
        self.places, self._given = places, 0
        self._waiting: dict[object, Share] = {}  # by ticket, in the order in which they came
        self._at_work = 0
        self._changed = threading.Condition()

    def each(self, items: Iterator, share: Share) -> Iterator:
        """The items, each made while a place is held."""
        while True:
            with self._place(share):
                item = next(items, _END)
            if item is _END:
                return
            yield item

    @contextmanager
    def _place(self, share: Share) -> Iterator[None]:
        with self._changed:
            ticket = object()
            self._waiting[ticket] = share
            self._changed.wait_for(lambda: self._at_work < self.places and self._next() is ticket)
            del self._waiting[ticket]
            self._given += 1
            self._at_work += 1
            share.at_work, share.last = share.at_work + 1, self._given
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._at_work -= 1
                share.at_work -= 1
                self._changed.notify_all()

    def _next(self) -> object:
        return min(self._waiting, key=lambda ticket: (self._waiting[ticket].at_work, self._waiting[ticket].last))


RUN_TURNS, ANSWER_TURNS, LAB_TURNS = Turns(MOST_JOBS), Turns(MOST_ANSWERS), Turns(MOST_LABS)


class Job:
    """An iterator drained in a thread of its own. `tell(item)`, `fail(message)` and `end(stopped)` are called there.

    >>> seen = []
    >>> job = Job(iter(range(3)), Share(), seen.append, seen.append, lambda stopped: seen.append(stopped))
    >>> job.wait(), seen
    (True, [0, 1, 2, False])
    """

    def __init__(
        self,
        items: Iterator,
        share: Share,
        tell: Callable[[Any], None],
        fail: Callable[[str], None],
        end: Callable[[bool], None],
        turns: Turns = RUN_TURNS,
    ):
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._drain, args=(turns.each(items, share), tell, fail, end), daemon=True
        )
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
            HOUSEKEEPER.tidy()
            end(self._stopped.is_set())


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
        self._share = Share()
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
        """End without waiting; an empty question overtakes what is at work."""
        with self._changed:
            self._open, self._question = False, (lambda: iter(()), lambda _: None)
            self._changed.notify()

    def _answer(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._question is not None or not self._open)
                if self._question is None:
                    return
                work, tell = self._question
                self._question = None
            for answer in ANSWER_TURNS.each(work(), self._share):
                with self._changed:
                    if self._question is not None:
                        break
                tell(answer)
            HOUSEKEEPER.tidy()
