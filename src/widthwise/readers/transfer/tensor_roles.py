"""Which tensors of a model grow with width or stand in repeated blocks, by comparison with a base model of its kind."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.network import Dense, Network
from widthwise.readers.empirical.model_functions import check_has_values, package_names, unwrapped
from widthwise.readers.jax_shapes import is_table, stored_shapes, table_shape

#: Modules of torch that look up rows.
_LOOKED_UP = ("Embedding", "EmbeddingBag")


@dataclass(frozen=True)
class TensorShape:
    """One tensor: its name and shape as (fan-out, fan-in, kernel…), and the tensor itself if there is one.

    `table` is "looked up" for embeddings, "tied" if they are the output too, "added" for positions and learned tokens.
    """

    name: str
    shape: tuple[int, ...]
    variance: float
    tensor: Any = None
    table: str = ""


@dataclass(frozen=True)
class RoledTensor:
    """A tensor with its role, its width and that of the base, and whether it stands in a repeated block."""

    own: TensorShape
    base: TensorShape
    role: str
    width: float
    in_block: bool


def tensors_of(model: Any) -> list[TensorShape]:
    """Tensors of a torch, Flax or Equinox model or of a network, with the variance that their entries have."""
    if isinstance(model, Network):
        return _of_network(model)
    kinds = package_names(model)
    if "torch" in kinds:
        return _of_torch(unwrapped(model))
    if kinds & {"flax", "equinox"}:
        from widthwise.readers.empirical.model_functions import function_of

        found = function_of(model, "model").parameters
        stored = stored_shapes(model, {name: tuple(value.shape) for name, value in found.items()})
        return [
            TensorShape(name, stored[name].shape, float(np.var(value)), value, stored[name].table)
            for name, value in found.items()
        ]
    expected = "a torch, Flax or Equinox module, or a widthwise network"
    raise InvalidInput("model_or_net", type(model).__name__, expected)


def _of_torch(model: Any) -> list[TensorShape]:
    check_has_values(dict(model.named_parameters()))
    tables = _tables_of_torch(model)
    turned = {id(part.weight) for part in model.modules() if type(part).__name__.startswith("ConvTranspose")}
    found = []
    for name, value in model.named_parameters():
        table, shape = tables.get(id(value), ""), tuple(value.shape)
        if table:
            shape = table_shape(shape, table).shape
        elif id(value) in turned:
            shape = (shape[1], shape[0], *shape[2:])
        entries = value.detach() if value.is_complex() else value.detach().double()
        variance = float(entries.var(unbiased=False)) if value.numel() else 0.0
        found.append(TensorShape(name, shape, variance, value, table))
    return found


def _tables_of_torch(model: Any) -> dict[int, str]:
    """Tensors of embeddings, and of positions and learned tokens, which lie in modules that are not torch's own."""
    found: dict[int, str] = {}
    owners = [(part, key, value) for part in model.modules() for key, value in part._parameters.items()]
    for part, key, value in owners:
        if value is None:
            continue
        if type(part).__name__ in _LOOKED_UP:
            elsewhere = any(one is value and type(own).__name__ not in _LOOKED_UP for own, _, one in owners)
            found[id(value)] = "tied" if elsewhere else "looked up"
        elif not type(part).__module__.startswith("torch.") and is_table(key, tuple(value.shape)):
            found[id(value)] = "added"
    return found


def _of_network(net: Network) -> list[TensorShape]:
    found, layer = [], 0
    for step in net.learned:
        if isinstance(step, Dense):
            layer += 1
            found.append(TensorShape(f"layer {layer} weight", (step.outputs, step.inputs), step.C_W / step.inputs))
            found.append(TensorShape(f"layer {layer} bias", (step.outputs,), step.C_b))
        else:
            found.append(TensorShape(f"layer {layer} gain", (1,), 0.0))
    return found


def name_pattern(name: str) -> tuple[str, int | None]:
    """A name without its first number, and that number: blocks.3.fc.weight is blocks.#.fc.weight and 3."""
    match = re.search(r"\d+", name)
    return (name, None) if match is None else (f"{name[: match.start()]}#{name[match.end() :]}", int(match.group()))


def _block_numbers(tensors: list[TensorShape]) -> Mapping[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for one in tensors:
        pattern, number = name_pattern(one.name)
        if number is not None:
            found[pattern].add(number)
    return found


def with_roles(
    tensors: list[TensorShape], base: list[TensorShape], given: Mapping[str, str] | None = None
) -> tuple[list[RoledTensor], float]:
    """The role of every tensor, and depth over base depth: how many times as many repeated blocks there are.

    `given` has roles by name, of tensors of the model or of those of the base to which they are compared.
    """
    by_name, by_pattern = {one.name: one for one in base}, {}
    for one in base:
        by_pattern.setdefault(name_pattern(one.name)[0], []).append(one)
    own_counts, base_counts = _block_numbers(tensors), _block_numbers(base)
    repeated = {p for p, numbers in own_counts.items() if len(numbers) > 1 and len(base_counts.get(p, ())) >= 1}
    ratios = {len(own_counts[p]) / len(base_counts[p]) for p in repeated}
    pairs = []
    for one in tensors:
        pattern, number = name_pattern(one.name)
        like = by_name.get(one.name)
        if like is None or (pattern in repeated and len(like.shape) != len(one.shape)):
            like = _nearest_block(by_pattern.get(pattern, []), number)
        if like is None or len(like.shape) != len(one.shape):
            got = f"a model without a tensor like {one.name} {one.shape}"
            raise InvalidInput("base", got, "a smaller model of the same kind")
        pairs.append((one, like))
    grows = any(one.shape[:2] != like.shape[:2] for one, like in pairs)
    by_place = {} if grows else _roles_by_place(tensors)
    found = []
    for one, like in pairs:
        role = next((given[name] for name in (one.name, like.name) if given and name in given), by_place.get(one.name))
        pattern = name_pattern(one.name)[0]
        found.append(_with_role(one, like, pattern in repeated and _same_within(pattern, tensors), role))
    return found, max(ratios, default=1.0)


def _roles_by_place(tensors: list[TensorShape]) -> dict[str, str]:
    """Where nothing grows, the first matrix is the input's, the last the output's, and those between are hidden.

    Embeddings that are looked up are the input, and the output too if they are tied.
    """
    tables = {one.table for one in tensors}
    names = [one.name for one in tensors if len(one.shape) >= 2 and not one.table]
    found = dict.fromkeys(names, "hidden") | {one.name: "input" for one in tensors if one.table}
    if not tables & {"looked up", "tied"}:
        found |= dict.fromkeys(names[:1], "input")
    if "tied" not in tables and (len(names) > 1 or "looked up" in tables):
        found |= dict.fromkeys(names[-1:], "output")
    return found


def _nearest_block(candidates: list[TensorShape], number: int | None) -> TensorShape | None:
    if not candidates:
        return None
    return min(candidates, key=lambda one: abs((name_pattern(one.name)[1] or 0) - (number or 0)))


def _same_within(pattern: str, tensors: list[TensorShape]) -> bool:
    """Whether tensors of one pattern have one shape: those of blocks do, those of a plain chain may not."""
    return len({one.shape for one in tensors if name_pattern(one.name)[0] == pattern}) == 1


def _with_role(one: TensorShape, like: TensorShape, in_block: bool, role: str | None) -> RoledTensor:
    growth = [a / b if b else 1.0 for a, b in zip(one.shape[:2], like.shape[:2], strict=True)]
    outputs, inputs = (ratio != 1.0 for ratio in (*growth, 1.0, 1.0)[:2])
    if role is None and len(one.shape) < 2:
        role = "vector" if one.shape else "fixed"
    elif role is None and one.table:
        role = "input" if outputs or inputs else "fixed"
    elif role is None:
        role = "hidden" if outputs and inputs else "input" if outputs else "output" if inputs else "fixed"
    assert role is not None
    width = growth[1] if role == "hidden" and len(growth) > 1 else max(growth, default=1.0)
    return RoledTensor(one, like, role, width, in_block)
