"""How Flax (nnx) and Equinox models store tensors: shapes as (fan-out, fan-in, kernel…), and which are looked up."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from widthwise.readers.empirical.model_functions import package_names


@dataclass(frozen=True)
class StoredShape:
    """A tensor's shape as (fan-out, fan-in, kernel…), one axis for biases, and whether its rows are looked up.

    `table` is "looked up" for embeddings, "added" for positions and learned tokens, otherwise empty.
    """

    shape: tuple[int, ...]
    table: str = ""


def stored_shapes(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, StoredShape]:
    """By name of the tensor. Layers with several axes of features have one fan-in and one fan-out."""
    flax = "flax" in package_names(model)
    found = {
        name: StoredShape((*shape[::-1][:2], *shape[:-2]) if flax and len(shape) >= 2 else tuple(shape))
        for name, shape in shapes.items()
    }
    for path, module in modules_with_arrays(model, ""):
        own = {key: f"{path}.{key}".lstrip(".") for key, value in vars(module).items() if is_array(value)}
        own = {key: name for key, name in own.items() if name in shapes}
        kind, of_package = type(module).__name__, type(module).__module__.partition(".")[0] in ("flax", "equinox")
        tables = own if kind in ("Embed", "Embedding") else {} if of_package else own
        for key, name in tables.items():
            if of_package or is_table(key, shapes[name]):
                found[name] = table_shape(shapes[name], "looked up" if of_package else "added")
        if kind in ("LinearGeneral", "Einsum") and "kernel" in own:
            fans = _einsum_fans(module, shapes[own["kernel"]]) if kind == "Einsum" else _general_fans(module)
            found |= {own[key]: StoredShape(fans if key == "kernel" else fans[:1]) for key in own}
    return found


def is_table(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of no known layer is embeddings, positions or learned tokens: rows looked up or added."""
    named = re.search(r"embed|token|^(pos|wte|wpe|cls)", name.lower()) is not None
    return len(shape) >= 2 and (named or (len(shape) > 2 and shape[0] == 1))


def table_shape(shape: tuple[int, ...], kind: str) -> StoredShape:
    """Features, which are the last axis of a table, first."""
    return StoredShape((shape[-1], *shape[:-1]), kind)


def _general_fans(module: Any) -> tuple[int, ...]:
    return math.prod(module.out_features), math.prod(module.in_features)


def _einsum_fans(module: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of the kernel that leave are fan-out, those that are summed with the input fan-in."""
    terms, result = module.einsum_str.replace(" ", "").split("->")
    labels = terms.split(",")[1]
    sizes = dict(zip(labels, shape, strict=True))
    return (
        math.prod(size for label, size in sizes.items() if label in result),
        math.prod(size for label, size in sizes.items() if label not in result),
    )


def modules_with_arrays(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(name, module) of every module that holds arrays itself."""
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, list | tuple) or type(value).__name__ == "List":
        items = enumerate(value)
    elif package_names(value) & {"flax", "equinox"} and hasattr(value, "__dict__") and not is_array(value):
        items = vars(value).items()
        if callable(value) and any(is_array(item) for item in vars(value).values()):
            yield path, value
    else:
        return
    for key, item in items:
        yield from modules_with_arrays(item, f"{path}.{key}" if path else str(key))


def is_array(value: Any) -> bool:
    """An array of jax, or a variable of Flax that holds one."""
    return hasattr(value, "shape") and hasattr(value, "dtype")
