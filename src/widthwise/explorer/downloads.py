"""Files that the page hands out: tables, NetCDF and vector figures."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from widthwise.plots.style import svg_text
from widthwise.results.store import save


def netcdf(dataset: xr.Dataset) -> io.BytesIO:
    """A NetCDF file that `widthwise.load` reads."""
    with tempfile.TemporaryDirectory() as folder:
        return io.BytesIO(save(dataset, Path(folder) / "data.nc").read_bytes())


def table(dataset: xr.Dataset) -> io.StringIO:
    """Comma-separated: a row for each value, with its name and its coordinates; the network in a first line.

    >>> made = xr.Dataset({"K": (("layer", "a"), [[1.0, 2.0]])}, {"layer": [3]}, {"network": "N"})
    >>> print(table(made).getvalue())
    # network: N
    name,index,value
    K,layer=3 a=0,1.0
    K,layer=3 a=1,2.0
    <BLANKLINE>
    """
    lines = [f"# network: {dataset.attrs['network']}", "name,index,value"]
    for name, array in dataset.data_vars.items():
        axes = [array[dim].values if dim in array.coords else np.arange(size) for dim, size in array.sizes.items()]
        for place in np.ndindex(array.shape):
            where = " ".join(
                f"{dim}={axis[i].item():.10g}" for dim, axis, i in zip(array.dims, axes, place, strict=True)
            )
            lines.append(f"{name},{where},{array.values[place].item()!r}")
    return io.StringIO("\n".join(lines) + "\n")


def vector(figure: Figure) -> io.StringIO:
    """A figure as SVG."""
    return io.StringIO(svg_text(figure))
