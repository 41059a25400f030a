"""A Dask cluster as an engine: any number of workers on any number of machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from widthwise.errors import InvalidInput
from widthwise.experiments.engines import AHEAD, Run, Shipped, Task, in_order

#: Seconds to wait for a scheduler, and for its first worker.
CLUSTER_PATIENCE = 10.0


def connect(address: str) -> Run:
    """The engine of the scheduler at an address; the connection is closed with the run."""
    distributed = _distributed()
    start = f"`dask scheduler --port PORT` starts one, and `dask worker {address}` on each machine a worker."
    try:
        client = distributed.Client(address, timeout=CLUSTER_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            "engine",
            f"{address!r}, where no Dask scheduler answered within {CLUSTER_PATIENCE:g} s ({_first_line(error)})",
            "the address of a running scheduler",
            start,
        ) from error
    try:
        return partial(_on_cluster, client=_with_workers(client), close=True)
    except InvalidInput:
        client.close()
        raise


def use(client: Any) -> Run:
    """The engine of a `distributed.Client`, which stays open."""
    if not isinstance(client, _distributed().Client) or client.asynchronous:
        raise InvalidInput("engine", type(client).__name__, "a distributed.Client that is not asynchronous")
    return partial(_on_cluster, client=_with_workers(client), close=False)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise InvalidInput(
            "engine",
            "a Dask cluster, but the package `distributed` is not installed",
            "dask and distributed, here and on the workers",
            "pip install 'widthwise[distributed]', or use a number of processes such as engine=4.",
        ) from error
    return distributed


def _with_workers(client: Any) -> Any:
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
    return client


def _on_cluster(task: Task, chunks: Sequence[Any], client: Any, close: bool) -> Iterator[Any]:
    """Chunks of a worker that dies are given to others by the scheduler."""
    import cloudpickle

    shipped = Shipped.of(task, cloudpickle.Pickler)
    try:
        # a pure function would be looked up among earlier results, and an impure one is computed when asked
        yield from in_order(
            partial(client.submit, shipped, pure=False), chunks, lambda: AHEAD * max(1, sum(client.nthreads().values()))
        )
    finally:
        if close:
            client.close()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
