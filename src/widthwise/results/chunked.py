"""Kernels larger than memory: blocks of pairs of inputs that Dask computes, written to Zarr piece by piece.

A pair of inputs never needs a third one, so that every block is a rectangle of its own. Blocks below the diagonal are
those above it, turned. What is written is marked, and a run that was ended goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput, one_line
from widthwise.extras import need
from widthwise.files import check_path
from widthwise.flow.kernels.kernel_flow import check_differentiable, kernel_flow
from widthwise.network import Network
from widthwise.network.validation import check_integer
from widthwise.progress import DelayedProgress
from widthwise.results.labels import label, layer_coordinate

#: Beside a Zarr store: which pieces are whole, and what they are pieces of.
_MARKS = ".pieces.json"
#: Tasks that Dask may have to hold.
MOST_BLOCKS = 250_000


def chunked_kernels(
    net: Network, X: np.ndarray, X2: np.ndarray | None, names: tuple[str, ...], layers: str, number: np.dtype,
    chunks: Any,
) -> xr.Dataset:  # fmt: skip
    """K and Theta on (layer, a, b) as arrays of Dask in blocks of `chunks`² pairs; nothing is computed yet."""
    side = check_integer("chunks", chunks, 1, expected="a number of inputs along the side of a block, such as 2000")
    others = X if X2 is None else X2
    blocks = -(-len(X) // side) * -(-len(others) // side)
    if blocks > MOST_BLOCKS:
        fits = math.ceil(max(len(X), len(others)) / math.isqrt(MOST_BLOCKS))
        expected = f"at most {MOST_BLOCKS:,}, which are listed before any is computed"
        raise InvalidInput("chunks", f"{side}, which makes {blocks:,} blocks", expected, f"Take chunks={fits}.")
    array, delayed = need("dask.array", "distributed", "chunks="), need("dask", "distributed", "chunks=").delayed
    if "Theta" in names:
        check_differentiable(net)
    last_only = layers == "last"
    kept = (net.depth,) if last_only else tuple(range(1, net.depth + 1))
    block = delayed(partial(_block, net, names, last_only, number), pure=True)
    down, across = (range(0, len(rows), side) for rows in (X, others))
    # every part of the inputs travels once, whatever blocks read it
    first, second = ([delayed(rows[at : at + side], pure=True) for at in starts] for rows, starts in
                     ((X, down), (others, across)))  # fmt: skip
    grid: list[list[Any]] = [[None] * len(across) for _ in down]
    for i, row in enumerate(down):
        for j, column in enumerate(across):
            if X2 is None and j < i:
                grid[i][j] = array.swapaxes(grid[j][i], 2, 3)
                continue
            own = X2 is None and i == j
            shape = (len(names), len(kept), min(side, len(X) - row), min(side, len(others) - column))
            grid[i][j] = array.from_delayed(block(first[i], None if own else second[j]), shape, number)
    whole = array.block([[grid[i][j] for j in range(len(across))] for i in range(len(down))])
    variables = {name: (("layer", "a", "b"), whole[place]) for place, name in enumerate(names)}
    details = {"kind": "theory", "order": 0, "route": "blocks", "symmetric": int(X2 is None), "chunks": side}
    details["inputs_digest"] = hashlib.sha256(X.tobytes() + (b"" if X2 is None else X2.tobytes())).hexdigest()[:16]
    return label(variables, net, layer_coordinate(kept), **details)


def _block(net: Network, names: tuple[str, ...], last_only: bool, number: np.dtype, X, X2) -> np.ndarray:
    """K and Theta of one rectangle, on (name, layer, a, b)."""
    flow = kernel_flow(net, X, X2, with_theta="Theta" in names, last_only=last_only, dtype=number)
    return np.stack([np.asarray(getattr(flow, name)) for name in names])


@contextmanager
def refusing_what_no_file_holds() -> Iterator[None]:
    """Variables and attributes of the user's own may be anything."""
    try:
        yield
    except (TypeError, ValueError) as error:
        got = f"a Dataset that no file can hold ({one_line(error)})"
        raise InvalidInput("dataset", got, "variables and attributes that are numbers or texts") from error


def write_zarr(dataset: xr.Dataset, path: str | os.PathLike[str], progress: bool | None = None) -> Path:
    """Write a Dataset of `theory(..., chunks=…)` to a Zarr store, a row of blocks at a time; see `save`."""
    target = check_path("path", path, "the path of a Zarr store to write")
    compute = need("dask", "distributed", "Zarr").compute
    need("zarr", "distributed", "Zarr")
    side, symmetric = int(dataset.attrs.get("chunks", 0)), bool(dataset.attrs.get("symmetric", 0))
    if not {"a", "b"} <= set(dataset.dims):
        got = f"one on {', '.join(map(str, dataset.dims)) or 'no dimensions'}"
        raise InvalidInput("dataset", got, "kernels between inputs a and b", "A NetCDF file takes any Dataset.")
    rows, columns = dataset.sizes["a"], dataset.sizes["b"]
    side, what = side or rows, _fingerprint(dataset)
    marks, done = target.with_name(target.name + _MARKS), set()
    if marks.exists():
        try:
            known = json.loads(marks.read_text())
            of, done = known["of"], set(known["pieces"])
        except (ValueError, KeyError, TypeError) as error:
            got = f"'{target}', whose '{marks.name}' cannot be read"
            raise InvalidInput("path", got, "a new path", "Delete both to begin anew.") from error
        if of != what:
            raise InvalidInput("path", f"'{target}', which holds other kernels", "a new path, or that of this Dataset")
    elif os.path.lexists(target):
        raise InvalidInput("path", f"'{target}', which exists", "a new path, or that of a run that was ended")
    else:
        with refusing_what_no_file_holds():
            dataset.to_zarr(target, compute=False, zarr_format=3, consolidated=False)
        _replace(marks, json.dumps({"of": what, "pieces": []}))
    pieces = range(0, rows, side)
    with DelayedProgress("kernels to Zarr", progress) as advance:
        for count, start in enumerate(pieces, start=1):
            if start not in done:
                stop, begin = min(start + side, rows), start if symmetric else 0
                regions = [{"a": slice(start, stop), "b": slice(begin, columns)}]
                if symmetric and stop < rows:
                    regions.append({"a": slice(stop, rows), "b": slice(start, stop)})
                compute(*(_store_written(dataset, target, region) for region in regions))
                done.add(start)
                _replace(marks, json.dumps({"of": what, "pieces": sorted(done)}))
            advance(count, len(pieces))
    return target


def _store_written(dataset: xr.Dataset, target: Path, region: dict[str, slice]) -> Any:
    some = dataset.drop_vars([name for name in dataset.variables if not {"a", "b"} <= set(dataset[name].dims)])
    return some.isel(region).to_zarr(target, region=region, compute=False, consolidated=False)


def _fingerprint(dataset: xr.Dataset) -> list[Any]:
    sizes = {str(name): int(size) for name, size in dataset.sizes.items()}
    kinds = [f"{name} {dataset[name].dtype}" for name in dataset.data_vars]
    return [*(str(dataset.attrs.get(name, "")) for name in ("network", "inputs_digest", "chunks")), sizes, kinds]


def _replace(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    beside = path.with_suffix(".part")
    beside.write_text(text)
    os.replace(beside, path)
