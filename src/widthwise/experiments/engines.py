"""Where the work is done: this process, several processes, or a Dask cluster, behind one switch.

The work comes in chunks whose borders do not depend on where they are computed, and results are handed back in the
order of the chunks. So whatever is summed over them is the same to the last bit from any number of workers.
"""

from __future__ import annotations

import io
import multiprocessing
import operator
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput

Task = Callable[[Any], Any]
Run = Callable[[Task, Sequence[Any]], Iterator[Any]]

#: Chunks handed out ahead of the one that is waited for, for each worker.
AHEAD = 3
#: Processes may die this many times before any further chunk is done.
BROKEN_POOLS = 3


def run_chunks(
    task: Task, chunks: Iterable[Any], engine: Any = None, on_result: Callable[[Any, Any], None] | None = None
) -> Iterator[Any]:
    """Results of `task(chunk)`, in the order of the chunks whichever is done first.

    Parameters
    ----------
    task : a function of one chunk; for other processes it must be picklable, such as a `functools.partial` of a
        function at the top of a module.
    chunks : for instance (start, stop) ranges of networks.
    engine : None or "local" for this process; a number of processes, or "processes:4"; for Dask the address of a
        scheduler, "tcp://host:port", or a `distributed.Client`.
    on_result : called with (chunk, result) before each result is yielded.

    The engine is checked at once; work starts with the first result that is asked for. A worker that dies is
    replaced and its chunks are computed again. Ctrl-C cancels what is left, closes the engine and raises
    KeyboardInterrupt where the results are read: those already yielded are complete.

    Examples
    --------
    >>> list(run_chunks(sum, [(0, 3), (3, 5)]))
    [3, 8]
    """
    chunks = list(chunks)
    return _deliver(select(engine)(task, chunks), chunks, on_result)


def _deliver(results: Iterator[Any], chunks: list[Any], on_result: Callable[[Any, Any], None] | None) -> Iterator[Any]:
    for chunk, result in zip(chunks, results, strict=True):
        if on_result is not None:
            on_result(chunk, result)
        yield result


def select(engine: Any) -> Run:
    """The function (task, chunks) → results in order that an `engine` argument stands for.

    >>> select("local").__name__
    '_here'
    """
    if engine is None or engine == "local":
        return _here
    if isinstance(engine, str) and engine.startswith("processes:"):
        return partial(_in_processes, workers=_workers(engine, engine.removeprefix("processes:")))
    if isinstance(engine, str) and engine.partition("://")[0] in ("tcp", "tls", "ws", "wss", "ucx", "inproc"):
        from widthwise.experiments.engine_dask import connect

        return connect(engine)
    if type(engine).__module__.partition(".")[0] == "distributed":
        from widthwise.experiments.engine_dask import use

        return use(engine)
    return partial(_in_processes, workers=_workers(engine, engine))


def _workers(engine: Any, count: Any) -> int:
    try:
        number = int(count) if isinstance(count, str) else operator.index(count)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or isinstance(count, bool):
        raise InvalidInput(
            "engine",
            repr(engine),
            'None or "local" for this process, a number of processes such as 4 or "processes:4", the address of a '
            'Dask scheduler such as "tcp://127.0.0.1:8786", or a distributed.Client',
        )
    return number


def _here(task: Task, chunks: Sequence[Any]) -> Iterator[Any]:
    for chunk in chunks:
        yield task(chunk)


def _in_processes(task: Task, chunks: Sequence[Any], workers: int) -> Iterator[Any]:
    """Fresh processes, not copies of this one: the threads of jax do not survive a fork."""
    shipped, done, broken = Shipped.of(task, pickle.Pickler), 0, 0
    while done < len(chunks):
        count = min(workers, len(chunks) - done)
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_leave_interrupts)
        try:
            for result in in_order(partial(pool.submit, shipped), chunks[done:], lambda: AHEAD * workers):
                done, broken = done + 1, 0
                yield result
        except BrokenProcessPool as error:
            broken += 1
            if broken == BROKEN_POOLS:
                raise InvalidInput(
                    "engine",
                    f"{workers} processes that ended {BROKEN_POOLS} times in a row before a chunk was done",
                    "processes that can start and have the memory for a chunk each",
                    "A script that uses several processes must keep its own work under `if __name__ == '__main__':`. "
                    "If it does, try fewer processes.",
                ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C is for the main process alone, which then ends this one in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def in_order(submit: Callable[[Any], Future], chunks: Sequence[Any], ahead: Callable[[], int]) -> Iterator[Any]:
    """Results in the order of the chunks, with a limited number of them under way or waiting to be read."""
    waiting: deque[Future] = deque()
    try:
        for chunk in chunks:
            waiting.append(submit(chunk))
            if len(waiting) >= ahead():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


@dataclass(frozen=True)
class Shipped:
    """A task as bytes. A worker unpacks it once, so that what jax has compiled for it is found again."""

    data: bytes

    @classmethod
    def of(cls, task: Task, pickler: type[Any]) -> Shipped:
        buffer = io.BytesIO()
        try:
            _by_name(pickler)(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(task)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidInput(
                "engine",
                f"other processes for work that cannot be sent to them ({error})",
                "functions that can be found by name",
                "Define your own activation at the top of a module, or stay in this process with engine=None.",
            ) from error
        return cls(buffer.getvalue())

    def __call__(self, chunk: Any) -> Any:
        return _unpack(self.data)(chunk)


@lru_cache(maxsize=4)
def _unpack(data: bytes) -> Task:
    return pickle.loads(data)


@lru_cache
def _by_name(pickler: type[Any]) -> type[Any]:
    """The pickler, but with built-in activations sent as their names: functions of jax cannot be pickled."""

    class ByName(pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, Activation) and obj.builtin:
                return resolve, (obj.spec,)
            inherited = getattr(super(), "reducer_override", None)
            return NotImplemented if inherited is None else inherited(obj)

    return ByName
