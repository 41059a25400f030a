"""Which tensors of a model grow with width or stand in repeated blocks, by comparison with a base model of its kind."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.network import Dense, Network
from widthwise.readers.empirical.model_functions import check_has_values, package_names, unwrapped


@dataclass(frozen=True)
class TensorShape:
    """One tensor: its name and shape as (fan-out, fan-in, kernel…), and the tensor itself if there is one."""

    name: str
    shape: tuple[int, ...]
    variance: float
    tensor: Any = None
    embedding: bool = False


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

        flax = "flax" in kinds
        found = function_of(model, "model").parameters
        return [
            TensorShape(name, _fan_out_first(value.shape, flax), float(np.var(value)), value, "embed" in name.lower())
            for name, value in found.items()
        ]
    expected = "a torch, Flax or Equinox module, or a widthwise network"
    raise InvalidInput("model_or_net", type(model).__name__, expected)


def _fan_out_first(shape: tuple[int, ...], flax: bool) -> tuple[int, ...]:
    """A Flax kernel is (…, inputs, outputs)."""
    return (*shape[::-1][:2], *shape[:-2]) if flax and len(shape) >= 2 else tuple(shape)


def _of_torch(model: Any) -> list[TensorShape]:
    embeddings = {id(part.weight) for part in model.modules() if type(part).__name__ == "Embedding"}
    turned = {id(part.weight) for part in model.modules() if type(part).__name__.startswith("ConvTranspose")}
    found = []
    check_has_values(dict(model.named_parameters()))
    for name, value in model.named_parameters():
        shape = tuple(value.shape)
        if id(value) in embeddings or id(value) in turned:
            shape = (shape[1], shape[0], *shape[2:])
        entries = value.detach() if value.is_complex() else value.detach().double()
        variance = float(entries.var(unbiased=False)) if value.numel() else 0.0
        found.append(TensorShape(name, shape, variance, value, id(value) in embeddings))
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


def with_roles(tensors: list[TensorShape], base: list[TensorShape]) -> tuple[list[RoledTensor], float]:
    """The role of every tensor, and depth over base depth: how many times as many repeated blocks there are."""
    by_name, by_pattern = {one.name: one for one in base}, {}
    for one in base:
        by_pattern.setdefault(name_pattern(one.name)[0], []).append(one)
    own_counts, base_counts = _block_numbers(tensors), _block_numbers(base)
    repeated = {p for p, numbers in own_counts.items() if len(numbers) > 1 and len(base_counts.get(p, ())) >= 1}
    ratios = {len(own_counts[p]) / len(base_counts[p]) for p in repeated}
    found = []
    for one in tensors:
        pattern, number = name_pattern(one.name)
        like = by_name.get(one.name)
        if like is None or (pattern in repeated and len(like.shape) != len(one.shape)):
            like = _nearest_block(by_pattern.get(pattern, []), number)
        if like is None or len(like.shape) != len(one.shape):
            got = f"a model without a tensor like {one.name} {one.shape}"
            raise InvalidInput("base", got, "a smaller model of the same kind")
        found.append(_with_role(one, like, pattern in repeated and _same_within(pattern, tensors)))
    if all(one.width == 1.0 for one in found):
        found = _roles_by_place(found)
    return found, max(ratios, default=1.0)


def _roles_by_place(tensors: list[RoledTensor]) -> list[RoledTensor]:
    """Where nothing grows, the first matrix is the input's, the last the output's, and those between are hidden."""
    matrices = [i for i, one in enumerate(tensors) if len(one.own.shape) >= 2]
    named = dict.fromkeys(matrices, "hidden") | dict.fromkeys(matrices[:1], "input")
    named |= dict.fromkeys(matrices[-1:] if len(matrices) > 1 else [], "output")
    return [
        replace(one, role="input" if one.own.embedding else named.get(i, one.role)) for i, one in enumerate(tensors)
    ]


def _nearest_block(candidates: list[TensorShape], number: int | None) -> TensorShape | None:
    if not candidates:
        return None
    return min(candidates, key=lambda one: abs((name_pattern(one.name)[1] or 0) - (number or 0)))


def _same_within(pattern: str, tensors: list[TensorShape]) -> bool:
    """Whether tensors of one pattern have one shape: those of blocks do, those of a plain chain may not."""
    return len({one.shape for one in tensors if name_pattern(one.name)[0] == pattern}) == 1


def _with_role(one: TensorShape, like: TensorShape, in_block: bool) -> RoledTensor:
    growth = [a / b if b else 1.0 for a, b in zip(one.shape[:2], like.shape[:2], strict=True)]
    width = max(growth, default=1.0)
    if len(one.shape) < 2:
        return RoledTensor(one, like, "vector" if one.shape else "fixed", width, in_block)
    outputs, inputs = (ratio != 1.0 for ratio in growth)
    role = "hidden" if outputs and inputs else "input" if outputs else "output" if inputs else "fixed"
    if one.embedding:
        role = "input" if outputs or inputs else "fixed"
    return RoledTensor(one, like, role, growth[1] if role == "hidden" and not one.embedding else width, in_block)
