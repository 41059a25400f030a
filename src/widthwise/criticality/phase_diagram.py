"""`phase_diagram`: the phases of an activation as a labelled Dataset."""

from __future__ import annotations

from typing import Any

import xarray as xr

from widthwise.activations import ActivationLike, resolve
from widthwise.criticality.phase_grid import phase_grid


def phase_diagram(activation: ActivationLike, C_W: Any, C_b: Any, x_square: float = 1.0) -> xr.Dataset:
    """Ordered, chaotic, critical or divergent: what depth does to signals, over a grid of C_W and C_b (theory §7).

    Variables on (C_b, C_W): `K_star`, the kernel that an input with x·x/n_0 = x_square reaches (infinity where it grows
    without bound); `chi_parallel` and `chi_perp` there; `phase` in words.

    >>> ds = phase_diagram("tanh", C_W=[0.8, 1.8], C_b=[0.0, 0.05])
    >>> ds["phase"].sel(C_b=0.0).values.tolist()
    ['ordered', 'chaotic']
    """
    sigma = resolve(activation)
    grid = phase_grid(sigma, C_W, C_b, x_square)
    dims = ("C_b", "C_W")
    variables = {
        "K_star": (dims, grid.K_star, {"long_name": "kernel that is reached with depth"}),
        "chi_parallel": (dims, grid.chi_parallel, {"long_name": "χ_∥ there (theory §7)"}),
        "chi_perp": (dims, grid.chi_perp, {"long_name": "χ_⊥ there (theory §7)"}),
        "phase": (dims, grid.names, {"long_name": "phase"}),
    }
    attrs = {"activation": sigma.spec, "x_square": x_square}
    return xr.Dataset(variables, {"C_b": grid.C_b, "C_W": grid.C_W}, attrs)
