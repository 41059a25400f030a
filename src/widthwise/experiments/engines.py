"""Where the work is done: this process, several processes, or a Dask cluster, behind one switch.

The work comes in chunks whose borders do not depend on where they are computed, and results are handed back in the
order of the chunks. So whatever is summed over them is the same to the last bit from any number of workers.
"""

from __future__ import annotations

import io
import multiprocessing
import operator
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput, shown
from widthwise.extras import need
from widthwise.network.validation import is_one_of

Task = Callable[[Any], Any]

#: More processes than any machine has cores are a slip of the pen, and each takes a third of a gigabyte.
MOST_PROCESSES = 1024
#: Chunks handed out ahead of the one that is waited for, for each worker.
AHEAD = 3
#: Processes may die this many times before any further chunk is done.
BROKEN_POOLS = 3
#: Seconds to wait for a Dask scheduler, and for its first worker.
CLUSTER_PATIENCE = 10.0


def run_chunks(task: Task, chunks: Iterable[Any], engine: Any = None) -> Generator[Any]:
    """Results of `task(chunk)`, in the order of the chunks whichever is done first.

    Parameters
    ----------
    task : a function of one chunk; for other processes it must be picklable, such as a `functools.partial` of a
        function at the top of a module.
    chunks : for instance (start, stop) ranges of networks.
    engine : None or "local" for this process; a number of processes, or "processes:4"; for Dask the address of a
        scheduler, "tcp://host:port", or a `distributed.Client`.

    The engine is checked at once; work starts with the first result that is asked for. A worker that dies is
    replaced and its chunks are computed again. Ctrl-C cancels what is left, closes the engine and raises
    KeyboardInterrupt where the results are read: those already yielded are complete.

    Examples
    --------
    >>> list(run_chunks(sum, [(0, 3), (3, 5)]))
    [3, 8]
    """
    chunks = chunks if isinstance(chunks, Sequence) else list(chunks)
    if engine is None or is_one_of(engine, ("local",)):
        return (task(chunk) for chunk in chunks)
    if isinstance(engine, str) and engine.partition("://")[0] in ("tcp", "tls", "ws", "wss", "ucx", "inproc"):
        return _on_cluster(task, chunks, _connect(engine), close=True)
    if type(engine).__module__.partition(".")[0] == "distributed":
        if not isinstance(engine, _distributed().Client) or engine.asynchronous:  # pyright: ignore
            raise InvalidInput("engine", type(engine).__name__, "a distributed.Client that is not asynchronous")
        _require_workers(engine)
        return _on_cluster(task, chunks, engine, close=False)
    return _in_processes(task, chunks, _workers(engine))


def _workers(engine: Any) -> int:
    try:
        number = int(engine.removeprefix("processes:")) if isinstance(engine, str) else operator.index(engine)
    except Exception:  # of the caller's object, too
        number = 0
    if not 1 <= number <= MOST_PROCESSES or isinstance(engine, bool):
        raise InvalidInput(
            "engine",
            shown(engine),
            'None or "local" for this process, a number of processes up to '
            f'{MOST_PROCESSES} such as 4 or "processes:4", the address of a '
            'Dask scheduler such as "tcp://127.0.0.1:8786", or a distributed.Client',
        )
    return number


def _in_processes(task: Task, chunks: Sequence[Any], workers: int) -> Generator[Any]:
    """Fresh processes, not copies of this one: the threads of jax do not survive a fork."""
    shipped, done, broken = _Shipped.of(task, pickle.Pickler), 0, 0
    while done < len(chunks):
        count = min(workers, len(chunks) - done)
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _follow_parent)
        try:
            for result in _in_order(partial(_submit, pool, shipped), chunks[done:], lambda: AHEAD * workers):
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


def _submit(pool: ProcessPoolExecutor, task: Task, chunk: Any) -> Future:
    """Submit; a process that is started for it inherits that Ctrl-C is blocked, and so has it while Python starts."""
    if not hasattr(signal, "pthread_sigmask"):
        return pool.submit(task, chunk)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(task, chunk)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow_parent() -> None:
    """Ctrl-C is for the main process alone, which then ends the others in order; they do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _connect(address: str) -> Any:
    """A client of the scheduler at an address."""
    distributed = _distributed()
    try:
        client = distributed.Client(address, timeout=CLUSTER_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidInput(
            "engine",
            f"{address!r}, where no Dask scheduler answered within {CLUSTER_PATIENCE:g} s ({reason})",
            "the address of a running scheduler",
            f"`dask scheduler --port PORT` starts one, and `dask worker {address}` on each machine a worker.",
        ) from error
    try:
        _require_workers(client)
    except InvalidInput:
        client.close()
        raise
    return client


def _distributed() -> Any:
    return need("distributed", "distributed", "an engine that is a Dask cluster")


def _cluster_losses() -> tuple[type[Exception], ...]:
    from distributed import CancelledError
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import KilledWorker

    return CancelledError, CommClosedError, KilledWorker


def _require_workers(client: Any) -> None:
    try:
        client.wait_for_workers(1, timeout=CLUSTER_PATIENCE)
    except TimeoutError as error:
        address = client.scheduler.address
        raise InvalidInput(
            "engine",
            f"the scheduler at {address}, which had no worker within {CLUSTER_PATIENCE:g} s",
            "a scheduler with workers",
            f"`dask worker {address}` starts one.",
        ) from error


def _on_cluster(task: Task, chunks: Sequence[Any], client: Any, close: bool) -> Generator[Any]:
    """Chunks of a worker that dies are given to others by the scheduler; the connection may be closed with the run."""
    import cloudpickle

    shipped = _Shipped.of(task, cloudpickle.Pickler)
    try:
        # a pure function would be looked up among earlier results, and an impure one is computed when asked
        yield from _in_order(
            partial(client.submit, shipped, pure=False), chunks, lambda: AHEAD * max(1, sum(client.nthreads().values()))
        )
    except Exception as error:
        if client.status == "running" and not isinstance(error, _cluster_losses()):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise InvalidInput(
            "engine",
            f"a Dask cluster that was lost during the run ({reason})",
            "a scheduler and workers that live as long as the run",
            "Start them again and repeat the call: with a checkpoint it goes on where it was.",
        ) from error
    finally:
        if close:
            client.close()


def _in_order(submit: Callable[[Any], Future], chunks: Sequence[Any], ahead: Callable[[], int]) -> Generator[Any]:
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
class _Shipped:
    """A task as bytes. A worker unpacks it once, so that what jax has compiled for it is found again."""

    data: bytes

    @classmethod
    def of(cls, task: Task, pickler: type[Any]) -> _Shipped:
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
