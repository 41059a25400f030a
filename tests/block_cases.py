"""Reference numbers of residual and normalised networks, and the networks that they are of."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from conftest import DATA

import widthwise as ww

PAGES = ("residual", "normalised", "prenorm")
NUMBERS = ("C_b", "C_W", "lambda_b", "lambda_W")


@dataclass(frozen=True, eq=False)
class BlockCase:
    """A network, its inputs, and its tensors by layer, from the first layer that the case tells."""

    name: str
    net: ww.Network
    X: np.ndarray
    relative_error: float
    layers: list[dict[str, np.ndarray]]

    @property
    def first_layer(self) -> int:
        return self.net.depth + 1 - len(self.layers)


@cache
def block_cases() -> tuple[BlockCase, ...]:
    return (
        *(_of_page(page, case) for page in PAGES for case in json.loads((DATA / f"{page}.json").read_text())["cases"]),
        _by_one_input(),
    )


def _of_page(page: str, case: dict[str, Any]) -> BlockCase:
    layers = case.get("layers") or [case["output"]]
    return BlockCase(
        name=f"{page}-{case['name']}",
        net=_network(page, case),
        X=np.array(case["X"]),
        relative_error=case["relative_error"],
        layers=[{name: np.array(value) for name, value in layer.items()} for layer in layers],
    )


def mixed_stream(n: int) -> ww.Network:
    """LayerNorm behind blocks without one, σ not odd: its mean and its second moment fluctuate together.

    They do not where σ is odd, nor where every norm of the stream is a LayerNorm, which a shift of all neurons leaves alone.
    """
    per_layer = {
        "C_b": [0.0, 0.1, 0.05, 0.2],
        "C_W": [1.2, 1.4, 1.3, 1.4],
        "lambda_b": [0.0, 0.3, 0.1, 0.2],
        "lambda_W": [0.8, 0.9, 1.2, 0.6],
    }
    return ww.ResMLP([1, n, n, n, 1], "swish", [0.9, 0.8], norm=[None, None, ("ln", 0.05)], **per_layer)


def _by_one_input() -> BlockCase:
    """V and G1 by the route of one input, whose rules are written otherwise: neurons as Hermite series."""
    net, x = mixed_stream(64), np.ones(1)
    found = ww.single_input(net, x, tensors=["V", "G1"]).sel(layer=net.depth)
    V, G1 = found["V_ratio"].item() * found["K"].item() ** 2, found["G1_ratio"].item() * found["K"].item()
    layer = {"V": np.full((1,) * 4, V), "G1": np.full((1, 1), G1)}
    return BlockCase("prenorm-swish-none-ln, by one input", net, x[None], 1e-10, [layer])


def _network(page: str, case: dict[str, Any]) -> ww.Network:
    numbers = {name: case[name] for name in NUMBERS}
    norm = [entry and tuple(entry) for entry in case["norm"]] if "norm" in case else None
    if page == "normalised":
        return ww.NormMLP(case["widths"], case["activation"], norm, **numbers)
    return ww.ResMLP(case["widths"], case["activation"], case["skip"], norm=norm, **numbers)
