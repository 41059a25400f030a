"""What leaves the layers of a Flax or Equinox model on a batch, and the gradients there, with spreads over fresh draws.

For the time of a call the classes of its layers have a `__call__` that keeps what leaves them and adds zeros, by which
the gradient is taken: it is the gradient by that signal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.readers.audit.observations import LayerSize, with_spreads
from widthwise.readers.empirical.model_functions import CallArguments, ModelFunction, first_output
from widthwise.readers.empirical.redraws import FreshDraws
from widthwise.readers.jax_shapes import modules_with_arrays


def layer_sizes(f: ModelFunction, arguments: CallArguments, draws: int, seed: int) -> tuple[list[LayerSize], int]:
    """Sizes by layer, and of how many fresh draws their spreads are."""
    fresh = FreshDraws(f, seed)
    first = _sizes_at(f, arguments, seed)
    again = [_sizes_at(f.at(fresh.draw()), arguments, seed) for _ in range(draws)]
    return with_spreads(first, again), len(again)


def _sizes_at(f: ModelFunction, arguments: CallArguments, seed: int) -> list[LayerSize]:
    kinds: dict[str, str] = {}

    def run(probes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        def call(positional: Any, named: Any, probes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            assert f.whole is not None
            whole = f.whole(f.parameters)
            with _watched_layers(whole, probes, kinds) as outgoing:
                found = first_output(whole(*positional, **named))
            return found, outgoing

        return (jax.vmap(call) if f.by_input else call)(*arguments, probes)

    _, outgoing = run({})
    z, back, _ = jax.vjp(run, jax.tree.map(jnp.zeros_like, outgoing), has_aux=True)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=z.shape)
    gradients = back(jnp.asarray(signs, z.dtype))[0]
    rows = max(1, z.shape[0])
    return [
        LayerSize(
            name,
            kinds[name],
            float(jnp.sqrt(jnp.mean(value.astype(float) ** 2))),
            float(jnp.linalg.norm(gradients[name].astype(float))) / math.sqrt(rows),
        )
        for name, value in outgoing.items()
    ]


@contextmanager
def _watched_layers(whole: Any, probes: Mapping[str, Any], kinds: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What leaves every module with arrays of its own, by name; `kinds` gets their classes."""
    modules = {name or "the model": module for name, module in modules_with_arrays(whole, "")}
    names, outgoing = {id(module): name for name, module in modules.items()}, {}
    classes = {type(module) for module in modules.values()}
    own = {cls: cls.__dict__.get("__call__") for cls in classes}

    def watching(original: Any) -> Any:
        def call(self: Any, *positional: Any, **named: Any) -> Any:
            found = original(self, *positional, **named)
            name = names.get(id(self))
            if name is None or not jnp.issubdtype(getattr(found, "dtype", int), jnp.floating):
                return found
            while name in outgoing:  # called once more
                name += "'"
            kinds[name] = type(self).__name__
            found = found + probes[name] if name in probes else found
            outgoing[name] = found
            return found

        return call

    for cls in classes:
        type.__setattr__(cls, "__call__", watching(cls.__call__))
    try:
        yield outgoing
    finally:
        for cls, original in own.items():
            if original is None:
                type.__delattr__(cls, "__call__")
            else:
                type.__setattr__(cls, "__call__", original)
