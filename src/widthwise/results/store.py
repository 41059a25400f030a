"""NetCDF files that any xarray reopens, with the network and the version inside."""

from __future__ import annotations

import os
from pathlib import Path

import xarray as xr

from widthwise.errors import InvalidInput, one_line
from widthwise.extras import need
from widthwise.files import check_path, replacing
from widthwise.results.chunked import refusing_what_no_file_holds, write_zarr


def save(dataset: xr.Dataset, path: str | os.PathLike[str]) -> Path:
    """Write a Dataset to NetCDF 4. The file appears whole or not at all: it is written beside and then renamed.

    A path that ends with ".zarr" makes a Zarr store: a Dataset of `theory(..., chunks=…)` is computed and written piece
    by piece, and the same call goes on where a run was ended.

    >>> import tempfile, widthwise as ww
    >>> ds = ww.theory(ww.MLP([2, 8, 1], "relu", C_W=2.0), [[0.5, 1.0]], order=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ww.load(ww.save(ds, folder + "/kernels.nc")).identical(ds)
    True
    """
    if not isinstance(dataset, xr.Dataset):
        raise InvalidInput("dataset", repr(dataset), "an xarray.Dataset, as theory, measure, predict and train return")
    if str(path).endswith(".zarr"):
        return write_zarr(dataset, path)
    target = check_path("path", path, "the path of a NetCDF file to write")
    if not os.path.isdir(target.parent):
        raise InvalidInput("path", f"'{target}'", f"an existing folder '{target.parent}'", "Create it first.")
    # made in memory: HDF5 ends in a segmentation fault where it cannot write to a disk
    with refusing_what_no_file_holds():
        image = dataset.to_netcdf(engine="h5netcdf")
    with replacing(target) as part:
        part.write_bytes(image)
    return target


def load(path: str | os.PathLike[str]) -> xr.Dataset:
    """Read a Dataset written by `save`, into memory; a Zarr store is left on disk, as arrays of Dask."""
    if str(path).endswith(".zarr"):
        need("zarr", "distributed", "Zarr")
        store = check_path("path", path, "the path of a Zarr store")
        try:
            return xr.open_zarr(store, consolidated=False)
        except (OSError, ValueError, KeyError) as error:
            raise InvalidInput(
                "path", f"'{store}', which cannot be read ({one_line(error)})", "a Zarr store"
            ) from error
    source = check_path("path", path, "the path of a NetCDF file")
    if not os.path.isfile(source):
        raise InvalidInput("path", f"'{source}'", "an existing NetCDF file")
    try:
        with xr.open_dataset(source, engine="h5netcdf") as dataset:
            loaded = dataset.load()
    except Exception as error:  # HDF5 has a RuntimeError for some damage, and xarray errors of its own
        got = f"'{source}', which cannot be read ({one_line(error)})"
        raise InvalidInput("path", got, "a NetCDF 4 file") from error
    # numbers come back from HDF5 as numpy scalars or arrays of one; they were plain Python numbers
    alone = {name: value.item() for name, value in loaded.attrs.items() if getattr(value, "size", 0) == 1}
    loaded.attrs |= alone
    return loaded
