"""The neural tangent kernel of any model, Ĥ_ij;ab = Σ λ (∂z_ia/∂θ)(∂z_jb/∂θ) (theory §3), within a bound on memory.

The Jacobian is never held whole: tensors are taken in groups whose rows fit the bound, a tensor that alone is too large
in pairs of blocks of rows. Products with the kernel need no rows at all: Ĥv = J λ Jᵀv, one pass backward and one
forward.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput, one_line
from widthwise.memory import available_bytes, require_memory
from widthwise.progress import DelayedProgress
from widthwise.readers.empirical.model_functions import CallArguments, ModelFunction, NamedTensors, count_inputs

#: Bytes of Jacobian rows that are held at once.
ROW_BYTES = 1 << 28
#: Inputs that are differentiated at once: what a pass keeps besides rows grows with them.
INPUTS_AT_ONCE = 32


def row_budget() -> int:
    return max(1 << 20, min(ROW_BYTES, available_bytes() // 8))


@dataclass(frozen=True, eq=False)
class TangentRows:
    """Rows of the Jacobian of a model at some inputs; rates λ by tensor, 1 where none is given."""

    function: ModelFunction
    arguments: CallArguments
    rates: Mapping[str, float]

    @cached_property
    def outputs(self) -> np.ndarray:
        """z (inputs, outputs)."""
        z = self.function.outputs(self.arguments)
        if not np.isfinite(z).all():
            raise InvalidInput("model", "outputs that are NaN or infinite", "finite outputs on these inputs")
        return z

    @property
    def inputs(self) -> int:
        return count_inputs(self.arguments)

    def check_inputs_are_independent(self) -> None:
        """Refuse a model whose output at one input depends on the others in the batch: it has no kernel of pairs."""
        alone = self.function.outputs(self.function.part(self.arguments, slice(0, 1)))[0]
        size = np.abs(self.outputs).max() + 1e-30
        if self.inputs > 1 and np.abs(alone - self.outputs[0]).max() > 1e-3 * size:
            raise InvalidInput(
                "model",
                "outputs that change with the other inputs of a batch",
                "one output for one input",
                "Normalise by running statistics, or put the batch axis first.",
            )

    def of(self, names: list[str], rows: slice, outputs: slice) -> dict[str, Any]:
        """∂z_ia/∂θ of some tensors: each (inputs, outputs, entries)."""
        f, parts = self.function, []
        for start in range(rows.start, rows.stop, INPUTS_AT_ONCE):
            some = f.part(self.arguments, slice(start, min(start + INPUTS_AT_ONCE, rows.stop)))
            try:
                parts.append(self._mapped(names, some, outputs))
            except (InvalidInput, RuntimeError, NotImplementedError):
                if not f.is_torch:
                    raise
                with _differentiating():
                    parts.append(self._one_by_one(names, some, outputs))
        join = f.library.cat if f.is_torch else f.library.concatenate
        return {name: join([part[name] for part in parts]) for name in names}

    def _mapped(self, names: list[str], some: CallArguments, outputs: slice) -> dict[str, Any]:
        f = self.function

        def at_one_input(chosen: NamedTensors, positional: Any, named: Any) -> Any:
            alone = tuple(value[None] for value in positional), {key: value[None] for key, value in named.items()}
            return f.call({**f.parameters, **chosen}, alone)[0][outputs]

        chosen = {name: f.parameters[name] for name in names}
        with _differentiating():
            found = f.transforms.vmap(f.transforms.jacrev(at_one_input), (None, 0, 0))(chosen, *some)
        return {name: value.reshape(*value.shape[:2], -1) for name, value in found.items()}

    def _one_by_one(self, names: list[str], some: CallArguments, outputs: slice) -> dict[str, Any]:
        """By torch alone, for modules that cannot be mapped over inputs: recurrent ones, control flow by data."""
        f, torch = self.function, self.function.library
        rows: dict[str, list[Any]] = {name: [] for name in names}
        for a in range(count_inputs(some)):
            leaves = {name: f.parameters[name].clone().requires_grad_() for name in names}
            z = f.call({**f.parameters, **leaves}, f.part(some, slice(a, a + 1)))[0][outputs]
            for i in range(len(z)):
                found = [None] * len(leaves)
                if z.requires_grad:
                    found = torch.autograd.grad(z[i], list(leaves.values()), retain_graph=True, allow_unused=True)
                for (name, leaf), value in zip(leaves.items(), found, strict=True):
                    rows[name].append((torch.zeros_like(leaf) if value is None else value).detach().reshape(-1))
        count = outputs.stop - outputs.start
        return {name: torch.stack(value).reshape(-1, count, value[0].numel()) for name, value in rows.items()}

    def groups(self, rows: int) -> Iterator[list[str]]:
        """NamedTensors whose rows together fit the bound; one that does not fit is a group of its own."""
        group, held = [], 0
        for name, value in self.function.parameters.items():
            needed = rows * int(np.prod(value.shape)) * _item_bytes(value)
            if group and held + needed > row_budget():
                yield group
                group, held = [], 0
            group.append(name)
            held += needed
        yield group

    def gram(self, outputs: slice, names: list[str] | None = None) -> np.ndarray:
        """Σ λ (∂z_ia)(∂z_jb) over the outputs of a slice: (inputs·outputs, inputs·outputs), inputs first."""
        count = outputs.stop - outputs.start
        total = np.zeros((self.inputs * count,) * 2)
        for group in self.groups(self.inputs * count):
            chosen = group if names is None else [name for name in group if name in names]
            if chosen:
                total += self._gram_of(chosen, outputs, count)
        return total

    def _gram_of(self, names: list[str], outputs: slice, count: int) -> np.ndarray:
        f, total = self.function, np.zeros((self.inputs * count,) * 2)
        one_input = sum(int(np.prod(f.parameters[name].shape)) for name in names) * count * 8
        block = max(1, min(self.inputs, int(row_budget() // one_input)))
        starts = range(0, self.inputs, block)

        def rows_at(start: int) -> dict[str, Any]:
            found = self.of(names, slice(start, min(start + block, self.inputs)), outputs)
            return {name: value.reshape(-1, value.shape[-1]) for name, value in found.items()}

        for start in starts:
            left = rows_at(start)
            for other in (s for s in starts if s <= start):
                right = left if other == start else rows_at(other)
                each = [self.rates.get(name, 1.0) * f.numpy(left[name] @ right[name].T) for name in names]
                part = np.sum(each, axis=0)
                one, two = (slice(s * count, s * count + len(part)) for s in (start, other))
                two = slice(two.start, two.start + part.shape[1])
                total[one, two] += part
                if other != start:
                    total[two, one] += part.T
        return total

    def kernel(self) -> np.ndarray:
        """Ĥ on (output, a, output_, b)."""
        n, outputs = self.outputs.shape
        size = n * outputs
        require_memory(8 * 4 * size**2, f"an NTK of {size} × {size} entries", "Take fewer inputs, or trace=True.")
        self.check_inputs_are_independent()
        found = self.gram(slice(0, outputs)).reshape(n, outputs, n, outputs)
        return np.ascontiguousarray(found.transpose(1, 0, 3, 2))

    def traced(self) -> np.ndarray:
        """Σ_i Ĥ_ii;ab on (a, b)."""
        n, outputs = self.outputs.shape
        require_memory(8 * 4 * n**2, f"an NTK of {n} × {n} entries", "Take fewer inputs.")
        self.check_inputs_are_independent()
        if self.function.is_torch:
            from widthwise.readers.empirical.traced_layers import traced_by_layers

            with _differentiating():
                return traced_by_layers(self)
        with DelayedProgress("outputs of the model") as bar:
            total = np.zeros((n, n))
            for i in range(outputs):
                total += self.gram(slice(i, i + 1))
                bar(i + 1, outputs)
        return total

    # products, on vectors over (output, a)

    @cached_property
    def _back(self) -> Callable[[Any], NamedTensors]:
        """Jᵀ, by the graph of one forward pass for all vectors."""
        f = self.function
        if not f.is_torch:
            z, back = f.transforms.vjp(lambda parameters: f.call(parameters, self.arguments), f.parameters)
            return lambda v: back(v.astype(z.dtype))[0]
        leaves, z = self._graph()

        def gradients(v: Any) -> NamedTensors:
            return self._gradients(z, leaves, v.to(z.dtype))

        return gradients

    def _graph(self) -> tuple[NamedTensors, Any]:
        """Leaves and outputs of a forward pass of torch, which differentiates whatever torch can be trained with."""
        f = self.function
        leaves = {name: value.detach().requires_grad_() for name, value in f.parameters.items()}
        return leaves, f.call(leaves, self.arguments)

    def _gradients(self, z: Any, leaves: NamedTensors, v: Any, again: bool = False) -> NamedTensors:
        """Jᵀv of torch; `again` says that it is to be differentiated by v."""
        torch = self.function.library
        found = [None] * len(leaves)
        if z.requires_grad:
            found = torch.autograd.grad(z, list(leaves.values()), v, True, again, allow_unused=True)
        each = zip(leaves.items(), found, strict=True)
        return {name: torch.zeros_like(leaf) if value is None else value for (name, leaf), value in each}

    def pull(self, v: np.ndarray) -> NamedTensors:
        """λJᵀv, v (outputs, inputs): a direction in parameter space."""
        with _differentiating():
            found = self._back(self.function.array(np.asarray(v, float).T))
        return {name: self.rates.get(name, 1.0) * value for name, value in found.items()}

    def push(self, direction: NamedTensors) -> np.ndarray:
        """J·direction: (outputs, inputs)."""
        f = self.function
        try:
            moved = f.transforms.jvp(lambda p: f.call(p, self.arguments), (f.parameters,), (direction,))[1]
        except (InvalidInput, RuntimeError, NotImplementedError):  # operations without forward derivatives
            if not f.is_torch:
                raise
            with _differentiating():
                moved = self._pushed_by_two_backward_passes(direction)
        return f.numpy(moved).T

    def _pushed_by_two_backward_passes(self, direction: NamedTensors) -> Any:
        """J·direction as the derivative of (Jᵀu)·direction by u."""
        torch = self.function.library
        leaves, z = self._graph()
        u = torch.zeros_like(z).requires_grad_()
        pulled = self._gradients(z, leaves, u, again=True)
        along = torch.stack([(value * direction[name]).sum() for name, value in pulled.items()]).sum()
        moved = torch.autograd.grad(along, u, allow_unused=True)[0] if along.requires_grad else None
        return torch.zeros_like(z) if moved is None else moved

    def product(self, v: np.ndarray) -> np.ndarray:
        """Ĥv without Ĥ."""
        return self.push(self.pull(v))

    def quadratic(self, v: np.ndarray) -> float:
        """vᵀĤv = |√λJᵀv|², by one pass backward."""
        found = self.pull(v)
        rates = {name: self.rates.get(name, 1.0) for name in found}
        return sum(float((value**2).sum()) / rates[name] for name, value in found.items() if rates[name])


@contextmanager
def _differentiating() -> Iterator[None]:
    """What torch says of a model that cannot be differentiated, in one line."""
    try:
        with warnings.catch_warnings():  # operations that torch maps by a loop are as right
            warnings.filterwarnings("ignore", "There is a performance drop")
            yield
    except InvalidInput:
        raise
    except (RuntimeError, NotImplementedError) as error:
        got = f"a model whose derivatives raise {one_line(error)}"
        raise InvalidInput("model", got, "a model that torch can differentiate") from error


def _item_bytes(value: Any) -> int:
    return 8 if "64" in str(value.dtype) else 4
